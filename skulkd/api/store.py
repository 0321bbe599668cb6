"""Model files: what lies where, downloads, and their removal.

A request that names a node is that node's; one that names none asks this node to download or
remove, and the whole cluster where it only looks.
"""

from collections.abc import Iterable
from typing import final

from protocol.cluster_api import ClusterStorage, ModelHolders, UnansweredNode
from protocol.control_api import PauseBody, TransferList
from protocol.errors import SkulkError, StoreError
from protocol.ids import ModelId, NodeId, parse_model_id
from protocol.state import ClusterState
from protocol.storage_api import RemovedModel, StorageDocument, StoredModelView
from skulkd.api.control import mint, read_body
from skulkd.api.dependencies import ApiDependencies
from skulkd.api.http import Answer, Request, json_reply
from skulkd.api.other_nodes import OtherNodes
from skulkd.api.views import transfer_view


@final
class StoreRoutes:
    """The routes about model files.

    Args:
        deps: The rest of the daemon.
        others: Asks other nodes.
    """

    def __init__(self, deps: ApiDependencies, others: OtherNodes) -> None:
        self._deps = deps
        self._others = others

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

    async def pause_download(self, request: Request) -> Answer:
        """`POST /store/models/{id}/download/pause`: idempotent; what was fetched is kept."""
        model_id = parse_model_id(request.params["model_id"])
        body = await read_body(request, PauseBody, is_optional=True)
        by = body.by if request.asker is not None and body.by else request.principal.name
        node_id = None if request.asker is not None else self._others.named(request)
        if node_id is not None and node_id != self._deps.face.node_id:
            # Who asks is known here alone.
            handed_on = PauseBody(by=f"{by} at {self._deps.face.name}").model_dump_json().encode()
            return await self._others.answer(node_id, request, changes_state=True, body=handed_on)
        mint(self._deps, request)
        return json_reply(await self._deps.models.pause_download(model_id, by))

    async def resume_download(self, request: Request) -> Answer:
        """`POST /store/models/{id}/download/resume`: idempotent; goes on where it was."""
        model_id = parse_model_id(request.params["model_id"])
        mint(self._deps, request)
        return json_reply(await self._deps.models.resume_download(model_id))

    async def verify(self, request: Request) -> Answer:
        """`POST /store/models/{id}/verify`: begin, or join what is under way."""
        model_id = parse_model_id(request.params["model_id"])
        mint(self._deps, request)
        return json_reply(await self._deps.models.verify(model_id), status=202)

    async def verify_status(self, request: Request) -> Answer:
        """`GET /store/models/{id}/verify`."""
        model_id = parse_model_id(request.params["model_id"])
        return json_reply(await self._deps.models.verify_status(model_id))

    async def cancel_verify(self, request: Request) -> Answer:
        """`DELETE /store/models/{id}/verify`: idempotent."""
        model_id = parse_model_id(request.params["model_id"])
        mint(self._deps, request)
        return json_reply(await self._deps.models.cancel_verify(model_id))

    async def downloads(self, request: Request) -> Answer:
        """`GET /store/downloads`: what is under way, on all nodes or on the one that is named."""
        own = self._deps.face.node_id
        transfers = self._deps.readings.readings.transfers.values()
        return json_reply(
            TransferList(
                items=tuple(
                    transfer_view(item)
                    for item in transfers
                    if not request.is_for_this_node or item.node_id == own
                )
            )
        )

    async def remove(self, request: Request) -> Answer:
        """`DELETE /store/models/{id}`: refused while an instance uses it."""
        model_id = parse_model_id(request.params["model_id"])
        refuse_in_use(
            self._deps.state.state, model_id, "its files", node_id=self._deps.face.node_id
        )
        mint(self._deps, request)
        freed_bytes = await self._deps.models.remove(model_id)
        return json_reply(RemovedModel(model_id=model_id, freed_bytes=freed_bytes))

    async def storage(self, request: Request) -> Answer:
        """`GET /store/storage`: this node's disk, and unless a node is named all the others'."""
        own = await self._own_storage()
        if request.is_for_this_node:
            return json_reply(own)
        others, unanswered = await self._other_storages()
        return json_reply(
            ClusterStorage(
                **dict(own),
                others=others,
                holders=_holders((own, *others)),
                unanswered=unanswered,
            )
        )

    async def _own_storage(self) -> StorageDocument:
        storage = await self._deps.models.storage()
        used = _models_in_use(self._deps.state.state, self._deps.face.node_id)
        items: tuple[StoredModelView, ...] = tuple(
            item.model_copy(update={"in_use": item.model_id in used}) for item in storage.items
        )
        return storage.model_copy(update={"items": items})

    async def _other_storages(
        self,
    ) -> tuple[tuple[StorageDocument, ...], tuple[UnansweredNode, ...]]:
        members = sorted(self._deps.state.state.members.keys() - {self._deps.face.node_id})
        asking = [
            self._deps.tasks.start(
                self._other_storage(node_id), name=f"storage of {node_id}", essential=False
            )
            for node_id in members
        ]
        try:
            answers = [await one for one in asking]
        finally:
            for one in asking:
                one.cancel()
        return (
            tuple(one for one in answers if isinstance(one, StorageDocument)),
            tuple(one for one in answers if isinstance(one, UnansweredNode)),
        )

    async def _other_storage(self, node_id: NodeId) -> StorageDocument | UnansweredNode:
        try:
            return await self._others.ask(node_id, "/store/storage", StorageDocument)
        except SkulkError as error:
            return self._others.unanswered(node_id, error)


def _holders(storages: Iterable[StorageDocument]) -> tuple[ModelHolders, ...]:
    by_model: dict[ModelId, list[NodeId]] = {}
    for storage in storages:
        for item in storage.items:
            if item.damaged:
                continue
            by_model.setdefault(item.model_id, []).append(storage.node_id)
    return tuple(
        ModelHolders(model_id=model_id, node_ids=tuple(node_ids))
        for model_id, node_ids in sorted(by_model.items())
    )


def _models_in_use(state: ClusterState, node_id: NodeId | None) -> frozenset[ModelId]:
    return frozenset(
        item.model_id
        for item in state.instances.values()
        if item.phase != "failed"
        and (node_id is None or any(shard.node_id == node_id for shard in item.plan.shards))
    )


def refuse_in_use(
    state: ClusterState, model_id: ModelId, what: str, *, node_id: NodeId | None = None
) -> None:
    """Refuse to take something of a model away while an instance needs it.

    Args:
        state: The instances.
        model_id: Whose.
        what: Would be taken away, for the message.
        node_id: Only instances that run there count; None counts all.

    Raises:
        StoreError: `store.in_use`.
    """
    if model_id in _models_in_use(state, node_id):
        raise StoreError(
            "store.in_use",
            f"{model_id} is placed, so {what} cannot go",
            remediation=f"Stop it first: skulk stop {model_id}",
        )
