"""Snapshots between nodes: the master keeps a few ready, a member fetches one piece by piece."""

import asyncio
import hashlib
import hmac
from dataclasses import dataclass
from typing import Final, final

from protocol.clock import Clock
from protocol.codec import pack
from protocol.errors import ClusterError, ProtocolError, RequestError
from protocol.ids import ClusterId, Digest, NodeId
from protocol.peer_messages import (
    FetchSnapshotChunk,
    OpenSnapshot,
    SnapshotChunk,
    SnapshotOpened,
)
from protocol.state import ClusterState
from skulkd.cluster.calls import PeerCalls
from skulkd.eventlog.durable_log import unpack_state
from skulkd.eventlog.log_tail import LogTail
from skulkd.eventlog.records import Snapshot
from skulkd.runtime.tasks import run_blocking

CHUNK_BYTES: Final = 256 << 10
MAX_OPEN: Final = 2
"""Members that are served at once; the others come back."""
KEPT_S: Final = 60.0
"""After the last question for one."""
SHARED_EVENTS: Final = 1000
"""A snapshot that is at most so old serves the next member too."""
_OPEN_S: Final = 20.0
_CHUNK_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Image:
    state: ClusterState
    chain: bytes
    data: bytes
    digest: Digest


@dataclass(slots=True, kw_only=True)
class _Served:
    member: NodeId
    image: _Image
    asked_s: float


@final
class SnapshotShelf:
    """The master's side.

    Args:
        tail: Whose end snapshots are taken of.
        clock: Forgets what nobody asks for.
    """

    def __init__(self, tail: LogTail, clock: Clock) -> None:
        self._tail = tail
        self._clock = clock
        self._served: dict[int, _Served] = {}
        self._next_id = 1
        self._taking = asyncio.Lock()

    @property
    def n_served(self) -> int:
        """How many members are fetching one now."""
        return len(self._served)

    async def open(self, member: NodeId, number: int) -> SnapshotOpened:
        """Keep a snapshot of the log's end ready for a member.

        Args:
            member: Who asks; what it had open before is closed.
            number: Of the term that this node leads.

        Raises:
            RequestError: `request.overloaded`; two members are being served.
        """
        self._forget(member)
        if len(self._served) >= MAX_OPEN:
            raise RequestError(
                "request.overloaded",
                f"{len(self._served)} members are being sent a snapshot already",
                remediation="The member comes back by itself.",
                retry_after_s=2,
            )
        snapshot_id = self._next_id
        self._next_id += 1
        # Two at a time: the place is taken before the thread has packed the state.
        now_s = self._clock.monotonic_s()
        placeholder = _Image(state=self._tail.appended, chain=b"", data=b"", digest=Digest(""))
        served = _Served(member=member, image=placeholder, asked_s=now_s)
        self._served[snapshot_id] = served
        try:
            served.image = await self._image()
        except BaseException:
            del self._served[snapshot_id]
            raise
        served.asked_s = self._clock.monotonic_s()
        image = served.image
        return SnapshotOpened(
            snapshot_id=snapshot_id,
            number=number,
            term=image.state.term,
            seq=image.state.seq,
            at_ms=image.state.at_ms,
            chain=image.chain,
            size_bytes=len(image.data),
            digest=image.digest,
        )

    def chunk(self, member: NodeId, request: FetchSnapshotChunk) -> SnapshotChunk:
        """Give a piece of a snapshot; with the last one it is closed.

        Raises:
            RequestError: `request.not_found`; it is not open for this member any more.
        """
        served = self._served.get(request.snapshot_id)
        if served is None or served.member != member:
            raise RequestError(
                "request.not_found",
                f"snapshot {request.snapshot_id} is not kept for {member}",
                remediation="The member opens a new one by itself.",
            )
        served.asked_s = self._clock.monotonic_s()
        end = request.offset + CHUNK_BYTES
        data = served.image.data[request.offset : end]
        if end >= len(served.image.data):
            del self._served[request.snapshot_id]
        return SnapshotChunk(data=data)

    def _forget(self, member: NodeId) -> None:
        now_s = self._clock.monotonic_s()
        for snapshot_id, served in list(self._served.items()):
            if served.member == member or now_s - served.asked_s > KEPT_S:
                del self._served[snapshot_id]

    async def _image(self) -> _Image:
        async with self._taking:
            state, chain = self._tail.appended, self._tail.chain
            recent = self._tail.recent
            for served in self._served.values():
                seq = served.image.state.seq
                is_near = seq >= max(recent.base_seq, state.seq - SHARED_EVENTS)
                if served.image.data and is_near and recent.chain_at(seq) == served.image.chain:
                    return served.image
            data, digest = await run_blocking(_packed, state)
            return _Image(state=state, chain=chain, data=data, digest=digest)


async def fetch_snapshot(
    calls: PeerCalls, master: NodeId, number: int, cluster_id: ClusterId
) -> tuple[Snapshot, ClusterState]:
    """Fetch the master's snapshot whole, checked against its digest.

    Raises:
        ClusterError: `cluster.peer_unreachable`, `cluster.peer_timeout`.
        ProtocolError: `protocol.bad_frame`; it is not what the master announced.
        ConfigError: `config.downgrade`; the master runs a newer build.
        SkulkError: What the master refused with.
    """
    opened = await calls.ask(master, OpenSnapshot(number=number), timeout_s=_OPEN_S)
    if not isinstance(opened, SnapshotOpened) or opened.number != number:
        raise _bad("the answer is no snapshot of this term")
    data = bytearray()
    while len(data) < opened.size_bytes:
        request = FetchSnapshotChunk(snapshot_id=opened.snapshot_id, offset=len(data))
        chunk = await calls.ask(master, request, timeout_s=_CHUNK_S)
        if not isinstance(chunk, SnapshotChunk) or not chunk.data:
            raise _bad("it ends too early", len(data), opened.size_bytes)
        data += chunk.data
    state = await run_blocking(_unpacked, bytes(data), opened, cluster_id)
    snapshot = Snapshot(
        cluster_id=cluster_id,
        term=state.term,
        seq=state.seq,
        at_ms=state.at_ms,
        chain=opened.chain,
        state=bytes(data),
    )
    return snapshot, state


def _packed(state: ClusterState) -> tuple[bytes, Digest]:
    data = pack(state)
    return data, Digest(hashlib.sha256(data).hexdigest())


def _unpacked(data: bytes, opened: SnapshotOpened, cluster_id: ClusterId) -> ClusterState:
    if not hmac.compare_digest(hashlib.sha256(data).hexdigest(), opened.digest):
        raise _bad("its digest differs")
    state = unpack_state(data)
    if (state.term, state.seq) != (opened.term, opened.seq):
        raise _bad("it reaches another seq", state.seq, opened.seq)
    if state.cluster_id != cluster_id:
        raise ClusterError(
            "cluster.journal_corrupt",
            f"the master's snapshot is of cluster {state.cluster_id}, not of {cluster_id}",
            remediation="Remove this node from the cluster, and let it join anew.",
        )
    return state


def _bad(reason: str, seen: int | None = None, announced: int | None = None) -> ProtocolError:
    numbers = "" if seen is None else f", {seen} where {announced} was announced"
    return ProtocolError(
        "protocol.bad_frame",
        f"the master's snapshot cannot be used: {reason}{numbers}",
        remediation="It is fetched again; if it stays so, run the same build on all nodes.",
    )
