"""What becomes of each frame that arrives: a hello, a payload, a guest's word, or nothing.

A frame's sender has proved its key. What it says is checked nevertheless: a payload counts only
behind a hello that nothing is wrong with, on the port of its plane, and within the plane's size.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

from protocol.envelope import HELLO_MARK, MAX_PAYLOAD_BYTES, Plane, Port
from protocol.errors import ProtocolError
from protocol.hello import Hello
from protocol.ids import NodeId
from skulkd.cluster.acquaintance import Acquaintance, Connection
from skulkd.cluster.guests import MAX_GUEST_BYTES, GuestReply, OnGuest
from skulkd.cluster.inbox import Origin
from skulkd.cluster.lanes import MARKED_PLANES
from skulkd.cluster.link_views import PeerInfo
from skulkd.cluster.peer_link import PeerLink
from skulkd.cluster.transport import Peer


@dataclass(slots=True, kw_only=True)
class KnownPeer:
    """A peer that is named: both directions."""

    peer: Peer
    link: PeerLink
    acquaintance: Acquaintance
    heard_s: float | None = None

    def info(self) -> PeerInfo:
        """Say how it stands with it."""
        status = self.link.status
        return PeerInfo(
            node_id=self.peer.node_id,
            link=status.state,
            reason=status.reason,
            is_denied=status.is_denied,
            ports=dict(status.ports),
            dialled=self.link.dialled,
            heard_from=self.acquaintance.host,
            build=self.acquaintance.build,
            boot_id=self.acquaintance.boot_id,
            last_heard_s=self.heard_s,
            planes=self.link.counters,
        )


@dataclass(slots=True)
class ReceptionCounters:
    """Frames that came to nothing."""

    n_malformed: int = 0
    """No hello, no payload of the port, too long, or no frame at all."""
    n_ignored: int = 0
    """From a peer before its hello, or one that is incompatible."""
    n_unadmitted: int = 0
    """From one whose key is admitted no more; its connection was cut."""


@final
@dataclass(slots=True, kw_only=True)
class Reception:
    """Where all ports' frames go.

    Args:
        own: Gives this node's own hello.
        deliver: Gets a peer's payload.
        guest_of: Gives the name of a guest whose key is admitted.
        reply: Sends an answer to a guest.
        cut: Ends the connection of one who is admitted no more.
    """

    own: Callable[[], Hello]
    deliver: Callable[[NodeId, Plane, bytes], None]
    guest_of: Callable[[str], str | None]
    reply: Callable[[bytes, bytes], object]
    cut: Callable[[Port, Origin], None]
    known: dict[str, KnownPeer] = field(default_factory=dict[str, KnownPeer])
    on_guest: OnGuest | None = None
    counters: ReceptionCounters = field(default_factory=ReceptionCounters)

    def on_frame(
        self, port: Port, user_id: str, frame: bytes | memoryview, origin: Origin, now_s: float
    ) -> None:
        """Take one frame."""
        known = self.known.get(user_id)
        if known is None:
            self._from_beyond(port, user_id, frame, origin)
            return
        known.heard_s = now_s
        plane = MARKED_PLANES[port].get(frame[0]) if frame else None
        if plane is not None:
            self._take_payload(known, plane, frame)
        elif frame and frame[0] == HELLO_MARK:
            self._take_hello(known, port, bytes(frame[1:]), origin, now_s)
        else:
            self.counters.n_malformed += 1

    def _take_payload(self, known: KnownPeer, plane: Plane, frame: bytes | memoryview) -> None:
        n_bytes = len(frame) - 1
        if not known.link.status.is_greeted:
            self.counters.n_ignored += 1
        elif n_bytes > MAX_PAYLOAD_BYTES[plane]:
            self.counters.n_malformed += 1
        else:
            counters = known.link.counters[plane]
            counters.n_received += 1
            counters.n_received_bytes += n_bytes
            self.deliver(known.peer.node_id, plane, bytes(frame[1:]))

    def _take_hello(
        self, known: KnownPeer, port: Port, data: bytes, origin: Origin, now_s: float
    ) -> None:
        acquaintance = known.acquaintance
        key: tuple[Port, bytes] = (port, origin.connection)
        own = self.own()
        if acquaintance.is_repeated(key, data, own, now_s=now_s):
            return
        is_new = acquaintance.meet(key, Connection(port, origin.fd, origin.host))
        try:
            hello = acquaintance.read(data)
        except ProtocolError:
            self.counters.n_malformed += 1
            return
        refusal = acquaintance.hear(hello, own, now_s=now_s)
        known.link.greet(refusal, acquaintance.address, is_new=is_new)

    def _from_beyond(
        self, port: Port, user_id: str, frame: bytes | memoryview, origin: Origin
    ) -> None:
        guest = self.guest_of(user_id)
        if guest is None:
            self.counters.n_unadmitted += 1
            self.cut(port, origin)
        elif not 0 < len(frame) <= MAX_GUEST_BYTES:
            self.counters.n_malformed += 1
        elif self.on_guest is not None:
            self.on_guest(guest, origin.host, bytes(frame), self._way_back(origin.connection))

    def _way_back(self, connection: bytes) -> GuestReply:
        def reply(payload: bytes) -> None:
            if len(payload) <= MAX_GUEST_BYTES:
                self.reply(connection, payload)

        return reply
