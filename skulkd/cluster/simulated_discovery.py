"""Discovery's simulated twin: multicast in one process, on the event loop's time.

Whoever has an address on a link hears what is said on it, after a drawn delay, or not at all when
the draw says so. As in mDNS an announcement is made three times, and a newcomer asks three times
and is answered; nothing else is ever sent.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Final, final

from protocol.ids import NodeId
from skulkd.cluster.addresses import InterfaceAddress
from skulkd.cluster.discovery import (
    Announcement,
    DiscoveryState,
    DiscoveryStatus,
    OnSighting,
    Sighting,
)
from skulkd.cluster.sightings import SightingBook, txt_of

ANNOUNCED_AFTER_S: Final = (0.7, 0.925, 1.15)
"""After the name was found to be free."""
ASKED_AFTER_S: Final = (0.05, 1.05, 5.05)


@final
class SimulatedMedium:
    """All the links that multicast passes over.

    Args:
        rng: Draws every delay and loss.
        min_delay_s: Of what is heard; a response is held back to gather others.
        max_delay_s: See above.
        loss_ratio: Of what is not heard.
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        min_delay_s: float = 0.02,
        max_delay_s: float = 0.12,
        loss_ratio: float = 0.0,
    ) -> None:
        self.loss_ratio = loss_ratio
        self._rng = rng
        self._delays_s = (min_delay_s, max_delay_s)
        self._nodes: dict[NodeId, SimulatedDiscovery] = {}
        self._cuts: set[tuple[NodeId, NodeId]] = set()
        self._broken: dict[NodeId, str] = {}

    def attach(self, node_id: NodeId) -> "SimulatedDiscovery":
        """Give a node its discovery; one that is attached already is replaced, as by a restart."""
        discovery = SimulatedDiscovery(self, node_id)
        self._nodes[node_id] = discovery
        return discovery

    def detach(self, discovery: "SimulatedDiscovery") -> None:
        """Take a node off without a goodbye, as when its process dies."""
        if self._nodes.get(discovery.node_id) is discovery:
            del self._nodes[discovery.node_id]

    def cut(self, speaker: NodeId, hearer: NodeId) -> None:
        """Let nothing of the one reach the other; neither notices."""
        self._cuts.add((speaker, hearer))

    def heal_all(self) -> None:
        """Undo every cut."""
        self._cuts.clear()

    def break_down(self, node_id: NodeId, reason: str) -> None:
        """Let a node's discovery fail, as without permission or interface."""
        self._broken[node_id] = reason

    def mend(self, node_id: NodeId) -> None:
        """Let it work again."""
        if self._broken.pop(node_id, None) is not None and node_id in self._nodes:
            self._nodes[node_id].begin()

    # What a node's discovery asks of its medium.

    def trouble(self, node_id: NodeId) -> str:
        """Say why a node's discovery has failed; empty when it has not."""
        return self._broken.get(node_id, "")

    def neighbours(self, speaker: "SimulatedDiscovery") -> list["SimulatedDiscovery"]:
        """List who shares a link with a node and is not cut off from it."""
        return [
            other
            for node_id, other in sorted(self._nodes.items())
            if other is not speaker
            and (speaker.node_id, node_id) not in self._cuts
            and not {one.network for one in speaker.links}.isdisjoint(
                one.network for one in other.links
            )
        ]

    def carry(self, speaker: "SimulatedDiscovery", hearer: "SimulatedDiscovery") -> None:
        """Bring what a node says to one neighbour, or not."""
        is_cut = (speaker.node_id, hearer.node_id) in self._cuts
        if self._rng.random() >= self.loss_ratio and not is_cut:
            delay_s = self._rng.uniform(*self._delays_s)
            asyncio.get_running_loop().call_later(delay_s, hearer.hear, speaker)


