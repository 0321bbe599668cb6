"""How the links of a simulated network come and go: in virtual time, as the real ones do.

A link is the way from one node to another as its dialler sees it. It opens when both name each
other; a process that ends is noticed soon, a cut only by silence, and a link that has broken takes
a moment to be made anew.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from protocol.ids import NodeId
from skulkd.cluster.transport import LinkState

SILENCE_S: Final = (5.0, 6.0)
"""From a cut to the end of the connection: heartbeats each second, and five without an answer."""
NOTICE_S: Final = (0.005, 0.05)
"""From the end of a process to its peers' knowing, by a connection that is refused."""
REDIAL_S: Final = (0.1, 1.0)
"""From the moment that a broken link could open again to its being open."""
HANDSHAKE_S: Final = (0.001, 0.005)


@dataclass(slots=True)
class Link:
    """The way from one node to another."""

    state: LinkState = "connecting"
    life: object | None = None
    """The process at the other end, once the link has been open."""
    n_breaks: int = 0
    """What was sent before a break never arrives."""
    next_state: LinkState | None = None
    timer: asyncio.TimerHandle | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a link is heading for."""

    state: LinkState
    life: object | None = None
    """The process that runs at the other end now."""


@final
class Links:
    """All the links of a network.

    Args:
        rng: Draws how long each change takes.
        outlook: Says what the link from one node to another is heading for.
        tell: Called when one has changed.
    """

    def __init__(
        self,
        rng: random.Random,
        outlook: Callable[[NodeId, NodeId], Outlook],
        tell: Callable[[NodeId, NodeId, LinkState], None],
    ) -> None:
        self._rng = rng
        self._outlook = outlook
        self._tell = tell
        self._links: dict[tuple[NodeId, NodeId], Link] = {}

    def dial(self, dialler: NodeId, peer: NodeId) -> None:
        """Begin to keep a link, unless it is kept already."""
        self._links.setdefault((dialler, peer), Link())

    def hang_up(self, dialler: NodeId, peer: NodeId) -> None:
        """Keep it no longer; what is on its way is lost."""
        link = self._links.pop((dialler, peer), None)
        if link is not None:
            self._stop(link)

    def hang_up_all(self, dialler: NodeId) -> None:
        """Keep none of a node's links any longer."""
        for one, peer in [pair for pair in self._links if pair[0] == dialler]:
            self.hang_up(one, peer)

    def get(self, dialler: NodeId, peer: NodeId) -> Link | None:
        """Give a link that is kept."""
        return self._links.get((dialler, peer))

    def look(self) -> None:
        """Something has changed: let every link head for what it will be now."""
        for (dialler, peer), link in list(self._links.items()):
            self._head_for(dialler, peer, link)

    def _head_for(self, dialler: NodeId, peer: NodeId, link: Link) -> None:
        aim = _next(link, self._outlook(dialler, peer))
        if aim == link.state:
            self._stop(link)
        elif aim != link.next_state:
            self._stop(link)
            link.next_state = aim
            shortest_s, longest_s = _takes_s(link, aim)
            link.timer = asyncio.get_running_loop().call_later(
                self._rng.uniform(shortest_s, longest_s), self._change, dialler, peer, link
            )

    def _stop(self, link: Link) -> None:
        if link.timer is not None:
            link.timer.cancel()
        link.timer = link.next_state = None

    def _change(self, dialler: NodeId, peer: NodeId, link: Link) -> None:
        aim = link.next_state
        if aim is None:
            return
        link.timer = link.next_state = None
        if link.state == "up":
            link.n_breaks += 1
        link.state = aim
        if aim == "up":
            link.life = self._outlook(dialler, peer).life
        self._tell(dialler, peer, aim)
        self._head_for(dialler, peer, link)


def _next(link: Link, outlook: Outlook) -> LinkState:
    """Give the state that comes first on the way to the outlook."""
    if outlook.state in {"refused", "silent"} and link.life is None:
        return "connecting"
    if outlook.state == "silent" and link.state == "refused":
        return "refused"
    if link.state == "up" and outlook.state == "up" and link.life is not outlook.life:
        return "refused"
    return outlook.state


def _takes_s(link: Link, aim: LinkState) -> tuple[float, float]:
    if aim == "silent":
        return SILENCE_S if link.state == "up" else HANDSHAKE_S
    if aim in {"up", "incompatible"}:
        return HANDSHAKE_S if link.life is None else REDIAL_S
    return NOTICE_S
