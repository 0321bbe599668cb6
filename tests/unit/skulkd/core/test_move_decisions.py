import pytest

from protocol.cards import ModelCard, card_digest
from protocol.commands import Command, MoveInstance, StopInstance
from protocol.errors import PlacementError, SkulkError
from protocol.events import (
    Event,
    InstanceFailed,
    InstancePlaced,
    InstanceRemoved,
    InstanceReplanned,
    InstanceStopRequested,
    MemberLost,
    RunnerPhaseChanged,
)
from protocol.instances import DisconnectPolicy, Instance, Replacement
from protocol.state import ClusterState
from skulkd.core.apply import apply
from skulkd.core.decide import decide
from skulkd.core.invariants import violations
from skulkd.core.move_decisions import check_movable, holds_back, move_of
from skulkd.core.placement.planner import plan
from skulkd.core.reconcile import desired_runners
from tests.support.builders import (
    GIB,
    NOW_MS,
    a_card,
    a_command_id,
    a_failure,
    a_failure_report,
    a_member,
    a_node_id,
    a_phase_report,
    a_reading,
    a_request,
    a_sequenced,
    a_state,
    an_instance,
    an_instance_id,
    some_readings,
)

CARD = a_card(size_bytes=GIB)
OLD, NEW = 1, 7
READINGS = some_readings(a_reading(1), a_reading(2), a_reading(3))
MEMBERS = (a_member(1), a_member(2), a_member(3))


def a_cluster(*instances: Instance) -> ClusterState:
    return a_state(members=MEMBERS, instances=instances or (an_instance(OLD, card=CARD),))


def a_move(
    state: ClusterState,
    *,
    old: int = OLD,
    new: int = NEW,
    to: int = 2,
    card: ModelCard = CARD,
    stop_first: bool = False,
) -> MoveInstance:
    request = a_request(card).model_copy(update={"nodes": (a_node_id(to),)})
    outcome = plan(request, card, card_digest(card), state, READINGS)
    return MoveInstance(
        command_id=a_command_id(new),
        instance_id=an_instance_id(old),
        request=request,
        plan=outcome.plans[0],
        card=card,
        stop_first=stop_first,
        drain_ms=60_000,
    )


def decided(state: ClusterState, command: Command) -> list[Event]:
    return list(decide(state, READINGS, command, now_ms=NOW_MS))


def refused(state: ClusterState, command: Command) -> SkulkError:
    with pytest.raises(SkulkError) as caught:
        decided(state, command)
    return caught.value


def after(state: ClusterState, *commands: Command) -> ClusterState:
    for command in commands:
        state = with_events(state, decided(state, command))
    return state


def with_events(state: ClusterState, events: list[Event]) -> ClusterState:
    for event in events:
        state = apply(state, a_sequenced(event, seq=state.seq + 1))
        assert violations(state) == ()
    return state


def moving(*, stop_first: bool = False, replace: bool = True) -> ClusterState:
    policy = DisconnectPolicy(replace=replace)
    old = an_instance(OLD, card=CARD).model_copy(update={"disconnect": policy})
    state = a_cluster(old)
    return after(state, a_move(state, stop_first=stop_first))


def new_reports(phase: str) -> Command:
    base = a_phase_report("load", instance=NEW, node=2, command=80)
    return base.model_copy(update={"phase": phase})


def old_is_gone() -> Command:
    return a_phase_report("stopped", instance=OLD, command=81)


def test_the_new_instance_is_placed_beside_the_old_one_which_goes_on() -> None:
    state = a_cluster()
    (event,) = decided(state, a_move(state))
    assert isinstance(event, InstancePlaced)
    placed = event.instance
    assert placed.instance_id == an_instance_id(NEW)
    assert placed.replaces == Replacement(instance_id=an_instance_id(OLD), drain_ms=60_000)
    assert placed.moved_from == (a_node_id(1),)
    moved = with_events(state, [event])
    assert moved.instances[an_instance_id(OLD)].phase == "ready"
    under_way = move_of(moved, an_instance_id(OLD))
    assert under_way is not None
    assert under_way.new.instance_id == placed.instance_id


def test_the_old_one_is_drained_by_the_report_that_makes_the_new_one_ready() -> None:
    state = after(moving(), new_reports("load"))
    ready, stop = decided(state, new_reports("ready"))
    assert isinstance(ready, RunnerPhaseChanged)
    assert stop == InstanceStopRequested(instance_id=an_instance_id(OLD), drain_ms=60_000)
    state = with_events(state, [ready, stop])
    assert state.instances[an_instance_id(OLD)].phase == "stopping"
    assert decided(state, new_reports("ready")) == []


def test_a_move_is_over_when_the_old_one_is_gone() -> None:
    state = after(moving(), new_reports("ready"), old_is_gone())
    (left,) = state.instances.values()
    assert (left.instance_id, left.phase, left.replaces) == (an_instance_id(NEW), "ready", None)
    assert left.moved_from == (a_node_id(1),)


def test_stop_first_stops_the_old_one_and_holds_the_new_one_back_until_it_is_gone() -> None:
    state = moving(stop_first=True)
    assert state.instances[an_instance_id(OLD)].phase == "stopping"
    assert state.instances[an_instance_id(OLD)].drain_ms == 60_000
    assert holds_back(state, state.instances[an_instance_id(NEW)])
    assert desired_runners(state, a_node_id(2)) == ()
    state = after(state, old_is_gone())
    (wanted,) = desired_runners(state, a_node_id(2))
    assert wanted.key.instance_id == an_instance_id(NEW)


