"""Waking what does not fit: which instances are unloaded for it, and which never are."""

from dataclasses import replace

import pytest

from protocol.commands import SleepInstance, WakeInstance
from protocol.errors import SkulkError
from protocol.events import Event, InstanceFellAsleep, InstanceWoken
from protocol.instances import Instance, Phase
from protocol.readings import InstanceReading, Readings
from protocol.state import ClusterState
from skulkd.core.apply import apply
from skulkd.core.decide import decide
from skulkd.core.invariants import event_violations, violations
from tests.support.builders import (
    GIB,
    NOW_MS,
    a_command_id,
    a_member,
    a_node_id,
    a_phase_report,
    a_plan,
    a_reading,
    a_scripted_card,
    a_sequenced,
    a_state,
    an_instance,
    an_instance_id,
    some_arithmetic,
    some_readings,
)

NOW_S = 1000.0
FREE = GIB


def on_demand(
    number: int, phase: Phase | None = "ready", *, size: int = 4 * GIB, node: int = 1
) -> Instance:
    """Make one of a model of its own, loaded, or asleep where no phase is given."""
    card = a_scripted_card(model_id=f"test/model-{number}", size_bytes=size)
    made = a_plan(card, node=node)
    memory = some_arithmetic(weights_bytes=size)
    shard = made.shards[0].model_copy(update={"memory": memory})
    instance = an_instance(
        number,
        card=card,
        node=node,
        phase=phase,
        plan=made.model_copy(update={"shards": (shard,)}),
    )
    desired = "asleep" if phase is None else "running"
    return instance.model_copy(update={"ttl_ms": 60_000, "desired": desired})


def reading_of(number: int, *, idle_s: float | None = 60.0, queued: int = 0) -> InstanceReading:
    return InstanceReading(
        instance_id=an_instance_id(number),
        node_id=a_node_id(1),
        at_s=NOW_S,
        in_flight=0 if idle_s is not None else 1,
        queued=queued,
        slots=2,
        idle_since_s=None if idle_s is None else NOW_S - idle_s,
    )


def seeing(*readings: InstanceReading, free_bytes: int = FREE) -> Readings:
    """Read the nodes too: the first one has little memory left."""
    nodes = (
        a_reading(1, at_s=NOW_S, memory_available_bytes=free_bytes),
        a_reading(2, at_s=NOW_S, memory_available_bytes=free_bytes),
    )
    found = {reading.instance_id: reading for reading in readings}
    return replace(some_readings(*nodes), instances=found)


def having(*instances: Instance) -> ClusterState:
    return a_state(members=[a_member(1), a_member(2)], instances=instances)


def wake(number: int = 9) -> WakeInstance:
    return WakeInstance(command_id=a_command_id(70), instance_id=an_instance_id(number))


def woken(
    state: ClusterState, readings: Readings, number: int = 9
) -> tuple[list[Event], ClusterState]:
    events = list(decide(state, readings, wake(number), now_ms=NOW_MS, now_s=NOW_S))
    for event in events:
        record = a_sequenced(event, seq=state.seq + 1, term=state.term, at_ms=NOW_MS)
        assert event_violations(state, record) == ()
        state = apply(state, record)
        assert violations(state) == ()
    return events, state


def unloaded(state: ClusterState, readings: Readings) -> list[int]:
    """Name those that go for the ninth."""
    events, _ = woken(state, readings)
    by_id = {an_instance_id(number): number for number in range(1, 9)}
    found: list[int] = []
    for event in events:
        assert isinstance(event, InstanceFellAsleep)
        assert event.room_for == "test/model-9"
        found.append(by_id[event.instance_id])
    return found


def refused(state: ClusterState, readings: Readings) -> SkulkError:
    with pytest.raises(SkulkError) as caught:
        woken(state, readings)
    assert caught.value.remediation
    return caught.value


