"""Serves one engine over a socket: questions come in on the event loop, one thread computes.

The thread takes what has been asked between two steps and never waits while there is work, so
whatever the loop wants done is done within one step.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TypeVar, final

from pydantic import TypeAdapter, ValidationError

from engines.base import LoadStatus
from engines.in_process import InProcessEngine
from engines.runner_wire import head_of, pack_frame_message, pack_message, read_message
from protocol.data_frames import Failed, Finished, Frame
from protocol.errors import EngineError, ProtocolError, SkulkError
from protocol.tasks import ChatTask
from skulkd.runtime.tasks import Tasks, run_blocking_in, timeout

QUESTION_S: Final = 10.0
"""In which a question must be there whole."""
MAX_UNSENT_BYTES: Final = 1024 * 1024
"""Of one answer; a reader that is further behind than this is taken for one that is gone."""

_LOAD_FAILED: Final = 1
_BROKEN: Final = 3
_TASK: Final = TypeAdapter(ChatTask)
_log = logging.getLogger(__name__)

Call = Callable[[InProcessEngine], None]
Frames = asyncio.Queue[Frame | None]
"""Of one answer; None is that nobody waits for it any more."""
T = TypeVar("T")


@final
class RunnerLoop:
    """The life of a runner child.

    Args:
        socket_path: Where to listen.
        make: Makes the engine; called in the engine's thread.
        executor: Of one thread, the engine's; its end is the caller's business.
    """

    def __init__(
        self, socket_path: Path, make: Callable[[], InProcessEngine], executor: Executor
    ) -> None:
        self._socket_path = socket_path
        self._make = make
        self._calls: SimpleQueue[Call] = SimpleQueue()
        self._answers: dict[int, Frames] = {}
        self._ids = count()
        self._executor = executor
        self._status = LoadStatus(loaded=False, done_ratio=0.0, note="starting")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks = Tasks("runner", on_death=_unexpected)

    async def run(self) -> int:
        """Serve; returns the exit status of the process when the engine has ended."""
        self._loop = asyncio.get_running_loop()
        self._socket_path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._serve, self._socket_path)
        self._socket_path.chmod(0o600)
        status = await run_blocking_in(self._executor, self._compute)
        server.close()
        return status

    # ---- In the engine's thread ----

    def _compute(self) -> int:
        try:
            engine = self._make()
            engine.load(self._report)
        except SkulkError as error:
            _log.error("the model cannot be loaded: %s", error.message)
            return _LOAD_FAILED
        # ruff: ignore[blind-except]  a library's own failure, which ends this process and no other
        except Exception:
            _log.exception("the model cannot be loaded")
            return _LOAD_FAILED
        self._on_loop(self._set_status, LoadStatus(loaded=True, done_ratio=1.0))
        try:
            while True:
                while not (engine.has_work and self._calls.empty()):
                    self._calls.get()(engine)
                self._deliver(engine.step())
        # ruff: ignore[blind-except]  as above; whoever waits sees the connection end
        except Exception:
            _log.exception("the engine has failed")
            return _BROKEN

    def _report(self, ratio: float, note: str) -> None:
        self._on_loop(self._set_status, LoadStatus(loaded=False, done_ratio=ratio, note=note))

    def _deliver(self, frames: list[tuple[int, Frame]]) -> None:
        if frames:
            self._on_loop(self._hand_out, frames)

    def _on_loop(self, call: Callable[..., None], value: object) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(call, value)

    # ---- On the event loop ----

    def _set_status(self, status: LoadStatus) -> None:
        self._status = status

    def _hand_out(self, frames: list[tuple[int, Frame]]) -> None:
        for request_id, frame in frames:
            waiting = self._answers.get(request_id)
            if waiting is not None:
                waiting.put_nowait(frame)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with timeout(QUESTION_S):
                name, fields = head_of(await read_message(reader))
            await self._answer(name, fields, reader, writer)
            await writer.drain()
        except (OSError, EOFError, TimeoutError):
            _log.debug("a connection has ended in the middle of a question")
        except SkulkError as error:
            writer.write(pack_frame_message(Failed(error.body())))
        finally:
            writer.close()

    async def _answer(
        self,
        name: str,
        fields: tuple[object, ...],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        if name == "status":
            status = self._status
            writer.write(pack_message("status", status.loaded, status.done_ratio, status.note))
            return
        if not self._status.loaded:
            raise EngineError("engine.busy", f"the model is not loaded yet: {self._status.note}")
        match name, fields:
            case "statistics", ():
                seen = await self._called(lambda engine: engine.statistics())
                fields = (seen.slots, seen.slots_busy, seen.context_tokens)
                writer.write(pack_message("statistics", *fields))
            case "count", (values,):
                task = _task(values)
                n_tokens = await self._called(lambda engine: engine.count_tokens(task))
                writer.write(pack_message("count", n_tokens))
            case "count_text", (str() as text,):
                n_tokens = await self._called(lambda engine: engine.count_text(text))
                writer.write(pack_message("count", n_tokens))
            case "chat", (values,):
                await self._chat(_task(values), reader, writer)
            case _:
                raise ProtocolError("protocol.bad_frame", f"a runner is not asked {name[:40]!r}")

    async def _chat(
        self, task: ChatTask, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        request_id = next(self._ids)
        frames: Frames = asyncio.Queue()
        self._answers[request_id] = frames
        watch = self._tasks.start(
            _tell_end(reader, frames), name=f"watch {request_id}", essential=False
        )
        try:
            await self._called(lambda engine: engine.submit(request_id, task))
            while (frame := await frames.get()) is not None:
                writer.write(pack_frame_message(frame))
                is_behind = writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES
                if is_behind or isinstance(frame, Finished | Failed):
                    return
        finally:
            watch.cancel()
            del self._answers[request_id]
            self._calls.put(lambda engine: engine.cancel(request_id))

    async def _called(self, ask: Callable[[InProcessEngine], T]) -> T:
        """Have the engine's thread call the engine, between two steps."""
        answer: Future[T] = Future()

        def call(engine: InProcessEngine) -> None:
            try:
                answer.set_result(ask(engine))
            except SkulkError as error:
                answer.set_exception(error)

        self._calls.put(call)
        return await asyncio.wrap_future(answer)


def _unexpected(story: str, error: BaseException) -> None:
    raise AssertionError(story) from error


async def _tell_end(reader: asyncio.StreamReader, frames: Frames) -> None:
    """Wait until whoever asked has closed the connection; it says nothing more."""
    with suppress(OSError):
        await reader.read()
    frames.put_nowait(None)


def _task(values: object) -> ChatTask:
    try:
        return _TASK.validate_python(values)
    except ValidationError as error:
        raise ProtocolError("protocol.bad_frame", f"this is no task: {error}"[:500]) from error
