"""What a dialog was made about, so that it can be told whether that is still so.

A dialog stays open while the cluster goes on. What it says of its object (where it runs, how far it
is, what would be interrupted) was true when it was made; where that is no longer so, it has to be
made anew. Readings, which move all the time, do not count. Pure.
"""

from collections.abc import Callable, Sequence

from protocol.instances import LOADING_PHASES
from skulk_tui.table_model import Ref
from skulk_tui.view_state import ViewState


def still_so(view: ViewState, refs: Sequence[Ref]) -> Callable[[], bool]:
    """Remember how some objects are, and give a function that says whether they still are so."""
    before = [facts_of(view, ref) for ref in refs]
    return lambda: [facts_of(view, ref) for ref in refs] == before


def facts_of(view: ViewState, ref: Ref) -> object:
    """Give what a dialog about an object depends on; None where there is no such object."""
    match ref.kind:
        case "instance":
            for item in view.instances:
                if item.instance_id == ref.id:
                    # That it comes up meanwhile, or falls asleep where it is on demand, does not
                    # matter: who stops it wants it gone.
                    is_up = item.phase in {"ready", "asleep"} or item.phase in LOADING_PHASES
                    phase = "up" if is_up else item.phase
                    attempt = item.attempt if item.ttl_ms is None else None
                    return (phase, item.desired == "stopped", attempt, item.plan.plan_id)
        case "node":
            for node in view.nodes:
                if node.member.node_id == ref.id:
                    head = view.head
                    is_master = head is not None and head.master == ref.id
                    member = node.member
                    return (member.name, is_master, member.eligibility, _runs_on(view, ref.id))
        case "transfer":
            for transfer in view.transfers:
                if f"{transfer.node_id}/{transfer.model_id}" == ref.id:
                    return transfer.state
        case _:
            return ref.id
    return None


def _runs_on(view: ViewState, node_id: str) -> frozenset[str]:
    return frozenset(
        item.instance_id
        for item in view.instances
        if any(shard.node_id == node_id for shard in item.plan.shards)
    )
