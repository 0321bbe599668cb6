"""The catalogue, imports, and the files on this node."""

from typing import Final, cast, final, get_args

from protocol.commands import AddCard, RemoveCard
from protocol.control_api import (
    CommandAccepted,
    FoundModels,
    FoundSource,
    ImportModelBody,
    ModelList,
    RemovedModel,
    StoredModelView,
    TransferList,
    TransferStatus,
)
from protocol.errors import RequestError, StoreError
from protocol.ids import ModelId, parse_model_id
from protocol.state import ClusterState
from skulkd.api.control import mint, read_body
from skulkd.api.dependencies import ApiDependencies
from skulkd.api.http import Answer, Request, json_reply
from skulkd.api.ports import CatalogModel
from skulkd.api.views import merged_catalog, model_entry

_SOURCES: Final[tuple[FoundSource, ...]] = get_args(FoundSource)


@final
class ModelRoutes:
    """The routes about cards and model files.

    Args:
        deps: The rest of the daemon.
    """

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps

    # ---- Cards ----

    async def list_all(self, request: Request) -> Answer:
        """`GET /v1/models` and `GET /models`."""
        del request
        instances = self._deps.state.state.instances.values()
        catalog = await self._catalog()
        return json_reply(
            ModelList(data=tuple(model_entry(item, instances) for item in catalog.values()))
        )

    async def show(self, request: Request) -> Answer:
        """`GET /v1/models/{id}`, the id raw or percent-encoded."""
        wanted = request.params["model_id"]
        catalog = await self._catalog()
        item = catalog.get(ModelId(wanted))
        if item is None:
            raise RequestError(
                "request.model_not_found",
                f"No card names the model {wanted[:200]!r}",
                remediation="See `skulk models list`.",
                details={"param": "model"},
            )
        return json_reply(model_entry(item, self._deps.state.state.instances.values()))

    async def import_file(self, request: Request) -> Answer:
        """`POST /models/add` and `/models/import`: a card for a file that stays where it is."""
        body = await read_body(request, ImportModelBody)
        command_id = mint(self._deps, request)
        card = await self._deps.models.import_file(body.path, body.model_id)
        await self._deps.gateway.submit(AddCard(command_id=command_id, card=card))
        item = CatalogModel(card=card, origin="custom", installed=True)
        entry = model_entry(item, self._deps.state.state.instances.values())
        return json_reply(entry, status=201)

    async def found(self, request: Request) -> Answer:
        """`GET /models/found`."""
        asked = request.query_all("source") or list(_SOURCES)
        unknown = [source for source in asked if source not in _SOURCES]
        if unknown:
            raise RequestError(
                "request.invalid",
                f"the source {unknown[0][:40]!r} is not known",
                remediation=f"Known: {', '.join(_SOURCES)}.",
                details={"param": "source"},
            )
        items = await self._deps.models.found(cast("tuple[FoundSource, ...]", tuple(asked)))
        return json_reply(FoundModels(items=items))

    async def remove_card(self, request: Request) -> Answer:
        """`DELETE /models/custom/{id}`."""
        model_id = parse_model_id(request.params["model_id"])
        state = self._deps.state.state
        _refuse_in_use(state, model_id, "its card")
        command_id = mint(self._deps, request)
        is_replicated = model_id in state.cards
        is_local = await self._deps.models.remove_card(model_id)
        if not is_replicated and not is_local:
            raise StoreError(
                "store.not_found",
                f"there is no custom card for {model_id}",
                remediation="See `skulk models list`; only custom cards can be removed.",
            )
        reply = await self._deps.gateway.submit(
            RemoveCard(command_id=command_id, model_id=model_id)
        )
        accepted = CommandAccepted(
            message=f"The card of {model_id} is gone; its files are where they were.",
            command_id=command_id,
            model_id=model_id,
            durable=reply.durable,
            term=reply.term,
            seq=reply.seq,
        )
        return json_reply(accepted)

    # ---- Files ----

    async def download(self, request: Request) -> Answer:
        """`POST /store/models/{id}/download`: begin, or join what is under way."""
        model_id = parse_model_id(request.params["model_id"])
        mint(self._deps, request)
        status = await self._deps.models.start_download(model_id)
        return json_reply(status, status=202)

    async def download_status(self, request: Request) -> Answer:
        """`GET /store/models/{id}/download/status`."""
        model_id = parse_model_id(request.params["model_id"])
        return json_reply(await self._deps.models.download_status(model_id))

    async def cancel_download(self, request: Request) -> Answer:
        """`DELETE /store/models/{id}/download`: idempotent; what was fetched is kept."""
        model_id = parse_model_id(request.params["model_id"])
        mint(self._deps, request)
        return json_reply(await self._deps.models.cancel_download(model_id))

    async def downloads(self, request: Request) -> Answer:
        """`GET /store/downloads`: what is under way, on all nodes."""
        del request
        transfers = self._deps.readings.readings.transfers.values()
        return json_reply(
            TransferList(
                items=tuple(
                    TransferStatus(
                        model_id=item.model_id,
                        node_id=item.node_id,
                        state="running",
                        phase=item.phase,
                        done_bytes=item.done_bytes,
                        total_bytes=item.total_bytes,
                        rate_bytes_s=item.rate_bytes_s,
                        eta_s=item.eta_s,
                        source=item.source,
                    )
                    for item in transfers
                )
            )
        )

    async def remove(self, request: Request) -> Answer:
        """`DELETE /store/models/{id}`: refused while an instance uses it."""
        model_id = parse_model_id(request.params["model_id"])
        _refuse_in_use(self._deps.state.state, model_id, "its files")
        mint(self._deps, request)
        freed_bytes = await self._deps.models.remove(model_id)
        return json_reply(RemovedModel(model_id=model_id, freed_bytes=freed_bytes))

    async def storage(self, request: Request) -> Answer:
        """`GET /store/storage`."""
        del request
        storage = await self._deps.models.storage()
        used = _models_in_use(self._deps.state.state)
        items: tuple[StoredModelView, ...] = tuple(
            item.model_copy(update={"in_use": item.model_id in used}) for item in storage.items
        )
        return json_reply(storage.model_copy(update={"items": items}))

    async def _catalog(self) -> dict[ModelId, CatalogModel]:
        return merged_catalog(await self._deps.models.catalog(), self._deps.state.state)


def _models_in_use(state: ClusterState) -> frozenset[ModelId]:
    return frozenset(item.model_id for item in state.instances.values() if item.phase != "failed")


def _refuse_in_use(state: ClusterState, model_id: ModelId, what: str) -> None:
    if model_id in _models_in_use(state):
        raise StoreError(
            "store.in_use",
            f"{model_id} is placed, so {what} cannot go",
            remediation=f"Stop it first: skulk stop {model_id}",
        )
