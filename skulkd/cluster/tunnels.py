"""Streams of bytes between the ranks of a model on two nodes, over the files plane.

Each direction of a stream has a window of its own: a sender stops when the receiver's engine has
not taken what was sent before, so neither node ever holds more than a window of it. What is sent
goes through the plane's bounded queue in small pieces, beside the pieces of files. A stream has no
life beyond the link: when that breaks, or bytes are lost, both sides are told.

This module opens no sockets: `skulkd.worker.tunnel_doors` joins streams to engines.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, final

from protocol.errors import ClusterError
from protocol.files_wire import pack_files
from protocol.ids import InstanceId, NodeId
from protocol.tunnel_wire import (
    MAX_PIECE_BYTES,
    WINDOW_BYTES,
    OpenTunnel,
    TunnelData,
    TunnelEnded,
    TunnelEndReason,
    TunnelFrame,
    TunnelMark,
    TunnelReset,
    TunnelTaken,
    pack_tunnel_data,
)
from skulkd.cluster.transport import LinkState, Transport

MAX_STREAMS: Final = 64
"""That one peer may have open here. An engine opens one after another, and keeps few."""
MARK_S: Final = 2.0
"""So often it is said how many bytes there were: the last ones may be lost, with nothing after them
that would show it."""
_MARKS: Final = 2
"""How often that is said after the last byte: a mark may be lost, too."""
_TAKEN_STEP_BYTES: Final = WINDOW_BYTES // 4
_PLANE: Final = "files"

_WORDS: Final[dict[TunnelEndReason, str]] = {
    "unknown": "the stream is not open there any more",
    "refused": "it runs no such rank for this node",
    "busy": "too many streams are open there",
    "gone": "the engine there is gone",
    "lost": "bytes were lost on the way",
}


class Target(NamedTuple):
    """Which process a stream leads to: a rank of one attempt of an instance."""

    instance_id: InstanceId
    attempt: int
    rank: int


class _Key(NamedTuple):
    """Names a stream on this node: both nodes number those that they open."""

    peer: NodeId
    is_opener: bool
    stream_id: int


@final
class TunnelStream:
    """One end of a stream; made by `Tunnels`."""

    def __init__(self, tunnels: "Tunnels", key: _Key) -> None:
        self._tunnels = tunnels
        self._key = key
        self._pieces: deque[memoryview] = deque()
        self._n_received = 0
        self._n_taken = 0
        self._n_told = 0
        self._n_sent = 0
        self._window_ends = WINDOW_BYTES
        self._changed = asyncio.Event()
        """Something has come, or may be sent, or the stream is over."""
        self._is_ended_there = False
        self._is_ended_here = False
        self._why_over: str | None = None
        self._marks_left = 0
        self._is_full = False
        """Its writer waits for the other side's engine."""

    @property
    def peer(self) -> NodeId:
        """The other node."""
        return self._key.peer

    @property
    def why_over(self) -> str | None:
        """Why the stream broke, in words; None while it has not."""
        return self._why_over

    async def read(self) -> memoryview:
        """Wait for the next bytes; empty once the other side has sent its last.

        Raises:
            ClusterError: `cluster.link_lost` when the stream broke.
        """
        while not self._pieces:
            self._check()
            if self._is_ended_there:
                return memoryview(b"")
            await self._wait()
        piece = self._pieces.popleft()
        self._n_taken += len(piece)
        if self._n_taken - self._n_told >= _TAKEN_STEP_BYTES and not self._is_ended_there:
            self._n_told = self._n_taken
            self._say_taken()
        return piece

    async def write(self, content: bytes) -> None:
        """Send bytes, once the other side's engine has taken enough of those before.

        Raises:
            ClusterError: `cluster.link_lost` when the stream broke.
        """
        left = memoryview(content)
        while left:
            self._check()
            room = min(self._window_ends - self._n_sent, MAX_PIECE_BYTES)
            self._is_full = room <= 0
            if self._is_full:
                await self._wait()
                continue
            stream_id, by_opener = self._name()
            frame = pack_tunnel_data(
                stream_id, by_opener=by_opener, offset=self._n_sent, content=left[:room]
            )
            await self._tunnels.send(self.peer, frame)
            self._n_sent += len(left[:room])
            left = left[room:]
            self._marks_left = _MARKS
        self._check()

    def end(self) -> None:
        """Say that nothing follows from here; what comes from there is still read."""
        if self._why_over is None and not self._is_ended_here:
            self._is_ended_here = True
            self._say_end()
            self._forget_ended()

    def reset(self, reason: TunnelEndReason = "gone") -> None:
        """End both directions now; idempotent."""
        if self._why_over is None and not (self._is_ended_here and self._is_ended_there):
            self._tunnels.say(self.peer, pack_files(TunnelReset(*self._name(), reason)))
        self.break_off(_WORDS[reason])

    # What the plane tells.

    def on_frame(self, frame: TunnelData | TunnelTaken | TunnelMark | TunnelEnded) -> None:
        """Take a frame of this stream."""
        match frame:
            case TunnelData():
                self._on_data(frame)
            case TunnelTaken(offset=offset):
                if self._window_ends - WINDOW_BYTES < offset <= self._n_sent:
                    self._window_ends = offset + WINDOW_BYTES
            case TunnelMark(offset=offset):
                if offset > self._n_received:
                    self.reset("lost")
                else:
                    self._say_taken()
            case TunnelEnded(offset=offset):
                if offset != self._n_received:
                    self.reset("lost")
                else:
                    self._is_ended_there = True
                    self._forget_ended()
        self._changed.set()

    def break_off(self, why: str) -> None:
        """End it: the link is broken, or the other side has reset it."""
        if self._why_over is None:
            self._why_over = why
            self._pieces.clear()
            self._tunnels.forget(self._key)
            self._changed.set()

    def mark(self) -> None:
        """Say how many bytes there were, unless that was said and nothing depends on it."""
        if self._is_ended_here:
            self._say_end()
        elif self._marks_left or self._is_full:
            self._marks_left = max(0, self._marks_left - 1)
            mark = TunnelMark(*self._name(), self._n_sent)
            self._tunnels.say(self.peer, pack_files(mark))

    def _on_data(self, frame: TunnelData) -> None:
        if frame.offset + len(frame.content) <= self._n_received:
            return  # it has come before
        is_too_much = self._n_received + len(frame.content) > self._n_told + WINDOW_BYTES
        if frame.offset != self._n_received or is_too_much or self._is_ended_there:
            self.reset("lost")
            return
        self._n_received += len(frame.content)
        self._pieces.append(frame.content)

    def _say_taken(self) -> None:
        self._tunnels.say(self.peer, pack_files(TunnelTaken(*self._name(), self._n_told)))

    def _say_end(self) -> None:
        self._tunnels.say(self.peer, pack_files(TunnelEnded(*self._name(), self._n_sent)))

    def _forget_ended(self) -> None:
        if self._is_ended_here and self._is_ended_there:
            self._tunnels.forget(self._key)

    def _name(self) -> tuple[int, bool]:
        return self._key.stream_id, self._key.is_opener

    def _check(self) -> None:
        if self._why_over is not None:
            raise ClusterError(
                "cluster.link_lost",
                f"the stream to node {self.peer} broke: {self._why_over}",
                remediation="Ask again: the instance is started anew where it can be.",
            )

    async def _wait(self) -> None:
        # Reader and writer may both wait: each looks again at what it waits for.
        self._changed.clear()
        await self._changed.wait()


