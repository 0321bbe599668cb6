"""Ollama's routes: chats in its dialect, and its view of the models that are placed."""

import json
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Any, Final, Literal, final

from protocol.commands import SleepInstance
from protocol.data_frames import Failed
from protocol.errors import RequestError, error_of
from protocol.ids import CommandId, ModelId
from protocol.instances import Instance
from protocol.tasks import ChatTask
from skulkd.api.catalog import find_model
from skulkd.api.dependencies import ApiDependencies
from skulkd.api.dialects.fields import Fields, model_id_of
from skulkd.api.dialects.ollama import (
    IdleCall,
    OllamaCall,
    parse_chat,
    parse_generate,
    parse_idle,
)
from skulkd.api.dialects.ollama_embeddings import NO_VECTORS, parse_embed, parse_embeddings
from skulkd.api.dialects.ollama_output import Kind, idle_document
from skulkd.api.dialects.pictures import Pictures
from skulkd.api.http import Answer, Header, Reply, Request
from skulkd.api.inference import ChatService
from skulkd.api.json_body import decode_object
from skulkd.api.ollama_views import (
    ollama_capabilities,
    ps_document,
    show_document,
    tags_document,
)
from skulkd.api.ports import CatalogModel
from skulkd.api.selection import placed_instances, untagged
from skulkd.api.vectors import VectorService
from skulkd.api.views import sleeps_in_s
from skulkd.api.waking import STREAM_WAIT_S

VERSION: Final = "0.12.11"
"""The release of Ollama whose API this is: clients compare it with the oldest they work with."""
_TEXT: Final[Header] = (b"content-type", b"text/plain; charset=utf-8")
_MS_PER_S: Final = 1000


