"""Instances on several nodes: the master decides for all of them, each worker runs its own."""

import pytest

from protocol.cards import card_digest
from protocol.commands import Command, RemoveMember, ReportLeave, ReportLoss, RetryInstance
from protocol.errors import SkulkError
from protocol.events import (
    Event,
    InstanceFailed,
    InstancePlaced,
    InstanceRetried,
    RunnerPhaseChanged,
)
from protocol.ids import NodeId
from protocol.instances import Phase
from protocol.placements import Plan
from protocol.readings import Readings
from protocol.state import ClusterState
from skulkd.core.apply import apply
from skulkd.core.decide import decide
from skulkd.core.invariants import event_violations, violations
from skulkd.core.placement.planner import plan
from skulkd.core.placement.question import STALE_READING_S
from skulkd.core.reconcile import (
    ObservedRunner,
    RenewAttempt,
    RunnerKey,
    StartRunner,
    StopRunner,
    desired_runners,
    reconcile,
)
from tests.support.builders import (
    GIB,
    NOW_MS,
    a_card,
    a_command_id,
    a_failure_report,
    a_member,
    a_node_id,
    a_phase_report,
    a_placement,
    a_reading,
    a_request,
    a_sequenced,
    a_state,
    an_admission,
    an_instance,
    an_instance_id,
    some_readings,
)

CARD = a_card(size_bytes=GIB)
READINGS = some_readings(a_reading(1, memory_available_bytes=4 * GIB), a_reading(2), a_reading(3))


def three() -> ClusterState:
    return a_state(members=[a_member(1), a_member(2), a_member(3)])


def running(*, node: int = 2, phase: Phase = "ready") -> ClusterState:
    """Make three nodes with an instance on one of them."""
    instance = an_instance(node=node, phase=phase)
    return a_state(members=[a_member(1), a_member(2), a_member(3)], instances=[instance])


def decided(
    state: ClusterState,
    command: Command,
    readings: Readings = READINGS,
    *,
    now_s: float | None = None,
    unheard: frozenset[NodeId] = frozenset(),
) -> list[Event]:
    return list(decide(state, readings, command, now_ms=NOW_MS, now_s=now_s, unheard=unheard))


def refused(
    state: ClusterState,
    command: Command,
    readings: Readings = READINGS,
    *,
    now_s: float | None = None,
    unheard: frozenset[NodeId] = frozenset(),
) -> SkulkError:
    with pytest.raises(SkulkError) as caught:
        decided(state, command, readings, now_s=now_s, unheard=unheard)
    return caught.value


def after(state: ClusterState, command: Command) -> ClusterState:
    for event in decided(state, command):
        record = a_sequenced(event, seq=state.seq + 1)
        assert event_violations(state, record) == ()
        state = apply(state, record)
    assert violations(state) == ()
    return state


def planned_on(node: int, state: ClusterState | None = None) -> Plan:
    request = a_request(CARD).model_copy(update={"nodes": (a_node_id(node),)})
    return plan(request, CARD, card_digest(CARD), state or three(), READINGS).plans[0]


def lost(number: int) -> ReportLoss:
    return ReportLoss(
        command_id=a_command_id(80), node_id=a_node_id(number), silent_ms=6000, is_refused=False
    )


def left(number: int) -> ReportLeave:
    return ReportLeave(command_id=a_command_id(81), node_id=a_node_id(number))


def key(attempt: int = 1) -> RunnerKey:
    return RunnerKey(an_instance_id(), 0, attempt)


# ---- Placing ----


def test_the_master_places_on_another_node_by_its_own_readings() -> None:
    made = planned_on(2)
    (event,) = decided(three(), a_placement(made, CARD))
    assert isinstance(event, InstancePlaced)
    (shard,) = event.instance.plan.shards
    assert (shard.node_id, shard.memory.available_bytes) == (a_node_id(2), 12 * GIB)
    moved = some_readings(a_reading(1), a_reading(2, memory_available_bytes=GIB), a_reading(3))
    error = refused(three(), a_placement(made, CARD), moved)
    assert error.code == "placement.plan_changed"
    assert "box-2" in error.message


def test_each_node_takes_a_copy_and_none_takes_two() -> None:
    state = three()
    for node in (1, 2, 3):
        state = after(state, a_placement(planned_on(node, state), CARD, command=node))
    assert len(state.instances) == 3
    assert refused(state, a_placement(planned_on(2), CARD, command=9)).code == (
        "placement.already_live"
    )


def test_nothing_is_placed_on_a_node_that_is_lost_or_left() -> None:
    made = planned_on(2)
    for gone in (lost(2), left(2)):
        error = refused(after(three(), gone), a_placement(made, CARD))
        # The request leaves the choice to the planner, which has another plan.
        assert error.code == "placement.plan_changed"
        assert "box-2" in error.message
        asked = a_request(CARD).model_copy(update={"nodes": (a_node_id(2),)})
        error = refused(after(three(), gone), a_placement(made, CARD, request=asked))
        assert error.code == "placement.node_unreachable"


