"""Another node's files without a network between: for what the store promises of any source."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import final

from protocol.cards import ModelCard
from protocol.clock import Clock
from protocol.ids import Digest, ModelId, NodeId, node_id_of
from store.layout import ARTIFACTS, FILES, StoreLayout, make_directories
from store.offers import Offer
from store.peer_pull import PeerSources
from store.service import Store, artifact_key
from store.sources.peer import PeerError, PeerFile, PeerTransfer, agreed_files, peer_error
from store.transfer import complete, verified_file
from tests.support.wheel_builder import sha256

HOLDER = node_id_of(b"holder")
OWN = node_id_of(b"own")
_PIECE_BYTES = 64 << 10


@final
class DirectLease:
    """Implements `store.sources.peer.PeerLease` on an offer."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer

    @property
    def files(self) -> tuple[PeerFile, ...]:
        """What is offered."""
        return self._offer.files

    async def read(self, index: int, offset: int) -> AsyncGenerator[tuple[memoryview, ...]]:
        """Read to the end."""
        end = self.files[index].size_bytes
        while offset < end:
            n_bytes = min(_PIECE_BYTES, end - offset)
            yield (memoryview(self._offer.read(index, offset, n_bytes)),)
            offset += n_bytes


@final
class DirectPeers:
    """Implements `PeerFiles` and `PeerHoldings` on the store of one other node.

    Args:
        store: That node's.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.n_opened = 0

    def sources(self) -> PeerSources:
        """Give it as a store is handed it."""
        return PeerSources(node_id=OWN, files=self, holdings=self)

    @asynccontextmanager
    async def open(self, node_id: NodeId, key: Digest) -> AsyncGenerator[DirectLease]:
        """Open what the other store offers."""
        self.n_opened += 1
        offer = self._store.offers.open(key)
        if not isinstance(offer, Offer):
            raise PeerError(peer_error(node_id, "it does not have the files"), is_final=True)
        try:
            yield DirectLease(offer)
        finally:
            offer.close()

    def has_peers(self) -> bool:
        """There is one."""
        return True

    def holders(self, key: Digest) -> tuple[NodeId, ...]:
        """Name it, if it holds that."""
        held = {item.key for item in self._store.offers.held()}
        return (HOLDER,) if key in held else ()

    def fetchers(self, model_id: ModelId) -> tuple[PeerTransfer, ...]:
        """Nobody fetches."""
        del model_id
        return ()

    def name_of(self, node_id: NodeId) -> str:
        """Name it."""
        assert node_id == HOLDER
        return "holder"


def holding_store(
    models_dir: Path, card: ModelCard, contents: tuple[bytes, ...], clock: Clock
) -> Store:
    """Make a store that has a card's files, as if it had fetched them."""
    layout = StoreLayout(models_dir)
    layout.prepare()
    key = artifact_key(card)
    offered = tuple(
        PeerFile(path=f"f{number}", size_bytes=len(content), sha256=sha256(content))
        for number, content in enumerate(contents)
    )
    files = tuple(
        PeerFile(path=file.path, size_bytes=file.size_bytes, sha256=file.sha256)
        for file in (card.source.files if card.source and card.source.kind == "package" else ())
    )
    files = agreed_files(card, files or offered, HOLDER)
    with layout.opened(ARTIFACTS) as artifacts:
        make_directories(artifacts, [key, FILES])
    for file, content in zip(files, contents, strict=True):
        path = layout.file_path(key, file.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    with layout.opened(ARTIFACTS, key) as artifact:
        described = tuple(
            verified_file(artifact, file.path, file.size_bytes, file.sha256) for file in files
        )
        complete(artifact, card, "a test", described, now_ms=0)
    return Store(layout, clock=clock)
