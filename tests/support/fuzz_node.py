"""A node's API and its scripted engines in one process and in virtual time, for floods of requests.

All that a request passes is the product's own: the HTTP parser, the API, slots and streams, the
client of the engine and the engine's server. Only sockets and processes are memory.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, final

from engines.base import Endpoint, LoadSpec
from engines.scripted.engine import ScriptedEngine, builtin_facts
from engines.scripted.script import Script
from engines.scripted.server import serve
from engines.upstream import UpstreamClient
from protocol.cards import ModelCard, ModelTask, ScriptedSection
from protocol.data_frames import Frame, TakeChunk
from protocol.errors import ErrorBody
from protocol.ids import CommandId, InstanceId
from protocol.instances import Instance
from protocol.tasks import ChatTask, VectorTask
from skulkd.api.app import ApiApp, create_app
from skulkd.api.server import ApiServer
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.tasks import Tasks
from skulkd.worker.serving import Serving
from skulkd.worker.slots import SlotLimits, Slots
from tests.support.fake_ports import FakeDaemon, make_card, make_instance, on_engine
from tests.support.memory_loop import MemoryLoop

SPEAKER: Final = "scripted/speaker"
CALLER: Final = "scripted/caller"
EMBEDDER: Final = "scripted/embedder"
RERANKER: Final = "scripted/reranker"
WINDOW: Final = 512
SLOTS: Final = 2
"""Fewer than callers, so that requests wait for one another."""
MAX_QUEUED: Final = 4
EPOCH_MS: Final = 1_900_000_000_000
_CALL: Final = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
_SETTLE_S: Final = 200.0
"""Virtual; longer than anything that a client owes is waited for."""


def _card(model_id: str, task: ModelTask = "TextGeneration", **script: object) -> ModelCard:
    section = ScriptedSection.model_validate({"token_delay_ms": 3, **script})
    return make_card(
        model_id, tasks=(task,), family="qwen", scripted=section, context_length=WINDOW
    )


CARDS: Final = (
    _card(SPEAKER, reply="The capital of France is Paris, a fine città 🦊 indeed."),
    _card(
        CALLER, raw_markup=True, reply=f"I look.\n{_CALL}", later_replies=("It is sunny in Paris.",)
    ),
    _card(EMBEDDER, "TextEmbedding"),
    _card(RERANKER, "TextRerank"),
)


@final
class LocalEngines:
    """Implements `skulkd.api.ports.Inference` and `TokenCounts` over engines on this loop."""

    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self._tasks = Tasks("engines", on_death=_raise)
        self.clients: list[UpstreamClient] = []
        self.servings: dict[InstanceId, Serving] = {}

    async def start(self, instances: tuple[Instance, ...]) -> None:
        """Start an engine for each instance."""
        umask = os.umask(0o077)
        try:
            for instance in instances:
                await self._start(instance)
        finally:
            os.umask(umask)  # the engine's program sets its own

    async def close(self) -> None:
        """End all engines."""
        for client in self.clients:
            await client.close()
        assert await self._tasks.close(1.0) == ()

    def chat(
        self, instance_id: InstanceId, task: ChatTask, take: TakeChunk | None = None
    ) -> AsyncGenerator[Frame]:
        """Serve a chat."""
        return self.servings[instance_id].chat(task, take)

    def vectors(self, instance_id: InstanceId, task: VectorTask) -> AsyncGenerator[Frame]:
        """Serve a task for vectors."""
        return self.servings[instance_id].vectors(task)

    async def count_tokens(self, instance_id: InstanceId, task: ChatTask) -> int:
        """Count a prompt."""
        return await self.servings[instance_id].count_tokens(task)

    def cancel(self, command_id: CommandId) -> bool:
        """End a task."""
        error = ErrorBody(code="request.cancelled", message="cancelled")
        return any(serving.cancel(command_id, error) for serving in self.servings.values())

    async def _start(self, instance: Instance) -> None:
        card = instance.card
        path = Path(f"/{card.model_id}.sock")
        section = card.scripted
        assert section is not None
        script = Script(
            slots=SLOTS,
            context_tokens=WINDOW,
            reply=section.reply,
            later_replies=section.later_replies,
            token_delay_ms=section.token_delay_ms,
            raw_markup=section.raw_markup,
        )
        self._tasks.start(serve(str(path), script), name=card.model_id)
        spec = LoadSpec(
            card=card,
            entry_path=path,
            context_tokens=WINDOW,
            slots=SLOTS,
            compute="cpu",
            n_threads=1,
            socket_path=path,
            build=builtin_facts(),
        )
        client = ScriptedEngine().connect(spec, Endpoint(socket_path=path))
        self.clients.append(client)
        async with asyncio.timeout(5):
            while not (await client.load_status()).loaded:
                await asyncio.sleep(0.001)
        limits = SlotLimits(slots=SLOTS, context_tokens=WINDOW, max_queued=MAX_QUEUED)
        self.servings[instance.instance_id] = Serving(
            client, Slots(limits, client, self._clock), self._clock
        )


@final
class FuzzNode:
    """The API, as its callers dial it, and a look at whether anything is held."""

    def __init__(
        self, loop: MemoryLoop, app: ApiApp, server: ApiServer, engines: LocalEngines, tasks: Tasks
    ) -> None:
        self.loop = loop
        self._app = app
        self._server = server
        self._engines = engines
        self._tasks = tasks

    @property
    def port(self) -> int:
        """Of the API."""
        return self._server.port

    def held(self) -> list[str]:
        """Name all that is not free: requests, slots, places in queues, tasks, connections."""
        held = [f"{self._app.n_open} requests"] if self._app.n_open else []
        for instance_id, serving in self._engines.servings.items():
            slots = serving.slots
            if (slots.n_running, slots.n_queued, serving.n_open) != (0, 0, 0):
                counts = f"{slots.n_running} slots, {slots.n_queued} places, {serving.n_open} tasks"
                held.append(f"{counts} of {instance_id}")
        held += (f"task {name}" for name in self._tasks.names())
        held += (f"connection {connection}" for connection in self._server.connections())
        return held

    async def busy_engines(self) -> list[str]:
        """Ask the engines themselves for the slots that they work in."""
        counts = [(await client.statistics()).slots_busy for client in self._engines.clients]
        return [f"{n} slots of engine {index}" for index, n in enumerate(counts) if n]

    async def settled(self) -> list[str]:
        """Wait until all is free; gives what never is."""
        deadline_s = self.loop.time() + _SETTLE_S
        while held := self.held() + await self.busy_engines():
            if self.loop.time() > deadline_s:
                return held
            await asyncio.sleep(0.5)
        return []


@asynccontextmanager
async def fuzz_node() -> AsyncGenerator[FuzzNode]:
    """Run a node on the running loop, which is a `MemoryLoop`."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MemoryLoop)
    clock = LoopClock(loop, epoch_ms=EPOCH_MS)
    instances = tuple(
        on_engine(make_instance(card=card, number=number, context_tokens=WINDOW), "scripted")
        for number, card in enumerate(CARDS, start=1)
    )
    daemon = FakeDaemon(*instances)
    daemon.clock = clock
    daemon.max_held_body_bytes = 1 << 20
    engines = LocalEngines(clock)
    await engines.start(instances)
    tasks = Tasks("api", on_death=_raise)
    deps = replace(daemon.dependencies(tasks), inference=engines, counts=engines)
    app = create_app(deps)
    server = ApiServer(clock=clock)
    await server.start(app, port=0)
    try:
        yield FuzzNode(loop, app, server, engines, tasks)
    finally:
        await server.close(grace_s=2)
        assert await tasks.close(2) == ()
        await engines.close()


def _raise(story: str, error: BaseException) -> None:
    raise AssertionError(story) from error
