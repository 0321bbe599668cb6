"""Reads model files from other nodes over the files plane, by pieces that this node asks for.

Nothing is ever sent unasked, so the window of pieces bounds what a peer can make this node hold.
"""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, final

from protocol.errors import ErrorCode
from protocol.files_wire import (
    MAX_RANGE_BYTES,
    ArtifactOpened,
    AskLater,
    CloseArtifact,
    FileAnswer,
    OpenArtifact,
    RangeContent,
    ReadRange,
    RefusalReason,
    TransferRefused,
    WaitReason,
    pack_files,
)
from protocol.ids import Digest, NodeId
from skulkd.cluster.range_window import RangeWindow
from skulkd.cluster.transport import LinkState, Transport
from skulkd.runtime.tasks import timeout
from store.sources.peer import PeerBusyError, PeerError, PeerFile, PeerLiedError, peer_error

_PLANE: Final = "files"
_REFUSALS: Final[dict[RefusalReason, str]] = {
    "unknown": "it does not have the files",
    "changed": "the files there are no longer as they were verified",
    "failed": "it cannot read the files",
    "not_open": "it has ended the transfer",
}
_LATER: Final[dict[WaitReason, str]] = {
    "busy": "it serves as many transfers as it may",
    "verifying": "it verifies the files first",
}
_FINAL: Final[frozenset[RefusalReason]] = frozenset({"unknown", "changed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FileClientSettings:
    """How files are asked for."""

    range_bytes: int = 512 << 10
    """Of one piece."""
    window_bytes: int = 16 << 20
    """On its way, or come and not written yet."""
    open_s: float = 10.0
    """For so long a peer that is asked for an artifact may say nothing."""
    ask_again_s: float = 3.0
    """After so long without an answer it is asked again: the question may be lost."""
    stall_s: float = 20.0
    """Without one new byte for so long, a peer is given up."""


@final
class FileClient:
    """Implements `store.sources.peer.PeerFiles`.

    Args:
        transport: The way to the other nodes.
        rng: Chooses the first number, so that a restart is not taken for what was before.
        settings: How to ask.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        rng: random.Random,
        settings: FileClientSettings | None = None,
    ) -> None:
        self._transport = transport
        self._settings = settings or FileClientSettings()
        self._next_id = rng.getrandbits(48)
        self._leases: dict[int, _Lease] = {}
        transport.on_link(self._on_link)

    @asynccontextmanager
    async def open(self, node_id: NodeId, key: Digest) -> AsyncGenerator["_Lease"]:
        """As `PeerFiles`."""
        self._next_id += 1
        lease = _Lease(self._transport, node_id, self._next_id, self._settings)
        self._leases[lease.request_id] = lease
        try:
            await lease.open(key)
            yield lease
        finally:
            del self._leases[lease.request_id]
            lease.close()

    def on_answer(self, sender: NodeId, answer: FileAnswer) -> None:
        """Take in a frame; one that belongs to nothing that is open is dropped."""
        lease = self._leases.get(answer.request_id)
        if lease is not None and lease.node_id == sender:
            lease.on_answer(answer)

    def _on_link(self, peer: NodeId, state: LinkState) -> None:
        if state == "up":
            return
        for lease in self._leases.values():
            if lease.node_id == peer:
                lease.fail(PeerError(peer_error(peer, f"the link to it is {state}")))


@final
class _Lease:
    """Implements `store.sources.peer.PeerLease`; made by `FileClient.open`."""

    def __init__(
        self, transport: Transport, node_id: NodeId, request_id: int, settings: FileClientSettings
    ) -> None:
        self.node_id = node_id
        self.request_id = request_id
        self._transport = transport
        self._settings = settings
        self._files: tuple[PeerFile, ...] = ()
        self._file_index = -1
        self._window: RangeWindow | None = None
        self._failure: PeerError | None = None
        self._news = asyncio.Event()

    @property
    def files(self) -> tuple[PeerFile, ...]:
        """What the peer says that it has."""
        return self._files

    async def open(self, key: Digest) -> None:
        """Ask for an artifact, and wait for the answer.

        Raises:
            PeerError: There is none, or not a good one.
        """
        silent_s = 0.0
        while not self._files:
            if silent_s >= self._settings.open_s:
                raise self._stalled(silent_s, "store.source_unavailable")
            await self._send(OpenArtifact(self.request_id, key))
            silent_s += await self._wait_news()
            if self._failure is not None:
                raise self._failure

    async def read(self, index: int, offset: int) -> AsyncGenerator[tuple[memoryview, ...]]:
        """As `PeerLease`; one file at a time."""
        range_bytes = min(self._settings.range_bytes, MAX_RANGE_BYTES)
        end = self._files[index].size_bytes
        window = RangeWindow(
            offset, end, range_bytes=range_bytes, window_bytes=self._settings.window_bytes
        )
        self._file_index, self._window = index, window
        silent_s = 0.0
        try:
            while not window.is_done:
                await self._ask(window)
                contents = window.take()
                if contents:
                    silent_s = 0.0
                    yield contents
                    continue
                if self._failure is not None:
                    raise self._failure
                if silent_s >= self._settings.stall_s:
                    raise self._stalled(silent_s, "store.stalled")
                passed_s = await self._wait_news()
                silent_s = silent_s + passed_s if passed_s else 0.0
                if passed_s:
                    window.on_silence()
        finally:
            self._window = None

    def on_answer(self, answer: FileAnswer) -> None:
        """Take in a frame of this transfer."""
        match answer:
            case ArtifactOpened(files=files):
                self._files = self._files or tuple(
                    PeerFile(path=file.path, size_bytes=file.size_bytes, sha256=file.sha256)
                    for file in files
                )
                self._news.set()
            case RangeContent():
                self._on_content(answer)
            case AskLater():
                self.fail(self._busy(answer))
            case TransferRefused(reason=reason):
                error = peer_error(self.node_id, _REFUSALS[reason])
                self.fail(PeerError(error, is_final=reason in _FINAL))

    def fail(self, failure: PeerError) -> None:
        """End the transfer; the first reason is the one that is told."""
        self._failure = self._failure or failure
        self._news.set()

    def close(self) -> None:
        """Tell the peer that no more is wanted."""
        # A peer that cannot be told has noticed by itself, or will by the silence.
        self._transport.send(self.node_id, _PLANE, pack_files(CloseArtifact(self.request_id)))

    def _on_content(self, piece: RangeContent) -> None:
        window = self._window
        if window is None or piece.file_index != self._file_index:
            # Of the file before, asked for twice.
            return
        match window.on_content(piece.offset, piece.content):
            case "taken":
                self._news.set()
            case "duplicate":
                pass
            case "unasked":
                problem = f"it sent {len(piece.content)} bytes that were not asked for"
                self.fail(PeerLiedError(peer_error(self.node_id, problem)))

    async def _ask(self, window: RangeWindow) -> None:
        """Fill the window with questions, as far as the transfer has not failed."""
        try:
            while self._failure is None and (piece := window.to_ask()) is not None:
                offset, n_bytes = piece
                await self._send(ReadRange(self.request_id, self._file_index, offset, n_bytes))
                window.on_asked(offset)
        except PeerError as failed:
            # What has come is handed on first.
            self.fail(failed)

    async def _send(self, frame: OpenArtifact | ReadRange) -> None:
        payload = pack_files(frame)
        while (refusal := self._transport.send(self.node_id, _PLANE, payload)) == "queue_full":
            await self._transport.wait_room(self.node_id, _PLANE)
        if refusal is not None:
            raise PeerError(peer_error(self.node_id, f"it cannot be reached ({refusal})"))

    async def _wait_news(self) -> float:
        """Wait for a frame; give how long that was in vain, 0 when one came."""
        passed_s = 0.0
        try:
            async with timeout(self._settings.ask_again_s):
                await self._news.wait()
        except TimeoutError:
            passed_s = self._settings.ask_again_s
        self._news.clear()
        return passed_s

    def _busy(self, answer: AskLater) -> PeerBusyError:
        return PeerBusyError(
            peer_error(self.node_id, _LATER[answer.reason]),
            retry_after_s=answer.retry_ms / 1000,
            done_bytes=answer.done_bytes,
            total_bytes=answer.total_bytes,
        )

    def _stalled(self, silent_s: float, code: ErrorCode) -> PeerError:
        return PeerError(peer_error(self.node_id, f"it sent nothing for {silent_s:g} s", code))
