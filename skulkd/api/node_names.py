"""What an operator calls a node, by name or id, to the id of a member. Pure."""

import difflib
from typing import Final

from protocol.errors import RequestError
from protocol.ids import NodeId
from protocol.state import ClusterState

_SHOWN_CHARS: Final = 64
_SHOWN_MAX: Final = 8


def find_node(state: ClusterState, word: str) -> NodeId:
    """Find the member that goes by a name or an id; capitals do not count in names.

    Raises:
        RequestError: `request.node_not_found`, naming the nearest; `request.node_ambiguous`,
            naming the ids of all that share the name.
    """
    if word in state.members:
        return NodeId(word)
    found = [
        node_id
        for node_id, member in state.members.items()
        if member.name.casefold() == word.casefold()
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise RequestError(
            "request.node_ambiguous",
            f"{len(found)} nodes are called {word[:_SHOWN_CHARS]!r}: {', '.join(sorted(found))}",
            remediation="Name one by its id; give each node a name of its own (`--name`).",
            details={"param": "node"},
        )
    raise RequestError(
        "request.node_not_found",
        f"no node of the cluster is called {word[:_SHOWN_CHARS]!r}",
        remediation=_nearest(state, word),
        details={"param": "node"},
    )


def name_of(state: ClusterState, node_id: NodeId) -> str:
    """Give a member's name; empty for one that is none."""
    member = state.members.get(node_id)
    return "" if member is None else member.name


def _nearest(state: ClusterState, word: str) -> str:
    names = sorted({member.name for member in state.members.values()})
    close = difflib.get_close_matches(word[:_SHOWN_CHARS], names, n=1, cutoff=0.4)
    if close:
        return f"Did you mean {close[0]!r}?"
    if len(names) <= _SHOWN_MAX:
        return f"Known: {', '.join(names)}."
    return "See `skulk nodes`."