@final
class OllamaRoutes:
    """The routes under `/ollama`, but those of `/ollama/v1`.

    Args:
        deps: The rest of the daemon.
        chat: Serves what is asked of a model.
        vectors: Serves what wants vectors.
    """

    def __init__(self, deps: ApiDependencies, chat: ChatService, vectors: VectorService) -> None:
        self._deps = deps
        self._chat = chat
        self._vectors = vectors

    async def root(self, request: Request) -> Answer:
        """`GET /ollama/`: the words by which clients know a server."""
        del request
        return Reply(body=b"Ollama is running", headers=(_TEXT,))

    async def version(self, request: Request) -> Answer:
        """`GET /ollama/api/version`."""
        del request
        return _json({"version": VERSION})

    async def chat(self, request: Request) -> Answer:
        """`POST /ollama/api/chat`; without messages, whether the model is loaded."""
        fields = await decode_object(await request.body())
        idle = parse_idle(fields, "messages")
        if idle is not None:
            return await self._idle(request, "chat", idle)
        return await self._chat.serve(request, fields, partial(self._parsed, parse_chat))

    async def generate(self, request: Request) -> Answer:
        """`POST /ollama/api/generate`; without a prompt, whether the model is loaded."""
        fields = await decode_object(await request.body())
        idle = parse_idle(fields, "prompt")
        if idle is not None:
            return await self._idle(request, "generate", idle)
        return await self._chat.serve(request, fields, partial(self._parsed, parse_generate))

    async def embed(self, request: Request) -> Answer:
        """`POST /ollama/api/embed`; without a text, whether the model is loaded."""
        fields = await decode_object(await request.body())
        idle = parse_idle(fields, "input")
        if idle is not None:
            await self._loaded(request, idle)
            return Reply(body=NO_VECTORS["embed"])
        return await self._vectors.serve(request, fields, parse_embed, "ollama")

    async def embeddings(self, request: Request) -> Answer:
        """`POST /ollama/api/embeddings`, the older form of the same."""
        fields = await decode_object(await request.body())
        idle = parse_idle(fields, "prompt")
        if idle is not None:
            await self._loaded(request, idle)
            return Reply(body=NO_VECTORS["embeddings"])
        return await self._vectors.serve(request, fields, parse_embeddings, "ollama")

    async def tags(self, request: Request) -> Answer:
        """`GET /ollama/api/tags`."""
        del request
        return _json(tags_document(self._deps.state.state.instances.values()))

    async def ps(self, request: Request) -> Answer:
        """`GET /ollama/api/ps`."""
        del request
        deps = self._deps
        now_s, now_ms = deps.clock.monotonic_s(), deps.clock.wall_ms()

        def expires_ms(item: Instance) -> int | None:
            left_s = sleeps_in_s(item, deps.readings.readings, now=now_s)
            return None if left_s is None else now_ms + left_s * _MS_PER_S

        return _json(ps_document(deps.state.state.instances.values(), expires_ms))

    async def show(self, request: Request) -> Answer:
        """`POST /ollama/api/show`, the model named as `model` or as `name`."""
        fields = await decode_object(await request.body())
        model_id = model_id_of({"model": fields.get("model") or fields.get("name")})
        copies = placed_instances(self._deps.state.state, model_id)
        card = copies[0].card if copies else (await self._found(model_id)).card
        return _json(show_document(card, copies))

    def _parsed(
        self,
        parse: Callable[..., OllamaCall],
        fields: Fields,
        *,
        command_id: CommandId,
        pictures: Pictures,
    ) -> OllamaCall:
        """Read a chat, and refuse thinking where the model cannot: its card alone says so."""
        call = parse(fields, command_id=command_id, pictures=pictures)
        model_id = call.task.model_id
        copies = placed_instances(self._deps.state.state, model_id)
        if call.wants_thinking and copies and "thinking" not in ollama_capabilities(copies[0].card):
            raise RequestError(
                "request.unsupported_field",
                f'"{model_id}" does not support thinking',
                remediation="Leave `think` out, or choose a model that thinks.",
                details={"param": "think"},
            )
        return call

    async def _idle(self, request: Request, kind: Kind, idle: IdleCall) -> Answer:
        reason = await self._loaded(request, idle)
        created_s = self._deps.clock.wall_ms() // _MS_PER_S
        return Reply(body=idle_document(kind, idle.model_id, created_s, reason))

    async def _loaded(self, request: Request, idle: IdleCall) -> Literal["load", "unload"]:
        """Load or unload a model that is on demand; tell of another one whether it is loaded.

        Raises:
            SkulkError: What an answer would be refused with; `request.model_not_found`.
        """
        if idle.keep_s != 0:
            candidates = self._chat.ready(idle.model_id)
            ready = await self._chat.awake(request, candidates, wait_s=STREAM_WAIT_S)
            if idle.keep_s is not None:
                await self._keep(idle, ready)
            return "load"
        copies = placed_instances(self._deps.state.state, idle.model_id)
        if not copies:
            await self._found(idle.model_id)
            return "unload"
        for item in copies:
            if item.phase == "ready" and item.ttl_ms is not None and not item.pinned:
                await self._unload(item)
        stays = [item for item in copies if item.ttl_ms is None or item.pinned]
        return "load" if any(item.phase == "ready" for item in stays) else "unload"

    async def _keep(self, idle: IdleCall, ready: tuple[Instance, ...]) -> None:
        """Tell those that are on demand how long they are to stay: a task without a word to answer.

        Raises:
            SkulkError: One has gone meanwhile, or its node cannot be asked.
        """
        deps = self._deps
        for item in ready:
            if item.ttl_ms is None:
                continue
            task = ChatTask(
                command_id=deps.gateway.mint_command_id(),
                model_id=item.model_id,
                messages=(),
                keep_s=idle.keep_s,
            )
            async with aclosing(deps.inference.chat(item.instance_id, task)) as frames:
                async for frame in frames:
                    if isinstance(frame, Failed):
                        raise error_of(frame.error)

    async def _unload(self, item: Instance) -> None:
        """End the time to live of an instance now; one that is answering goes on with that."""
        command = SleepInstance(
            command_id=self._deps.gateway.mint_command_id(),
            instance_id=item.instance_id,
            attempt=item.attempt,
        )
        await self._deps.gateway.submit(command)

    async def _found(self, model_id: ModelId) -> CatalogModel:
        for name in dict.fromkeys((model_id, untagged(model_id))):
            found = await find_model(self._deps.models, self._deps.state.state, name)
            if found is not None:
                return found
        raise RequestError(
            "request.model_not_found",
            f"model {model_id!r} not found",
            remediation="See `skulk models list`.",
            details={"param": "model"},
        )


def _json(document: dict[str, Any]) -> Reply:
    return Reply(body=json.dumps(document).encode())
