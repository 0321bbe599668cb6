"""This node's catalogue and files, behind the API's `Models` port."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol, final

from protocol.cards import LocalSource, ModelCard
from protocol.control_api import TransferStatus
from protocol.errors import StoreError
from protocol.ids import ModelId, NodeId
from protocol.readings import TransferReading
from protocol.storage_api import FoundModelView, FoundSource, StorageDocument, StoredModelView
from protocol.verify_api import VerifyStatus
from skulkd.api.cards_elsewhere import CardsElsewhere
from skulkd.api.catalog import find_model
from skulkd.api.ports import CatalogModel, ReadingsView
from skulkd.api.views import transfer_view
from skulkd.eventlog.gateway import StateView
from skulkd.runtime.tasks import run_blocking
from store.finders import FoundModel, find_models
from store.importer import card_from_gguf
from store.service import DamagedArtifact, InstalledArtifact, Store

MAX_FOUND: Final = 500
"""Files of other programs that one answer names."""


class Downloads(Protocol):
    """The worker's transfers, shared with placements."""

    def pull(self, card: ModelCard) -> bool:
        """Begin a transfer that no placement asked for; False when that is under way already."""
        ...

    async def cancel_pull(self, model_id: ModelId) -> bool:
        """End such a transfer and keep what it fetched; False when there is none."""
        ...

    def pulled(self) -> tuple[ModelId, ...]:
        """List the models that are being pulled."""
        ...

    async def pause(self, model_id: ModelId, by: str) -> bool:
        """Stop fetching a model until it is resumed; False when nothing is under way."""
        ...

    async def resume(self, card: ModelCard) -> bool:
        """Go on with a paused transfer; False when it is not paused."""
        ...


class Verifications(Protocol):
    """Hashes files again, off the event loop."""

    def start(self, card: ModelCard) -> None:
        """Begin to verify a model's files; nothing when that is under way."""
        ...

    def status(self, model_id: ModelId) -> VerifyStatus:
        """Say how far that is, or how the last one ended."""
        ...

    async def cancel(self, model_id: ModelId) -> bool:
        """End it; False when none is under way."""
        ...


