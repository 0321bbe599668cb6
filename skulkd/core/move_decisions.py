"""Moving an instance: a new one takes its place, on other nodes; pure.

A move is not a thing of its own in the state: the new instance says which one it replaces, and what
follows is decided together with the report that makes it due. Whoever is master then decides the
same, so that a move survives any number of elections.

    new one        stop first: no                     stop first: yes
    placed         beside the old one, which serves   the old one is stopped; the new one waits
    old one gone   (stopped by somebody else)         is started
    ready          the old one is stopped, drained    is over
    failed         the old one goes on                the error says how to get it back
    stopped        the move is given up               so is it; the old one is gone all the same

Requests find the new one by themselves: an instance that is being stopped is not chosen.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from protocol.commands import MoveInstance, PlaceInstance, StopInstance
from protocol.errors import PlacementError
from protocol.events import Event, InstanceFailed, InstancePlaced, RunnerPhaseChanged
from protocol.ids import CommandId, InstanceId, NodeId
from protocol.instances import Instance, Replacement
from protocol.placements import PlacementRequest, Plan
from protocol.readings import Readings
from protocol.state import ClusterState
from skulkd.core import instance_decisions
from skulkd.core.apply import with_runner


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveUnderWay:
    """A move that has not ended: the old instance is there still, and the new one may serve."""

    old: Instance
    new: Instance


def move_of(state: ClusterState, instance_id: InstanceId) -> MoveUnderWay | None:
    """Find the move that an instance is the old one of; a new one that failed moves nothing."""
    for instance in state.instances.values():
        replaced = instance.replaces
        if replaced is not None and replaced.instance_id == instance_id:
            old = state.instances.get(instance_id)
            if old is not None and instance.phase not in {"stopping", "failed"}:
                return MoveUnderWay(old=old, new=instance)
    return None


def check_movable(state: ClusterState, instance_id: InstanceId) -> Instance:
    """Give an instance that can be moved now.

    Raises:
        PlacementError: `placement.not_live` for one that is not known or is being stopped,
            `placement.busy` for one that is being moved, or is what another is moved to.
    """
    old = state.instances.get(instance_id)
    if old is None or old.phase == "stopping":
        what = f"there is no instance {instance_id}" if old is None else "it is being stopped"
        raise PlacementError(
            "placement.not_live",
            f"{instance_id} cannot be moved: {what}",
            remediation="`skulk ps` lists the instances; `skulk place` makes another one.",
        )
    under_way = move_of(state, instance_id)
    if under_way is not None:
        raise _being_moved(instance_id, under_way.new.instance_id)
    if old.replaces is not None:
        raise _being_moved(old.replaces.instance_id, instance_id)
    return old


def move(
    state: ClusterState,
    readings: Readings,
    command: MoveInstance,
    *,
    now_ms: int,
    now_s: float | None,
    unheard: frozenset[NodeId],
) -> tuple[Event, ...]:
    """Place the new instance by the plan that the command carries; see `instance_decisions.place`.

    Raises:
        PlacementError: As `check_movable` and `instance_decisions.place`; `placement.already_live`
            for a plan that uses a node of the old one.
        RequestError: `request.invalid` when request, plan and card do not belong together.
    """
    if InstanceId(command.command_id) in state.instances:
        return ()
    old = check_movable(state, command.instance_id)
    if old.model_id != command.plan.model_id:
        raise PlacementError(
            "placement.plan_changed",
            f"instance {old.instance_id} runs {old.model_id}; the plan is for "
            f"{command.plan.model_id}",
            remediation=f"Plan the move again: skulk move {old.instance_id} --dry-run",
        )
    refuse_own_nodes(state, old, (shard.node_id for shard in command.plan.shards))
    placement = PlaceInstance(
        command_id=command.command_id,
        request=command.request,
        plan=command.plan,
        card=command.card,
    )
    placed = instance_decisions.place(
        state, readings, placement, now_ms=now_ms, now_s=now_s, unheard=unheard
    )
    replaces = Replacement(
        instance_id=old.instance_id, stop_first=command.stop_first, drain_ms=command.drain_ms
    )
    events = [_moved(event, old, replaces, command.request) for event in placed]
    if command.stop_first:
        events.extend(_stop(state, old, command.command_id, command.drain_ms))
    return tuple(events)


def refuse_own_nodes(state: ClusterState, old: Instance, to: Iterable[NodeId]) -> None:
    """Refuse to move an instance to where it is.

    Raises:
        PlacementError: `placement.already_live`.
    """
    there = [node_id for node_id in to if node_id in nodes_of(old)]
    if there:
        member = state.members.get(there[0])
        name = member.name if member is not None else there[0]
        raise PlacementError(
            "placement.already_live",
            f"instance {old.instance_id} of {old.model_id} is on {name} already",
            remediation="Name other nodes with --nodes (`skulk nodes` lists them).",
            details={"instance_id": old.instance_id, "node_id": there[0]},
        )


def with_consequences(state: ClusterState, events: tuple[Event, ...]) -> tuple[Event, ...]:
    """Add to what a runner reported what it means for a move.

    Args:
        state: The newest, without these events.
        events: What follows from one report.
    """
    decided: list[Event] = []
    for event in events:
        match event:
            case RunnerPhaseChanged() if event.runner.phase == "ready":
                decided.extend((event, *_once_ready(state, event)))
            case InstanceFailed() if event.failure.final:
                decided.append(_with_way_back(state, event))
            case _:
                decided.append(event)
    return tuple(decided)


def holds_back(state: ClusterState, instance: Instance) -> bool:
    """Say whether an instance is not to be started yet, because the one before it has to go first.

    One whose nodes are all away is not waited for: what it held is not what is missing there.
    """
    replaced = instance.replaces
    if replaced is None or not replaced.stop_first or instance.runners:
        return False
    old = state.instances.get(replaced.instance_id)
    if old is None or old.phase != "stopping":
        return False
    members = (state.members.get(shard.node_id) for shard in old.plan.shards)
    return any(member is not None and member.presence == "present" for member in members)


def nodes_of(instance: Instance) -> tuple[NodeId, ...]:
    """Name the nodes of an instance, in the order of its ranks."""
    return tuple(shard.node_id for shard in instance.plan.shards)


def request_of(instance: Instance) -> PlacementRequest:
    """Give what every plan of an instance has to keep to."""
    made = instance.plan
    return instance.request or PlacementRequest(
        model_id=made.model_id, context_tokens=made.context_tokens, slots=made.slots
    )


def _once_ready(state: ClusterState, event: RunnerPhaseChanged) -> tuple[Event, ...]:
    """Stop the old instance when this was the last rank of the new one."""
    new = state.instances[event.instance_id]
    if new.replaces is None:
        return ()
    runners = with_runner(new.runners, event.runner)
    is_ready = new.model_copy(update={"runners": runners, "failure": None}).phase == "ready"
    old = state.instances.get(new.replaces.instance_id)
    if not is_ready or old is None:
        return ()
    return _stop(state, old, CommandId(new.instance_id), new.replaces.drain_ms)


def _stop(
    state: ClusterState, old: Instance, command_id: CommandId, drain_ms: int
) -> tuple[Event, ...]:
    stop = StopInstance(command_id=command_id, instance_id=old.instance_id, drain_ms=drain_ms)
    return instance_decisions.stop(state, stop)


def _with_way_back(state: ClusterState, event: InstanceFailed) -> InstanceFailed:
    """Say in a failure that ends a move what serves now, and how the old instance comes back."""
    failure = event.failure
    new = state.instances[failure.instance_id]
    if not new.moved_from or new.launch is not None:
        return event
    names = ",".join(
        state.members[node_id].name if node_id in state.members else node_id
        for node_id in new.moved_from
    )
    replaced = None if new.replaces is None else state.instances.get(new.replaces.instance_id)
    if replaced is not None and replaced.phase not in {"stopping", "failed"}:
        advice = (
            f"It goes on on {names}. Try again: skulk retry {new.instance_id}; give the move up: "
            f"skulk stop {new.instance_id}"
        )
    else:
        advice = (
            f"To have it back on {names}: skulk place {new.model_id} --nodes {names} --context "
            f"{new.plan.context_tokens} --slots {new.plan.slots}"
        )
    said = f"{failure.error.remediation} {advice}".strip()
    error = failure.error.model_copy(update={"remediation": said})
    return InstanceFailed(failure=failure.model_copy(update={"error": error}))


def _moved(event: Event, old: Instance, replaces: Replacement, request: PlacementRequest) -> Event:
    """Have the new one be what the old one is; one on demand is loaded once, and then may sleep.

    That a move names nodes holds for the move: should the new place be lost, the instance may go
    wherever it might before.
    """
    if not isinstance(event, InstancePlaced):
        return event
    update = {
        "replaces": replaces,
        "moved_from": nodes_of(old),
        "ttl_ms": old.ttl_ms,
        "priority": old.priority,
        "pinned": old.pinned,
        "request": _wished(old, event.instance.plan, request),
        "disconnect": old.disconnect,
    }
    return InstancePlaced(instance=event.instance.model_copy(update=update))


def _wished(old: Instance, made: Plan, request: PlacementRequest) -> PlacementRequest:
    kept = request_of(old)
    to = {shard.node_id for shard in made.shards}
    return kept.model_copy(
        update={
            "nodes": request.nodes if kept.nodes else (),
            "excluded_nodes": tuple(one for one in kept.excluded_nodes if one not in to),
        }
    )


def _being_moved(old_id: InstanceId, new_id: InstanceId) -> PlacementError:
    return PlacementError(
        "placement.busy",
        f"instance {old_id} is being moved: {new_id} takes its place",
        remediation=f"Wait for it (`skulk ps`), or give the move up: skulk stop {new_id}",
        details={"instance_id": new_id},
    )
