"""What a node would give up by joining another cluster; pure."""

from protocol.errors import ClusterError
from protocol.ids import NodeId
from protocol.state import ClusterState


def past_of(state: ClusterState, node_id: NodeId) -> tuple[str, ...]:
    """Name, in words, what a node's own cluster holds that another one does not know.

    Model files are no part of it: they stay where they are.
    """
    counts = {
        "other member": len(state.members.keys() - {node_id}),
        "placed model": len(state.instances),
        "API key": len(state.api_keys),
        "card of its own": len(state.cards),
    }
    return tuple(_counted(count, what) for what, count in counts.items() if count)


def refuse_past(state: ClusterState, node_id: NodeId) -> None:
    """Let only a node without a past go on.

    Raises:
        ClusterError: `cluster.has_past`.
    """
    past = past_of(state, node_id)
    if past:
        raise ClusterError(
            "cluster.has_past",
            f"this node has a past that joining would give up: {', '.join(past)}",
            remediation="Join with --discard: models placed here stop, and the journal is put "
            "aside. Model files stay.",
            details={"n_members": len(state.members), "n_instances": len(state.instances)},
        )


def _counted(count: int, what: str) -> str:
    if count == 1:
        return f"1 {what}"
    first, _, rest = what.partition(" of ")
    return f"{count} {first}s of {rest}" if rest else f"{count} {what}s"
