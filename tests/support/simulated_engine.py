"""An engine whose processes are simulated: what it launches, and the client that asks them."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final, final

from engines.base import (
    Endpoint,
    EngineClient,
    EngineDescription,
    EngineStatistics,
    LaunchSpec,
    LoadSpec,
    LoadStatus,
    Vectors,
)
from protocol.cards import EngineName
from protocol.data_frames import Chunk, Failed, Finished, Frame, Started, TakeChunk, Usage
from protocol.errors import EngineError, ErrorBody
from protocol.tasks import ChatTask
from skulkd.worker.launchers.base import ExitStatus
from tests.support.simulated_machine import SimulatedMachine, SimulatedProcess

_HOP_S: Final = 0.001
"""From the worker to the engine."""
_QUIET_S: Final = 60.0
"""After so much silence a client gives its engine up; the product's own is ten times as patient."""


def word(index: int) -> str:
    """Give the word that every engine says in this place of its answer."""
    return f"word{index} "


@final
class SimulatedEngine:
    """Implements `engines.base.Engine` under any name.

    Args:
        name: Which engine it stands for.
        machine: Where its processes run.
    """

    def __init__(self, name: EngineName, machine: SimulatedMachine) -> None:
        self._name: EngineName = name
        self._machine = machine

    def describe(self) -> EngineDescription:
        """Say what it can do."""
        return EngineDescription(
            name=self._name, features=frozenset({"chat"}), default_slots=2, overhead_bytes=0
        )

    def launch(self, spec: LoadSpec) -> LaunchSpec:
        """Give an argv that `simulated_launcher` reads."""
        size_bytes = spec.card.storage_size.in_bytes
        return LaunchSpec(
            argv=(self._name, spec.card.model_id, str(size_bytes), str(spec.slots)),
            endpoint=Endpoint(socket_path=spec.socket_path),
        )

    def connect(self, spec: LoadSpec, endpoint: Endpoint) -> EngineClient:
        """Make a client."""
        return SimulatedClient(self._machine, spec, endpoint)


@final
class SimulatedClient:
    """Implements `engines.base.EngineClient`."""

    def __init__(self, machine: SimulatedMachine, spec: LoadSpec, endpoint: Endpoint) -> None:
        self._machine = machine
        self._spec = spec
        self._endpoint = endpoint

    async def load_status(self) -> LoadStatus:
        """Ask whether the model is loaded."""
        await asyncio.sleep(_HOP_S)
        process = self._machine.listening(self._endpoint)
        if process is None:
            return LoadStatus(loaded=False)
        if process.mood.load_fails and process.is_loaded:
            raise EngineError("engine.request_failed", "the engine says that loading failed")
        return LoadStatus(loaded=process.is_loaded)

    async def chat(self, task: ChatTask, take: TakeChunk | None = None) -> AsyncGenerator[Frame]:
        """Say `max_tokens` words."""
        await asyncio.sleep(_HOP_S)
        process = self._machine.listening(self._endpoint)
        if process is None or not process.is_loaded:
            yield Failed(_gone())
            return
        with process.serving(task.command_id):
            mood = process.mood
            if not await process.lives_for(mood.first_token_s):
                yield Failed(_gone())
                return
            yield Started(prompt_tokens=5)
            n_tokens = task.max_tokens or 16
            for index in range(n_tokens):
                if not await self._next_token(process, index):
                    yield Failed(_gone())
                    return
                chunk = Chunk(word(index))
                if take is None or not take(chunk):
                    yield chunk
            yield Finished("length", Usage(prompt_tokens=5, completion_tokens=n_tokens))

    async def _next_token(self, process: SimulatedProcess, index: int) -> bool:
        mood = process.mood
        if index == mood.dies_after:
            process.die(ExitStatus(signal="SIGSEGV"))
        pause_s = _QUIET_S if index == mood.stalls_after else mood.token_s
        is_alive = await process.lives_for(pause_s)
        return is_alive and index != mood.stalls_after

    async def embed(self, texts: tuple[str, ...]) -> Vectors:
        """Refuse: the simulated models generate text."""
        raise EngineError("engine.unsupported", f"no embeddings of {len(texts)} texts")

    async def rerank(self, query: str, documents: tuple[str, ...]) -> Vectors:
        """Refuse: the simulated models generate text."""
        raise EngineError("engine.unsupported", f"no scores of {len(documents)} for {query}")

    async def count_text(self, text: str) -> int:
        """Count words."""
        await asyncio.sleep(_HOP_S)
        return len(text.split())

    async def count_tokens(self, task: ChatTask) -> int:
        """Count words."""
        await asyncio.sleep(_HOP_S)
        if self._machine.listening(self._endpoint) is None:
            raise EngineError("engine.gone", "the engine is gone")
        return sum(len(message.content.split()) for message in task.messages)

    async def statistics(self) -> EngineStatistics:
        """Count its slots."""
        await asyncio.sleep(_HOP_S)
        process = self._machine.listening(self._endpoint)
        if process is None:
            raise EngineError("engine.gone", "the engine is gone")
        return EngineStatistics(
            slots=process.slots,
            slots_busy=process.n_busy,
            context_tokens=self._spec.context_tokens,
        )

    async def close(self) -> None:
        """Close; there is nothing to."""


def _gone() -> ErrorBody:
    return ErrorBody(code="engine.gone", message="the connection to the engine was lost")
