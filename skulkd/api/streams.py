"""What chat streams have said, kept for whoever reads on after a break.

Each stream is a list of events with a window of the newest of them, and any number of readers, each
with a place of its own. One that was opened over HTTP has a live reader besides, whose connection
paces it and whose end is its own. One that was opened in a session is paced by its slowest reader,
goes on for a minute without any, and is cancelled then.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from protocol.errors import RequestError
from protocol.ids import CommandId
from skulkd.api.dialects.framing import SSE, Framing
from skulkd.api.http import Principal
from skulkd.api.sse import EventStream

_EVENT_COST_BYTES: Final = 64
"""What an event takes beside its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepLimits:
    """How much is kept, and for how long."""

    stream_bytes: int = 1 << 20
    total_bytes: int = 64 << 20
    n_streams: int = 4096
    after_end_s: float = 600.0
    unread_s: float = 60.0
    """How long a stream goes on that nobody reads."""
    sweep_s: float = 1.0


@final
class KeptStream:
    """One stream; made by `KeptStreams`.

    Args:
        command_id: Its request's.
        owner: Who opened it: a key's id, or `loopback`.
        limits: How much is kept.
        live: The connection that it was opened by; None for one of a session.
        framing: The form of its events.
    """

    __slots__ = (
        "_end", "_events", "_first", "_forgotten_bytes", "_forward", "_is_abandoned", "_left_bytes",
        "_live", "_max_bytes", "_n_bytes", "_readers", "_room", "command_id", "end_mark",
        "ended_at_s", "framing", "is_done", "owner", "unread_since_s",
    )  # fmt: skip

    def __init__(
        self,
        command_id: CommandId,
        owner: str,
        limits: KeepLimits,
        live: EventStream | None,
        framing: Framing,
    ) -> None:
        self.command_id: Final = command_id
        self.owner: Final = owner
        self.framing: Final = framing
        self._end: Final = framing.end
        self._max_bytes: Final = limits.stream_bytes
        self._live: Final = live
        self._forward = None if live is None else live.put
        self._events: list[bytes] = []
        self._first = 0
        """How many events are no longer kept."""
        self._n_bytes = 0
        """Of those that are, with what they cost."""
        self._forgotten_bytes = 0
        """Of those that are not, the same way."""
        self._readers: set[StreamReader] = set()
        self._left_bytes = 0
        """Up to where the last reader had read when it went."""
        now_s = asyncio.get_running_loop().time()
        self.unread_since_s: float | None = None if live is not None else now_s
        """Since when nobody reads; None while somebody does."""
        self._room: asyncio.Event | None = None
        self._is_abandoned = False
        self.ended_at_s: float | None = None
        self.is_done = False
        """It ended well."""
        self.end_mark = b""
        """What its dialect puts behind the last event of such a stream."""

    @property
    def n_bytes(self) -> int:
        """What it takes."""
        return self._n_bytes

    @property
    def n_events(self) -> int:
        """How many events there have been."""
        return self._first + len(self._events)

    @property
    def is_live(self) -> bool:
        """It ends with the HTTP connection that it was opened by."""
        return self._live is not None

    @property
    def pace(self) -> "EventStream | KeptStream":
        """Who says when the producer should wait: the connection, or the slowest reader."""
        return self if self._live is None else self._live

    # ---- What its producer calls ----

    def put_all(self, events: bytes) -> None:
        """Add an event, or several that come together, each with what ends it."""
        if events.count(self._end) == 1:
            self.put(events)
            return
        for event in self.framing.split(events):
            self.put(event)

    def put(self, event: bytes) -> None:
        """Add one event in the stream's framing."""
        self._events.append(event)
        self._n_bytes += len(event) + _EVENT_COST_BYTES
        if self._n_bytes > self._max_bytes:
            self._shrink(self._max_bytes - self._max_bytes // 4)
        if self._forward is not None:
            self._forward(event)
        if self._readers:
            self._tell()

    def put_last(self, events: bytes, end_mark: bytes) -> None:
        """Add the events that end it well, and the dialect's mark behind them; then it is over."""
        self.put_all(events)
        if end_mark and self._live is not None:
            self._live.put(end_mark)
        self.end_mark = end_mark
        self.is_done = True
        self.end()

    def end(self) -> None:
        """Nothing comes any more. Idempotent."""
        if self.ended_at_s is None:
            self.ended_at_s = asyncio.get_running_loop().time()
            if self._live is not None:
                self._live.end()
            self._tell()

    @property
    def is_full(self) -> bool:
        """So much waits for its readers that the producer of `pace` should wait for `room`."""
        if self._is_abandoned:
            return False
        read_bytes = min((one.read_bytes for one in self._readers), default=self._left_bytes)
        return self._said_bytes - read_bytes > self._max_bytes // 2

    async def room(self) -> None:
        """Wait until the readers have taken what waits, or it is given up."""
        while self.is_full:
            if self._room is None or self._room.is_set():
                self._room = asyncio.Event()
            await self._room.wait()

    # ---- Readers ----

    def read_from(self, offset: int, on_event: Callable[[], None]) -> "StreamReader":
        """Begin to read.

        Args:
            offset: How many events the reader has.
            on_event: Called when there may be more to take.

        Raises:
            RequestError: `request.stream_gone`, `request.invalid`.
        """
        if offset < self._first:
            raise _gone(self._first, offset)
        if offset > self.n_events:
            raise RequestError(
                "request.invalid",
                f"the stream has {self.n_events} events, not {offset}",
                remediation="Ask from the number of events that have come.",
                details={"param": "offset"},
            )
        waiting = self._events[offset - self._first :]
        reader = StreamReader(self, offset, self._said_bytes - _cost(waiting), on_event)
        self._readers.add(reader)
        self.unread_since_s = None
        return reader

    def leave(self, reader: "StreamReader") -> None:
        """A reader goes."""
        if reader in self._readers:
            self._readers.discard(reader)
            if not self._readers:
                self._left_bytes = reader.read_bytes
                self.unread_since_s = asyncio.get_running_loop().time()
            self.make_room()

    def slice_from(self, offset: int, max_bytes: int) -> list[bytes]:
        """Give events from an offset on, at least one if there is any.

        Raises:
            RequestError: `request.stream_gone`.
        """
        if offset < self._first:
            raise _gone(self._first, offset)
        chosen: list[bytes] = []
        n_bytes = 0
        for index in range(offset - self._first, len(self._events)):
            event = self._events[index]
            n_bytes += len(event)
            if chosen and n_bytes > max_bytes:
                break
            chosen.append(event)
        return chosen

    def make_room(self) -> None:
        """Let the producer look again whether it may go on."""
        if self._room is not None:
            self._room.set()

    # ---- What `KeptStreams` calls ----

    def abandon(self) -> None:
        """Nobody reads it, and the producer is to come to its end."""
        self._is_abandoned = True
        self.make_room()

    def forget(self) -> None:
        """Keep nothing of what has been said so far."""
        self._shrink(0)

    def _shrink(self, max_bytes: int) -> None:
        before_bytes = self._n_bytes
        n_gone = 0
        while self._n_bytes > max_bytes and n_gone < len(self._events):
            self._n_bytes -= len(self._events[n_gone]) + _EVENT_COST_BYTES
            n_gone += 1
        del self._events[:n_gone]
        self._first += n_gone
        self._forgotten_bytes += before_bytes - self._n_bytes

    @property
    def _said_bytes(self) -> int:
        return self._forgotten_bytes + self._n_bytes

    def _tell(self) -> None:
        for reader in tuple(self._readers):
            reader.on_event()


@final
class StreamReader:
    """A place in a stream; made by `KeptStream.read_from`."""

    def __init__(
        self, stream: KeptStream, offset: int, read_bytes: int, on_event: Callable[[], None]
    ) -> None:
        self.stream: Final = stream
        self.offset = offset
        self.read_bytes = read_bytes
        self.on_event: Final = on_event

    @property
    def has_more(self) -> bool:
        """There is something to take, be it the end."""
        return self.offset < self.stream.n_events or self.is_at_end

    @property
    def is_at_end(self) -> bool:
        """All has been taken, and nothing more comes."""
        return self.stream.ended_at_s is not None and self.offset == self.stream.n_events

    def take(self, max_bytes: int) -> list[bytes]:
        """Take the next events.

        Raises:
            RequestError: `request.stream_gone`: they are no longer kept.
        """
        events = self.stream.slice_from(self.offset, max_bytes)
        self.offset += len(events)
        self.read_bytes += _cost(events)
        self.stream.make_room()
        return events

    def close(self) -> None:
        """Read no more. Idempotent."""
        self.stream.leave(self)


@final
class KeptStreams:
    """All streams of this node that are under way or ended a while ago.

    Args:
        give_up: Cancels the request of a stream that nobody has read for so long.
        limits: How much is kept.
    """

    def __init__(
        self, give_up: Callable[[CommandId], object], limits: KeepLimits | None = None
    ) -> None:
        self._give_up = give_up
        self._limits = limits or KeepLimits()
        self._streams: dict[CommandId, KeptStream] = {}
        """Oldest first."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def n_streams(self) -> int:
        """How many are kept."""
        return len(self._streams)

    def open(
        self,
        command_id: CommandId,
        owner: str,
        live: EventStream | None,
        framing: Framing = SSE,
    ) -> KeptStream:
        """Begin to keep a stream; see `KeptStream`."""
        stream = KeptStream(command_id, owner, self._limits, live, framing)
        self._streams[command_id] = stream
        if self._timer is None:
            self._watch()
        return stream

    def find(self, command_id: CommandId, principal: Principal) -> KeptStream:
        """Find a stream for who opened it, or for an administrator.

        Raises:
            RequestError: `request.not_found`.
        """
        stream = self._streams.get(command_id)
        if stream is None or (principal.name != stream.owner and principal.scope != "admin"):
            raise RequestError(
                "request.not_found",
                f"no stream of the command {command_id} is kept here for this key",
                remediation="Ask the node that took the request, with the same key, within "
                f"{self._limits.after_end_s / 60:g} minutes of its end.",
            )
        return stream

    def stop(self) -> None:
        """Look after them no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._limits.sweep_s, self._sweep)

    def _sweep(self) -> None:
        """Forget what is old, give up what nobody reads, and hold the whole within its bound."""
        self._timer = None
        now, limits = asyncio.get_running_loop().time(), self._limits
        for stream in list(self._streams.values()):
            if stream.ended_at_s is not None:
                if now - stream.ended_at_s >= limits.after_end_s:
                    del self._streams[stream.command_id]
            elif _is_unread(stream, now, limits.unread_s):
                stream.abandon()
                self._give_up(stream.command_id)
        self._fit()
        if self._streams:
            self._watch()

    def _fit(self) -> None:
        """Forget ended streams from the oldest on, then what those of HTTP have said."""
        total_bytes = sum(stream.n_bytes for stream in self._streams.values())
        limits = self._limits
        for stream in list(self._streams.values()):
            is_over = stream.ended_at_s is not None
            if total_bytes <= limits.total_bytes and len(self._streams) <= limits.n_streams:
                return
            if is_over:
                total_bytes -= stream.n_bytes
                del self._streams[stream.command_id]
        for stream in self._streams.values():
            if total_bytes <= limits.total_bytes:
                return
            if stream.is_live:
                total_bytes -= stream.n_bytes
                stream.forget()

    def is_crowded(self) -> bool:
        """Say whether what must be kept already takes all that may be."""
        kept = (one for one in self._streams.values() if one.ended_at_s is None and not one.is_live)
        return sum(one.n_bytes for one in kept) > self._limits.total_bytes


def _cost(events: list[bytes]) -> int:
    return sum(map(len, events)) + len(events) * _EVENT_COST_BYTES


def _is_unread(stream: KeptStream, now: float, unread_s: float) -> bool:
    since_s = stream.unread_since_s
    return not stream.is_live and since_s is not None and now - since_s >= unread_s


def _gone(first: int, offset: int) -> RequestError:
    return RequestError(
        "request.stream_gone",
        f"the events before {first} are no longer kept, and those from {offset} were asked for",
        remediation="Send the request again, or read from there on.",
        details={"first": first},
    )
