"""A chat's stream while it is served: each of its choices puts events, and it ends once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final, final

from protocol.data_frames import Chunk, Finished, Frame, Started, Terminal
from protocol.errors import SkulkError
from protocol.tasks import ChatTask
from skulkd.api.choices import usage_of_all
from skulkd.api.dialects.chat_dialect import ChatCall, StreamWriter
from skulkd.api.errors import envelope
from skulkd.api.http import Request, Send
from skulkd.api.interrupt import client_gone
from skulkd.api.request_meters import RequestMeter
from skulkd.api.sse import EventStream
from skulkd.api.streams import KeptStream
from skulkd.runtime.tasks import timeout

Writers = tuple[tuple[ChatTask, StreamWriter], ...]
"""Of each choice: what serves it, and what writes it."""


@final
class OpenStream:
    """A stream being served.

    Args:
        call: What was asked.
        writers: Of its choices.
        kept: Where events go.
        request: The request.
        meter: Counts it.
    """

    def __init__(
        self,
        call: ChatCall,
        writers: Writers,
        kept: KeptStream,
        request: Request,
        meter: RequestMeter,
    ) -> None:
        self.meter: Final = meter
        self.call: Final = call
        self.kept: Final = kept
        self.choices: Final = tuple(OpenChoice(self, task, writer) for task, writer in writers)
        self.request: Final = request
        self._held: asyncio.Event | None = None
        """Set once an engine has begun; None where nobody waits for that."""
        self._refusal: SkulkError | None = None
        self._finished: list[Finished] = []
        """Of the choices that have."""
        kept.put_all(writers[0][1].begin())
        self.producer: asyncio.Task[None] | None = None
        """Of a stream without a connection, whose end would end it."""

    async def refusal(self, within_s: float) -> SkulkError | None:
        """Wait until an engine has begun, at most for so long.

        Returns:
            What the request is to be refused with, where it failed before: no event says so then.
        """
        if self.kept.ended_at_s is not None:
            return None
        held = self._held = asyncio.Event()
        with contextlib.suppress(TimeoutError):
            async with timeout(within_s):
                await held.wait()
        self._held = None
        return self._refusal

    def begin(self) -> None:
        """Note that an engine has begun; what goes wrong from now on is an event."""
        if self._held is not None:
            self._held.set()

    def finish(self, writer: StreamWriter, finished: Finished) -> None:
        """End a choice well, and the stream with the last of them."""
        self._finished.append(finished)
        events = writer.finish(finished, self.meter.elapsed_s)
        if len(self._finished) < len(self.choices):
            self.kept.put_all(events)
        else:
            self.meter.finish(finished.reason, usage_of_all(self._finished))
            self.kept.put_last(events, writer.end_mark)

    def fail(self, reason: SkulkError) -> None:
        """Make an error the last event, unless it is over."""
        if self.kept.ended_at_s is not None:
            return
        if self._held is not None and not self._held.is_set():
            self._refusal = reason
            self._held.set()
        else:
            body = envelope(reason, dialect=self.call.dialect, command_id=self.request.command_id)
            self.kept.put_all(self.choices[0].writer.fail(body))
            self.request.connection.close_after_response()
        self.kept.end()
        self.meter.end(reason.code)

    def interrupt(self, reason: SkulkError) -> None:
        """End it with an error from outside."""
        self.fail(reason)
        if self.producer is not None:
            self.producer.cancel()

    def close(self) -> None:
        """See that it has an end: its producer has been ended, or its client has gone."""
        self.fail(client_gone())


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ServedStream:
    """A stream that is being served to an HTTP client."""

    events: EventStream
    stream: OpenStream
    end: Callable[[], None]
    """Called once, when nobody follows it any more."""

    async def admitted(self, within_s: float) -> None:
        """Wait until an engine has begun, at most for so long.

        Raises:
            SkulkError: What the request is refused with: it has failed before, and is at its end.
        """
        try:
            refusal = await self.stream.refusal(within_s)
        except BaseException:
            self.end()
            raise
        if refusal is not None:
            self.end()
            raise refusal

    async def follow(self, send: Send) -> None:
        """Send its events until it is over or its client has gone."""
        try:
            await self.events.run(send)
        finally:
            self.end()


@final
class OpenChoice:
    """One answer of a stream; made by `OpenStream`."""

    __slots__ = ("_kept", "_meter", "_pace", "_time", "stream", "task", "writer")

    def __init__(self, stream: OpenStream, task: ChatTask, writer: StreamWriter) -> None:
        self._kept = stream.kept
        self._meter = stream.meter
        self._pace = stream.kept.pace
        self._time = asyncio.get_running_loop().time
        self.stream: Final = stream
        self.task: Final = task
        self.writer: Final = writer

    def take(self, chunk: Chunk) -> bool:
        """Put a chunk where it arrives, unless it is to wait for the reader."""
        # One that was ended from outside is over a moment before its task knows.
        if self._pace.is_full or self._kept.ended_at_s is not None:
            return False
        turn_s = self._time()
        if turn_s != self._meter.turn_s:
            self._meter.pieces_at(turn_s)
        self._kept.put_all(self.writer.chunk(chunk))
        return True

    async def relay(self, frames: AsyncIterator[Frame]) -> Terminal:
        """Put what a task says to its end; a bad one is left to the caller to tell."""
        kept, pace, writer = self._kept, self._pace, self.writer
        async for frame in frames:
            if isinstance(frame, Chunk):
                self._meter.pieces_at(self._time())
                kept.put_all(writer.chunk(frame))
                if pace.is_full:
                    await pace.room()
            elif isinstance(frame, Started):
                self.stream.begin()
                kept.put_all(writer.start(frame))
            else:
                if isinstance(frame, Finished):
                    self.stream.finish(writer, frame)
                return frame
        message = "the stream of this task ended without a terminal"
        raise AssertionError(message)
