"""On-demand instances and pins: what wakes one, what lets it sleep, what a pin holds back."""

import pytest

from protocol.cards import card_digest
from protocol.commands import (
    Command,
    DrainNode,
    MoveInstance,
    PinInstance,
    RetryInstance,
    SleepInstance,
    StopInstance,
    UnpinInstance,
    WakeInstance,
)
from protocol.errors import ErrorBody, SkulkError
from protocol.events import (
    Event,
    InstanceFailed,
    InstanceFellAsleep,
    InstancePinned,
    InstanceRemoved,
    InstanceStopRequested,
    InstanceUnpinned,
    InstanceWoken,
)
from protocol.instances import Instance, Phase
from protocol.placements import Plan
from protocol.readings import Readings
from protocol.state import ClusterState
from skulkd.core.apply import apply
from skulkd.core.decide import decide
from skulkd.core.invariants import event_violations, violations
from skulkd.core.placement.memory_fit import claims_by_node
from skulkd.core.placement.planner import plan
from tests.support.builders import (
    MIB,
    NOW_MS,
    a_command_id,
    a_failure,
    a_failure_report,
    a_member,
    a_node_id,
    a_phase_report,
    a_placement,
    a_reading,
    a_request,
    a_scripted_card,
    a_sequenced,
    a_state,
    an_instance,
    an_instance_id,
    some_readings,
)

TTL_MS = 60_000
CARD = a_scripted_card()
ROOMY = some_readings(a_reading(1), a_reading(2))
FULL = some_readings(a_reading(1, memory_available_bytes=MIB))
LATER_MS = NOW_MS + 60_000


def then(
    state: ClusterState, command: Command, readings: Readings = ROOMY, *, now_ms: int = NOW_MS
) -> tuple[list[Event], ClusterState]:
    events = list(decide(state, readings, command, now_ms=now_ms))
    for event in events:
        record = a_sequenced(event, seq=state.seq + 1, term=state.term, at_ms=now_ms)
        assert event_violations(state, record) == ()
        state = apply(state, record)
        assert violations(state) == ()
    return events, state


def refused(
    state: ClusterState, command: Command, readings: Readings = ROOMY, *, now_ms: int = NOW_MS
) -> SkulkError:
    with pytest.raises(SkulkError) as caught:
        then(state, command, readings, now_ms=now_ms)
    assert caught.value.remediation
    return caught.value


def on_demand(phase: Phase | None = "ready", *, pinned: bool = False) -> Instance:
    """Make one that is awake, its runner in this phase; or asleep, and never asked for."""
    instance = an_instance(phase=phase, card=CARD)
    desired = "asleep" if phase is None else "running"
    return instance.model_copy(update={"ttl_ms": TTL_MS, "pinned": pinned, "desired": desired})


def having(*instances: Instance) -> ClusterState:
    return a_state(members=[a_member(1), a_member(2)], instances=instances)


def planned(node: int) -> Plan:
    """Plan the model on a node."""
    state, readings = a_state(members=[a_member(node)]), some_readings(a_reading(node))
    return plan(a_request(CARD), CARD, card_digest(CARD), state, readings).plans[0]


def wake() -> WakeInstance:
    return WakeInstance(command_id=a_command_id(7), instance_id=an_instance_id())


def sleep(attempt: int = 1) -> SleepInstance:
    return SleepInstance(command_id=a_command_id(8), instance_id=an_instance_id(), attempt=attempt)


def pin() -> PinInstance:
    return PinInstance(command_id=a_command_id(9), instance_id=an_instance_id())


def unpin() -> UnpinInstance:
    return UnpinInstance(command_id=a_command_id(9), instance_id=an_instance_id())


def asleep_after(phase: Phase) -> ClusterState:
    """Put one to sleep, and have its node tell the next phase."""
    _, state = then(having(on_demand()), sleep())
    return then(state, a_phase_report(phase))[1]


def test_an_on_demand_placement_is_asleep_and_takes_no_memory() -> None:
    placement = a_placement(planned(1), CARD).model_copy(update={"ttl_ms": TTL_MS})
    _, state = then(having(), placement)
    (instance,) = state.instances.values()
    assert (instance.phase, instance.ttl_ms) == ("asleep", TTL_MS)
    assert claims_by_node(state, ROOMY) == {}


def test_a_request_wakes_it_once_and_its_first_attempt_is_the_first() -> None:
    events, state = then(having(on_demand(None)), wake())
    assert events == [InstanceWoken(instance_id=an_instance_id(), attempt=1)]
    assert state.instances[an_instance_id()].phase == "pending"
    assert then(state, wake())[0] == []
    assert claims_by_node(state, ROOMY)[a_node_id()]


def test_one_that_does_not_fit_now_is_refused_with_the_numbers_and_stays_asleep() -> None:
    error = refused(having(on_demand(None)), wake(), FULL)
    assert error.code == "placement.no_fit"
    assert "1.0 MiB" in error.message
    assert "available" in error.message


def test_memory_that_an_engine_has_just_left_may_still_come_back() -> None:
    state = asleep_after("stopped")
    early = refused(state, wake(), FULL, now_ms=NOW_MS + 2000)
    assert (early.code, early.retry_after_s) == ("placement.facts_missing", 2)
    assert refused(state, wake(), FULL, now_ms=LATER_MS).code == "placement.no_fit"


def test_idle_it_falls_asleep_and_its_memory_is_claimed_until_its_engine_is_gone() -> None:
    events, state = then(having(on_demand()), sleep())
    assert events == [InstanceFellAsleep(instance_id=an_instance_id())]
    (claim,) = claims_by_node(state, ROOMY)[a_node_id()]
    assert claim.is_settling
    _, state = then(state, a_phase_report("stopped"))
    assert state.instances[an_instance_id()].phase == "asleep"
    assert claims_by_node(state, ROOMY) == {}


