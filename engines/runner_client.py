"""A client of one runner child: a connection for each question (engines/runner_wire.py)."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final, final

from engines.base import EngineStatistics, LoadStatus, Vectors
from engines.runner_wire import head_of, pack_message, read_message
from protocol.data_frames import Chunk, Failed, Finished, Frame, TakeChunk
from protocol.errors import EngineError, ProtocolError, SkulkError, error_of
from protocol.frame_wire import unpack_frame
from protocol.tasks import ChatTask

CONTROL_QUIET_S: Final = 10.0
"""For what a runner answers between two steps of its engine."""
QUIET_S: Final = 600.0
"""For the first word of an answer, and between two: a long prompt is read in silence."""


@final
class RunnerClient:
    """`engines.base.EngineClient` over the runner's socket.

    Args:
        socket_path: Where the runner listens.
    """

    def __init__(self, socket_path: Path) -> None:
        self._socket_path = socket_path
        self._open: set[asyncio.StreamWriter] = set()

    async def load_status(self) -> LoadStatus:
        """Ask how far the load is; a runner that does not listen yet is one that is not loaded."""
        try:
            fields = await self._ask("status", pack_message("status"))
        except EngineError as error:
            if error.code != "engine.gone":
                raise
            return LoadStatus(loaded=False, note="the runner does not listen yet")
        match fields:
            case (bool() as loaded, None | float() as ratio, str() as note):
                return LoadStatus(loaded=loaded, done_ratio=ratio, note=note)
            case _:
                raise _unreadable("a status")

    async def chat(
        self, task: ChatTask, take: TakeChunk | None = None
    ) -> AsyncGenerator[Frame, None]:
        """Serve one task; see `EngineClient.chat`."""
        question = pack_message("chat", task.model_dump(mode="python"))
        writer: asyncio.StreamWriter | None = None
        frame: Frame | None = None
        try:
            reader, writer = await self._connect(question)
            while not isinstance(frame, Finished | Failed):
                frame = unpack_frame(await _next(reader, QUIET_S))
                if not (take and isinstance(frame, Chunk) and take(frame)):
                    yield frame
        except SkulkError as error:
            yield Failed(error.body())
        finally:
            self._close(writer)

    async def embed(self, texts: tuple[str, ...]) -> Vectors:
        """Refuse: an in-process engine makes no vectors."""
        raise EngineError(
            "engine.unsupported", f"this engine embeds no texts, not these {len(texts)}"
        )

    async def rerank(self, query: str, documents: tuple[str, ...]) -> Vectors:
        """Refuse: an in-process engine scores nothing."""
        raise EngineError(
            "engine.unsupported",
            f"this engine scores no documents, not these {len(documents)}",
            details={"query": query[:100]},
        )

    async def count_text(self, text: str) -> int:
        """Count a text; takes no slot."""
        return _count(await self._ask("count", pack_message("count_text", text)))

    async def count_tokens(self, task: ChatTask) -> int:
        """Render the prompt and count it; takes no slot."""
        question = pack_message("count", task.model_dump(mode="python"))
        return _count(await self._ask("count", question))

    async def statistics(self) -> EngineStatistics:
        """Ask what the engine is doing."""
        match await self._ask("statistics", pack_message("statistics")):
            case (int() as slots, int() as busy, int() as context_tokens):
                return EngineStatistics(slots=slots, slots_busy=busy, context_tokens=context_tokens)
            case _:
                raise _unreadable("statistics")

    async def close(self) -> None:
        """Cut all connections."""
        for writer in tuple(self._open):
            writer.close()

    async def _ask(self, name: str, question: bytes) -> tuple[object, ...]:
        reader, writer = await self._connect(question)
        try:
            answer = await _next(reader, CONTROL_QUIET_S)
        finally:
            self._close(writer)
        try:
            answered, fields = head_of(answer)
        except ProtocolError:
            frame = unpack_frame(answer)
            if isinstance(frame, Failed):
                raise error_of(frame.error) from None
            raise
        if answered != name:
            raise _unreadable("it is one to another question")
        return fields

    async def _connect(self, question: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            async with asyncio.timeout(CONTROL_QUIET_S):
                reader, writer = await asyncio.open_unix_connection(self._socket_path)
        except OSError as error:  # a timeout is one too
            raise _gone("it does not listen") from error
        self._open.add(writer)
        writer.write(question)
        return reader, writer

    def _close(self, writer: asyncio.StreamWriter | None) -> None:
        if writer is not None:
            self._open.discard(writer)
            writer.close()


async def _next(reader: asyncio.StreamReader, quiet_s: float) -> object:
    try:
        async with asyncio.timeout(quiet_s):
            return await read_message(reader)
    except TimeoutError as error:
        raise _gone("it has said nothing for long") from error
    except (OSError, EOFError) as error:
        raise _gone("its connection has ended") from error


def _count(fields: tuple[object, ...]) -> int:
    match fields:
        case (int() as count,):
            return count
        case _:
            raise _unreadable("a count")


def _gone(why: str) -> EngineError:
    return EngineError(
        "engine.gone",
        f"the runner is gone: {why}",
        remediation="The instance is started again; its log has the runner's last words.",
    )


def _unreadable(what: str) -> EngineError:
    return EngineError("engine.request_failed", f"the runner's answer cannot be read: {what}")
