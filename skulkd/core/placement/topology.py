"""How good the way between two nodes is, for a model that is spread over them; pure.

Every token of such a model crosses each link, so that what counts is the delay, and then the rate.
What was measured counts before what an interface says of itself. Links are put into few classes:
a plan must not change with every reading.
"""

from collections.abc import Mapping
from typing import Final, final

from protocol.ids import NodeId
from protocol.readings import LinkKind, LinkReading, Readings

LinkClass = int
"""Less is better: 0 as Thunderbolt, 1 as ethernet, 2 not known, 3 as Wi-Fi, 4 as a VPN."""

UNKNOWN_CLASS: Final[LinkClass] = 2
TYPICAL_DELAY_MS: Final[tuple[float, ...]] = (0.1, 0.3, 0.5, 3.0, 20.0)
"""There and back, for each class."""

_OF_KIND: Final[Mapping[LinkKind, LinkClass]] = {
    "loopback": 0,
    "thunderbolt": 0,
    "ethernet": 1,
    "bridge": 2,
    "virtual": 2,
    "other": 2,
    "wifi": 3,
    "vpn": 4,
}
_RATES: Final[tuple[tuple[float, LinkClass], ...]] = ((1.5e9, 0), (80e6, 1), (8e6, 3))
"""Bytes a second from which on a measured link is of a class; below all of them it is the last."""
_DELAYS_MS: Final[tuple[tuple[float, LinkClass], ...]] = ((2.0, 0), (8.0, 3))
"""Round trips up to which a link may be of a class; the median of a quiet link is far less."""
_WORST: Final[LinkClass] = 4


@final
class Topology:
    """The links between nodes, as both of their ends tell them."""

    def __init__(self, readings: Readings) -> None:
        self._links: dict[NodeId, dict[NodeId, LinkReading]] = {
            node_id: {link.peer: link for link in told.links}
            for node_id, told in readings.links.items()
        }
        self._told_of = self._links.keys() | {
            peer for links in self._links.values() for peer in links
        }

    def knows(self, node_id: NodeId) -> bool:
        """Say whether anything is known of a node's links."""
        return node_id in self._told_of

    def is_cut(self, one: NodeId, other: NodeId) -> bool:
        """Say whether one of the two tells that nothing gets to the other."""
        return any(link.state != "up" for link in self._between(one, other))

    def link_class(self, one: NodeId, other: NodeId) -> LinkClass:
        """Say how good the link is; the worse of its ends counts."""
        return max((_class_of(link) for link in self._between(one, other)), default=UNKNOWN_CLASS)

    def delay_ms(self, one: NodeId, other: NodeId) -> tuple[float, bool]:
        """Give the round trip between two nodes, and whether it was measured."""
        measured = [
            link.rtt_median_ms
            for link in self._between(one, other)
            if link.rtt_median_ms is not None
        ]
        if measured:
            return max(measured), True
        return TYPICAL_DELAY_MS[self.link_class(one, other)], False

    def _between(self, one: NodeId, other: NodeId) -> list[LinkReading]:
        ends = ((one, other), (other, one))
        told = (self._links.get(here, {}).get(there) for here, there in ends)
        return [link for link in told if link is not None]


def _class_of(link: LinkReading) -> LinkClass:
    found = UNKNOWN_CLASS if link.kind is None else _OF_KIND[link.kind]
    if link.rate_bytes_s is not None:
        rate = link.rate_bytes_s
        found = next((named for least, named in _RATES if rate >= least), _WORST)
    if link.rtt_median_ms is not None:
        delay = link.rtt_median_ms
        found = max(found, next((named for most, named in _DELAYS_MS if delay <= most), _WORST))
    return found
