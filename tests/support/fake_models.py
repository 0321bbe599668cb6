"""A node's catalogue and files, as the API sees them, in memory."""

from typing import final

from protocol.cards import ModelCard
from protocol.control_api import PauseView, TransferStatus
from protocol.errors import StoreError
from protocol.ids import ModelId, NodeId
from protocol.storage_api import FoundModelView, FoundSource, StorageDocument, StoredModelView
from protocol.verify_api import VerifyStatus
from skulkd.api.ports import CatalogModel


@final
class FakeModels:
    """A catalogue and a disk in memory."""

    def __init__(self, node_id: NodeId, *cards: ModelCard) -> None:
        self.node_id = node_id
        self.items = [CatalogModel(card=card, origin="bundled", installed=True) for card in cards]
        self.imported: list[tuple[str, ModelId | None]] = []
        self.removed: list[ModelId] = []
        self.cards_elsewhere: dict[ModelId, ModelCard] = {}
        self.transfers: dict[ModelId, TransferStatus] = {}

    async def catalog(self) -> tuple[CatalogModel, ...]:
        return tuple(self.items)

    async def elsewhere(self, model_id: ModelId) -> CatalogModel | None:
        card = self.cards_elsewhere.get(model_id)
        return card and CatalogModel(card=card, origin="elsewhere", installed=False)

    async def import_file(self, path: str, model_id: ModelId | None) -> ModelCard:
        self.imported.append((path, model_id))
        if not path.endswith(".gguf"):
            raise StoreError("store.gguf_invalid", f"{path} is not a GGUF file")
        named = {"model_id": model_id or ModelId("local/imported")}
        card = self.items[0].card.model_copy(update=named)
        self.items.append(CatalogModel(card=card, origin="custom", installed=True))
        return card

    async def remove_card(self, model_id: ModelId) -> bool:
        kept = [item for item in self.items if item.card.model_id != model_id]
        has_removed = len(kept) < len(self.items)
        self.items = kept
        return has_removed

    async def found(self, sources: tuple[FoundSource, ...]) -> tuple[FoundModelView, ...]:
        return tuple(
            FoundModelView(source=source, name="m", path=f"/{source}/m.gguf", size_bytes=9)
            for source in sources
        )

    def _known(self, model_id: ModelId) -> None:
        if all(item.card.model_id != model_id for item in self.items):
            raise StoreError("store.not_found", f"no card names {model_id}")

    async def start_download(self, model_id: ModelId) -> TransferStatus:
        self._known(model_id)
        status = TransferStatus(
            model_id=model_id, node_id=self.node_id, state="running", phase="download"
        )
        self.transfers[model_id] = status
        return status

    async def download_status(self, model_id: ModelId) -> TransferStatus:
        self._known(model_id)
        absent = TransferStatus(model_id=model_id, node_id=self.node_id, state="absent")
        return self.transfers.get(model_id, absent)

    async def pause_download(self, model_id: ModelId, by: str) -> TransferStatus:
        status = await self.download_status(model_id)
        if status.state == "running":
            paused = PauseView(by=by, at_ms=1)
            status = status.model_copy(update={"state": "paused", "paused": paused})
            self.transfers[model_id] = status
        return status

    async def resume_download(self, model_id: ModelId) -> TransferStatus:
        status = await self.download_status(model_id)
        if status.state == "paused":
            status = status.model_copy(update={"state": "running", "paused": None})
            self.transfers[model_id] = status
        return status

    async def verify(self, model_id: ModelId) -> VerifyStatus:
        return await self.verify_status(model_id)

    async def verify_status(self, model_id: ModelId) -> VerifyStatus:
        return VerifyStatus(model_id=model_id, node_id=self.node_id, state="absent")

    async def cancel_verify(self, model_id: ModelId) -> VerifyStatus:
        return await self.verify_status(model_id)

    async def cancel_download(self, model_id: ModelId) -> TransferStatus:
        status = await self.download_status(model_id)
        if status.state == "running":
            status = status.model_copy(update={"state": "cancelled"})
            self.transfers[model_id] = status
        return status

    async def remove(self, model_id: ModelId) -> int:
        self._known(model_id)
        self.removed.append(model_id)
        return 1000

    async def storage(self) -> StorageDocument:
        items = tuple(
            StoredModelView(model_id=item.card.model_id, size_bytes=1000, in_use=False)
            for item in self.items
        )
        return StorageDocument(node_id=self.node_id, models_dir="/models", items=items)