@final
class NodeModels:
    """Implements `Models`.

    Args:
        node_id: This node.
        store: Cards and files.
        models_dir: Where the store keeps them.
        downloads: Runs transfers.
        verifications: Hash files again.
        state: The replica: custom cards, and how downloads ended.
        readings: How far transfers are.
        environment: For finding what other programs left here.
        home: Of the user whose other programs are meant.
        elsewhere: Finds cards on other nodes.
    """

    def __init__(
        self,
        *,
        node_id: NodeId,
        store: Store,
        models_dir: Path,
        downloads: Downloads,
        verifications: Verifications,
        state: StateView,
        readings: ReadingsView,
        environment: Mapping[str, str],
        home: Path,
        elsewhere: CardsElsewhere,
    ) -> None:
        self._node_id = node_id
        self._store = store
        self._models_dir = models_dir
        self._downloads = downloads
        self._verifications = verifications
        self._state = state
        self._readings = readings
        self._environment = environment
        self._home = home
        self._elsewhere = elsewhere

    async def catalog(self) -> tuple[CatalogModel, ...]:
        """Give every card in force on this node, sorted by id."""
        return await run_blocking(self._catalog)

    async def elsewhere(self, model_id: ModelId) -> CatalogModel | None:
        """Find the card of a model that no card in force names on the other nodes."""
        card = await self._elsewhere.find(model_id)
        if card is None:
            return None
        is_installed = await run_blocking(self._store.locate, card) is not None
        return CatalogModel(card=card, origin="elsewhere", installed=is_installed)

    async def import_file(self, path: str, model_id: ModelId | None) -> ModelCard:
        """Make a card for a GGUF file that is used where it lies, and keep it as a custom card.

        Raises:
            StoreError: `store.gguf_invalid`, `store.gguf_truncated`, `store.not_found`,
                `store.card_invalid`, `store.disk_failed`.
        """
        return await run_blocking(self._import_file, Path(path), model_id)

    async def remove_card(self, model_id: ModelId) -> bool:
        """Forget a custom card; False when there is none of that id here."""
        return await run_blocking(self._store.catalog.remove, model_id)

    async def found(self, sources: tuple[FoundSource, ...]) -> tuple[FoundModelView, ...]:
        """Look for model files that other programs left on this machine."""
        return await run_blocking(self._found, sources)

    async def start_download(self, model_id: ModelId) -> TransferStatus:
        """Begin a transfer, or join the one under way; returns at once.

        Raises:
            StoreError: `store.not_found` for a model that no card names.
        """
        card = await self._card(model_id)
        await self._store.repair(card)
        if await run_blocking(self._store.locate, card) is None and not self._is_paused(model_id):
            self._downloads.pull(card)
        return await self.download_status(model_id)

    async def pause_download(self, model_id: ModelId, by: str) -> TransferStatus:
        """Pause the transfer under way, for a placement or a pull, until it is resumed.

        Raises:
            StoreError: `store.no_transfer` when none is under way, `store.not_found`.
        """
        await self._card(model_id)
        if await self._downloads.pause(model_id, by):
            return await self.download_status(model_id)
        raise _no_transfer(await self.download_status(model_id), "paused")

    async def resume_download(self, model_id: ModelId) -> TransferStatus:
        """Go on with a paused transfer; one that runs or is complete is left as it is.

        Raises:
            StoreError: `store.no_transfer` when there is none, `store.not_found`.
        """
        await self._downloads.resume(await self._card(model_id))
        status = await self.download_status(model_id)
        if status.state not in {"running", "complete"}:
            raise _no_transfer(status, "resumed")
        return status

    async def download_status(self, model_id: ModelId) -> TransferStatus:
        """Say how far a transfer is, or how the last one ended.

        Raises:
            StoreError: `store.not_found` for a model that no card names.
        """
        card = await self._card(model_id)
        reading = self._reading(model_id)
        if reading is not None or model_id in self._downloads.pulled():
            return self._running(model_id, reading)
        artifact = await run_blocking(self._store.locate, card)
        if artifact is not None:
            return TransferStatus(
                model_id=model_id,
                node_id=self._node_id,
                state="complete",
                done_bytes=artifact.size_bytes,
                total_bytes=artifact.size_bytes,
            )
        outcome = self._state.state.downloads.get(f"{self._node_id}/{model_id}")
        if outcome is None or outcome.error is None:
            return TransferStatus(model_id=model_id, node_id=self._node_id, state="absent")
        is_cancelled = outcome.error.code == "store.cancelled"
        return TransferStatus(
            model_id=model_id,
            node_id=self._node_id,
            state="cancelled" if is_cancelled else "failed",
            error=outcome.error,
        )

    async def cancel_download(self, model_id: ModelId) -> TransferStatus:
        """End a transfer and keep what it fetched; a model without one is left as it is."""
        await self._downloads.cancel_pull(model_id)
        return await self.download_status(model_id)

    async def verify(self, model_id: ModelId) -> VerifyStatus:
        """Begin to hash a model's files again, or join what is under way; returns at once.

        Raises:
            StoreError: `store.not_found`.
        """
        self._verifications.start(await self._card(model_id))
        return self._verifications.status(model_id)

    async def verify_status(self, model_id: ModelId) -> VerifyStatus:
        """Say how far that is, or how the last one ended."""
        return self._verifications.status(model_id)

    async def cancel_verify(self, model_id: ModelId) -> VerifyStatus:
        """End it; what was found so far is nothing."""
        await self._verifications.cancel(model_id)
        return self._verifications.status(model_id)

    async def remove(self, model_id: ModelId) -> int:
        """Delete a model's files; returns the bytes freed.

        Raises:
            StoreError: `store.not_found`, `store.in_use`, `store.disk_failed`.
        """
        freed_bytes = await self._store.remove(model_id)
        await self._downloads.cancel_pull(model_id)
        return freed_bytes

    async def storage(self) -> StorageDocument:
        """Say what lies on the models volume."""
        return await run_blocking(self._storage)

    def _catalog(self) -> tuple[CatalogModel, ...]:
        return tuple(
            CatalogModel(
                card=entry.card,
                origin=entry.origin,
                installed=self._store.locate(entry.card) is not None,
            )
            for entry in self._store.catalog.list()
        )

    async def _card(self, model_id: ModelId) -> ModelCard:
        model = await find_model(self, self._state.state, model_id)
        if model is None:
            raise StoreError(
                "store.not_found",
                f"no card names {model_id}",
                remediation="`skulk models list` shows what can be fetched.",
                details={"model_id": model_id},
            )
        return model.card

    def _running(self, model_id: ModelId, reading: TransferReading | None) -> TransferStatus:
        if reading is None:
            return TransferStatus(model_id=model_id, node_id=self._node_id, state="running")
        return transfer_view(reading)

    def _reading(self, model_id: ModelId) -> TransferReading | None:
        return self._readings.readings.transfers.get((self._node_id, model_id))

    def _is_paused(self, model_id: ModelId) -> bool:
        reading = self._reading(model_id)
        return reading is not None and reading.paused is not None

    def _import_file(self, path: Path, model_id: ModelId | None) -> ModelCard:
        card = card_from_gguf(path, model_id)
        self._store.catalog.add(card)
        return card

    def _found(self, sources: tuple[FoundSource, ...]) -> tuple[FoundModelView, ...]:
        imported = {
            entry.card.source.path: entry.card.model_id
            for entry in self._store.catalog.list()
            if isinstance(entry.card.source, LocalSource)
        }
        found: list[tuple[FoundSource, FoundModel]] = [
            (source, model)
            for source in sources
            for model in find_models(source, home=self._home, environment=self._environment)
        ]
        return tuple(_found_view(source, model, imported) for source, model in found[:MAX_FOUND])

    def _storage(self) -> StorageDocument:
        total_bytes, free_bytes = _space(self._models_dir)
        return StorageDocument(
            node_id=self._node_id,
            models_dir=str(self._models_dir),
            disk_total_bytes=total_bytes,
            disk_free_bytes=free_bytes,
            staging_bytes=self._store.staging_bytes(),
            items=(
                *(_stored(artifact) for artifact in self._store.list_installed()),
                *(_damaged(artifact) for artifact in self._store.list_damaged()),
            ),
        )


