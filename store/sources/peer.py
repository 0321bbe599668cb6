"""Model files that another node of the cluster has: what is asked of it, and what is believed.

Knows no cluster: who the other nodes are, and how bytes come from one, is handed in. A peer is
believed nothing: its list of files must be the card's, and bytes count when their digest is right.
"""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from protocol.cards import HubSource, LocalSource, ModelCard, PackageSource, RelativePath
from protocol.errors import ErrorCode, StoreError
from protocol.ids import Digest, ModelId, NodeId
from protocol.readings import PAUSED_PHASE
from store.importer import part_names

IDLE_PHASES: Final = frozenset({"look", "wait", PAUSED_PHASE})
"""Of a transfer that fetches nothing itself: it looks around, waits for another node's, or an
operator has paused it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFile:
    """One file of an artifact, with what proves it."""

    path: RelativePath
    size_bytes: int
    sha256: Digest


class PeerLease(Protocol):
    """A peer's files of one artifact, to be read until the lease is closed."""

    @property
    def files(self) -> tuple[PeerFile, ...]:
        """What the peer says that it has; at least one."""
        ...

    def read(self, index: int, offset: int) -> AsyncGenerator[tuple[memoryview, ...]]:
        """Read a file from an offset to its end, in order; must be closed by the caller.

        What is yielded is at most a few MiB, and the next bytes are on their way meanwhile.

        Raises:
            PeerError: The peer is gone, silent, or refuses.
        """
        ...


class PeerFiles(Protocol):
    """The way to the files of other nodes."""

    def open(self, node_id: NodeId, key: Digest) -> AbstractAsyncContextManager[PeerLease]:
        """Ask a node for an artifact.

        Raises:
            PeerError: On entering. `PeerBusyError` when it shall be asked again later.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTransfer:
    """A transfer of another node, as it tells of it."""

    node_id: NodeId
    phase: str
    done_bytes: int
    total_bytes: int | None


class PeerHoldings(Protocol):
    """What nodes tell of their files. Looks up what is known; never waits, never asks."""

    def has_peers(self) -> bool:
        """Tell whether any other node can be reached now."""
        ...

    def holders(self, key: Digest) -> tuple[NodeId, ...]:
        """Name the other nodes that can be reached and hold an artifact; whom to ask first."""
        ...

    def fetchers(self, model_id: ModelId) -> tuple[PeerTransfer, ...]:
        """Give the transfers of a model on other nodes that can be reached."""
        ...

    def name_of(self, node_id: NodeId) -> str:
        """Give a node's name, for people."""
        ...


class PeerError(Exception):
    """One try with one peer failed.

    Args:
        error: What to say when there is no other way.
        is_final: True when the peer need not be asked again for this artifact now.
    """

    def __init__(self, error: StoreError, *, is_final: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.is_final = is_final


class PeerLiedError(PeerError):
    """What a peer said or sent cannot be true.

    Args:
        error: What to say when there is no other way.
    """

    def __init__(self, error: StoreError) -> None:
        super().__init__(error, is_final=True)


class PeerBusyError(PeerError):
    """The peer has the files, and says to ask again.

    Args:
        error: What to say when there is no other way.
        retry_after_s: When.
        done_bytes: How far it is with what it does first, be it for others; grows while it gets on.
        total_bytes: Of that; 0 when there is no saying.
    """

    def __init__(
        self, error: StoreError, *, retry_after_s: float, done_bytes: int, total_bytes: int
    ) -> None:
        super().__init__(error)
        self.retry_after_s = retry_after_s
        self.done_bytes = done_bytes
        self.total_bytes = total_bytes


def peer_error(
    node_id: NodeId, problem: str, code: ErrorCode = "store.source_unavailable"
) -> StoreError:
    """Say that a peer cannot, or does not, give files."""
    return StoreError(
        code,
        f"node {node_id}: {problem}",
        remediation="See how that node is (`skulk nodes`), then pull again: what is here is kept.",
        details={"peer": node_id},
        retry_after_s=60,
    )


def agreed_files(
    card: ModelCard, offered: tuple[PeerFile, ...], node_id: NodeId
) -> tuple[PeerFile, ...]:
    """Hold a peer's list of files against the card.

    A package's card says all about each file. A file that another node uses where it lies has a
    size in the card, and its name here is ours to give. A hub's card says nothing of the kind.

    Returns:
        The files as they are to be here.

    Raises:
        PeerLiedError: `store.source_changed`: they are not the card's.
    """
    match card.source:
        case PackageSource(files=files):
            expected = tuple(
                PeerFile(path=file.path, size_bytes=file.size_bytes, sha256=file.sha256)
                for file in files
            )
            if offered != expected:
                raise _not_the_cards(card, node_id)
            return expected
        case LocalSource() as source:
            sizes = [source.size_bytes, *(part.size_bytes for part in source.further_parts)]
            if source.projector is not None:
                sizes.append(source.projector.size_bytes)
            if [file.size_bytes for file in offered] != sizes:
                raise _not_the_cards(card, node_id)
            names = part_names(source)
        case HubSource() | None:
            names = tuple(file.path for file in offered)
            if has_collision(names):
                raise _not_the_cards(card, node_id)
    return tuple(
        PeerFile(path=name, size_bytes=file.size_bytes, sha256=file.sha256)
        for name, file in zip(names, offered, strict=True)
    )


def has_collision(paths: tuple[RelativePath, ...]) -> bool:
    """Tell whether paths cannot all be files: one is twice there, or a directory of another."""
    directories = {
        "/".join(parts[:depth])
        for parts in (path.split("/") for path in paths)
        for depth in range(1, len(parts))
    }
    return len(set(paths)) < len(paths) or not directories.isdisjoint(paths)


def _not_the_cards(card: ModelCard, node_id: NodeId) -> PeerLiedError:
    problem = f"its list of files is not that of the card of {card.model_id}"
    return PeerLiedError(peer_error(node_id, problem, "store.source_changed"))
