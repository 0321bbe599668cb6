"""Draining: what follows from the word, what it refuses, and what a plan says of it."""

import pytest

from protocol.commands import Command, DrainNode, RetryInstance, StopInstance, UndrainNode
from protocol.errors import SkulkError
from protocol.events import (
    Event,
    InstancePlaced,
    InstanceRemoved,
    InstanceStopRequested,
    MemberJoined,
    NodeDrainEnded,
    NodeDrainStarted,
)
from protocol.ids import InstanceId
from protocol.readings import Readings
from protocol.state import ClusterState
from skulkd.core.apply import apply
from skulkd.core.decide import decide
from skulkd.core.drain_decisions import eligibility_of
from skulkd.core.invariants import event_violations, violations
from tests.support.builders import (
    NOW_MS,
    a_command_id,
    a_failure,
    a_member,
    a_node_id,
    a_phase_report,
    a_placement,
    a_plan,
    a_runner,
    a_scripted_card,
    a_sequenced,
    a_state,
    a_token,
    an_admission,
    an_instance,
    an_instance_id,
)

MINUTE_MS = 60_000


def then(state: ClusterState, command: Command) -> tuple[list[Event], ClusterState]:
    events = list(decide(state, Readings(), command, now_ms=NOW_MS))
    for event in events:
        record = a_sequenced(event, seq=state.seq + 1, term=state.term, at_ms=NOW_MS)
        assert event_violations(state, record) == ()
        state = apply(state, record)
        assert violations(state) == ()
    return events, state


def refused(state: ClusterState, command: Command) -> SkulkError:
    with pytest.raises(SkulkError) as caught:
        then(state, command)
    assert caught.value.remediation
    return caught.value


def drain(
    number: int = 2, *, drain_ms: int = MINUTE_MS, instances: tuple[InstanceId, ...] | None = None
) -> DrainNode:
    return DrainNode(
        command_id=a_command_id(),
        node_id=a_node_id(number),
        drain_ms=drain_ms,
        instances=instances,
    )


def undrain(number: int = 2) -> UndrainNode:
    return UndrainNode(command_id=a_command_id(), node_id=a_node_id(number))


def stop(number: int = 2, *, drain_ms: int = 0) -> StopInstance:
    return StopInstance(
        command_id=a_command_id(), instance_id=an_instance_id(number), drain_ms=drain_ms
    )


def two_nodes() -> ClusterState:
    """Make two nodes with an instance on each; both have the number of their node."""
    return a_state(
        members=[a_member(1), a_member(2)], instances=[an_instance(1), an_instance(2, node=2)]
    )


def test_a_drain_takes_the_node_out_and_stops_what_runs_there_in_one_decision() -> None:
    events, state = then(two_nodes(), drain())
    assert events == [
        NodeDrainStarted(node_id=a_node_id(2)),
        InstanceStopRequested(instance_id=an_instance_id(2), drain_ms=MINUTE_MS),
    ]
    assert state.members[a_node_id(2)].drain_since_ms == NOW_MS
    stopping = state.instances[an_instance_id(2)]
    assert (stopping.phase, stopping.drain_ms) == ("stopping", MINUTE_MS)
    assert state.instances[an_instance_id(1)].phase == "ready"


def test_an_instance_with_a_part_on_the_node_is_stopped_as_a_whole() -> None:
    whole = a_plan(node=1)
    first = whole.shards[0].model_copy(update={"layer_end": 0})
    second = whole.shards[0].model_copy(update={"rank": 1, "node_id": a_node_id(2)})
    split = an_instance(plan=whole.model_copy(update={"shards": (first, second)}))
    state = a_state(members=[a_member(1), a_member(2)], instances=[split])
    events, _ = then(state, drain())
    assert [event.kind for event in events] == ["node_drain_started", "instance_stop_requested"]


def test_a_second_drain_shortens_the_time_and_never_lengthens_it() -> None:
    _, state = then(two_nodes(), drain())
    assert then(state, drain(drain_ms=2 * MINUTE_MS))[0] == []
    assert then(state, drain())[0] == []
    assert then(state, drain(drain_ms=0))[0] == [
        InstanceStopRequested(instance_id=an_instance_id(2), drain_ms=0)
    ]


def test_a_drain_is_refused_when_more_runs_there_than_was_seen() -> None:
    error = refused(two_nodes(), drain(instances=()))
    assert (error.code, error.details["instance_id"]) == (
        "placement.plan_changed",
        an_instance_id(2),
    )
    seen = (an_instance_id(2), an_instance_id(7))
    assert len(then(two_nodes(), drain(instances=seen))[0]) == 2
    _, state = then(two_nodes(), drain())
    assert then(state, drain(instances=(), drain_ms=0))[0]


