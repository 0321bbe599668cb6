"""Gives model files to other nodes over the files plane: the pieces that they ask for.

A node reads what it was given the number for, and only while the files are as they were verified.
At most a few transfers are served at a time; others are told when to ask again.
"""

import asyncio
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, final

from protocol.errors import StoreError
from protocol.files_wire import (
    MAX_FILE_BYTES,
    MAX_FILES,
    ArtifactOpened,
    AskLater,
    CloseArtifact,
    FileRequest,
    OfferedFile,
    OpenArtifact,
    ReadRange,
    RefusalReason,
    TransferRefused,
    WaitReason,
    pack_content,
    pack_files,
)
from protocol.ids import Digest, NodeId
from skulkd.cluster.transport import LinkState, Transport
from skulkd.runtime.tasks import (
    OnDeath,
    Tasks,
    run_blocking,
    run_blocking_in,
    timeout,
)
from store.offers import Offer, UnhashedOffer
from store.rate_limit import RateLimit

_log = logging.getLogger(__name__)

_PLANE: Final = "files"
_N_THREADS: Final = 4
_CLOSE_S: Final = 5.0
_UNHASHABLE_S: Final = 60.0


class OfferedFiles(Protocol):
    """What this node can give; `store.offers.Offers`."""

    def open(self, key: Digest) -> Offer | UnhashedOffer | None:
        """Have an artifact ready to be read, or hashed first; None when it is not complete here.

        Blocks.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FileServerSettings:
    """How much is served."""

    max_transfers: int = 4
    """At a time."""
    max_of_peer: int = 2
    """Of them, to one node."""
    max_pending: int = 128
    """Pieces that one transfer may ask for ahead."""
    idle_s: float = 30.0
    """Without a question for so long, a transfer is over."""
    retry_s: float = 2.0
    """After so long who is told to wait may ask again."""


_Name = tuple[NodeId, int]
"""A transfer: who asked, and the number that it gave."""


@dataclass(eq=False, slots=True, kw_only=True)
class _Served:
    """One transfer that is served."""

    name: _Name
    key: Digest
    offer: Offer
    last_s: float
    pending: deque[ReadRange] = field(default_factory=deque[ReadRange])
    news: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False


@final
class FileServer:
    """Serves the files of this node.

    Args:
        transport: The way to the other nodes.
        offers: What there is to give.
        on_death: Gets the story of a task that died of a bug.
        settings: How much to serve.
        limit: How fast, over all transfers; None is as fast as the network takes it.
    """

    def __init__(
        self,
        transport: Transport,
        offers: OfferedFiles,
        *,
        on_death: OnDeath,
        settings: FileServerSettings | None = None,
        limit: RateLimit | None = None,
    ) -> None:
        self._limit = limit
        self._transport = transport
        self._offers = offers
        self._tasks = Tasks("file server", on_death=on_death)
        self._is_closed = False
        self._settings = settings or FileServerSettings()
        self._pool = ThreadPoolExecutor(_N_THREADS, thread_name_prefix="files")
        self._opening: dict[_Name, Digest] = {}
        self._served: dict[_Name, _Served] = {}
        self._hashed: tuple[Digest, UnhashedOffer] | None = None
        """What is being hashed now; one artifact at a time."""
        self._unhashable: dict[Digest, float] = {}
        """Until when files that could not be hashed are refused."""
        self._n_sent_bytes = 0
        transport.on_link(self._on_link)

    @property
    def n_transfers(self) -> int:
        """How many transfers are served now."""
        return len(self._served)

    @property
    def n_sent_bytes(self) -> int:
        """Bytes of files sent so far."""
        return self._n_sent_bytes

    def on_request(self, sender: NodeId, request: FileRequest) -> None:
        """Take in a frame."""
        if self._is_closed:
            return
        match request:
            case OpenArtifact(request_id=request_id, key=key):
                self._on_open((sender, request_id), key)
            case ReadRange():
                self._on_read((sender, request.request_id), request)
            case CloseArtifact(request_id=request_id):
                self._end((sender, request_id))

    async def close(self) -> None:
        """Serve nothing more; a read that is under way ends first, or hangs. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        await self._tasks.close(_CLOSE_S)
        with suppress(TimeoutError):
            async with timeout(_CLOSE_S):
                await run_blocking(partial(self._pool.shutdown, cancel_futures=True))

    # Opening.

    def _on_open(self, name: _Name, key: Digest) -> None:
        served = self._served.get(name)
        if served is not None:
            self._answer_opened(served)
            return
        if name in self._opening:
            return
        # A node that asks for the same files anew has given the earlier transfer up.
        for other in [item for item in self._served.values() if item.key == key]:
            if other.name[0] == name[0]:
                self._end(other.name)
        if not self._has_room(name[0]):
            # What the others get meanwhile shows that waiting is not in vain.
            self._answer_later(name, "busy", min(self._n_sent_bytes, MAX_FILE_BYTES))
            return
        self._opening[name] = key
        self._tasks.start(self._open(name, key), name=f"open for {name[0]}", essential=False)

    def _has_room(self, peer: NodeId) -> bool:
        busy = [*self._served, *self._opening]
        of_peer = sum(name[0] == peer for name in busy)
        return len(busy) < self._settings.max_transfers and of_peer < self._settings.max_of_peer

    async def _open(self, name: _Name, key: Digest) -> None:
        try:
            offer = await run_blocking_in(self._pool, partial(self._offers.open, key))
        except StoreError as error:
            _log.warning("cannot open %s for node %s: %s", key, name[0], error.message)
            self._refuse(name, "failed")
            return
        finally:
            is_wanted = self._opening.pop(name, None) is not None
        if not is_wanted:
            return
        match offer:
            case None:
                self._refuse(name, "unknown")
            case UnhashedOffer():
                self._hash(name, key, offer)
            case Offer():
                await self._begin(name, key, offer)

    async def _begin(self, name: _Name, key: Digest, offer: Offer) -> None:
        if len(offer.files) > MAX_FILES:
            self._refuse(name, "unknown")
            return
        now_s = asyncio.get_running_loop().time()
        served = _Served(name=name, key=key, offer=offer, last_s=now_s)
        self._served[name] = served
        self._watch_idle(served)
        self._answer_opened(served)
        await self._serve(served)

    def _hash(self, name: _Name, key: Digest, offer: UnhashedOffer) -> None:
        """Have files hashed that never were, one artifact at a time."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._unhashable.get(key, 0.0):
            self._refuse(name, "failed")
            return
        if self._hashed is None:
            self._hashed = (key, offer)
            self._tasks.start(self._hash_all(key, offer), name=f"hash {key}", essential=False)
        current_key, current = self._hashed
        if current_key == key:
            self._answer_later(name, "verifying", current.done_bytes, current.total_bytes)
        else:
            self._answer_later(name, "verifying", 0, offer.total_bytes)

    async def _hash_all(self, key: Digest, offer: UnhashedOffer) -> None:
        try:
            while await run_blocking_in(self._pool, offer.step):
                pass
        except StoreError as error:
            _log.warning("cannot hash %s for other nodes: %s", key, error.message)
            now_s = asyncio.get_running_loop().time()
            kept = {other: at_s for other, at_s in self._unhashable.items() if at_s > now_s}
            self._unhashable = {**kept, key: now_s + _UNHASHABLE_S}
        finally:
            self._hashed = None
            await run_blocking_in(self._pool, offer.close)

    # Serving.

    def _on_read(self, name: _Name, request: ReadRange) -> None:
        served = self._served.get(name)
        if served is None or served.is_over:
            self._refuse(name, "not_open")
            return
        served.last_s = asyncio.get_running_loop().time()
        # Asked again because the answer is slow to come; it is on its way.
        if request not in served.pending and len(served.pending) < self._settings.max_pending:
            served.pending.append(request)
            served.news.set()

    async def _serve(self, served: _Served) -> None:
        """Answer questions in their order until the transfer is over."""
        reason: RefusalReason | None = None
        try:
            await self._answer_all(served)
        except StoreError as error:
            reason = "changed" if error.code == "store.incomplete" else "failed"
            _log.warning("a transfer to node %s failed: %s", served.name[0], error.message)
        finally:
            self._end(served.name)
            if reason is not None:
                # Before anything is waited for: a question that comes meanwhile is told less.
                self._refuse(served.name, reason)
            # In the pool: it waits for a read that is under way.
            await run_blocking_in(self._pool, served.offer.close)

    async def _answer_all(self, served: _Served) -> None:
        while not served.is_over:
            if served.pending:
                await self._send(served, served.pending[0])
                served.pending.popleft()
            else:
                served.news.clear()
                await served.news.wait()

    async def _send(self, served: _Served, asked: ReadRange) -> None:
        peer, request_id = served.name
        payload = await run_blocking_in(self._pool, partial(_read, served.offer, request_id, asked))
        if self._limit is not None:
            await self._limit.take(asked.n_bytes)
        while not served.is_over:
            await self._transport.wait_room(peer, _PLANE)
            refusal = self._transport.send(peer, _PLANE, payload)
            if refusal is None:
                self._n_sent_bytes += asked.n_bytes
                return
            if refusal != "queue_full":
                served.is_over = True

    # Ending.

    def _end(self, name: _Name) -> None:
        self._opening.pop(name, None)
        served = self._served.pop(name, None)
        if served is not None:
            served.is_over = True
            served.news.set()

    def _on_link(self, peer: NodeId, state: LinkState) -> None:
        if state != "up":
            for name in [name for name in self._served if name[0] == peer]:
                self._end(name)

    def _watch_idle(self, served: _Served) -> None:
        loop = asyncio.get_running_loop()
        due_s = served.last_s + self._settings.idle_s
        if served.is_over:
            return
        # Who is slow to take what it asked for is not idle.
        if loop.time() >= due_s and not served.pending:
            self._end(served.name)
        else:
            loop.call_at(max(due_s, loop.time() + 1.0), self._watch_idle, served)

    # Answers. One that is not taken is not needed: the peer is gone, or asks again.

    def _answer_opened(self, served: _Served) -> None:
        peer, request_id = served.name
        files = tuple(
            OfferedFile(path=file.path, size_bytes=file.size_bytes, sha256=file.sha256)
            for file in served.offer.files
        )
        self._transport.send(peer, _PLANE, pack_files(ArtifactOpened(request_id, files)))

    def _answer_later(
        self, name: _Name, reason: WaitReason, done_bytes: int = 0, total_bytes: int = 0
    ) -> None:
        peer, request_id = name
        retry_ms = max(1, int(self._settings.retry_s * 1000))
        answer = AskLater(request_id, reason, retry_ms, done_bytes, total_bytes)
        self._transport.send(peer, _PLANE, pack_files(answer))

    def _refuse(self, name: _Name, reason: RefusalReason) -> None:
        peer, request_id = name
        self._transport.send(peer, _PLANE, pack_files(TransferRefused(request_id, reason)))


def _read(offer: Offer, request_id: int, asked: ReadRange) -> bytes:
    content = offer.read(asked.file_index, asked.offset, asked.n_bytes)
    return pack_content(request_id, asked.file_index, asked.offset, content)
