"""Tells the cluster how this node reaches the others: by what, how fast there and back, how much.

What is told is put together from what is known anyway: the transport's connections, the words that
are said back on the telemetry plane, what was measured when somebody asked for it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from ipaddress import ip_address
from typing import Final, NamedTuple, final

from protocol.clock import Clock
from protocol.ids import NodeId
from protocol.readings import MAX_LINKS, LinkReading, LinksReading
from skulkd.cluster.addresses import split_address
from skulkd.cluster.link_echoes import ECHO_S
from skulkd.cluster.link_paths import LinkPath, ReadPaths
from skulkd.cluster.link_views import LinkViews, PeerInfo
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.core.link_probe import Rate
from skulkd.core.link_rtt import RttOf
from skulkd.runtime.rounds import Rounds
from skulkd.runtime.tasks import run_blocking, sleep

_log = logging.getLogger(__name__)

_SETTLE_S: Final = 1.0
"""Links of a start come up one after the other; they are told together, with a first word back."""
_UNKNOWN: Final = LinkPath()


class _Measured(NamedTuple):
    rate: Rate
    at_s: float


@final
class LinkReport:
    """Keeps this node's reading of its links up to date.

    Args:
        node_id: This node.
        members: Names the members of the cluster, this node too.
        links: How the ways to them are.
        rtt_of: How long they take.
        read_paths: Finds the interface; blocks.
        table: Where the reading goes.
        clock: Stamps it.
        rounds: With which it looks.
    """

    def __init__(
        self,
        *,
        node_id: NodeId,
        members: Callable[[], Iterable[NodeId]],
        links: LinkViews,
        rtt_of: RttOf,
        read_paths: ReadPaths,
        table: ReadingsTable,
        clock: Clock,
        rounds: Rounds,
    ) -> None:
        self._node_id = node_id
        self._members = members
        self._links = links
        self._rtt_of = rtt_of
        self._read_paths = read_paths
        self._table = table
        self._clock = clock
        self._rounds = rounds
        self._measured: dict[NodeId, _Measured] = {}
        self._news = asyncio.Event()
        self._is_blind = False

    def note_rate(self, peer: NodeId, rate: Rate) -> None:
        """Tell what came from a peer when it was measured just now."""
        now = self._clock.monotonic_s()
        self._measured[peer] = _Measured(rate, now)
        told = self._table.readings.links.get(self._node_id)
        if told is None:
            self._news.set()
            return
        links = tuple(
            replace(link, rate_bytes_s=round(rate.bytes_s), rate_at_s=now)
            if link.peer == peer
            else link
            for link in told.links
        )
        self._table.put_links(replace(told, at_s=now, links=links))

    def look_soon(self) -> None:
        """Something has changed that is told."""
        self._news.set()

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            await sleep(_SETTLE_S)
            self._news.clear()
            await self._look()
            await self._wait()

    async def _wait(self) -> None:
        """Wait for news, or until words have been said back again."""
        call = self._rounds.call(self._news.set, soonest_s=ECHO_S, latest_s=ECHO_S + _SETTLE_S)
        try:
            await self._news.wait()
        finally:
            call.cancel()

    async def _look(self) -> None:
        others = sorted(node_id for node_id in self._members() if node_id != self._node_id)
        infos = [info for peer in others if (info := self._links.peer_info(peer)) is not None]
        for gone in self._measured.keys() - set(others):
            del self._measured[gone]
        if not infos:
            self._table.drop(self._node_id, ("links", "", 0))
            return
        hosts = {info.node_id: host for info in infos if (host := _host_of(info)) is not None}
        paths = await self._paths(set(hosts.values()))
        links = tuple(
            self._link(info, paths.get(hosts.get(info.node_id, ""), _UNKNOWN))
            for info in infos[:MAX_LINKS]
        )
        self._table.put_links(
            LinksReading(node_id=self._node_id, at_s=self._clock.monotonic_s(), links=links)
        )

    def _link(self, info: PeerInfo, path: LinkPath) -> LinkReading:
        rtt, measured = self._rtt_of(info.node_id), self._measured.get(info.node_id)
        return LinkReading(
            peer=info.node_id,
            state=info.link,
            interface=path.interface,
            kind=path.kind,
            nominal_bits_s=path.nominal_bits_s,
            rtt_median_ms=None if rtt is None else round(rtt.median_ms, 3),
            rtt_p99_ms=None if rtt is None or rtt.p99_ms is None else round(rtt.p99_ms, 3),
            rate_bytes_s=None if measured is None else round(measured.rate.bytes_s),
            rate_at_s=None if measured is None else measured.at_s,
        )

    async def _paths(self, hosts: set[str]) -> Mapping[str, LinkPath]:
        try:
            paths = await run_blocking(self._read_paths, sorted(hosts))
        except OSError as error:
            if not self._is_blind:
                _log.warning("the machine's interfaces cannot be read: %s", error)
            self._is_blind = True
            return {}
        self._is_blind = False
        return paths


def _host_of(info: PeerInfo) -> str | None:
    """Give the IP address of a peer: the one that is dialled, else where it comes from."""
    dialled = None if info.dialled is None else split_address(info.dialled)[0]
    for host in (dialled, info.heard_from):
        if host is not None and _is_ip(host):
            return host
    return None


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