def test_the_one_that_was_used_the_longest_ago_goes_first_and_no_more_than_are_needed() -> None:
    state = having(on_demand(1), on_demand(2), on_demand(9, None))
    assert unloaded(state, seeing(reading_of(1, idle_s=9), reading_of(2, idle_s=30))) == [2]
    assert unloaded(state, seeing(reading_of(1, idle_s=90), reading_of(2, idle_s=30))) == [1]
    # A small one would have gone first, and does not help.
    small = on_demand(3, size=GIB // 8)
    state = having(small, on_demand(2), on_demand(9, None))
    assert unloaded(state, seeing(reading_of(3, idle_s=90), reading_of(2, idle_s=30))) == [2]


def test_the_lowest_priority_goes_first_and_none_for_a_lower_one() -> None:
    kept = on_demand(1).model_copy(update={"priority": 5})
    readings = seeing(reading_of(1, idle_s=90), reading_of(2, idle_s=9))
    for asked in (0, 5, 9):
        wanted = on_demand(9, None).model_copy(update={"priority": asked})
        assert unloaded(having(kept, on_demand(2), wanted), readings) == [2]
    above = on_demand(9, None).model_copy(update={"priority": 5})
    assert unloaded(having(kept, above), readings) == [1]
    error = refused(having(kept, on_demand(9, None)), readings)
    assert error.code == "placement.no_fit"
    assert "on demand, priority 5" in error.message


def test_several_go_where_one_does_not_do() -> None:
    state = having(on_demand(1), on_demand(2), on_demand(9, None, size=7 * GIB))
    readings = seeing(reading_of(1, idle_s=9), reading_of(2, idle_s=30))
    assert unloaded(state, readings) == [2, 1]


def test_nobody_goes_where_there_is_room() -> None:
    state = having(on_demand(1), on_demand(9, None))
    events, _ = woken(state, seeing(reading_of(1), free_bytes=8 * GIB))
    assert events == [InstanceWoken(instance_id=an_instance_id(9), attempt=1)]


@pytest.mark.parametrize(
    "reading",
    [reading_of(1, idle_s=None), reading_of(1, queued=1), reading_of(1, idle_s=0.5)],
    ids=["answers", "has a queue", "was just used"],
)
def test_what_is_in_use_is_never_unloaded_and_who_asks_is_told_to_wait(
    reading: InstanceReading,
) -> None:
    error = refused(having(on_demand(1), on_demand(9, None)), seeing(reading))
    assert (error.code, error.retry_after_s) == ("placement.memory_in_use", 5)
    assert "test/model-1 holds 4." in error.message


def test_one_that_nobody_has_told_of_is_not_taken_for_idle() -> None:
    state = having(on_demand(1), on_demand(9, None))
    assert refused(state, seeing()).code == "placement.memory_in_use"


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"pinned": True}, "pinned: skulk unpin"), ({"ttl_ms": None}, "always loaded: skulk stop")],
)
def test_what_is_to_stay_is_never_unloaded_and_named(changes: dict[str, object], why: str) -> None:
    stays = on_demand(1).model_copy(update=changes)
    error = refused(having(stays, on_demand(9, None)), seeing(reading_of(1)))
    assert error.code == "placement.no_fit"
    assert why in error.message


def test_nobody_is_unloaded_in_vain_or_on_another_node() -> None:
    state = having(on_demand(1), on_demand(9, None, size=40 * GIB))
    assert refused(state, seeing(reading_of(1))).code == "placement.no_fit"
    state = having(on_demand(1, node=2), on_demand(9, None))
    assert refused(state, seeing(reading_of(1))).code == "placement.no_fit"


def test_it_is_loaded_once_the_memory_is_measured_to_be_back() -> None:
    readings = seeing(reading_of(1))
    _, state = woken(having(on_demand(1), on_demand(9, None)), readings)
    assert state.instances[an_instance_id(1)].made_room_for == "test/model-9"
    assert refused(state, readings).code == "placement.facts_missing"
    report = a_phase_report("stopped")
    for event in decide(state, readings, report, now_ms=NOW_MS):
        state = apply(state, a_sequenced(event, seq=state.seq + 1, term=state.term, at_ms=NOW_MS))
    assert refused(state, readings).code == "placement.facts_missing"
    events, _ = woken(state, seeing(free_bytes=8 * GIB))
    assert events == [InstanceWoken(instance_id=an_instance_id(9), attempt=1)]


def test_what_is_still_loaded_does_not_take_back_what_was_given_away() -> None:
    _, state = woken(having(on_demand(1), on_demand(9, None)), seeing(reading_of(1)))
    events, back = woken(state, seeing(), 1)
    assert events == [InstanceWoken(instance_id=an_instance_id(1), attempt=1)]
    assert back.instances[an_instance_id(1)].made_room_for is None
    large = on_demand(8, size=13 * GIB)
    given = state.model_copy(update={"instances": {**state.instances, large.instance_id: large}})
    with pytest.raises(SkulkError) as caught:
        woken(given, seeing(), 1)
    assert caught.value.code == "placement.facts_missing"


def test_a_time_to_live_that_is_over_names_no_other_model() -> None:
    state = having(on_demand(1))
    command = SleepInstance(command_id=a_command_id(71), instance_id=an_instance_id(1), attempt=1)
    (event,) = decide(state, seeing(), command, now_ms=NOW_MS, now_s=NOW_S)
    assert event == InstanceFellAsleep(instance_id=an_instance_id(1))
