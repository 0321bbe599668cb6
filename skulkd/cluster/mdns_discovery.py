"""Discovery by mDNS as the node sees it; the thread it runs on is in skulkd/cluster/mdns_thread.py.

Knows nothing of zeroconf, which is loaded by that thread and only once there is an address to use.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, final

from protocol.ids import NodeId
from skulkd.cluster.addresses import IPV4, InterfaceAddress
from skulkd.cluster.discovery import Announcement, DiscoveryStatus, OnSighting, Sighting
from skulkd.cluster.mdns_thread import CLOSE_S, MdnsThread, Report, Wish
from skulkd.cluster.sightings import SightingBook
from skulkd.runtime.tasks import run_blocking

_log = logging.getLogger(__name__)

_TOO_MANY: Final = (
    "more than 5 mDNS packets a second have been wanted for a while, and {n} were not sent: "
    "something on this network asks too much, or two programs answer each other"
)


@final
class MdnsDiscovery:
    """Discovery by mDNS; made on the event loop.

    Args:
        own_id: What this node says itself is passed over.
    """

    def __init__(self, own_id: NodeId) -> None:
        self._loop = asyncio.get_running_loop()
        self._book = SightingBook(own_id)
        self._receiver: OnSighting | None = None
        self._wish = Wish()
        self._report = Report()
        self._thread = MdnsThread(
            on_heard=self._from_thread(self._hear),
            on_goodbye=self._from_thread(self._book.forget),
            on_report=self._from_thread(self._note),
        )

    def on_sighting(self, receiver: OnSighting) -> None:
        """Name who is told of neighbours."""
        self._receiver = receiver

    def announce(self, announcement: Announcement | None) -> None:
        """Tell the neighbours this from now on; the first time that takes 1.2 s."""
        self._want(replace(self._wish, announcement=announcement))

    def set_addresses(self, addresses: Sequence[InterfaceAddress]) -> None:
        """Use exactly these own addresses."""
        v4 = [one for one in addresses if one.ip.version == IPV4]
        links = v4 or list(addresses)
        self._book.set_links(links)
        self._want(replace(self._wish, hosts=tuple(dict.fromkeys(one.host for one in links))))

    def sightings(self) -> tuple[Sighting, ...]:
        """List the neighbours, the one heard last first."""
        return self._book.listed()

    def status(self) -> DiscoveryStatus:
        """Say how it is."""
        pace = self._thread.pace
        warning = self._report.warning
        if self._report.state == "waiting" and self._wish.hosts:
            warning = ""  # it is about to begin
        if not warning and pace.is_alarming(now_s=self._loop.time()):
            warning = _TOO_MANY.format(n=pace.n_withheld)
        return DiscoveryStatus(
            state=self._report.state,
            warning=warning,
            hosts=self._report.hosts,
            n_sightings=len(self._book.listed()),
            n_garbled=self._book.n_garbled,
            n_off_link=self._book.n_off_link,
            n_dropped=self._book.n_dropped + self._thread.n_dropped,
            n_sent=pace.n_sent,
            n_withheld=pace.n_withheld,
        )

    async def close(self) -> None:
        """Say goodbye and end."""
        self._want(replace(self._wish, is_over=True))
        if not await run_blocking(self._thread.join, CLOSE_S):
            _log.warning("the mDNS thread has not ended after %.0f s and is left behind", CLOSE_S)

    def _want(self, wish: Wish) -> None:
        if wish != self._wish and not self._wish.is_over:
            self._wish = wish
            self._thread.want(wish)

    def _hear(self, name: str, txt: Mapping[bytes, bytes | None], hosts: Sequence[str]) -> None:
        if self._wish.is_over:
            return
        sighting = self._book.hear(name, txt, hosts, now_s=self._loop.time())
        if sighting is not None and self._receiver is not None:
            self._receiver(sighting)

    def _note(self, report: Report) -> None:
        if report.warning and report.warning != self._report.warning:
            _log.warning("mDNS: %s", report.warning)
        self._report = report

    def _from_thread(self, call: Callable[..., None]) -> Callable[..., None]:
        """Have a call of the thread's made on the event loop, unless that has ended."""

        def post(*values: object) -> None:
            try:
                self._loop.call_soon_threadsafe(call, *values)
            except RuntimeError:
                _log.debug("the event loop has ended before mDNS")

        return post
