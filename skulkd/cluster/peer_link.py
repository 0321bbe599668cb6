"""The way to one peer: dialled until it is open, told when it breaks, and dialled again.

A link has a lane for each port. The election lane goes first: at its port the peer's addresses are
tried in turn, the one that worked last before the others; the other lanes follow to where it is.
The link is up when all its lanes are, and the peer has said hello: then it reaches us, too.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final, final

import zmq

from protocol.clock import Clock
from protocol.envelope import PLANE_MARK, PORTS, Plane, Port
from skulkd.cluster.addresses import split_address
from skulkd.cluster.lanes import LANES, PLANE_LANE, Lane, port_number
from skulkd.cluster.link_status import LinkStatus
from skulkd.cluster.link_views import PlaneCounters
from skulkd.cluster.outbox import Outbox
from skulkd.cluster.probe import probe
from skulkd.cluster.transport import LinkState, Peer, Refusal
from skulkd.cluster.zmq_sockets import HANDSHAKE_S, Context, Dial
from skulkd.runtime.identity import KeyPair
from skulkd.runtime.tasks import Tasks, timeout

SHORTEST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 5.0
"""Between two rounds over a peer's addresses: doubled each time, from the one to the other. The
first is short because a process that is being killed loses its connections before its ports."""
PROBE_S: Final = (0.3, 2.0)
"""How long an address may take to answer, in the first round and in late ones."""
DOUBT_S: Final = 0.05
"""After a break, how long a refused connection may take to be known before it is silence."""
FILES_PAUSE_S: Final = 0.5

_log = logging.getLogger(__name__)
_names = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkServices:
    """What all links of a node share.

    Args:
        keys: This node's.
        hello: Gives the hello to begin a connection with.
        tasks: Runs the dialling.
        clock: For pauses.
        rng: Spreads them.
    """

    keys: KeyPair
    hello: Callable[[], bytes]
    tasks: Tasks
    clock: Clock
    rng: random.Random


@final
class PeerLink:
    """One peer's.

    Args:
        peer: Whom to dial.
        services: Shared.
        tell: Called when the state has changed.
    """

    def __init__(
        self, peer: Peer, services: LinkServices, tell: Callable[[Peer, LinkState], None]
    ) -> None:
        self._peer = peer
        self._services = services
        self._tell = tell
        self._told: LinkState = "connecting"
        self._status = LinkStatus()
        self._contexts: Mapping[Port, Context] | None = None
        self._outboxes: dict[Lane, Outbox] = {}
        self._learned: str | None = None
        self._at: tuple[str, int] = ("", 0)
        """The IP address and base port that lanes are dialled at."""
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._kick = asyncio.Event()
        self._files_after_s = 0.0
        self.dialled: str | None = None
        """The address that worked last, `HOST:BASE`."""
        self.counters: Mapping[Plane, PlaneCounters] = {
            plane: PlaneCounters() for plane in PLANE_MARK
        }

    @property
    def state(self) -> LinkState:
        """How it is."""
        return self._status.state

    @property
    def status(self) -> LinkStatus:
        """How it is, in detail."""
        return self._status

    def start(self, contexts: Mapping[Port, Context]) -> None:
        """Begin to dial."""
        self._contexts = contexts
        self._ensure_dialling()

    def update(self, peer: Peer) -> None:
        """Take over other addresses; a link that is up stays where it is."""
        if peer != self._peer:
            self._peer = peer
            self.hurry()

    def greet(self, refusal: str, address: str | None, *, is_new: bool) -> None:
        """Take over what the peer's hello has told.

        Args:
            refusal: Why nothing can be exchanged with it; empty when all is well.
            address: Where it says that it listens.
            is_new: It has just connected: so it is there, and dialling it need not wait.
        """
        if refusal and refusal != self._status.reason:
            _log.warning("ignoring %s: %s", self._peer.node_id, refusal)
        self._learned = address or self._learned
        self._status.greet(refusal)
        self._look()
        if is_new:
            self.hurry()

    def hurry(self) -> None:
        """Dial now, if the link is not whole."""
        self._kick.set()
        self._ensure_dialling()

    def send(self, plane: Plane, payload: bytes, key: str | None) -> Refusal | None:
        """Hand a payload over, which is not too large."""
        outbox = self._outbox_for(plane)
        if outbox is None:
            return "no_link"
        if outbox.send(plane, payload, key):
            return None
        self.counters[plane].n_refused += 1
        return "queue_full"

    def repeat_hello(self, hello: bytes) -> None:
        """Say hello again on the election lane soon, if it is up."""
        outbox = self._outboxes.get("election")
        if outbox is not None and outbox.is_up:
            outbox.owe(hello)

    async def wait_room(self, plane: Plane) -> None:
        """Wait until the largest payload would be taken, or the lane is closed."""
        outbox = self._outbox_for(plane)
        if outbox is not None:
            await outbox.wait_room(plane)

    def stop(self, *, linger_ms: int = 0) -> None:
        """Hang up and dial no more until started again.

        Args:
            linger_ms: How long the last words on the election lane may take.
        """
        self._contexts = None
        if self._task is not None:
            self._task.cancel()
            self._task = None
        for lane in list(self._outboxes):
            self._outboxes.pop(lane).close(linger_ms=linger_ms if lane == "election" else 0)
        self._status.reset()
        self._look()

    # Dialling.

    def _ensure_dialling(self) -> None:
        is_dialling = self._task is not None and not self._task.done()
        if self._contexts is None or is_dialling or self._is_whole():
            return
        name = f"dial {self._peer.node_id}"
        self._task = self._services.tasks.start(self._dial(), name=name)

    def _is_whole(self) -> bool:
        return all(self._is_up(lane) for lane in PORTS)

    def _is_up(self, lane: Lane) -> bool:
        outbox = self._outboxes.get(lane)
        return outbox is not None and outbox.is_up

    def _addresses(self) -> list[str]:
        known = (self.dialled, *self._peer.addresses, self._learned)
        return list(dict.fromkeys(address for address in known if address is not None))

    async def _dial(self) -> None:
        n_rounds = 0
        while not self._is_whole() and self._addresses():
            if not self._is_up("election"):
                await self._dial_election(n_rounds)
            if self._is_up("election"):
                await self._open([lane for lane in PORTS if not self._is_up(lane)])
            if self._is_whole():
                return
            n_rounds = 0 if await self._pause(n_rounds) else n_rounds + 1

    async def _pause(self, n_rounds: int) -> bool:
        """Wait before the next round; True when a reason to hurry has come."""
        longest_s = min(LONGEST_PAUSE_S, SHORTEST_PAUSE_S * 2.0 ** min(n_rounds, 10))
        try:
            async with timeout(longest_s * self._services.rng.uniform(0.5, 1.0)):
                await self._kick.wait()
        except TimeoutError:
            return False
        self._kick.clear()
        return True

    async def _dial_election(self, n_rounds: int) -> None:
        """Try the addresses in turn; with none of them, the other lanes are hung up, too."""
        first_s, last_s = PROBE_S
        limit_s = min(last_s, first_s * 2.0 ** min(n_rounds, 10))
        reasons: list[str] = []
        state: LinkState | None = None
        is_denied = False
        for address in self._addresses():
            found, reason = await self._try(address, limit_s)
            if found == "up":
                return
            state = state or found
            reasons.append(reason)
            is_denied |= found == "connecting" and self._status.is_denied
            self._note("election", state, "; ".join(reasons), is_denied=is_denied)
        for lane, outbox in list(self._outboxes.items()):
            if lane != "election":
                del self._outboxes[lane]
                outbox.close()
                self._note(LANES[lane].port, "silent")

    async def _try(self, address: str, limit_s: float) -> tuple[LinkState, str]:
        """Dial one address; says how the election port is then, and why."""
        try:
            host, base_port = split_address(address)
        except ValueError as error:
            return "connecting", f"{address[:100]} {error}"
        number = port_number(base_port, "election")
        found = await probe(host, number, limit_s)
        if found.outcome != "open":
            return ("refused" if found.outcome == "refused" else "silent"), found.reason
        self._at = (found.ip, base_port)
        await self._open(["election"])
        if self._is_up("election"):
            self.dialled = address
            return "up", ""
        return self._status.ports["election"], self._status.port_reason("election")

    async def _open(self, lanes: Sequence[Lane]) -> None:
        """Connect lanes, and wait until each is open or has failed."""
        for lane in lanes:
            self._connect(lane)
        try:
            async with timeout(HANDSHAKE_S + 1):
                while self._is_opening(lanes):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        for lane in lanes:
            outbox = self._outboxes.get(lane)
            if outbox is not None and not outbox.is_up:
                del self._outboxes[lane]
                outbox.close()
                port = LANES[lane].port
                number = port_number(self._at[1], port)
                self._note(port, "silent", f"{self._at[0]} port {number} does not answer")

    def _is_opening(self, lanes: Sequence[Lane]) -> bool:
        if "election" not in lanes and not self._is_up("election"):
            return False
        return any(lane in self._outboxes and not self._is_up(lane) for lane in lanes)

    def _connect(self, lane: Lane) -> Outbox | None:
        if self._contexts is None:
            return None
        port = LANES[lane].port
        host, base_port = self._at
        try:
            outbox = Outbox(
                self._contexts[port],
                lane,
                Dial(
                    host=host,
                    port=port_number(base_port, port),
                    server_key=self._peer.public_key,
                    keys=self._services.keys,
                ),
                hello=self._services.hello(),
                counters=self.counters,
                clock=self._services.clock,
                name=str(next(_names)),
            )
        except zmq.ZMQError as error:
            self._note(port, "silent", f"this node cannot dial: {error}")
            return None
        outbox.on_change(self._on_outbox)
        self._outboxes[lane] = outbox
        return outbox

    def _outbox_for(self, plane: Plane) -> Outbox | None:
        """Give the open connection for a plane; none while the peer is silent or unknown."""
        if not self._status.is_greeted or not self._is_up("election"):
            return None
        lane = PLANE_LANE[plane]
        outbox = self._outboxes.get(lane)
        if lane == "files":
            return outbox or self._connect_files()
        return outbox if outbox is not None and outbox.is_up else None

    def _connect_files(self) -> Outbox | None:
        now_s = self._services.clock.monotonic_s()
        if not self._is_up("bulk") or now_s < self._files_after_s:
            return None
        self._files_after_s = now_s + FILES_PAUSE_S
        return self._connect("files")

    # What becomes of connections.

    def _on_outbox(self, outbox: Outbox) -> None:
        lane, port = outbox.lane, LANES[outbox.lane].port
        if outbox.end is None:
            if lane != "files":
                self._on_up(port)
        elif self._outboxes.get(lane) is outbox:
            del self._outboxes[lane]
            if lane != "files":
                self._on_end(outbox, port)
        self._changed.set()
        self._ensure_dialling()

    def _on_end(self, outbox: Outbox, port: Port) -> None:
        where = f"{self._at[0]} port {port_number(self._at[1], port)}"
        if outbox.end == "denied":
            self._note(port, "connecting", f"{where} refuses this node's key", is_denied=True)
        elif outbox.end == "not_the_server":
            reason = f"who answers at {where} does not have the key of this peer"
            self._note(port, "connecting", reason)
        elif self._status.ports[port] == "up":
            # Refused or silent? Dialling finds out; it begins now.
            asyncio.get_running_loop().call_later(DOUBT_S, self._doubt, port)
        elif outbox.end == "unreachable":
            reason = f"no connection to {where}: does a firewall there close it?"
            self._note(port, "silent", reason)
        elif outbox.end == "mute":
            self._note(port, "silent", f"{where} does not answer")
        else:
            self._note(port, "silent", f"{where} hung up in the handshake")

    def _on_up(self, port: Port) -> None:
        if self._status.ports[port] == "up":
            self._note_break(port)  # it was so short that nobody has been told yet
        self._note(port, "up")

    def _doubt(self, port: Port) -> None:
        """The time is over in which a process that has ended would have refused a connection."""
        is_stale = self._status.ports[port] == "up" and not self._is_up(port)
        # When the election port is open no more either, it speaks for all.
        is_alone = port == "election" or self._is_up("election")
        if self._contexts is not None and is_stale and is_alone:
            self._note_break(port)

    def _note_break(self, port: Port) -> None:
        host, number = self._at[0], port_number(self._at[1], port)
        self._note(port, "silent", f"the connection to {host} port {number} broke")

    def _note(
        self, port: Port, state: LinkState, reason: str = "", *, is_denied: bool = False
    ) -> None:
        self._status.note(port, state, reason, is_denied=is_denied)
        if state != "up":
            # Ports that are in doubt are so no longer: an election port that opens again must not
            # find them open.
            for other in PORTS:
                if self._status.ports[other] == "up" and not self._is_up(other):
                    self._status.note(other, "silent")
        self._look()

    def _look(self) -> None:
        state = self._status.state
        if state != self._told:
            self._told = state
            if self._contexts is not None:  # not when this node itself hangs up
                why = f": {self._status.reason}" if state != "up" else ""
                _log.info("the link to %s is %s%s", self._peer.node_id, state, why)
            self._tell(self._peer, state)