def _no_transfer(status: TransferStatus, deed: str) -> StoreError:
    """Say that there is nothing to pause or resume, and how the last transfer ended."""
    if status.state == "complete":
        how, remedy = "its files are complete here", "None is needed."
    else:
        how = "nothing is fetched here"
        if status.error is not None:
            how = f"the last one ended: {status.error.message}"
        remedy = f"Fetch it: `skulk models pull {status.model_id}`."
    return StoreError(
        "store.no_transfer",
        f"no transfer of {status.model_id} is under way that could be {deed}; {how}",
        remediation=remedy,
        details={"model_id": status.model_id, "state": status.state},
    )


def _space(path: Path) -> tuple[int | None, int | None]:
    """Measure a volume in all and free; both unknown while it is not there."""
    try:
        space = os.statvfs(path)
    except OSError:
        return None, None
    return space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize


def _stored(artifact: InstalledArtifact) -> StoredModelView:
    return StoredModelView(
        model_id=artifact.model_id,
        size_bytes=artifact.size_bytes,
        in_use=False,
        linked=artifact.root == artifact.entry.parent,
        path=str(artifact.entry),
    )


def _damaged(artifact: DamagedArtifact) -> StoredModelView:
    return StoredModelView(
        model_id=artifact.model_id,
        size_bytes=artifact.size_bytes,
        in_use=False,
        path=str(artifact.path),
        damaged=tuple(one.path for one in artifact.damages.files),
    )


def _found_view(
    source: FoundSource, model: FoundModel, imported: Mapping[str, ModelId]
) -> FoundModelView:
    problem, size_bytes = "", model.size_bytes
    try:
        card = card_from_gguf(model.path, model.model_id)
        size_bytes = card.storage_size.in_bytes
    except StoreError as error:
        problem = error.message
    path = str(model.path)
    return FoundModelView(
        source=source,
        name=model.path.name,
        path=path,
        size_bytes=size_bytes,
        model_id=imported.get(path, model.model_id),
        imported=path in imported,
        problem=problem,
    )
