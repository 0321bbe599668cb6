"""Serving the clients of one running engine: slots, streams, and how each stream ends.

It lies in the path of every token: a chunk passes through one call where it arrives, another frame
through one generator and one await. A stream that has to end for a reason of ours (cancel, a dead
engine, a stopping node) is woken in that await, and says the reason as its terminal.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar, final

from engines.base import EngineClient
from protocol.clock import Clock
from protocol.data_frames import (
    Chunk,
    Failed,
    Finished,
    Frame,
    Started,
    TakeChunk,
    Usage,
)
from protocol.errors import ErrorBody, SkulkError
from protocol.ids import CommandId
from protocol.tasks import ChatTask, RerankTask, Task, VectorTask
from skulkd.core.throughput import Throughput
from skulkd.worker.slots import Admission, Slots
from skulkd.worker.text_batches import TextBatch, batches, measure, read_batch, texts_of
from skulkd.worker.token_budget import image_tokens

T = TypeVar("T")


class StreamEndedError(Exception):
    """A stream is to end with `body`; never leaves this module's users' generators."""

    def __init__(self, body: ErrorBody) -> None:
        super().__init__(body.code)
        self.body = body


@final
class OpenStream:
    """One task from its arrival to its terminal; `end` may be called at any moment of it.

    Invariant: all its waits are made by the asyncio task that made the first one. Asking for the
    current task at each of them took 7 % of a streamed frame's time.
    """

    def __init__(self) -> None:
        self._ended_by: ErrorBody | None = None
        self._consumer: asyncio.Task[object] | None = None
        self._is_waiting = False

    def end(self, error: ErrorBody) -> None:
        """Have the stream end with an error; the first one counts."""
        if self._ended_by is not None:
            return
        self._ended_by = error
        if self._is_waiting and self._consumer is not None:
            self._consumer.cancel()

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """Await something that the stream needs.

        Raises:
            StreamEndedError: `end` was called, before or meanwhile.
        """
        if self._ended_by is not None:
            if asyncio.iscoroutine(awaitable):
                awaitable.close()
            raise StreamEndedError(self._ended_by)
        if self._consumer is None:
            self._consumer = asyncio.current_task()
        self._is_waiting = True
        try:
            return await awaitable
        except asyncio.CancelledError:
            # Only a cancellation of our own is translated, and only when no other came with it.
            consumer = self._consumer
            if self._ended_by is None or consumer is None or consumer.uncancel() > 0:
                raise
            raise StreamEndedError(self._ended_by) from None
        finally:
            self._is_waiting = False


@final
class Serving:
    """A running engine, as its clients meet it.

    Args:
        client: The connection to the engine.
        slots: Who may start.
        clock: Says since when nobody has asked for anything.
        on_idle: Called when the last one has been answered.
    """

    def __init__(
        self,
        client: EngineClient,
        slots: Slots,
        clock: Clock,
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._slots = slots
        self._clock = clock
        self._on_idle = on_idle
        self._idle_since_s = clock.monotonic_s()
        self._n_counts = 0
        """Prompts that are being counted."""
        self._streams: dict[CommandId, OpenStream] = {}
        self._on_gone: Callable[[], None] | None = None
        """Called when an answer has ended because the engine said nothing more."""
        self._on_drained: Callable[[], None] | None = None
        """Called when the last task has ended; None unless it drains."""
        self._keep_s: int | None = None
        self.throughput = Throughput()
        """Of all its answers."""

    @property
    def slots(self) -> Slots:
        """Who runs and who waits."""
        return self._slots

    @property
    def n_open(self) -> int:
        """Tasks that have not ended."""
        return len(self._streams)

    @property
    def idle_since_s(self) -> float | None:
        """Since when nobody asks for anything; None while somebody does."""
        return None if self._streams or self._n_counts else self._idle_since_s

    @property
    def keep_s(self) -> int | None:
        """How long it is to stay loaded, as the last task that spoke of it has said."""
        return self._keep_s

    async def chat(self, task: ChatTask, take: TakeChunk | None = None) -> AsyncGenerator[Frame]:
        """Serve one task; see `skulkd.api.ports.Inference`."""
        if task.command_id in self._streams:
            yield Failed(_doubled(task))
            return
        if task.keep_s is not None and not task.messages and task.prompt is None:
            self._heed(task)
            self._rest()
            yield Finished("stop", Usage(0, 0))
            return
        stream = self._streams[task.command_id] = OpenStream()
        admission: Admission | None = None
        frames: AsyncGenerator[Frame] | None = None
        terminal: Failed | None = None
        answer = self.throughput.begin()
        passed = answer.passed
        try:
            admission = await stream.wait(self._slots.acquire(task))
            counted = None if take is None else answer.counting(take)
            frames = self._client.chat(admission.task, counted)
            while True:
                yield passed(await stream.wait(anext(frames)))
        except StopAsyncIteration:
            pass
        except StreamEndedError as ended:
            terminal = Failed(ended.body)
        except SkulkError as error:
            terminal = Failed(error.body())
            if error.code == "engine.gone" and self._on_gone is not None:
                self._on_gone()
        finally:
            # The slot is free before the terminal is out: a client may hold that up.
            await self._end(task, admission, frames)
        if terminal is not None:
            yield terminal

    async def vectors(self, task: VectorTask) -> AsyncGenerator[Frame]:
        """Serve one task for vectors; see `skulkd.api.ports.Inference`."""
        if task.command_id in self._streams:
            yield Failed(_doubled(task))
            return
        stream = self._streams[task.command_id] = OpenStream()
        frames = self._read(task, stream)
        terminal: Failed | None = None
        try:
            async for frame in frames:
                yield frame
        except StreamEndedError as ended:
            terminal = Failed(ended.body)
        except SkulkError as error:
            terminal = Failed(error.body())
        finally:
            await frames.aclose()
            self._forget(task)
        if terminal is not None:
            yield terminal

    async def _read(self, task: VectorTask, stream: OpenStream) -> AsyncGenerator[Frame]:
        """Read a task's texts batch by batch; gives no terminal but a good one."""
        planned = await stream.wait(self._plan(task))
        largest = max(batch.n_tokens for batch in planned)
        ticket = await stream.wait(self._slots.acquire_tokens(largest, task.asker))
        n_tokens = 0
        try:
            yield Started()
            for batch in planned:
                made = await stream.wait(read_batch(self._client, task, batch))
                n_tokens += made.n_tokens
                yield Chunk(vectors=made.vectors)
        finally:
            # The slot is free before the terminal is out: a client may hold that up.
            self._slots.release(ticket)
            self._heed(task)
        yield Finished("stop", Usage(prompt_tokens=n_tokens, completion_tokens=0))

    async def _plan(self, task: VectorTask) -> tuple[TextBatch, ...]:
        limits = self._slots.limits
        self._slots.check_room(task.asker)
        sizes = await measure(self._client, task, limits.text_tokens)
        return batches(texts_of(task), sizes, limits.context_tokens)

    async def count_tokens(self, task: ChatTask) -> int:
        """Count a task's prompt; see `skulkd.api.ports.TokenCounts`."""
        self._n_counts += 1
        try:
            n_tokens = await self._client.count_tokens(task)
        finally:
            self._n_counts -= 1
            self._rest()
        return n_tokens + image_tokens(task, self._slots.limits.images)

    def cancel(self, command_id: CommandId, error: ErrorBody) -> bool:
        """End a task; False when there is none of that id."""
        stream = self._streams.get(command_id)
        if stream is None:
            return False
        stream.end(error)
        return True

    def when_gone(self, look: Callable[[], None]) -> None:
        """Have it looked at whether the engine is there still, each time that it was silent."""
        self._on_gone = look

    def drain(self, error: ErrorBody, on_drained: Callable[[], None]) -> None:
        """Refuse every later task with an error, and let those that are here go on.

        Args:
            error: What later ones are refused with.
            on_drained: Called once the last one has ended; not if there is none now.
        """
        self._slots.refuse(error)
        self._on_drained = on_drained

    def close(self, error: ErrorBody) -> None:
        """End every task, and refuse every later one, with an error."""
        self._slots.close(error)
        for stream in list(self._streams.values()):
            stream.end(error)

    async def _end(
        self, task: ChatTask, admission: Admission | None, frames: AsyncGenerator[Frame] | None
    ) -> None:
        try:
            if frames is not None:
                await frames.aclose()
        finally:
            if admission is not None:
                self._slots.release(admission)
                self._heed(task)
            self._forget(task)

    def _forget(self, task: Task) -> None:
        del self._streams[task.command_id]
        self._rest()
        if self._on_drained is not None and not self._streams:
            self._on_drained()

    def _heed(self, task: Task) -> None:
        """Take in how long a task wants the engine to stay; it counts once nobody asks."""
        if not isinstance(task, RerankTask) and task.keep_s is not None:
            self._keep_s = task.keep_s

    def _rest(self) -> None:
        if not self._streams and not self._n_counts:
            self._idle_since_s = self._clock.monotonic_s()
            self._on_idle()


def _doubled(task: Task) -> ErrorBody:
    return ErrorBody(
        code="request.invalid",
        message=f"command {task.command_id} is being served already",
        remediation="Send a new request; an id names one request only.",
    )
