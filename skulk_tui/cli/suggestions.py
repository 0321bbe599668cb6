"""Names that a node does not know, met with the nearest that it does."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final

from protocol.control_api import ModelList, StateDocument
from protocol.errors import SkulkError
from protocol.ids import NodeId
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
        ClientError: `client.usage` naming the nearest node.
    """
    by_word: dict[str, NodeId] = {member.name: node_id for node_id, member in state.members.items()}
    by_word.update({str(node_id): node_id for node_id in state.members})
    found: list[NodeId] = []
    for word in (part.strip() for text in words for part in text.split(",")):
        if not word:
            continue
        if word not in by_word:
            raise unknown_value("a node", word, by_word, see="skulk status")
        found.append(by_word[word])
    return tuple(dict.fromkeys(found))