@final
class SimulatedDiscovery:
    """One node's end; made by `SimulatedMedium.attach`."""

    def __init__(self, medium: SimulatedMedium, node_id: NodeId) -> None:
        self.node_id = node_id
        self.links: tuple[InterfaceAddress, ...] = ()
        self.said: Announcement | None = None
        self._medium = medium
        self._book = SightingBook(node_id)
        self._receiver: OnSighting | None = None
        self._n_sent = 0
        self._round = 0
        """Of announcements; those of an earlier one are not made any more."""
        self._is_closed = False

    def on_sighting(self, receiver: OnSighting) -> None:
        """Name who is told of neighbours."""
        self._receiver = receiver

    def announce(self, announcement: Announcement | None) -> None:
        """Tell the neighbours this from now on."""
        if announcement == self.said or self._is_closed:
            return
        if announcement is None:
            self._say_goodbye()
        self.said = announcement
        self._announce_soon()

    def set_addresses(self, addresses: Sequence[InterfaceAddress]) -> None:
        """Use exactly these own addresses."""
        if tuple(addresses) != self.links and not self._is_closed:
            self.links = tuple(addresses)
            self._book.set_links(addresses)
            self.begin()

    def sightings(self) -> tuple[Sighting, ...]:
        """List the neighbours, the one heard last first."""
        return self._book.listed()

    def status(self) -> DiscoveryStatus:
        """Say how it is."""
        trouble = self._medium.trouble(self.node_id)
        state: DiscoveryState = "failed" if trouble else "on" if self.links else "waiting"
        return DiscoveryStatus(
            state=state,
            warning=trouble or ("" if self.links else "no network interface to use"),
            hosts=tuple(one.host for one in self.links) if state == "on" else (),
            n_sightings=len(self._book.listed()),
            n_garbled=self._book.n_garbled,
            n_off_link=self._book.n_off_link,
            n_dropped=self._book.n_dropped,
            n_sent=self._n_sent,
        )

    async def close(self) -> None:
        """Say goodbye and end."""
        if not self._is_closed:
            self._say_goodbye()
            self._is_closed = True
            self._medium.detach(self)

    # What the medium and its own timers call.

    def begin(self) -> None:
        """Ask who is there, and announce."""
        for after_s in ASKED_AFTER_S:
            asyncio.get_running_loop().call_later(after_s, self._ask)
        self._announce_soon()

    def hear(self, speaker: "SimulatedDiscovery") -> None:
        """Take in what a neighbour says when it arrives."""
        if self._is_deaf() or speaker.said is None:
            return
        txt = {key.encode(): value.encode() for key, value in txt_of(speaker.said).items()}
        hosts = [one.host for one in speaker.links]
        now_s = asyncio.get_running_loop().time()
        sighting = self._book.hear(speaker.said.node_id, txt, hosts, now_s=now_s)
        if sighting is not None and self._receiver is not None:
            self._receiver(sighting)

    def forget(self, node_id: NodeId) -> None:
        """Hear a goodbye."""
        if not self._is_deaf():
            self._book.forget(node_id)

    def answer(self, asker: "SimulatedDiscovery") -> None:
        """Tell one who asks."""
        if self.said is not None and not self._is_deaf():
            self._n_sent += 1
            self._medium.carry(self, asker)

    def _is_deaf(self) -> bool:
        return self._is_closed or bool(self._medium.trouble(self.node_id))

    def _announce_soon(self) -> None:
        self._round += 1
        for after_s in ANNOUNCED_AFTER_S:
            asyncio.get_running_loop().call_later(after_s, self._multicast, self._round)

    def _multicast(self, announcing: int) -> None:
        if announcing != self._round or self.said is None or self._is_deaf():
            return
        self._n_sent += 1
        for neighbour in self._medium.neighbours(self):
            self._medium.carry(self, neighbour)

    def _ask(self) -> None:
        if self._is_deaf():
            return
        self._n_sent += 1
        for neighbour in self._medium.neighbours(self):
            neighbour.answer(self)

    def _say_goodbye(self) -> None:
        if self.said is not None and not self._is_deaf():
            for neighbour in self._medium.neighbours(self):
                neighbour.forget(self.node_id)
