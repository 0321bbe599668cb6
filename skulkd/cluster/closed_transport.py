"""The transport of a node whose cluster ports are closed, until they are opened.

A node that is alone loads no wire library and opens no socket. What the rooms have said to this
transport by then (who gets what, whom to dial) is said to the real one when it comes.
"""

import asyncio
from collections.abc import Mapping
from typing import Protocol, final

from protocol.envelope import MAX_PAYLOAD_BYTES, Plane
from protocol.ids import NodeId
from skulkd.cluster.guests import GuestDoor, OnGuest, Stranger
from skulkd.cluster.link_views import Duplicate, LinkViews, PeerInfo
from skulkd.cluster.transport import LinkState, OnLink, OnReceive, Peer, Refusal, Transport


class OpenTransport(Transport, GuestDoor, LinkViews, Protocol):
    """What takes this one's place."""


@final
class ClosedTransport:
    """Implements `Transport`, `GuestDoor` and `LinkViews`; there is nobody, until `attach`.

    Args:
        node_id: This node.
    """

    def __init__(self, node_id: NodeId) -> None:
        self._node_id = node_id
        self._behind: OpenTransport | None = None
        self._receivers: dict[Plane, OnReceive] = {}
        self._watchers: list[OnLink] = []
        self._peers: Mapping[NodeId, Peer] = {}
        self._guest_keys: Mapping[bytes, str] = {}
        self._guest_receiver: OnGuest | None = None
        self._is_closed = False

    @property
    def node_id(self) -> NodeId:
        """This node."""
        return self._node_id

    @property
    def is_open(self) -> bool:
        """Whether the real one has come."""
        return self._behind is not None

    def attach(self, transport: OpenTransport) -> None:
        """Put the real one in this one's place, and tell it all that was said."""
        # ruff: ignore[assert]  ports are opened once in a life of the node
        assert self._behind is None, "the transport is open already"
        self._behind = transport
        for plane, receiver in self._receivers.items():
            transport.on_receive(plane, receiver)
        for watcher in self._watchers:
            transport.on_link(watcher)
        if self._guest_receiver is not None:
            transport.on_guest(self._guest_receiver)
        transport.set_guest_keys(self._guest_keys)
        transport.set_peers(self._peers)

    def peers(self) -> tuple[NodeId, ...]:
        """Name the nodes that can be sent to."""
        return () if self._behind is None else self._behind.peers()

    def link(self, peer: NodeId) -> LinkState:
        """Say how the way to a peer is."""
        return "connecting" if self._behind is None else self._behind.link(peer)

    def set_peers(self, peers: Mapping[NodeId, Peer]) -> None:
        """Dial and admit exactly these, once open."""
        self._peers = peers
        if self._behind is not None:
            self._behind.set_peers(peers)

    def send(
        self, peer: NodeId, plane: Plane, payload: bytes, *, key: str | None = None
    ) -> Refusal | None:
        """Hand a payload over."""
        if self._behind is not None:
            return self._behind.send(peer, plane, payload, key=key)
        if self._is_closed:
            return "closed"
        if peer != self._node_id:
            return "unknown_peer"
        if len(payload) > MAX_PAYLOAD_BYTES[plane]:
            return "too_large"
        receiver = self._receivers.get(plane)
        if receiver is not None:
            asyncio.get_running_loop().call_soon(receiver, peer, payload)
        return None

    def on_receive(self, plane: Plane, receiver: OnReceive) -> None:
        """Name who gets a plane's payloads."""
        self._receivers[plane] = receiver
        if self._behind is not None:
            self._behind.on_receive(plane, receiver)

    def on_link(self, watcher: OnLink) -> None:
        """Add one who is told whenever a link changes."""
        self._watchers.append(watcher)
        if self._behind is not None:
            self._behind.on_link(watcher)

    async def wait_room(self, peer: NodeId, plane: Plane) -> None:
        """Wait until a payload of the largest size would be taken."""
        if self._behind is not None:
            await self._behind.wait_room(peer, plane)

    def set_guest_keys(self, keys: Mapping[bytes, str]) -> None:
        """Admit guests with exactly these public keys, once open."""
        self._guest_keys = keys
        if self._behind is not None:
            self._behind.set_guest_keys(keys)

    def on_guest(self, receiver: OnGuest) -> None:
        """Name who gets what guests say."""
        self._guest_receiver = receiver
        if self._behind is not None:
            self._behind.on_guest(receiver)

    def strangers(self) -> tuple[Stranger, ...]:
        """List who was refused."""
        return () if self._behind is None else self._behind.strangers()

    def peer_info(self, peer: NodeId) -> PeerInfo | None:
        """Say how it stands with a peer."""
        if self._behind is not None:
            return self._behind.peer_info(peer)
        if peer not in self._peers:
            return None
        return PeerInfo(node_id=peer, link="connecting", reason="this node's ports are closed")

    def duplicates(self) -> tuple[Duplicate, ...]:
        """List the peers that were two processes on one key."""
        return () if self._behind is None else self._behind.duplicates()

    async def close(self) -> None:
        """Take and deliver nothing more."""
        self._is_closed = True
        if self._behind is not None:
            await self._behind.close()