def test_the_drain_of_a_stranger_is_refused() -> None:
    assert refused(two_nodes(), drain(3)).code == "cluster.not_member"
    assert refused(two_nodes(), undrain(3)).code == "cluster.not_member"


def test_an_undrained_node_is_as_before_and_only_once() -> None:
    _, state = then(two_nodes(), drain())
    events, after = then(state, undrain())
    assert events == [NodeDrainEnded(node_id=a_node_id(2))]
    assert after.members[a_node_id(2)].drain_since_ms is None
    assert then(after, undrain())[0] == []
    assert after.instances[an_instance_id(2)].phase == "stopping"


def test_a_node_is_drained_once_nothing_is_left_on_it() -> None:
    state = two_nodes()
    assert eligibility_of(state, a_node_id(2)) == "eligible"
    _, state = then(state, drain())
    assert eligibility_of(state, a_node_id(2)) == "draining"
    assert eligibility_of(state, a_node_id(1)) == "eligible"
    events, state = then(state, a_phase_report("stopped", instance=2, node=2))
    assert events == [InstanceRemoved(instance_id=an_instance_id(2))]
    assert eligibility_of(state, a_node_id(2)) == "drained"


def test_what_failed_for_good_is_kept_and_does_not_come_back_on_a_drained_node() -> None:
    failed = an_instance(3, node=2, failure=a_failure(3, node=2), phase="failed")
    state = a_state(members=[a_member(1), a_member(2)], instances=[failed])
    events, state = then(state, drain())
    assert events == [NodeDrainStarted(node_id=a_node_id(2))]
    assert eligibility_of(state, a_node_id(2)) == "drained"
    retry = RetryInstance(
        command_id=a_command_id(), instance_id=an_instance_id(3), after_attempt=failed.attempt
    )
    assert refused(state, retry).code == "placement.node_draining"
    _, state = then(state, undrain())
    assert then(state, retry)[0]


def test_a_drained_node_stays_so_when_it_returns_and_when_it_joins_anew() -> None:
    _, state = then(two_nodes(), drain())
    _, state = then(state, an_admission(2, addresses=("10.0.0.9:12416",)))
    assert state.members[a_node_id(2)].drain_since_ms == NOW_MS
    state = state.model_copy(update={"join_tokens": {a_token().token_id: a_token()}})
    events, state = then(state, an_admission(2, token=1))
    assert isinstance(events[0], MemberJoined)
    assert state.members[a_node_id(2)].presence == "joining"
    assert state.members[a_node_id(2)].drain_since_ms == NOW_MS


def test_the_master_takes_no_plan_on_a_drained_node() -> None:
    card = a_scripted_card()
    _, state = then(a_state(members=[a_member(1)]), drain(1))
    error = refused(state, a_placement(a_plan(card), card))
    assert error.code == "placement.node_draining"
    assert "skulk node undrain box-1" in error.remediation


def test_a_stop_may_be_hurried_and_not_delayed() -> None:
    events, state = then(two_nodes(), stop(drain_ms=MINUTE_MS))
    assert events == [InstanceStopRequested(instance_id=an_instance_id(2), drain_ms=MINUTE_MS)]
    assert then(state, stop(drain_ms=2 * MINUTE_MS))[0] == []
    events, state = then(state, stop())
    assert events == [InstanceStopRequested(instance_id=an_instance_id(2), drain_ms=0)]
    assert then(state, stop(drain_ms=MINUTE_MS))[0] == []


def test_one_rank_that_is_gone_does_not_keep_its_node_from_being_drained() -> None:
    whole = a_plan(node=1)
    second = whole.shards[0].model_copy(update={"rank": 1, "node_id": a_node_id(2)})
    split = an_instance(plan=whole.model_copy(update={"shards": (*whole.shards, second)}))
    stopping = split.model_copy(
        update={"desired": "stopped", "runners": (a_runner("stopped", node=2, rank=1),)}
    )
    member = a_member(2).model_copy(update={"drain_since_ms": NOW_MS})
    state = a_state(members=[a_member(1), member], instances=[stopping])
    assert eligibility_of(state, a_node_id(2)) == "drained"


def test_an_instance_that_was_placed_on_a_drained_node_is_a_bug_that_is_named() -> None:
    _, state = then(two_nodes(), drain())
    placed = InstancePlaced(instance=an_instance(5, node=2))
    record = a_sequenced(placed, seq=state.seq + 1, term=state.term, at_ms=NOW_MS)
    assert event_violations(state, record)
    here = a_sequenced(
        InstancePlaced(instance=an_instance(5)), seq=state.seq + 1, term=state.term, at_ms=NOW_MS
    )
    assert event_violations(state, here) == ()
