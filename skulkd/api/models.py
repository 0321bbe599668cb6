"""The catalogue, and imports of files that are there already."""

from typing import Final, cast, final, get_args

from protocol.cards import card_digest
from protocol.commands import AddCard, RemoveCard
from protocol.control_api import CardDocument, CommandAccepted, ImportModelBody
from protocol.errors import RequestError, StoreError
from protocol.ids import ModelId, parse_model_id
from protocol.models_api import ModelList
from protocol.storage_api import FoundModels, FoundSource
from skulkd.api.catalog import find_here, find_model
from skulkd.api.control import mint, read_body, unknown_model
from skulkd.api.dependencies import ApiDependencies
from skulkd.api.http import Answer, Request, json_reply
from skulkd.api.model_views import companions_in, model_entry
from skulkd.api.ports import CatalogModel
from skulkd.api.query import refuse_unknown, whole_number
from skulkd.api.store import refuse_in_use
from skulkd.api.views import merged_catalog
from skulkd.core.placement.requirements import requirements_of

_SOURCES: Final[tuple[FoundSource, ...]] = get_args(FoundSource)


@final
class ModelRoutes:
    """The routes about cards.

    Args:
        deps: The rest of the daemon.
    """

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps

    async def list_all(self, request: Request) -> Answer:
        """`GET /v1/models` and `GET /models`."""
        del request
        state = self._deps.state.state
        catalog = await self._catalog()
        companions = companions_in(item.card for item in catalog.values())
        entries = (model_entry(item, state, companions) for item in catalog.values())
        return json_reply(ModelList(data=tuple(entries)))

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
        companions = companions_in(one.card for one in catalog.values())
        state = self._deps.state.state
        return json_reply(model_entry(item, state, companions))

    async def card(self, request: Request) -> Answer:
        """`GET /models/cards/{id}`: asked by another node, what is here counts."""
        model_id = parse_model_id(request.params["model_id"])
        find = find_model if request.asker is None else find_here
        item = await find(self._deps.models, self._deps.state.state, model_id)
        if item is None:
            raise unknown_model(model_id)
        digest = card_digest(item.card)
        return json_reply(CardDocument(card=item.card, digest=digest, installed=item.installed))

    async def requirements(self, request: Request) -> Answer:
        """`GET /models/requirements`: what a model needs, whichever node would run it."""
        refuse_unknown(request, {"model_id", "context_tokens", "slots"})
        model_id = parse_model_id(request.query("model_id") or "")
        item = await find_model(self._deps.models, self._deps.state.state, model_id)
        if item is None:
            raise unknown_model(model_id)
        needs = requirements_of(
            item.card,
            context_tokens=whole_number(request, "context_tokens", 0) or None,
            slots=min(256, max(1, whole_number(request, "slots", 1))),
        )
        return json_reply(needs)

    async def import_file(self, request: Request) -> Answer:
        """`POST /models/add` and `/models/import`: a card for a file that stays where it is."""
        body = await read_body(request, ImportModelBody)
        command_id = mint(self._deps, request)
        card = await self._deps.models.import_file(body.path, body.model_id)
        await self._deps.gateway.submit(AddCard(command_id=command_id, card=card))
        item = CatalogModel(card=card, origin="custom", installed=True)
        entry = model_entry(item, self._deps.state.state)
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
        refuse_in_use(state, model_id, "its card")
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

    async def _catalog(self) -> dict[ModelId, CatalogModel]:
        """Give every model that a client can ask for here, or have placed."""
        state = self._deps.state.state
        catalog = merged_catalog(await self._deps.models.catalog(), state)
        for one in state.instances.values():
            if one.model_id not in catalog:  # its card lies on another node alone
                item = CatalogModel(card=one.card, origin="elsewhere", installed=False)
                catalog[one.model_id] = item
        return dict(sorted(catalog.items()))
