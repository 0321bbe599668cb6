"""A chat's stream while it is served: each of its choices puts events, and it ends once."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final, final

from protocol.data_frames import Chunk, Finished, Frame, Started, Terminal
from protocol.errors import SkulkError
from protocol.tasks import ChatTask
from skulkd.api.choices import usage_of_all
from skulkd.api.dialects.chat_dialect import ChatCall, StreamWriter
from skulkd.api.errors import envelope
from skulkd.api.http import Request
from skulkd.api.interrupt import client_gone
from skulkd.api.request_meters import RequestMeter
from skulkd.api.streams import KeptStream

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
        self._request = request
        self._finished: list[Finished] = []
        """Of the choices that have."""
        kept.put_all(writers[0][1].begin())
        self.producer: asyncio.Task[None] | None = None
        """Of a stream without a connection, whose end would end it."""

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
        body = envelope(reason, dialect=self.call.dialect, command_id=self._request.command_id)
        self.kept.put_all(self.choices[0].writer.fail(body))
        self.kept.end()
        self.meter.end(reason.code)
        self._request.connection.close_after_response()

    def interrupt(self, reason: SkulkError) -> None:
        """End it with an error from outside."""
        self.fail(reason)
        if self.producer is not None:
            self.producer.cancel()

    def close(self) -> None:
        """See that it has an end: its producer has been ended, or its client has gone."""
        self.fail(client_gone())


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
                kept.put_all(writer.start(frame))
            else:
                if isinstance(frame, Finished):
                    self.stream.finish(writer, frame)
                return frame
        message = "the stream of this task ended without a terminal"
        raise AssertionError(message)
