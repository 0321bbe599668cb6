"""Decisions about draining: a node takes no models any more, and what it runs ends in order.

That a node is drained is a word about placing alone: it keeps its vote, its files and its API, and
may be master. What runs there is stopped in the same decision, with time for the requests that are
being answered, so that nothing has to be carried on by whoever is master later.
"""

from collections.abc import Iterator

from protocol.commands import DrainNode, UndrainNode
from protocol.errors import PlacementError
from protocol.events import Event, InstanceStopRequested, NodeDrainEnded, NodeDrainStarted
from protocol.ids import NodeId
from protocol.instances import Instance
from protocol.nodes import Eligibility
from protocol.state import ClusterState
from skulkd.core.member_decisions import member_of
from skulkd.core.move_decisions import nodes_of


def drain(state: ClusterState, command: DrainNode) -> tuple[Event, ...]:
    """Take a node out of placing, and ask what runs there to go; may shorten an earlier drain.

    Raises:
        ClusterError: `cluster.not_member`, `cluster.removed`.
        PlacementError: `placement.plan_changed` when more runs there than the command names,
            `placement.pinned` when one of them is pinned.
    """
    member = member_of(state, command.node_id)
    running = tuple(live_on(state, command.node_id))
    _check_unpinned(running, member.name)
    if command.instances is not None:
        _check_seen(running, command.instances, member.name)
    events: list[Event] = []
    if member.drain_since_ms is None:
        events.append(NodeDrainStarted(node_id=command.node_id))
    events.extend(
        InstanceStopRequested(instance_id=instance.instance_id, drain_ms=command.drain_ms)
        for instance in running
        if instance.desired != "stopped" or command.drain_ms < instance.drain_ms
    )
    return tuple(events)


def undrain(state: ClusterState, command: UndrainNode) -> tuple[Event, ...]:
    """Let a node take models again; what was stopped does not come back by itself.

    Raises:
        ClusterError: `cluster.not_member`, `cluster.removed`.
    """
    member = member_of(state, command.node_id)
    if member.drain_since_ms is None:
        return ()
    return (NodeDrainEnded(node_id=command.node_id),)


def live_on(state: ClusterState, node_id: NodeId) -> Iterator[Instance]:
    """Give the instances with a part on a node that has not ended; one that failed for good has."""
    for instance in state.instances.values():
        has_failed = instance.failure is not None and instance.failure.final
        if has_failed or node_id not in nodes_of(instance):
            continue
        gone = {
            runner.node_id
            for runner in instance.runners
            if instance.desired == "stopped" and runner.phase == "stopped"
        }
        if node_id not in gone:
            yield instance


def eligibility_of(state: ClusterState, node_id: NodeId) -> Eligibility:
    """Say whether models may be placed on a member, and if not whether any is left there."""
    member = state.members.get(node_id)
    if member is None or member.drain_since_ms is None:
        return "eligible"
    return "drained" if next(live_on(state, node_id), None) is None else "draining"


def _check_seen(running: tuple[Instance, ...], seen: tuple[str, ...], name: str) -> None:
    unseen = [
        one for one in running if one.desired != "stopped" and one.instance_id not in set(seen)
    ]
    if unseen:
        models = ", ".join(sorted({instance.model_id for instance in unseen}))
        raise PlacementError(
            "placement.plan_changed",
            f"{models} runs on {name} by now, and was not among what the drain was to stop",
            remediation="Look again at what it stops (`--dry-run`), then drain the node.",
            details={"instance_id": unseen[0].instance_id},
        )


def _check_unpinned(running: tuple[Instance, ...], name: str) -> None:
    pinned = [one for one in running if one.pinned and one.desired != "stopped"]
    if pinned:
        first = pinned[0].instance_id
        models = ", ".join(sorted({instance.model_id for instance in pinned}))
        raise PlacementError(
            "placement.pinned",
            f"{models} is pinned on {name}, so that a drain does not stop it",
            remediation=f"Move it (`skulk move {first}`) or unpin it (`skulk unpin {first}`), then "
            "drain the node.",
            details={"instance_id": first},
        )
