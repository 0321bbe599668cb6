"""Measures what a link carries, and gives other nodes the bytes that they measure by.

On the connection of the files, encrypted as those are: what is measured is what a model's files
would get. Heartbeats, commands and tokens have other connections.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Final, final

from protocol.errors import ClusterError, SkulkError
from protocol.files_wire import (
    CloseFilling,
    Filling,
    FillingFrame,
    FillingRefusal,
    FillingRefused,
    ReadFilling,
    pack_files,
    pack_filling,
)
from protocol.ids import NodeId
from skulkd.cluster.transport import LinkState, Transport
from skulkd.core.link_probe import (
    PROBE_BYTES,
    SILENT_S,
    Measurement,
    Rate,
    probe_busy,
    probe_disturbs,
)
from skulkd.runtime.tasks import sleep, timeout

_PLANE: Final = "files"
_LOOK_S: Final = 0.1
_FORGET_S: Final = 2.0
"""After so long without a question of the node that measures, another one may."""
_WAIT_S: Final = _FORGET_S + 0.5
_LONGEST_S: Final = 15.0
"""Of one direction, however slow the link is."""


@final
class LinkProbes:
    """Both sides of it, on one node.

    Args:
        transport: The way to the other nodes.
        rng: Chooses the first number, so that a restart is not taken for what was before.
        is_serving: Whether this node answers requests of clients now.
        name_of: Names a node for people.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        rng: random.Random,
        is_serving: Callable[[], bool],
        name_of: Callable[[NodeId], str],
    ) -> None:
        self._transport = transport
        self._is_serving = is_serving
        self._name_of = name_of
        self._next_id = rng.getrandbits(48)
        self._own: _Probe | None = None
        self._given: _Given | None = None
        transport.on_link(self._on_link)

    async def measure(self, peer: NodeId, *, even_busy: bool) -> Rate:
        """Measure what comes from a peer: at most half a second and 64 MiB.

        A peer that measures with another node is waited for, some seconds.

        Raises:
            ClusterError: `cluster.probe_busy`, `cluster.probe_disturbs`;
                `cluster.peer_unreachable`, also when its link breaks; `cluster.peer_timeout`.
        """
        until_s = _now() + _WAIT_S
        while True:
            try:
                return await self._measure(peer, even_busy=even_busy)
            except ClusterError as error:
                if error.code != "cluster.probe_busy" or _now() >= until_s:
                    raise
            await sleep(_LOOK_S)

    async def _measure(self, peer: NodeId, *, even_busy: bool) -> Rate:
        if self._own is not None or self._is_giving(other_than=peer):
            raise self._refused(self._transport.node_id, "probing")
        self._next_id += 1
        probe = self._own = _Probe(peer, self._next_id, now=_now())
        try:
            with suppress(TimeoutError):  # what has come by then is measured by
                async with timeout(_LONGEST_S):
                    while not probe.measurement.is_done(now=_now()):
                        await self._step(probe, even_busy=even_busy)
        finally:
            self._own = None
            # A peer that cannot be told notices by itself: nobody asks it any more.
            self._transport.send(peer, _PLANE, pack_files(CloseFilling(probe.request_id)))
        rate = probe.measurement.rate()
        if rate is None:
            raise self._silent(peer)
        return rate

    def on_frame(self, sender: NodeId, frame: FillingFrame) -> None:
        """Take in a frame; one that belongs to nothing that is measured is dropped."""
        if isinstance(frame, ReadFilling):
            self._give(sender, frame)
            return
        if isinstance(frame, CloseFilling):
            self._end_giving(sender, frame.request_id)
            return
        probe = self._own
        if probe is None or (probe.peer, probe.request_id) != (sender, frame.request_id):
            return
        match frame:
            case Filling(number=number, n_bytes=n_bytes):
                if probe.measurement.on_piece(number, n_bytes, now=_now()):
                    probe.news.set()
            case FillingRefused(reason=reason):
                probe.fail(self._refused(sender, reason))

    # ---- The node that the bytes come to ----

    async def _step(self, probe: "_Probe", *, even_busy: bool) -> None:
        """Ask for what may be asked for, and wait for news."""
        if probe.failure is not None:
            raise probe.failure
        if self._is_serving() and not even_busy:
            raise probe_disturbs(self._name_of(self._transport.node_id))
        measurement = probe.measurement
        while (piece := measurement.to_ask(now=_now())) is not None:
            number, n_bytes = piece
            frame = ReadFilling(probe.request_id, number, n_bytes, even_busy)
            refusal = self._transport.send(probe.peer, _PLANE, pack_files(frame))
            if refusal == "queue_full":
                break  # files are on their way to it; the questions wait for room
            if refusal is not None:
                raise self._unreachable(probe.peer, f"it cannot be sent to ({refusal})")
            measurement.on_asked(number, n_bytes)
        if measurement.is_silent(now=_now()):
            raise self._silent(probe.peer)
        try:
            async with timeout(_LOOK_S):
                await probe.news.wait()
        except TimeoutError:
            return  # the time may be over, or this node serves by now
        probe.news.clear()

    def _on_link(self, peer: NodeId, state: LinkState) -> None:
        if state == "up":
            return
        if self._own is not None and self._own.peer == peer:
            self._own.fail(self._unreachable(peer, f"the link became {state}"))
        if self._given is not None and self._given.peer == peer:
            self._given = None

    # ---- The node that the bytes come from ----

    def _give(self, sender: NodeId, asked: ReadFilling) -> None:
        reason = self._reason_against(sender, asked)
        if reason is not None:
            frame = FillingRefused(asked.request_id, reason)
            self._transport.send(sender, _PLANE, pack_files(frame))
            return
        # One that is not taken was lost: who asked is not answered what there is no room for.
        payload = pack_filling(asked.request_id, asked.number, asked.n_bytes)
        self._transport.send(sender, _PLANE, payload)

    def _reason_against(self, sender: NodeId, asked: ReadFilling) -> FillingRefusal | None:
        """Say why bytes are not given; counts those that are."""
        if self._is_serving() and not asked.even_busy:
            return "serving"
        own = self._own
        if self._is_giving(other_than=sender) or (own is not None and own.peer != sender):
            return "probing"
        given = self._given
        if given is None or (given.peer, given.request_id) != (sender, asked.request_id):
            given = self._given = _Given(sender, asked.request_id)
        given.last_s = _now()
        given.n_bytes += asked.n_bytes
        return "too_much" if given.n_bytes > PROBE_BYTES else None

    def _end_giving(self, peer: NodeId, request_id: int) -> None:
        given = self._given
        if given is not None and (given.peer, given.request_id) == (peer, request_id):
            self._given = None

    def _is_giving(self, *, other_than: NodeId) -> bool:
        given = self._given
        if given is not None and _now() - given.last_s >= _FORGET_S:
            given = self._given = None
        return given is not None and given.peer != other_than

    # ---- Errors ----

    def _refused(self, node_id: NodeId, reason: FillingRefusal) -> ClusterError:
        name = self._name_of(node_id)
        match reason:
            case "serving":
                return probe_disturbs(name)
            case "probing":
                return probe_busy(name, "measures another link now")
            case "too_much":
                return self._unreachable(node_id, "it gives no more bytes to measure by")

    def _unreachable(self, peer: NodeId, reason: str) -> ClusterError:
        return ClusterError(
            "cluster.peer_unreachable",
            f"the link to {self._name_of(peer)} cannot be measured: {reason}",
            remediation="See that it runs and is connected: skulk cluster members",
            details={"node_id": peer},
            retry_after_s=5,
        )

    def _silent(self, peer: NodeId) -> ClusterError:
        return ClusterError(
            "cluster.peer_timeout",
            f"too little came from {self._name_of(peer)} within {SILENT_S:g} s to measure by",
            remediation="Try again; if it stays so, look at that node's load and log.",
            details={"node_id": peer},
            retry_after_s=5,
        )


@final
class _Probe:
    """One measurement of this node."""

    def __init__(self, peer: NodeId, request_id: int, *, now: float) -> None:
        self.peer: Final = peer
        self.request_id: Final = request_id
        self.measurement: Final = Measurement(now=now)
        self.news: Final = asyncio.Event()
        self.failure: SkulkError | None = None

    def fail(self, failure: SkulkError) -> None:
        """End it; the first reason is the one that is told."""
        self.failure = self.failure or failure
        self.news.set()


@final
class _Given:
    """What was given to a node that measures."""

    def __init__(self, peer: NodeId, request_id: int) -> None:
        self.peer: Final = peer
        self.request_id: Final = request_id
        self.n_bytes = 0
        self.last_s = 0.0


def _now() -> float:
    return asyncio.get_running_loop().time()
