"""The real transport: ZeroMQ with CURVE over TCP, three ports, one link to each peer.

A node binds an inbox on each port and dials an outbox to each peer and port. Traffic is one-way: an
answer takes the other node's outbox. Who has sent a frame is the name that the ZAP handler gave its
key. Loaded only by a node that opens its ports.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

from protocol.clock import Clock
from protocol.envelope import DEFAULT_BASE_PORT, MAX_PAYLOAD_BYTES, WIRE_VERSION, Plane, Port
from protocol.hello import Hello, hello_frame
from protocol.ids import ClusterId, NodeId, node_id_of
from skulkd.cluster.acquaintance import Acquaintance
from skulkd.cluster.admission import Admission
from skulkd.cluster.cluster_ports import ClusterInboxes
from skulkd.cluster.guests import OnGuest, Stranger
from skulkd.cluster.inbox import Inbox, Origin
from skulkd.cluster.link_views import Duplicate, PeerInfo
from skulkd.cluster.loopback import Loopback
from skulkd.cluster.peer_link import LinkServices, PeerLink
from skulkd.cluster.reception import KnownPeer, Reception, ReceptionCounters
from skulkd.cluster.stranger_list import StrangerList
from skulkd.cluster.transport import LinkState, OnLink, OnReceive, Peer, Refusal
from skulkd.runtime.identity import KeyPair
from skulkd.runtime.tasks import OnDeath, Tasks

HELLO_S: Final = 3.0
"""Between two hellos on one link: two processes on one key are found within twice as long."""
GOODBYE_MS: Final = 200
"""What the election lane may take to say its last words."""
_CLOSE_S: Final = 2.0

_log = logging.getLogger(__name__)


@final
class ZmqTransport:
    """One node's transport, with its ports and its door for guests.

    Args:
        keys: This node's; its id follows from the public half.
        boot_id: Of this process.
        build: Shown to peers that cannot understand this one.
        cluster_id: Gives the cluster that this node belongs to now.
        clock: For turns, pauses and times.
        rng: Spreads pauses, and picks ports.
        on_death: Gets the story of a task that died.
        wire: What its hello says.
    """

    def __init__(
        self,
        keys: KeyPair,
        *,
        boot_id: str,
        build: str,
        cluster_id: Callable[[], ClusterId],
        clock: Clock,
        rng: random.Random,
        on_death: OnDeath,
        wire: int = WIRE_VERSION,
    ) -> None:
        self._node_id = node_id_of(keys.public_key)
        self._keys = keys
        self._boot_id = boot_id
        self._build = build
        self._wire = wire
        self._cluster_id = cluster_id
        self._clock = clock
        self._rng = rng
        self._tasks = Tasks("transport", on_death=on_death)
        self._admission = Admission(keys.public_key)
        self._strangers = StrangerList()
        self._loopback = Loopback(self._deliver_own)
        self._services = LinkServices(
            keys=keys,
            hello=lambda: hello_frame(self._own_hello()),
            tasks=self._tasks,
            clock=clock,
            rng=rng,
        )
        self._reception = Reception(
            own=self._own_hello,
            deliver=self._deliver,
            guest_of=self._admission.guest_of,
            reply=self._reply_to_guest,
            cut=self._cut,
        )
        self._receivers: dict[Plane, OnReceive] = {}
        self._watchers: list[OnLink] = []
        self._inboxes: ClusterInboxes | None = None
        self._base_port: int | None = None
        self._rebinding: set[Port] = set()
        self._hello: Hello | None = None
        self._hello_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._up: tuple[NodeId, ...] | None = None
        """What `peers` gives, until a link changes."""

    @property
    def node_id(self) -> NodeId:
        """This node."""
        return self._node_id

    @property
    def base_port(self) -> int | None:
        """The first of the three ports; None while they are closed."""
        return self._base_port

    @property
    def counters(self) -> ReceptionCounters:
        """Frames that came to nothing."""
        return self._reception.counters

    async def open(self, hosts: Sequence[str], base_port: int) -> int:
        """Listen on three ports in a row on each of the addresses; also anew on other addresses.

        Raises:
            ConfigError: `config.port_busy`, `config.invalid`; what was open before still is.
        """
        if self._inboxes is None:
            self._inboxes = ClusterInboxes(
                keys=self._keys,
                admission=self._admission,
                strangers=self._strangers,
                clock=self._clock,
                on_frame=self._reception.on_frame,
            )
        try:
            self._base_port = await self._inboxes.bind(hosts, base_port, self._rng)
        except BaseException:
            if self._base_port is None:
                await self.close_ports()
            raise
        for known in self._reception.known.values():
            known.link.start(self._inboxes.contexts)
        if self._hello_timer is None:
            self._repeat_hello()
        return self._base_port

    async def close_ports(self) -> None:
        """Listen nowhere, and dial nobody until opened again; idempotent."""
        inboxes, self._inboxes, self._base_port = self._inboxes, None, None
        if self._hello_timer is not None:
            self._hello_timer.cancel()
            self._hello_timer = None
        for known in self._reception.known.values():
            known.link.stop(linger_ms=GOODBYE_MS)
        if inboxes is not None:
            late = await inboxes.close()
            if late:
                _log.error("the sockets of these ports did not end: %s", ", ".join(late))

    def peers(self) -> tuple[NodeId, ...]:
        """Name the nodes whose link is up."""
        if self._up is None:
            known = self._reception.known.values()
            self._up = tuple(sorted(one.peer.node_id for one in known if one.link.state == "up"))
        return self._up

    def link(self, peer: NodeId) -> LinkState:
        """Say how the way to a peer is."""
        known = self._reception.known.get(peer)
        return "connecting" if known is None else known.link.state

    def set_peers(self, peers: Mapping[NodeId, Peer]) -> None:
        """Dial and admit exactly these from now on.

        Raises:
            ValueError: An id does not follow from its key.
        """
        if self._is_closed:
            return
        named = {node_id: peer for node_id, peer in peers.items() if node_id != self._node_id}
        for node_id, peer in named.items():
            if not node_id == peer.node_id == node_id_of(peer.public_key):
                message = f"{node_id} is not the id of its key"
                raise ValueError(message)
        self._admission.set_members(named.values())
        known = self._reception.known
        self._up = None
        for node_id in known.keys() - named.keys():
            self._forget(known.pop(node_id))
        for node_id, peer in named.items():
            if node_id in known:
                known[node_id].peer = peer
                known[node_id].link.update(peer)
            else:
                known[node_id] = self._meet(peer)

    def send(
        self, peer: NodeId, plane: Plane, payload: bytes, *, key: str | None = None
    ) -> Refusal | None:
        """Hand a payload over, or say why it was not taken."""
        if self._is_closed:
            return "closed"
        known = self._reception.known.get(peer)
        if known is None and peer != self._node_id:
            return "unknown_peer"
        if len(payload) > MAX_PAYLOAD_BYTES[plane]:
            return "too_large"
        if known is not None:
            return known.link.send(plane, payload, key)
        return None if self._loopback.send(plane, payload, key) else "queue_full"

    def on_receive(self, plane: Plane, receiver: OnReceive) -> None:
        """Name who gets a plane's payloads."""
        self._receivers[plane] = receiver

    def on_link(self, watcher: OnLink) -> None:
        """Add one who is told whenever a link changes."""
        self._watchers.append(watcher)

    async def wait_room(self, peer: NodeId, plane: Plane) -> None:
        """Wait until the largest payload would be taken, or the peer is gone."""
        known = self._reception.known.get(peer)
        if known is not None:
            await known.link.wait_room(plane)
        elif peer == self._node_id:
            await self._loopback.wait_room(plane)

    def set_guest_keys(self, keys: Mapping[bytes, str]) -> None:
        """Admit guests with exactly these public keys, on the election port."""
        self._admission.set_guests(keys)

    def on_guest(self, receiver: OnGuest) -> None:
        """Name who gets what guests say."""
        self._reception.on_guest = receiver

    def strangers(self) -> tuple[Stranger, ...]:
        """List who was refused in the last hour, newest first, at most 64."""
        return self._strangers.listed(self._clock.monotonic_s())

    def peer_info(self, peer: NodeId) -> PeerInfo | None:
        """Say how it stands with a peer; None for one that is not named."""
        known = self._reception.known.get(peer)
        return None if known is None else known.info()

    def duplicates(self) -> tuple[Duplicate, ...]:
        """List the peers that were two processes on one key within the last minute."""
        now_s = self._clock.monotonic_s()
        found = (one.acquaintance.duplicate(now_s) for one in self._reception.known.values())
        return tuple(one for one in found if one is not None)

    async def close(self) -> None:
        """Take and deliver nothing more; idempotent."""
        self._is_closed = True
        self._loopback.close()
        self._receivers.clear()
        self._watchers.clear()
        await self.close_ports()
        self._reception.known.clear()
        self._up = None
        await self._tasks.close(_CLOSE_S)

    def _meet(self, peer: Peer) -> KnownPeer:
        link = PeerLink(peer, self._services, self._tell)
        if self._inboxes is not None:
            link.start(self._inboxes.contexts)
        return KnownPeer(peer=peer, link=link, acquaintance=Acquaintance(peer.node_id))

    def _forget(self, known: KnownPeer) -> None:
        """Hang up, and cut what the peer has dialled: ZeroMQ asks for a key only at the start."""
        known.link.stop()
        for connection in known.acquaintance.connections():
            self._cut_connection(connection.port, connection.fd, connection.host)

    def _cut(self, port: Port, origin: Origin) -> None:
        self._cut_connection(port, origin.fd, origin.host)

    def _cut_connection(self, port: Port, fd: int | None, host: str) -> None:
        if self._inboxes is None:
            return
        if fd is not None:
            self._inboxes[port].cut(fd, host)
        elif port not in self._rebinding:
            # Nothing tells which it is: all must show their keys again.
            self._rebinding.add(port)
            self._tasks.start(self._rebind(self._inboxes[port], port), name=f"rebind {port}")

    async def _rebind(self, inbox: Inbox, port: Port) -> None:
        try:
            await inbox.rebind()
        finally:
            self._rebinding.discard(port)

    def _reply_to_guest(self, connection: bytes, payload: bytes) -> None:
        if self._inboxes is not None:
            self._inboxes["election"].reply(connection, payload)

    def _own_hello(self) -> Hello:
        """Give the hello of the moment; the same one until what it says has changed."""
        cluster_id, base_port = self._cluster_id(), self._base_port or DEFAULT_BASE_PORT
        hello = self._hello
        if hello is None or (hello.cluster_id, hello.base_port) != (cluster_id, base_port):
            self._hello = hello = Hello(
                wire=self._wire,
                build=self._build,
                node_id=self._node_id,
                boot_id=self._boot_id,
                cluster_id=cluster_id,
                base_port=base_port,
            )
        return hello

    def _repeat_hello(self) -> None:
        hello = hello_frame(self._own_hello())
        for known in self._reception.known.values():
            known.link.repeat_hello(hello)
        loop = asyncio.get_running_loop()
        self._hello_timer = loop.call_later(HELLO_S, self._repeat_hello)

    def _tell(self, peer: Peer, state: LinkState) -> None:
        self._up = None
        if peer.node_id in self._reception.known:
            for watcher in self._watchers:
                self._tell_one(watcher, peer.node_id, state)

    def _tell_one(self, watcher: OnLink, node_id: NodeId, state: LinkState) -> None:
        try:
            watcher(node_id, state)
        # ruff: ignore[blind-except]  a watcher's bug must not end the reading of what links do
        except Exception:
            _log.exception("a watcher did not take that %s is %s", node_id, state)

    def _deliver(self, sender: NodeId, plane: Plane, payload: bytes) -> None:
        receiver = self._receivers.get(plane)
        if receiver is not None:
            receiver(sender, payload)

    def _deliver_own(self, plane: Plane, payload: bytes) -> None:
        self._deliver(self._node_id, plane, payload)