def test_an_old_one_whose_node_is_away_is_not_waited_for() -> None:
    state = moving(stop_first=True)
    away = MemberLost(node_id=a_node_id(1), silent_ms=6000, is_refused=False)
    state = with_events(state, [away])
    assert len(desired_runners(state, a_node_id(2))) == 1
    state = after(state, new_reports("load"))
    back = state.members[a_node_id(1)].model_copy(update={"presence": "present"})
    state = state.changed({"members": {**state.members, a_node_id(1): back}})
    assert len(desired_runners(state, a_node_id(2))) == 1, "what has begun is not ended again"


def test_a_new_one_that_cannot_be_loaded_leaves_the_old_one_as_it_is() -> None:
    state = after(moving(), new_reports("load"))
    (event,) = decided(state, a_failure_report(instance=NEW, node=2, command=82))
    assert isinstance(event, InstanceFailed)
    assert "goes on on box-1" in event.failure.error.remediation
    assert f"skulk retry {an_instance_id(NEW)}" in event.failure.error.remediation
    state = with_events(state, [event])
    assert state.instances[an_instance_id(OLD)].phase == "ready"
    assert move_of(state, an_instance_id(OLD)) is None


def test_after_stop_first_the_failure_says_how_to_have_it_back() -> None:
    state = after(moving(stop_first=True, replace=False), old_is_gone(), new_reports("load"))
    (event,) = decided(state, a_failure_report(instance=NEW, node=2, command=82))
    assert isinstance(event, InstanceFailed)
    assert f"skulk place {CARD.model_id} --nodes box-1 --context" in event.failure.error.remediation


def test_after_stop_first_one_that_fails_is_put_where_it_may_be() -> None:
    state = after(moving(stop_first=True), old_is_gone(), new_reports("load"))
    failed, placed = decided(state, a_failure_report(instance=NEW, node=2, command=82))
    assert isinstance(failed, InstanceFailed)
    assert not failed.failure.final
    assert isinstance(placed, InstanceReplanned)
    assert placed.repair.at_fault == (a_node_id(2),)
    assert placed.plan.shards[0].node_id in {a_node_id(1), a_node_id(3)}


def test_a_failure_of_later_days_says_nothing_of_the_move() -> None:
    state = after(moving(), new_reports("ready"), old_is_gone())
    new = state.instances[an_instance_id(NEW)]
    assert new.moved_from
    failing = a_failure_report(instance=NEW, node=2, phase="ready", was_ready=True, command=83)
    for event in decided(state, failing):
        if isinstance(event, InstanceFailed):
            assert event.failure.error == failing.error


def test_a_new_one_that_is_stopped_gives_the_move_up() -> None:
    stop = StopInstance(command_id=a_command_id(90), instance_id=an_instance_id(NEW))
    gone = a_phase_report("stopped", instance=NEW, node=2, command=91)
    state = after(moving(), stop, gone)
    assert state.instances[an_instance_id(OLD)].phase == "ready"
    assert check_movable(state, an_instance_id(OLD)).instance_id == an_instance_id(OLD)


def test_an_old_one_that_is_stopped_meanwhile_leaves_a_new_one_like_any_other() -> None:
    stop = StopInstance(command_id=a_command_id(90), instance_id=an_instance_id(OLD))
    state = after(moving(), stop, old_is_gone(), new_reports("ready"))
    assert state.instances[an_instance_id(NEW)].replaces is None


def test_one_that_failed_is_moved_away_and_forgotten_once_the_new_one_serves() -> None:
    state = a_cluster(an_instance(OLD, card=CARD, failure=a_failure()))
    state = after(state, a_move(state))
    assert an_instance_id(OLD) in state.instances
    removed = InstanceRemoved(instance_id=an_instance_id(OLD))
    assert decided(state, new_reports("ready"))[1:] == [removed]


def test_one_that_is_being_moved_is_not_moved_again_and_neither_is_the_new_one() -> None:
    state = moving()
    for old in (OLD, NEW):
        move = a_move(state, to=3, new=8).model_copy(update={"instance_id": an_instance_id(old)})
        error = refused(state, move)
        assert (error.code, error.details["instance_id"]) == (
            "placement.busy",
            an_instance_id(NEW),
        )


def test_it_is_not_moved_to_where_it_is_nor_from_where_it_is_not() -> None:
    state = a_cluster()
    own = a_move(a_state(members=MEMBERS), to=1)
    assert refused(state, own).code == "placement.already_live"
    with pytest.raises(PlacementError) as caught:
        check_movable(state, an_instance_id(5))
    assert caught.value.code == "placement.not_live"
    stopping = a_cluster(an_instance(OLD, card=CARD, stopping=True))
    assert refused(stopping, a_move(stopping)).code == "placement.not_live"


def test_a_plan_of_another_model_is_a_conflict() -> None:
    other = a_card(model_id="test/other", size_bytes=GIB)
    state = a_cluster()
    assert refused(state, a_move(state, card=other)).code == "placement.plan_changed"


def test_a_move_that_is_sent_again_changes_nothing() -> None:
    state = a_cluster()
    move = a_move(state)
    assert decided(after(state, move), move) == []


def test_a_stop_that_waits_may_be_hurried_and_not_slowed() -> None:
    slow = StopInstance(command_id=a_command_id(90), instance_id=an_instance_id(), drain_ms=60_000)
    state = after(a_cluster(), slow)
    assert decided(state, slow.model_copy(update={"drain_ms": 90_000})) == []
    now = slow.model_copy(update={"drain_ms": 0})
    hurried = InstanceStopRequested(instance_id=an_instance_id(), drain_ms=0)
    assert decided(state, now) == [hurried]
