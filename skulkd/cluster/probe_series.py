"""Has the cluster's links measured, one pair after the other, on behalf of whoever asked this node.

The master lets one series measure at a time. The two nodes of a pair measure themselves, each what
comes to it, and tell all nodes; what is kept here is how the series goes.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final, final

from protocol.clock import Clock
from protocol.errors import ClusterError, ErrorBody, ProtocolError, SkulkError
from protocol.ids import NodeId
from protocol.peer_messages import HoldProbe, LinkMeasured, MeasureLink, ProbeHeld
from skulkd.cluster.calls import PeerCalls
from skulkd.cluster.link_probes import LinkProbes
from skulkd.cluster.link_report import LinkReport
from skulkd.core.link_probe import Direction, ProbeHolds, ProbeRun, probe_busy
from skulkd.runtime.tasks import Tasks, sleep

_log = logging.getLogger(__name__)

HOLD_ASK_S: Final = 3.0
_MEASURE_S: Final = 25.0
"""Longer than a measurement takes that is waited for, and is slow."""
_NO_MASTER_S: Final = 10.0
"""A new master is elected sooner, or not at all."""
_AGAIN_S: Final = 0.5
_TOLD_S: Final = 0.5
"""What was measured last is known here too by then, by the reading of whoever measured it."""

MasterOf = Callable[[], NodeId | None]
"""Gives the master, as far as one is known."""


@final
class ProbeSeries:
    """Both the series of this node, and its answers to those of others.

    Args:
        node_id: This node.
        calls: Asks the other nodes, and is asked.
        master: Names the master.
        probes: Measures what comes to this node.
        report: Tells what was measured.
        name_of: Names a node for people.
        clock: For holds, and for stamps.
        tasks: Owner of the series.
    """

    def __init__(
        self,
        *,
        node_id: NodeId,
        calls: PeerCalls,
        master: MasterOf,
        probes: LinkProbes,
        report: LinkReport,
        name_of: Callable[[NodeId], str],
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self._node_id = node_id
        self._calls = calls
        self._master = master
        self._probes = probes
        self._report = report
        self._clock = clock
        self._tasks = tasks
        self._holds = ProbeHolds(name_of)
        self._number = 0
        self._is_starting = False
        self._run: ProbeRun | None = None
        calls.serve(HoldProbe, self._on_hold)
        calls.serve(MeasureLink, self._on_measure)

    @property
    def last(self) -> ProbeRun | None:
        """The series that goes on here, else the last one that did."""
        return self._run

    async def start(self, pairs: tuple[tuple[NodeId, NodeId], ...], *, even_busy: bool) -> ProbeRun:
        """Begin to measure; returns once the master has let this node.

        Args:
            pairs: In the order of measuring.
            even_busy: Also nodes that answer requests of clients.

        Raises:
            ClusterError: `cluster.probe_busy`, `cluster.no_master`, or the master was not reached.
        """
        if self._is_starting or (self._run is not None and self._run.ended_ms is None):
            raise probe_busy("this node", "measures the cluster's links already")
        self._is_starting = True
        try:
            number = self._number = self._number + 1
            await self._hold(number)
        finally:
            self._is_starting = False
        run = self._run = ProbeRun(began_ms=self._clock.wall_ms(), pairs=pairs)
        self._tasks.start(
            self._measure_all(number, pairs, even_busy=even_busy),
            name="probe links",
            essential=False,
        )
        return run

    # ---- The series ----

    async def _measure_all(
        self, number: int, pairs: tuple[tuple[NodeId, NodeId], ...], *, even_busy: bool
    ) -> None:
        error: ErrorBody | None = None
        try:
            for pair in pairs:
                self._note(current=pair)
                for source, target in (pair, pair[::-1]):
                    await self._hold_on(number)
                    self._note(done=await self._measure(source, target, even_busy=even_busy))
            await sleep(_TOLD_S)
        except SkulkError as failed:
            _log.warning("the links are not measured further: %s", failed.message)
            error = failed.body()
        finally:
            if self._run is not None:
                self._run = replace(
                    self._run, current=None, ended_ms=self._clock.wall_ms(), error=error
                )
        await self._give_back(number)

    def _note(
        self, *, current: tuple[NodeId, NodeId] | None = None, done: Direction | None = None
    ) -> None:
        run = self._run
        if run is not None:
            further = () if done is None else (done,)
            self._run = replace(run, current=current or run.current, done=(*run.done, *further))

    async def _measure(self, source: NodeId, target: NodeId, *, even_busy: bool) -> Direction:
        request = MeasureLink(peer=source, even_busy=even_busy)
        try:
            answer = await self._calls.ask(target, request, timeout_s=_MEASURE_S)
        except SkulkError as error:
            return Direction(source=source, target=target, error=error.body())
        if not isinstance(answer, LinkMeasured):
            return Direction(source=source, target=target, error=_strange(answer.kind).body())
        return Direction(source=source, target=target, rate_bytes_s=answer.rate_bytes_s)

    # ---- The hold ----

    async def _hold_on(self, number: int) -> None:
        """Renew the hold; a master that is lost meanwhile has a successor soon."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _NO_MASTER_S
        while True:
            try:
                await self._hold(number)
            except SkulkError as error:
                if error.code == "cluster.probe_busy" or loop.time() >= until_s:
                    raise
                await sleep(_AGAIN_S)
            else:
                return

    async def _hold(self, number: int, *, is_over: bool = False) -> None:
        master = self._master()
        if master is None:
            raise _no_master("no master is known")
        request = HoldProbe(number=number, is_over=is_over)
        await self._calls.ask(master, request, timeout_s=HOLD_ASK_S)

    async def _give_back(self, number: int) -> None:
        try:
            await self._hold(number, is_over=True)
        except SkulkError as error:
            _log.info("the master was not told that the links are measured: %s", error.message)

    # ---- Answers ----

    async def _on_hold(self, asker: NodeId, request: HoldProbe) -> ProbeHeld:
        if request.is_over:
            self._holds.give_back(asker, request.number)
            return ProbeHeld()
        if self._master() != self._node_id:
            raise _no_master("this node is not master")
        self._holds.take(asker, request.number, now=self._clock.monotonic_s())
        return ProbeHeld()

    async def _on_measure(self, asker: NodeId, request: MeasureLink) -> LinkMeasured:
        del asker
        rate = await self._probes.measure(request.peer, even_busy=request.even_busy)
        self._report.note_rate(request.peer, rate)
        return LinkMeasured(rate_bytes_s=rate.bytes_s, n_bytes=rate.n_bytes)


def _no_master(reason: str) -> ClusterError:
    return ClusterError(
        "cluster.no_master",
        f"{reason}; it lets one at a time measure links",
        remediation="Try again in a few seconds; see who is there: skulk cluster members",
        retry_after_s=2,
    )


def _strange(kind: str) -> ProtocolError:
    return ProtocolError(
        "protocol.bad_frame",
        f"a node answered a measurement with {kind}",
        remediation="Run the same build on all nodes; if they do, report this.",
    )
