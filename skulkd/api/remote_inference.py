"""Inference on any node of the cluster: here without a detour, elsewhere over the data plane.

What a stream of another node owes its client is checked here: every message in its order, and
exactly one terminal. Whatever goes wrong on the way ends it with an error, never as if it were
complete: before `Started` as `engine.gone`, so that another instance may be asked; after it as
`cluster.link_lost`.
"""

import asyncio
import hashlib
import random
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Final, assert_never, final

from protocol.data_frames import Chunk, Failed, Finished, Frame, Started, TakeChunk
from protocol.data_wire import (
    MAX_STREAMS,
    MAX_TASK_BYTES,
    PIECE_BYTES,
    UPLOAD_WINDOW_BYTES,
    Cancel,
    Credit,
    Frames,
    Piece,
    Pulse,
    PulseAnswer,
    Request,
    Taken,
    ToApi,
    pack_message,
    pack_task,
)
from protocol.errors import ErrorBody
from protocol.ids import CommandId, InstanceId, NodeId
from protocol.tasks import ChatTask, EmbeddingTask, Task, VectorTask, images_of
from skulkd.api.ports import Inference
from skulkd.cluster.data_link import MISSED_PULSES, PULSE_S, DataLinks
from skulkd.eventlog.gateway import StateView
from skulkd.runtime.tasks import run_blocking

CREDIT_BYTES: Final = 256 << 10
"""What a worker may send beyond what the client has taken: some 10,000 tokens."""
_RENEW_BYTES: Final = CREDIT_BYTES // 2
_OVERDRAFT_BYTES: Final = 256 << 10
"""The last message may go beyond the credit."""
_TERMINALS: Final = (Finished, Failed)
_BEGINNINGS: Final = (Started, Chunk)
"""Tuples: a union is made anew wherever it is written, and this is asked of every frame."""
_STREAM_BITS: Final = 48
"""Streams count from a random number, so that no worker takes those of this process for those of
the one before it."""


