"""The simulated twins of a node's door for guests, and of a guest that dials it."""

import asyncio
import random
from collections.abc import Mapping
from typing import Final, Protocol, final

from protocol.errors import ClusterError
from protocol.ids import NodeId, node_id_of
from skulkd.cluster.addresses import split_address
from skulkd.cluster.guests import (
    MAX_GUEST_BYTES,
    GuestReply,
    JoinStage,
    OnGuest,
    Stranger,
    join_failed,
)
from skulkd.cluster.stranger_list import NO_MEMBER, StrangerList
from skulkd.runtime.identity import KeyPair
from skulkd.runtime.tasks import sleep, timeout

TRIP_S: Final = (0.001, 0.01)
"""One way, the handshake included."""


@final
class SimulatedDoor:
    """Where guests knock at a simulated node."""

    def __init__(self) -> None:
        self._keys: Mapping[bytes, str] = {}
        self._receiver: OnGuest | None = None
        self._strangers = StrangerList()

    def set_guest_keys(self, keys: Mapping[bytes, str]) -> None:
        """Admit exactly these."""
        self._keys = dict(keys)

    def on_guest(self, receiver: OnGuest) -> None:
        """Name who gets what guests say."""
        self._receiver = receiver

    def strangers(self) -> tuple[Stranger, ...]:
        """List who was refused."""
        return self._strangers.listed(asyncio.get_running_loop().time())

    def refuse(self, public_key: bytes, host: str, reason: str) -> None:
        """Note one who was refused."""
        now_s = asyncio.get_running_loop().time()
        self._strangers.note(public_key, host, reason, now_s=now_s)

    def knock(self, guest: bytes, host: str, payload: bytes, reply: GuestReply) -> bool:
        """Let a guest in and give what it says to the receiver; False when its key is refused."""
        name = self._keys.get(guest)
        if name is None:
            self.refuse(guest, host, NO_MEMBER)
            return False
        if self._receiver is not None:
            self._receiver(name, host, payload, reply)
        return True


class Doors(Protocol):
    """What a guest finds on the network."""

    def door_at(self, address: str) -> tuple[NodeId, SimulatedDoor] | None:
        """Give who listens at an address."""
        ...

    def is_cut(self, one: NodeId, other: NodeId) -> bool:
        """Say whether either direction between two nodes is cut."""
        ...

    def host_of(self, node_id: NodeId) -> str:
        """Give a node's own host."""
        ...


@final
class SimulatedGuestDialler:
    """One node as a guest of others; made by `SimulatedNetwork.guest_dialler`."""

    def __init__(self, doors: Doors, node_id: NodeId, rng: random.Random) -> None:
        self._doors = doors
        self._node_id = node_id
        self._rng = rng

    async def ask(
        self,
        address: str,
        *,
        server_key: bytes,
        guest: KeyPair,
        payload: bytes,
        timeout_s: float,
    ) -> bytes:
        """Dial as a guest, send one payload, and give the answer.

        Raises:
            ClusterError: `cluster.join_failed`.
        """
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        has_knocked = False
        try:
            async with timeout(timeout_s):
                node_id, door = await self._find(address, server_key)
                self._knock(address, node_id, door, guest.public_key, payload, answer)
                has_knocked = True
                return await answer
        except TimeoutError as error:
            raise _failed("no_answer" if has_knocked else "no_route", address) from error

    async def _find(self, address: str, server_key: bytes) -> tuple[NodeId, SimulatedDoor]:
        await sleep(self._rng.uniform(*TRIP_S))
        found = await self._wait_door(address)
        if found is None:
            raise _failed("nobody_listens", address)
        if found[0] != node_id_of(server_key):
            raise _failed("not_the_server", address)
        return found

    def _knock(
        self,
        address: str,
        node_id: NodeId,
        door: SimulatedDoor,
        key: bytes,
        payload: bytes,
        answer: "asyncio.Future[bytes]",
    ) -> None:
        own_host = self._doors.host_of(self._node_id)
        if not door.knock(key, own_host, payload, self._way_back(node_id, answer)):
            raise _failed("key_refused", address)

    async def _wait_door(self, address: str) -> tuple[NodeId, SimulatedDoor] | None:
        """Look who listens; a cut lets the caller's time run out."""
        found = self._doors.door_at(address)
        while found is not None and self._doors.is_cut(self._node_id, found[0]):
            await sleep(0.1)
            found = self._doors.door_at(address)
        return found

    def _way_back(self, node_id: NodeId, answer: "asyncio.Future[bytes]") -> GuestReply:
        def arrive(payload: bytes) -> None:
            if not answer.done() and not self._doors.is_cut(node_id, self._node_id):
                answer.set_result(payload)

        def reply(payload: bytes) -> None:
            if len(payload) <= MAX_GUEST_BYTES:
                delay_s = self._rng.uniform(*TRIP_S)
                asyncio.get_running_loop().call_later(delay_s, arrive, payload)

        return reply


def _failed(stage: JoinStage, address: str) -> ClusterError:
    return join_failed(stage, *split_address(address))