def test_nothing_is_placed_on_a_node_that_the_master_does_not_hear() -> None:
    asked = a_request(CARD).model_copy(update={"nodes": (a_node_id(2),)})
    command = a_placement(planned_on(2), CARD, request=asked)
    error = refused(three(), command, unheard=frozenset({a_node_id(2)}))
    assert error.code == "placement.node_unreachable"
    later_s = STALE_READING_S + 1
    assert refused(three(), command, now_s=later_s).code == "placement.facts_missing"
    assert decided(three(), command, now_s=1.0)


# ---- Reports ----


@pytest.mark.parametrize("node", [1, 2, 3])
def test_the_master_notes_what_the_worker_of_any_node_reports(node: int) -> None:
    state = running(node=node, phase="load")
    (event,) = decided(state, a_phase_report("probe", node=node))
    assert isinstance(event, RunnerPhaseChanged)
    (failed, *_) = decided(state, a_failure_report(node=node))
    assert isinstance(failed, InstanceFailed)
    assert failed.failure.node_id == a_node_id(node)


@pytest.mark.parametrize("node", [1, 3])
def test_a_report_of_a_node_where_the_instance_is_not_placed_is_refused(node: int) -> None:
    state = running(node=2, phase="load")
    assert refused(state, a_phase_report("ready", node=node)).code == "request.invalid"
    assert refused(state, a_failure_report(node=node)).code == "request.invalid"


def test_what_a_removed_node_says_of_its_runners_changes_nothing() -> None:
    removal = RemoveMember(command_id=a_command_id(82), node_id=a_node_id(2))
    state = after(running(node=2), removal)
    assert state.instances == {}
    assert decided(state, a_phase_report("ready", node=2)) == []
    assert decided(state, a_failure_report(node=2)) == []


# ---- Lost and back ----


def test_an_instance_stays_desired_while_its_node_is_away() -> None:
    for gone in (lost(2), left(2)):
        state = after(running(node=2), gone)
        instance = state.instances[an_instance_id()]
        assert (instance.desired, instance.phase) == ("running", "ready")
        assert desired_runners(state, a_node_id(1)) == ()
        assert len(desired_runners(state, a_node_id(2))) == 1


def test_a_node_that_was_only_cut_off_goes_on_with_the_runner_it_has() -> None:
    state = after(after(running(node=2), lost(2)), an_admission(2, command=83))
    there = [ObservedRunner(key=key(), phase="ready")]
    assert reconcile(desired_runners(state, a_node_id(2)), there) == ()


@pytest.mark.parametrize("gone", [lost(2), left(2)])
def test_a_node_that_was_restarted_begins_a_new_attempt(gone: ReportLoss | ReportLeave) -> None:
    state = after(after(running(node=2), gone), an_admission(2, command=83))
    renewed = RenewAttempt(instance_id=an_instance_id(), after_attempt=1)
    assert reconcile(desired_runners(state, a_node_id(2)), []) == (renewed,)
    retry = RetryInstance(
        command_id=a_command_id(84), instance_id=an_instance_id(), after_attempt=1
    )
    assert decided(state, retry) == [InstanceRetried(instance_id=an_instance_id(), attempt=2)]
    (start,) = reconcile(desired_runners(after(state, retry), a_node_id(2)), [])
    assert isinstance(start, StartRunner)
    assert start.runner.key == key(attempt=2)


def test_a_node_that_was_removed_meanwhile_stops_what_it_still_runs() -> None:
    removal = RemoveMember(command_id=a_command_id(82), node_id=a_node_id(2))
    state = after(after(running(node=2), lost(2)), removal)
    there = [ObservedRunner(key=key(), phase="ready")]
    stop = StopRunner(key=key(), reason="unknown")
    assert reconcile(desired_runners(state, a_node_id(2)), there) == (stop,)


def test_every_worker_runs_what_is_placed_on_its_node_and_nothing_else() -> None:
    cards = [a_card(model_id=f"test/m{number}") for number in (1, 2, 3)]
    instances = [
        an_instance(number, card=card, node=number, phase=None)
        for number, card in enumerate(cards, start=1)
    ]
    twice = an_instance(4, card=a_card(model_id="test/m4"), node=2, phase=None)
    state = a_state(
        members=[a_member(number) for number in (1, 2, 3, 4)], instances=[*instances, twice]
    )
    placed = {
        number: {want.key.instance_id for want in desired_runners(state, a_node_id(number))}
        for number in (1, 2, 3, 4)
    }
    assert placed == {
        1: {an_instance_id(1)},
        2: {an_instance_id(2), an_instance_id(4)},
        3: {an_instance_id(3)},
        4: set(),
    }


def test_b01_a_node_killed_and_restarted_three_times_is_one_member_and_one_candidate() -> None:
    state = three()
    for life in range(3):
        state = after(state, lost(2))
        assert state.members[a_node_id(2)].presence == "lost"
        outcome = plan(a_request(CARD), CARD, card_digest(CARD), state, READINGS)
        assert a_node_id(2) not in {made.shards[0].node_id for made in outcome.plans}
        state = after(state, an_admission(2, command=90 + life))
        assert state.members[a_node_id(2)].presence == "present"
        assert set(state.members) == {a_node_id(1), a_node_id(2), a_node_id(3)}
        outcome = plan(a_request(CARD), CARD, card_digest(CARD), state, READINGS)
        assert [made.shards[0].node_id for made in outcome.plans].count(a_node_id(2)) == 1