Serve = Callable[[TunnelStream], None]
"""Begins to serve a stream that has come in; must not block or raise."""
Admit = Callable[[NodeId, Target], Serve | None]
"""Says who serves a peer's stream to a rank; None when that peer may not reach it."""


def _admit_none(_peer: NodeId, _target: Target) -> None:
    return None


@final
class Tunnels:
    """All streams of a node.

    Args:
        transport: Whose files plane.
        rng: Chooses the first number, so that a restart is not taken for what was before.
    """

    def __init__(self, transport: Transport, *, rng: random.Random) -> None:
        self._transport = transport
        self._admit: Admit = _admit_none
        self._streams: dict[_Key, TunnelStream] = {}
        self._next_id = rng.getrandbits(62)
        self._mark_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        transport.on_link(self._on_link)

    def __len__(self) -> int:
        """Count the open streams."""
        return len(self._streams)

    def serve(self, admit: Admit) -> None:
        """Name who says what peers may reach here; before that, nothing is reached."""
        self._admit = admit

    def open(self, peer: NodeId, target: Target) -> TunnelStream:
        """Open a stream to a rank on another node; what is written goes at once.

        Raises:
            ClusterError: `cluster.link_lost` when nothing can be sent there now.
        """
        self._next_id += 1
        key = _Key(peer, is_opener=True, stream_id=self._next_id)
        frame = pack_files(OpenTunnel(self._next_id, *target))
        refusal = "closed" if self._is_closed else self._transport.send(peer, _PLANE, frame)
        if refusal is not None:
            raise ClusterError(
                "cluster.link_lost",
                f"no stream can be opened to node {peer}: {refusal}",
                remediation="See `skulk nodes` for how the link is.",
            )
        return self._add(key)

    def on_frame(self, peer: NodeId, frame: TunnelFrame) -> None:
        """Take a frame of the files plane that belongs to a stream."""
        if isinstance(frame, OpenTunnel):
            self._on_open(peer, frame)
            return
        stream = self._streams.get(_Key(peer, not frame.by_opener, frame.stream_id))
        if isinstance(frame, TunnelReset):
            if stream is not None:
                stream.break_off(_WORDS[frame.reason])
        elif stream is not None:
            stream.on_frame(frame)
        else:
            self._refuse(peer, frame.stream_id, by_opener=not frame.by_opener, reason="unknown")

    async def send(self, peer: NodeId, payload: bytes) -> None:
        """Send a frame, after waiting for room; a break is told by the link."""
        while self._transport.send(peer, _PLANE, payload) == "queue_full":
            await self._transport.wait_room(peer, _PLANE)

    def say(self, peer: NodeId, payload: bytes) -> None:
        """Send a small frame, now; one for which there is no room breaks the streams to the peer.

        Whoever fills a queue of megabytes waits for room before: little is ever in the way.
        """
        if self._transport.send(peer, _PLANE, payload) == "queue_full":
            asyncio.get_running_loop().call_soon(self._break, peer, "its queue is full")

    def forget(self, key: _Key) -> None:
        """Note that a stream is over."""
        self._streams.pop(key, None)
        if not self._streams and self._mark_timer is not None:
            self._mark_timer.cancel()
            self._mark_timer = None

    def close(self) -> None:
        """Break all streams, and open no more; idempotent."""
        self._is_closed = True
        for stream in list(self._streams.values()):
            stream.reset()

    def _on_open(self, peer: NodeId, frame: OpenTunnel) -> None:
        key = _Key(peer, is_opener=False, stream_id=frame.stream_id)
        if key in self._streams:
            return  # it has come twice
        serve = self._admit(peer, Target(frame.instance_id, frame.attempt, frame.rank))
        n_open = sum(1 for one in self._streams if one.peer == peer and not one.is_opener)
        if serve is None or self._is_closed:
            self._refuse(peer, frame.stream_id, by_opener=False, reason="refused")
        elif n_open >= MAX_STREAMS:
            self._refuse(peer, frame.stream_id, by_opener=False, reason="busy")
        else:
            serve(self._add(key))

    def _add(self, key: _Key) -> TunnelStream:
        stream = self._streams[key] = TunnelStream(self, key)
        if self._mark_timer is None:
            self._mark_later()
        return stream

    def _refuse(
        self, peer: NodeId, stream_id: int, *, by_opener: bool, reason: TunnelEndReason
    ) -> None:
        self.say(peer, pack_files(TunnelReset(stream_id, by_opener, reason)))

    def _mark_later(self) -> None:
        self._mark_timer = asyncio.get_running_loop().call_later(MARK_S, self._mark)

    def _mark(self) -> None:
        for stream in list(self._streams.values()):
            stream.mark()
        if self._streams:
            self._mark_later()

    def _on_link(self, peer: NodeId, state: LinkState) -> None:
        if state != "up":
            self._break(peer, f"the link to it is {state}")

    def _break(self, peer: NodeId, why: str) -> None:
        for key, stream in list(self._streams.items()):
            if key.peer == peer:
                stream.break_off(why)
