"""A store in virtual time: files come with progress, fail, stall, and stay when a node dies."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

from protocol.cards import ModelCard
from protocol.control_api import TransferStatus
from protocol.errors import ErrorCode, StoreError
from protocol.ids import Digest, ModelId, NodeId
from protocol.storage_api import FoundModelView, FoundSource, StorageDocument, StoredModelView
from protocol.verify_api import VerifyStatus
from skulkd.api.ports import CatalogModel
from skulkd.worker.steps import needs_files
from skulkd.worker.transfers import Transfers
from store.progress import TransferProgress
from store.service import artifact_key

_STEP_S: Final = 0.2
_STALLED_S: Final = 15.0
"""How long the store itself waits for a source that says nothing."""
_MODELS_DIR: Final = Path("/models")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How transfers go."""

    rate_bytes_s: float = 40e6
    fails: ErrorCode | None = None
    is_stalled: bool = False


FAIR: Final = Weather()


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedArtifact:
    """Implements `skulkd.worker.steps.Artifact`."""

    entry: Path
    size_bytes: int
    projector: Path | None = None


@dataclass(slots=True)
class _Transfer:
    """One model's transfer, which all who want the files share."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    listeners: list[Callable[[TransferProgress], None]] = field(
        default_factory=list[Callable[[TransferProgress], None]]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedHeld:
    """An artifact that is complete here."""

    key: Digest
    model_id: ModelId
    size_bytes: int


@final
class SimulatedStore:
    """Implements `skulkd.worker.steps.ArtifactStore`; outlives nodes, as a disk does.

    Args:
        cards: Of all models there are.
    """

    def __init__(self, cards: tuple[ModelCard, ...]) -> None:
        self.cards = cards
        self.weather = FAIR
        self._done_bytes: dict[ModelId, int] = {}
        self._transfers: dict[ModelId, _Transfer] = {}

    def locate(self, card: ModelCard) -> SimulatedArtifact | None:
        """Find complete files."""
        size_bytes = card.storage_size.in_bytes
        if needs_files(card) and self._done_bytes.get(card.model_id, 0) < size_bytes:
            return None
        return SimulatedArtifact(entry=_MODELS_DIR / card.model_id, size_bytes=size_bytes)

    def held(self) -> tuple[SimulatedHeld, ...]:
        """List what is complete; see `store.offers.Offers.held`."""
        return tuple(
            SimulatedHeld(
                key=artifact_key(card), model_id=card.model_id, size_bytes=artifact.size_bytes
            )
            for card in self.cards
            if needs_files(card) and (artifact := self.locate(card)) is not None
        )

    def remove(self, model_id: ModelId) -> int:
        """Delete files."""
        return self._done_bytes.pop(model_id, 0)

    async def ensure(
        self, card: ModelCard, progress: Callable[[TransferProgress], None] | None = None
    ) -> SimulatedArtifact:
        """Have the files complete; a caller that is cancelled leaves the rest to the others."""
        transfer = self._transfers.setdefault(card.model_id, _Transfer())
        if progress is not None:
            transfer.listeners.append(progress)
        try:
            async with transfer.lock:
                await self._fetch(card, transfer)
        finally:
            if progress is not None:
                transfer.listeners.remove(progress)
        found = self.locate(card)
        assert found is not None
        return found

    async def _fetch(self, card: ModelCard, transfer: _Transfer) -> None:
        size_bytes = card.storage_size.in_bytes
        silent_s = 0.0
        while (done_bytes := self._done_bytes.get(card.model_id, 0)) < size_bytes:
            await asyncio.sleep(_STEP_S)
            weather = self.weather
            if weather.fails is not None:
                raise StoreError(weather.fails, f"the transfer of {card.model_id} failed")
            silent_s = silent_s + _STEP_S if weather.is_stalled else 0.0
            if silent_s > _STALLED_S:
                raise StoreError("store.stalled", f"no byte for {silent_s:.0f} s")
            if weather.is_stalled:
                continue
            done_bytes = min(size_bytes, done_bytes + int(weather.rate_bytes_s * _STEP_S))
            self._done_bytes[card.model_id] = done_bytes
            for listener in tuple(transfer.listeners):
                listener(_progress(done_bytes, size_bytes))


@final
class SimulatedModels:
    """Implements `skulkd.api.ports.Models` over the simulated store.

    Args:
        node_id: This node.
        store: Files.
        transfers: The worker's.
    """

    def __init__(self, node_id: NodeId, store: SimulatedStore, transfers: Transfers) -> None:
        self._node_id = node_id
        self._store = store
        self._transfers = transfers

    async def catalog(self) -> tuple[CatalogModel, ...]:
        """Give all cards."""
        return tuple(
            CatalogModel(
                card=card, origin="bundled", installed=self._store.locate(card) is not None
            )
            for card in self._store.cards
        )

    async def elsewhere(self, model_id: ModelId) -> CatalogModel | None:
        """Find nothing: all simulated nodes have the same cards."""
        del model_id
        return None

    async def import_file(self, path: str, model_id: ModelId | None) -> ModelCard:
        """Refuse: there are no files to import."""
        raise StoreError("store.not_found", f"no {path} for {model_id}")

    async def remove_card(self, model_id: ModelId) -> bool:
        """Keep all cards: none is custom."""
        del model_id
        return False

    async def found(self, sources: tuple[FoundSource, ...]) -> tuple[FoundModelView, ...]:
        """Find nothing."""
        del sources
        return ()

    async def start_download(self, model_id: ModelId) -> TransferStatus:
        """Pull."""
        card = self._card(model_id)
        if self._store.locate(card) is None:
            self._transfers.pull(card)
        return await self.download_status(model_id)

    async def download_status(self, model_id: ModelId) -> TransferStatus:
        """Say whether the files are here."""
        is_here = self._store.locate(self._card(model_id)) is not None
        is_pulled = model_id in self._transfers.pulled()
        is_paused = self._transfers.pauses.get(model_id) is not None
        state = "paused" if is_paused else "running" if is_pulled else "absent"
        state = "complete" if is_here else state
        return TransferStatus(model_id=model_id, node_id=self._node_id, state=state)

    async def pause_download(self, model_id: ModelId, by: str) -> TransferStatus:
        """Pause."""
        if not await self._transfers.pause(model_id, by):
            raise StoreError("store.no_transfer", f"nothing of {model_id} is under way")
        return await self.download_status(model_id)

    async def resume_download(self, model_id: ModelId) -> TransferStatus:
        """Go on."""
        await self._transfers.resume(self._card(model_id))
        return await self.download_status(model_id)

    async def verify(self, model_id: ModelId) -> VerifyStatus:
        """Find nothing to verify."""
        return await self.verify_status(model_id)

    async def verify_status(self, model_id: ModelId) -> VerifyStatus:
        """Say that nothing was verified."""
        return VerifyStatus(model_id=model_id, node_id=self._node_id, state="absent")

    async def cancel_verify(self, model_id: ModelId) -> VerifyStatus:
        """End nothing."""
        return await self.verify_status(model_id)

    async def cancel_download(self, model_id: ModelId) -> TransferStatus:
        """End a pull."""
        await self._transfers.cancel_pull(model_id)
        return await self.download_status(model_id)

    async def remove(self, model_id: ModelId) -> int:
        """Delete files."""
        return self._store.remove(model_id)

    async def storage(self) -> StorageDocument:
        """List files."""
        present = [card for card in self._store.cards if self._store.locate(card) is not None]
        return StorageDocument(
            node_id=self._node_id,
            models_dir=str(_MODELS_DIR),
            items=tuple(
                StoredModelView(
                    model_id=card.model_id, size_bytes=card.storage_size.in_bytes, in_use=False
                )
                for card in present
            ),
        )

    def _card(self, model_id: ModelId) -> ModelCard:
        for card in self._store.cards:
            if card.model_id == model_id:
                return card
        raise StoreError("store.not_found", f"no card names {model_id}")


def _progress(done_bytes: int, total_bytes: int) -> TransferProgress:
    return TransferProgress(
        phase="download",
        done_bytes=done_bytes,
        total_bytes=total_bytes,
        rate_bytes_s=None,
        eta_s=None,
        source="simulated",
    )