@dataclass(slots=True, eq=False)
class _Stream:
    """One task that another node serves."""

    host: NodeId
    number: int
    command_id: CommandId
    arrived: deque[tuple[tuple[Frame, ...], int]] = field(
        default_factory=deque[tuple[tuple[Frame, ...], int]]
    )
    """Frames that the client has not taken, and the size of their message."""
    n_messages: int = 0
    n_bytes: int = 0
    """Of the messages that have arrived."""
    taken_bytes: int = 0
    """Of those that the client has taken."""
    credit_bytes: int = CREDIT_BYTES
    uploaded_bytes: int = 0
    """Acknowledged by the worker."""
    has_started: bool = False
    take: TakeChunk | None = None
    """Gets chunks that arrive while the client waits for them, once it is asked for any."""
    is_over: bool = False
    """Its terminal has arrived, or been made here."""
    waiter: asyncio.Future[None] | None = None

    def end(self, error: ErrorBody) -> None:
        """Make the terminal here; the first one counts."""
        if not self.is_over:
            self.is_over = True
            self.arrived.append(((Failed(error),), 0))
            self.wake()

    def wake(self) -> None:
        """Something has come that the client may wait for."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def pass_on(self, frames: tuple[Frame, ...]) -> int:
        """Have the chunks among these taken where they arrive, up to what comes by the iterator.

        Returns:
            How many have been taken; they are the first.
        """
        take, waiter = self.take, self.waiter
        if take is None or waiter is None or waiter.done() or self.arrived:
            return 0
        n_taken = 0
        try:
            for frame in frames:
                if type(frame) is not Chunk or not take(frame):
                    break
                n_taken += 1
        # ruff: ignore[blind-except]  it is raised where the client waits, and not into the link
        except Exception as error:
            waiter.set_exception(error)
        return n_taken

    async def wait(self) -> None:
        """Wait for something to come."""
        self.waiter = asyncio.get_running_loop().create_future()
        try:
            await self.waiter
        finally:
            self.waiter = None


@final
class ClusterInference:
    """Implements `skulkd.api.ports.Inference` for all nodes of the cluster.

    Args:
        state: Says which node serves an instance.
        local: Serves those of this node.
        links: The ways to the other nodes.
        chance: Chooses the number of the first stream.
    """

    def __init__(
        self, state: StateView, local: Inference, links: DataLinks, chance: random.Random
    ) -> None:
        self._state = state
        self._local = local
        self._links = links
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, _Stream] = {}
        self._last_number = chance.getrandbits(_STREAM_BITS)
        self._missed: dict[NodeId, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        links.serve_api(self)

    @property
    def n_remote(self) -> int:
        """How many tasks other nodes serve for this one now."""
        return len(self._streams)

    def chat(
        self, instance_id: InstanceId, task: ChatTask, take: TakeChunk | None = None
    ) -> AsyncGenerator[Frame]:
        """Serve one task; see `Inference`."""
        host = self._host_of(instance_id)
        if host is None or host == self._links.node_id:
            return self._local.chat(instance_id, task, take)
        return self._remote(host, instance_id, task, take)

    def vectors(self, instance_id: InstanceId, task: VectorTask) -> AsyncGenerator[Frame]:
        """Serve one task for vectors; see `Inference`."""
        host = self._host_of(instance_id)
        if host is None or host == self._links.node_id:
            return self._local.vectors(instance_id, task)
        return self._remote(host, instance_id, task, None)

    def cancel(self, command_id: CommandId) -> bool:
        """End a task with `request.cancelled`, wherever it runs; see `Inference`."""
        for stream in self._streams.values():
            if stream.command_id == command_id and not stream.is_over:
                self._links.post(stream.host, pack_message(Cancel(stream.number)))
                stream.end(_cancelled())
                return True
        return self._local.cancel(command_id)

    # ---- What the links call ----

    def on_message(self, peer: NodeId, message: ToApi, n_bytes: int) -> None:
        """Take a message of a worker."""
        self._missed[peer] = 0
        match message:
            case Frames():
                self._add(peer, message, n_bytes)
            case Taken():
                stream = self._stream(peer, message.stream)
                if stream is not None and message.n_bytes > stream.uploaded_bytes:
                    stream.uploaded_bytes = message.n_bytes
                    stream.wake()
            case PulseAnswer():
                self._compare(peer, message)
            case _:
                assert_never(message)

    def on_broken(self, peer: NodeId, reason: str) -> None:
        """End every stream of a node that has gone."""
        self._missed.pop(peer, None)
        for stream in list(self._streams.values()):
            if stream.host == peer:
                self._lose(stream, reason)

    def open_peers(self) -> set[NodeId]:
        """Name the nodes that serve tasks of this one."""
        return {stream.host for stream in self._streams.values()}

    # ---- One stream, as its client sees it ----

    def _host_of(self, instance_id: InstanceId) -> NodeId | None:
        instance = self._state.state.instances.get(instance_id)
        return None if instance is None else instance.plan.shards[0].node_id

    async def _remote(
        self, host: NodeId, instance_id: InstanceId, task: Task, take: TakeChunk | None
    ) -> AsyncGenerator[Frame]:
        if not self._links.is_up(host):
            reason = f"instance {instance_id} is on a node that cannot be reached now"
            yield Failed(_unreachable(host, reason))
            return
        body = await _packed(task)
        refusal = self._refusal(len(body))
        if refusal is not None:
            yield Failed(refusal)
            return
        is_short = len(body) <= PIECE_BYTES
        digest = b"" if is_short else await run_blocking(_digest, body)
        stream = self._open(host, instance_id, task.command_id, body, digest)
        try:
            if not is_short:
                await self._upload(stream, body)
            del body
            stream.take = take
            while True:
                while stream.arrived:
                    frames, n_bytes = stream.arrived.popleft()
                    for frame in frames:
                        yield frame
                        if isinstance(frame, _TERMINALS):
                            return
                    self._take(stream, n_bytes)
                # As `wait` does, without a coroutine for each frame.
                waiter = stream.waiter = self._loop.create_future()
                await waiter
                stream.waiter = None
        finally:
            self._forget(stream)

    def _refusal(self, n_bytes: int) -> ErrorBody | None:
        if n_bytes > MAX_TASK_BYTES:
            return ErrorBody(
                code="request.too_large",
                message=f"the request is {n_bytes} bytes, and another node takes at most "
                f"{MAX_TASK_BYTES}",
                remediation="Send less in one request.",
            )
        if len(self._streams) >= MAX_STREAMS:
            return ErrorBody(
                code="engine.busy",
                message=f"{len(self._streams)} requests are on their way to other nodes already",
                remediation="Try again in a moment.",
                retry_after_s=1,
            )
        return None

    def _open(
        self,
        host: NodeId,
        instance_id: InstanceId,
        command_id: CommandId,
        body: bytes,
        digest: bytes,
    ) -> _Stream:
        """Send the request: no pulse may name a stream before the worker has heard of it."""
        self._last_number += 1
        stream = _Stream(host, self._last_number, command_id)
        self._streams[stream.number] = stream
        request = Request(
            stream=stream.number,
            command_id=command_id,
            instance_id=instance_id,
            credit_bytes=stream.credit_bytes,
            size_bytes=len(body),
            digest=digest,
            body=b"" if digest else body,
        )
        self._links.post(host, pack_message(request))
        self._links.flush()
        self._watch()
        return stream

    async def _upload(self, stream: _Stream, body: bytes) -> None:
        """Send a long task in pieces, no further ahead than the worker follows."""
        for offset in range(0, len(body), PIECE_BYTES):
            while not stream.is_over and offset >= stream.uploaded_bytes + UPLOAD_WINDOW_BYTES:
                await stream.wait()
            if self._links.is_full(stream.host):
                await self._links.wait_room(stream.host)
            if stream.is_over:
                return
            piece = Piece(stream.number, offset, body[offset : offset + PIECE_BYTES])
            self._links.post(stream.host, pack_message(piece))

    def _take(self, stream: _Stream, n_bytes: int) -> None:
        """The client has taken a message: let the worker send as much more, now and then."""
        stream.taken_bytes += n_bytes
        total_bytes = stream.taken_bytes + CREDIT_BYTES
        if not stream.is_over and total_bytes - stream.credit_bytes >= _RENEW_BYTES:
            stream.credit_bytes = total_bytes
            self._links.post(stream.host, pack_message(Credit(stream.number, total_bytes)))

    def _forget(self, stream: _Stream) -> None:
        """The client has its terminal, or has gone."""
        del self._streams[stream.number]
        if not stream.is_over:
            self._links.post(stream.host, pack_message(Cancel(stream.number)))

    # ---- What arrives ----

    def _stream(self, peer: NodeId, number: int) -> _Stream | None:
        stream = self._streams.get(number)
        return None if stream is None or stream.host != peer or stream.is_over else stream

    def _add(self, peer: NodeId, message: Frames, n_bytes: int) -> None:
        stream = self._stream(peer, message.stream)
        if stream is None or message.number < stream.n_messages:
            return  # over, or come twice
        if message.number > stream.n_messages:
            self._lose(stream, "a part of the answer was lost on its way")
            return
        stream.n_messages += 1
        stream.n_bytes += n_bytes
        if stream.n_bytes > stream.credit_bytes + _OVERDRAFT_BYTES:
            self._lose(stream, "it sends more than it was asked for")
            return
        frames = message.frames
        stream.is_over = isinstance(frames[-1], _TERMINALS)
        if stream.has_started:
            n_taken = stream.pass_on(frames)
            if n_taken == len(frames):
                self._take(stream, n_bytes)
                return
            frames = frames[n_taken:]
        else:
            stream.has_started = any(isinstance(item, _BEGINNINGS) for item in frames)
        stream.arrived.append((frames, n_bytes))
        stream.wake()

    def _lose(self, stream: _Stream, reason: str) -> None:
        if stream.is_over:
            return
        if stream.has_started:
            stream.end(_link_lost(stream.host, reason))
        else:
            stream.end(_unreachable(stream.host, reason))
        if self._links.is_up(stream.host):
            self._links.post(stream.host, pack_message(Cancel(stream.number)))

    # ---- Pulses ----

    def _watch(self) -> None:
        """Ask for the streams of other nodes for as long as there are any."""
        if self._timer is None and self._streams:
            self._timer = asyncio.get_running_loop().call_later(PULSE_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        hosts: dict[NodeId, list[tuple[int, int]]] = {}
        for stream in self._streams.values():
            if not stream.is_over:
                hosts.setdefault(stream.host, []).append((stream.number, stream.credit_bytes))
        for host, streams in hosts.items():
            missed = self._missed[host] = self._missed.get(host, 0) + 1
            if missed > MISSED_PULSES:
                self.on_broken(host, f"it has not been heard for {MISSED_PULSES} s")
            else:
                self._links.post(host, pack_message(Pulse(tuple(streams))))
        self._watch()

    def _compare(self, peer: NodeId, answer: PulseAnswer) -> None:
        """A worker that has sent other than what has arrived here has lost something for us."""
        for number, n_messages in answer.streams:
            stream = self._stream(peer, number)
            if stream is not None and n_messages != stream.n_messages:
                self._lose(stream, "a part of it was lost on its way")


async def _packed(task: Task) -> bytes:
    if _n_chars(task) < PIECE_BYTES:
        return pack_task(task)
    return await run_blocking(pack_task, task)


def _n_chars(task: Task) -> int:
    if isinstance(task, ChatTask):
        n_chars = len(task.prompt or "") + sum(len(message.content) for message in task.messages)
        return n_chars + sum(len(image.data) for image in images_of(task))
    return sum(map(len, task.texts if isinstance(task, EmbeddingTask) else task.documents))


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def _cancelled() -> ErrorBody:
    return ErrorBody(code="request.cancelled", message="the request was cancelled")


def _unreachable(host: NodeId, reason: str) -> ErrorBody:
    return ErrorBody(
        code="engine.gone",
        message=f"node {host} does not serve this request: {reason}",
        remediation="Try again in a moment; `skulk cluster members` shows who is there.",
        details={"node_id": host},
        retry_after_s=2,
    )


def _link_lost(host: NodeId, reason: str) -> ErrorBody:
    return ErrorBody(
        code="cluster.link_lost",
        message=f"the answer of node {host} broke off: {reason}",
        remediation="Send the request again; what has arrived is only a part of the answer.",
        details={"node_id": host},
    )
