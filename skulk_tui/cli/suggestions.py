"""Names that a node does not know, met with the nearest that it does."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final

from protocol.cluster_api import ClusterDocument, MemberView
from protocol.control_api import StateDocument
from protocol.errors import ClientError, SkulkError
from protocol.ids import NodeId
from protocol.models_api import ModelList
from skulk_tui.cli.nearest import unknown_value
from skulk_tui.cli.session import Session

_UNKNOWN_MODEL: Final = frozenset(
    {"placement.unknown_model", "request.model_not_found", "store.not_found"}
)


@contextmanager
def naming_the_nearest_model(session: Session, model_id: str) -> Generator[None]:
    """Turn a node's "unknown model" into one that names the nearest model of its catalogue."""
    try:
        yield
    except SkulkError as error:
        if error.code not in _UNKNOWN_MODEL:
            raise
        known = [entry.id for entry in session.client.get("/v1/models", ModelList).data]
        if model_id in known:
            # It is in the catalogue; what is missing is an instance, and the node says so.
            raise
        raise unknown_value("a model", model_id, known, see="skulk models list") from error


def node_ids_of(state: StateDocument, words: Sequence[str]) -> tuple[NodeId, ...]:
    """Turn names or ids of nodes into ids.

    Args:
        state: The members.
        words: Each a name or an id, or several with commas between.

    Raises:
        ClientError: `client.usage` naming the nearest node, or all that share a name.
    """
    names = {node_id: member.name for node_id, member in state.members.items()}
    parts = (part.strip() for text in words for part in text.split(","))
    return tuple(dict.fromkeys(node_of(names, part) for part in parts if part))


def member_of(cluster: ClusterDocument, word: str) -> MemberView:
    """Find a member by its name or id.

    Raises:
        ClientError: `client.usage` naming the nearest, or all that share the name.
    """
    by_id = {member.node_id: member for member in cluster.members}
    names = {node_id: member.name for node_id, member in by_id.items()}
    return by_id[node_of(names, word)]


def node_of(names: dict[NodeId, str], word: str) -> NodeId:
    """Find a node by its name or id.

    Raises:
        ClientError: `client.usage` naming the nearest, or all that share the name.
    """
    if word in names:
        return NodeId(word)
    found = [node_id for node_id, name in names.items() if name.casefold() == word.casefold()]
    if not found:
        raise unknown_value("a node", word, [*names.values(), *names], see="skulk nodes")
    if len(found) > 1:
        raise ClientError(
            "client.usage",
            f"{len(found)} nodes are called {word!r}: {', '.join(sorted(found))}",
            remediation="Name one by its id.",
        )
    return found[0]
