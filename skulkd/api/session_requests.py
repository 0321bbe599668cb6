"""The requests and chats of one session that are not answered yet, and their answers.

Answers wait here until there is credit. Chats are not kept here: each is a reader of a stream that
goes on by itself.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, final

from protocol.errors import RequestError, SessionError, SkulkError
from protocol.session import MAX_REQUESTS, OpenStream, ResumeStream, SessionRequest
from skulkd.api.errors import bug, error_reply
from skulkd.api.http import Request
from skulkd.api.session_frames import answer_frame, refused_frame, stream_frame
from skulkd.api.session_ports import Door
from skulkd.api.streams import KeptStream, StreamReader
from skulkd.runtime.tasks import Tasks, timeout

MAX_UNSENT_BYTES: Final = 8 << 20
"""Of answers that wait for a client that does not read."""
MAX_REFUSALS_BYTES: Final = 1 << 20
"""Beyond them: a client that asks on is told so, and these words wait too."""
STREAM_FRAME_BYTES: Final = 64 << 10
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Asked:
    """A request or stream that is not answered yet."""

    task: asyncio.Task[None] | None = None
    reader: StreamReader | None = None
    is_stream: bool = False


@final
class SessionRequests:
    """See the module.

    Args:
        opening: The request that the session was opened by.
        door: Answers.
        tasks: Owner of the requests under way.
        on_change: Called when there may be something to send.
    """

    def __init__(
        self, opening: Request, door: Door, tasks: Tasks, *, on_change: Callable[[], None]
    ) -> None:
        self._opening = opening
        self._door = door
        self._tasks = tasks
        self._on_change = on_change
        self._asked: dict[int, _Asked] = {}
        self._answers: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._ready_streams: dict[int, None] = {}
        """Streams that may have something to send, the one whose turn it is first."""

    @property
    def is_ready(self) -> bool:
        """Something may wait to be sent."""
        return bool(self._answers or self._ready_streams)

    @property
    def is_flooded(self) -> bool:
        """More waits than may: the client asks on without reading even that it should not."""
        return self._unsent_bytes > MAX_UNSENT_BYTES + MAX_REFUSALS_BYTES

    def has(self, frame_id: int) -> bool:
        """Say whether an id is that of something unanswered."""
        return frame_id in self._asked

    def begin(self, wish: SessionRequest | OpenStream | ResumeStream) -> None:
        """Ask, or refuse where too much is unanswered."""
        if len(self._asked) >= MAX_REQUESTS or self._unsent_bytes > MAX_UNSENT_BYTES:
            self._refuse(wish.id, _too_many(), is_stream=not isinstance(wish, SessionRequest))
        elif isinstance(wish, SessionRequest):
            self._start(wish.id, self._ask(wish), is_stream=False)
        elif isinstance(wish, OpenStream):
            self._start(wish.id, self._open(wish), is_stream=True)
        else:
            self._resume(wish)

    def cancel(self, frame_id: int) -> None:
        """Give up a request, or have a stream end; one that is answered stays as it is."""
        asked = self._asked.get(frame_id)
        if asked is None:
            return
        if asked.reader is not None:
            self._door.cancel_chat(asked.reader.stream.command_id)
            return
        if asked.task is not None:
            asked.task.cancel()
        del self._asked[frame_id]
        error = RequestError("request.cancelled", "the request was cancelled")
        self._refuse(frame_id, error, is_stream=asked.is_stream)

    def answer(self, frame: bytes) -> None:
        """Have a whole frame sent when its turn comes."""
        self._answers.append(frame)
        self._unsent_bytes += len(frame)
        self._on_change()

    def next_frame(self, *, with_streams: bool) -> bytes | None:
        """Give the next answer, or the next piece of a stream; None where there is nothing now."""
        if self._answers:
            frame = self._answers.popleft()
            self._unsent_bytes -= len(frame)
            return frame
        while with_streams and self._ready_streams:
            piece = self._stream_frame(next(iter(self._ready_streams)))
            if piece is not None:
                return piece
        return None

    def make_all_ready(self) -> None:
        """Look at each stream again: what may be sent has changed."""
        for frame_id, asked in self._asked.items():
            if asked.reader is not None:
                self._ready_streams[frame_id] = None

    def close(self) -> None:
        """Give up what is under way; streams go on for whoever resumes them."""
        for asked in self._asked.values():
            if asked.task is not None:
                asked.task.cancel()
            if asked.reader is not None:
                asked.reader.close()
        self._asked.clear()

    # ---- Asking ----

    def _start(self, frame_id: int, coro: Coroutine[Any, Any, None], *, is_stream: bool) -> None:
        asked = self._asked[frame_id] = _Asked(is_stream=is_stream)
        asked.task = self._tasks.start(coro, name=f"session {frame_id}", essential=False)

    async def _ask(self, wish: SessionRequest) -> None:
        try:
            async with timeout(wish.deadline_s):
                reply = await self._door.answer(self._opening, wish)
        except TimeoutError:
            reply = error_reply(_too_late(wish.deadline_s), dialect="control")
        del self._asked[wish.id]
        frame = answer_frame(wish.id, reply)
        if self._unsent_bytes + len(frame) > MAX_UNSENT_BYTES:
            frame = answer_frame(wish.id, error_reply(_too_many(), dialect="control"))
        self.answer(frame)

    async def _open(self, wish: OpenStream) -> None:
        try:
            kept = await self._door.open_chat(self._opening, wish.body)
        except SkulkError as error:
            del self._asked[wish.id]
            self._refuse(wish.id, error, is_stream=True)
            return
        except Exception:  # ruff: ignore[blind-except]  a bug is logged, and fails this chat alone
            _log.exception("opening a chat of a session failed")
            del self._asked[wish.id]
            self._refuse(wish.id, bug(), is_stream=True)
            return
        self._read(wish.id, kept, 0)

    def _resume(self, wish: ResumeStream) -> None:
        try:
            kept = self._door.kept_stream(self._opening, wish.command_id)
            self._read(wish.id, kept, wish.offset)
        except SkulkError as error:
            self._refuse(wish.id, error, is_stream=True)

    def _read(self, frame_id: int, kept: KeptStream, offset: int) -> None:
        def on_event() -> None:
            self._ready_streams[frame_id] = None
            self._on_change()

        reader = kept.read_from(offset, on_event)
        self._asked[frame_id] = _Asked(reader=reader, is_stream=True)
        on_event()

    def _refuse(self, frame_id: int, error: SkulkError, *, is_stream: bool) -> None:
        if is_stream:
            self.answer(refused_frame(frame_id, error))
        else:
            self.answer(answer_frame(frame_id, error_reply(error, dialect="control")))

    # ---- Streams ----

    def _stream_frame(self, frame_id: int) -> bytes | None:
        del self._ready_streams[frame_id]
        asked = self._asked.get(frame_id)
        if asked is None or asked.reader is None or not asked.reader.has_more:
            return None
        reader = asked.reader
        offset = reader.offset
        try:
            events = reader.take(STREAM_FRAME_BYTES)
        except RequestError as error:
            self._forget(frame_id, reader)
            return refused_frame(frame_id, error)
        is_end = reader.is_at_end
        if is_end:
            self._forget(frame_id, reader)
        elif reader.has_more:
            self._ready_streams[frame_id] = None  # behind the others
        return stream_frame(frame_id, reader.stream, offset, events, is_end=is_end)

    def _forget(self, frame_id: int, reader: StreamReader) -> None:
        del self._asked[frame_id]
        reader.close()


def _too_many() -> RequestError:
    return RequestError(
        "request.overloaded",
        f"{MAX_REQUESTS} requests of this session are unanswered, or their answers are not taken",
        remediation="Wait for answers, and read them.",
        retry_after_s=1,
    )


def _too_late(deadline_s: float) -> SessionError:
    return SessionError(
        "session.deadline",
        f"there was no answer within {deadline_s:g} s; a change that was accepted stands",
        remediation="Look whether it has come about, or give it longer.",
    )