@pytest.mark.parametrize("command", [sleep(attempt=2), sleep(attempt=0)])
def test_a_word_about_another_attempt_puts_nobody_to_sleep(command: SleepInstance) -> None:
    assert then(having(on_demand()), command)[0] == []


@pytest.mark.parametrize(
    "instance",
    [
        on_demand("load"),
        on_demand(None),
        on_demand(pinned=True),
        an_instance(),
        an_instance(stopping=True),
    ],
    ids=["loading", "asleep", "pinned", "always loaded", "stopping"],
)
def test_nobody_else_falls_asleep(instance: Instance) -> None:
    assert then(having(instance), sleep())[0] == []


def test_woken_while_its_engine_is_there_it_goes_on_in_the_same_attempt() -> None:
    _, state = then(having(on_demand()), sleep())
    # It has the memory: that there is no more of it keeps nobody from going on.
    events, state = then(state, wake(), FULL)
    assert events == [InstanceWoken(instance_id=an_instance_id(), attempt=1)]
    assert state.instances[an_instance_id()].phase == "ready"


def test_woken_once_its_engine_is_gone_it_begins_a_new_attempt() -> None:
    events, state = then(asleep_after("stopped"), wake())
    assert events == [InstanceWoken(instance_id=an_instance_id(), attempt=2)]
    woken = state.instances[an_instance_id()]
    assert (woken.phase, woken.runners) == ("pending", ())


def test_too_little_memory_at_the_load_lets_it_sleep_and_the_next_request_tries_again() -> None:
    error = ErrorBody(code="runner.no_memory", message="too little", remediation="free some")
    report = a_failure_report(phase="stage", error=error)
    events, state = then(having(on_demand("stage")), report)
    assert [event.kind for event in events] == ["instance_failed", "instance_fell_asleep"]
    assert isinstance(events[0], InstanceFailed)
    assert not events[0].failure.final
    instance = state.instances[an_instance_id()]
    assert (instance.phase, instance.failure) == ("asleep", events[0].failure)
    events, state = then(state, wake(), now_ms=LATER_MS)
    assert events == [InstanceWoken(instance_id=an_instance_id(), attempt=2)]


def test_a_cause_that_stays_is_not_met_again_before_an_operator_has_acted() -> None:
    alone = a_state(instances=(on_demand("load"),))
    _, state = then(alone, a_failure_report())
    assert state.instances[an_instance_id()].phase == "failed"
    assert refused(state, wake()).code == "placement.failed"
    retry = RetryInstance(command_id=a_command_id(5), instance_id=an_instance_id(), after_attempt=1)
    assert then(state, retry)[1].instances[an_instance_id()].phase == "pending"


def test_one_that_sleeps_is_not_tried_again_but_woken() -> None:
    retry = RetryInstance(command_id=a_command_id(5), instance_id=an_instance_id(), after_attempt=1)
    assert refused(having(on_demand(None)), retry).code == "placement.not_live"


def test_what_is_unknown_or_stopping_is_neither_woken_nor_pinned() -> None:
    stopping = having(an_instance(stopping=True))
    for state in (having(), stopping):
        for command in (wake(), pin(), unpin()):
            assert refused(state, command).code == "placement.not_live"


def test_a_pin_is_set_once_taken_back_once_and_wakes_nobody() -> None:
    events, state = then(having(on_demand(None)), pin())
    assert events == [InstancePinned(instance_id=an_instance_id())]
    assert state.instances[an_instance_id()].phase == "asleep"
    assert then(state, pin())[0] == []
    events, state = then(state, unpin())
    assert events == [InstanceUnpinned(instance_id=an_instance_id())]
    assert then(state, unpin())[0] == []


def test_a_drain_takes_no_pinned_instance_along() -> None:
    drain = DrainNode(command_id=a_command_id(5), node_id=a_node_id(1), drain_ms=0)
    error = refused(having(on_demand(pinned=True)), drain)
    assert error.code == "placement.pinned"
    assert error.details == {"instance_id": an_instance_id()}
    assert then(having(on_demand()), drain)[0]


def test_a_stopped_sleeper_is_gone_once_its_node_has_said_so_anew() -> None:
    stop = StopInstance(command_id=a_command_id(5), instance_id=an_instance_id())
    for state in (having(on_demand(None)), asleep_after("stopped")):
        events, stopping = then(state, stop)
        assert events == [InstanceStopRequested(instance_id=an_instance_id())]
        events, left = then(stopping, a_phase_report("stopped"))
        assert events == [InstanceRemoved(instance_id=an_instance_id())]
        assert not left.instances


def test_a_moved_one_stays_what_it_was_and_is_loaded_where_it_goes() -> None:
    made = planned(2)
    move = MoveInstance(
        command_id=a_command_id(20),
        instance_id=an_instance_id(),
        request=a_request(CARD),
        plan=made,
        card=CARD,
        drain_ms=0,
    )
    _, state = then(having(on_demand(None, pinned=True)), move, some_readings(a_reading(2)))
    new = state.instances[an_instance_id(20)]
    assert (new.phase, new.ttl_ms, new.pinned) == ("pending", TTL_MS, True)


def test_a_failure_that_was_final_is_no_reason_to_sleep() -> None:
    failed = on_demand("load").model_copy(update={"failure": a_failure(final=True)})
    assert then(having(failed), sleep())[0] == []
