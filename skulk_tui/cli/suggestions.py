"""Names that a node does not know, met with the nearest that it does; and names for completion."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Final

from protocol.cluster_api import ClusterDocument, MemberView
from protocol.control_api import ModelList, StateDocument
from protocol.errors import ClientError, SkulkError
from protocol.ids import NodeId
from skulk_tui.cli.nearest import unknown_value
from skulk_tui.cli.session import Options, Session, system_session

_UNKNOWN_MODEL: Final = frozenset(
    {"placement.unknown_model", "request.model_not_found", "store.not_found"}
)
COMPLETION_BUDGET: Final = "300ms"
"""An operator who pressed Tab waits no longer than that."""


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
    return tuple(dict.fromkeys(_node_id(names, part) for part in parts if part))


def member_of(cluster: ClusterDocument, word: str) -> MemberView:
    """Find a member by its name or id.

    Raises:
        ClientError: `client.usage` naming the nearest, or all that share the name.
    """
    by_id = {member.node_id: member for member in cluster.members}
    names = {node_id: member.name for node_id, member in by_id.items()}
    return by_id[_node_id(names, word)]


def _node_id(names: dict[NodeId, str], word: str) -> NodeId:
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


# ---- Completion --------------------------------------------------------------------------------


def complete_node(incomplete: str) -> list[str]:
    """Give the names of nodes that begin so; none where no node answers at once."""
    state = _state_at_once()
    return [] if state is None else _beginning(_node_names(state), incomplete)


def complete_node_or_instance(incomplete: str) -> list[str]:
    """Give the nodes, instances and placed models that begin so."""
    state = _state_at_once()
    if state is None:
        return []
    models = {view.model_id for view in state.instances.values()}
    return _beginning([*_node_names(state), *state.instances, *models], incomplete)


def complete_instance_or_model(incomplete: str) -> list[str]:
    """Give the instances and placed models that begin so."""
    state = _state_at_once()
    if state is None:
        return []
    models = {view.model_id for view in state.instances.values()}
    return _beginning([*state.instances, *models], incomplete)


def _node_names(state: StateDocument) -> list[str]:
    return [member.name for member in state.members.values()]


def _beginning(words: Iterable[str], start: str) -> list[str]:
    return sorted({word for word in words if word.startswith(start)})


def _state_at_once() -> StateDocument | None:
    session = system_session(Options(timeout=COMPLETION_BUDGET))
    try:
        return session.client.get("/state", StateDocument)
    except SkulkError:
        return None  # a shell has no place for an error here
    finally:
        session.close()
