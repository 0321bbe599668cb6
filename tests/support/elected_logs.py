"""Replicated logs of several nodes under real elections: the rooms of each, nothing above them."""

import asyncio
import random
from pathlib import Path
from typing import Final, final

from protocol.commands import Command, CommandReply
from protocol.ids import NodeId
from protocol.nodes import Role
from protocol.state import ClusterState
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.cluster.simulated import NetworkFaults, SimulatedNetwork, SimulatedTransport
from skulkd.cluster.transport import Peer
from skulkd.eventlog.cluster_log import ClusterLog
from skulkd.eventlog.journal import JournalLimits
from skulkd.eventlog.journal_term import TermFile
from skulkd.rooms import Rooms, RoomsParts, RoomsSpec
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.identity import Identity, KeyPair
from skulkd.runtime.simulated_disk import SimulatedDisk
from skulkd.runtime.tasks import Tasks
from skulkd.runtime.virtual_time import VirtualLoop
from tests.support.builders import (
    a_cluster_id,
    a_node_id,
    a_public_key,
    an_admission,
    an_invitation,
)
from tests.support.simulated_power import PoweredDisk

HOME: Final = Path("/home/skulk")
EPOCH_MS: Final = 1_700_000_000_000
DAY_MS: Final = 86_400_000
BASE_PORT: Final = 12_416
_ROLE: Final[Role] = "full"


@final
class ElectedNode:
    """One life of a node's rooms."""

    def __init__(self, world: "ElectedWorld", number: int) -> None:
        self.world = world
        self.number = number
        self.node_id = a_node_id(number)
        self.disk = PoweredDisk(world.disk_of(self.node_id))
        self.deaths: list[str] = []
        self.tasks = Tasks("rooms", on_death=lambda story, _error: self.deaths.append(story))
        self.transport: SimulatedTransport
        self.rooms: Rooms

    @property
    def log(self) -> ClusterLog:
        return self.rooms.log

    @property
    def state(self) -> ClusterState:
        return self.rooms.replica.state

    @property
    def is_master(self) -> bool:
        return self.rooms.mastership.is_master

    async def submit(self, command: Command) -> CommandReply:
        return await self.rooms.gateway.submit(command)

    async def open(self) -> None:
        world = self.world
        public_key = bytes.fromhex(a_public_key(self.number))
        self.transport = world.network.attach(self.node_id, public_key=public_key)
        self.rooms, _ = await Rooms.open(
            RoomsSpec(
                identity=Identity(
                    node_id=self.node_id,
                    cluster_id=a_cluster_id(),
                    keys=KeyPair(public_key=public_key, secret_key=bytes(32)),
                ),
                name=f"box-{self.number}",
                role=_ROLE,
                boot_id=f"{world.chance.getrandbits(64):016x}",
                seeds=world.seeds_of(self.number),
                journal=HOME / "journal",
                journal_limits=JournalLimits(max_segment_bytes=16_384, retry_s=0.5),
            ),
            RoomsParts(
                disk=self.disk,
                clock=world.clock,
                transport=self.transport,
                keeper=TermFile(self.disk, HOME / "term"),
                table=ReadingsTable(),
                rng=world.chance,
                random_bytes=world.chance.randbytes,
                tasks=self.tasks,
            ),
        )
        self.rooms.set_addresses((f"{world.network.host_of(self.node_id)}:{BASE_PORT}",))
        self.rooms.start()


@final
class ElectedWorld:
    """Disks and network, which outlive nodes.

    Args:
        seed: Draws everything.
    """

    def __init__(self, seed: int) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._loop = loop
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  a repeatable history is the aim
        self.chance = random.Random(seed)
        self.clock = LoopClock(loop, epoch_ms=EPOCH_MS)
        self.network = SimulatedNetwork(self.chance, NetworkFaults())
        self.disks: dict[NodeId, SimulatedDisk] = {}
        self.nodes: dict[NodeId, ElectedNode] = {}
        """Those that run."""
        self.tasks = Tasks("world", on_death=_raise)

    def disk_of(self, node_id: NodeId) -> SimulatedDisk:
        disk = self.disks.get(node_id)
        if disk is None:
            disk = self.disks[node_id] = SimulatedDisk(stall=self._loop.stall_job)
            disk.make_private_directory(HOME)
        return disk

    def seeds_of(self, number: int) -> tuple[Peer, ...]:
        """Name the first node to all others, as an invitation does."""
        first = a_node_id(1)
        if number == 1:
            return ()
        address = f"{self.network.host_of(first)}:{BASE_PORT}"
        key = bytes.fromhex(a_public_key(1))
        return (Peer(node_id=first, public_key=key, addresses=(address,)),)

    def node(self, number: int) -> ElectedNode:
        return self.nodes[a_node_id(number)]

    async def start(self, number: int) -> ElectedNode:
        node = ElectedNode(self, number)
        await node.open()
        self.nodes[node.node_id] = node
        return node

    async def crash(self, number: int, *, n_unsynced_bytes_kept: int = 0) -> None:
        """Take a node's power away; its disk keeps what was synced."""
        node = self.nodes.pop(a_node_id(number))
        node.disk.cut()
        self.disk_of(node.node_id).crash(n_unsynced_bytes_kept=n_unsynced_bytes_kept)
        await node.transport.close()
        assert node.deaths == []
        await node.tasks.close(5)

    def partition(self, *groups: set[int]) -> None:
        self.network.partition(*({a_node_id(number) for number in group} for group in groups))

    def heal(self) -> None:
        self.network.heal_all()

    async def found(self, n_nodes: int) -> ElectedNode:
        """Start a cluster, and let the others join it."""
        first = await self.start(1)
        assert await first.rooms.arrive()
        await first.submit(
            an_invitation(1, command=9500, expires_at_ms=EPOCH_MS + DAY_MS, uses=n_nodes)
        )
        for number in range(2, n_nodes + 1):
            await first.submit(an_admission(number, command=9000 + number, token=1))
            await self.start(number)
        # Who arrives renews itself a moment after it is one with the others.
        async with asyncio.timeout(60.0):
            while any(one.presence != "present" for one in first.state.members.values()):
                await self.settle(60.0)
                await asyncio.sleep(0.1)
        await self.settle(60.0)
        return first

    def masters(self) -> list[ElectedNode]:
        return [node for node in self.nodes.values() if node.is_master]

    async def settle(self, within_s: float) -> None:
        """Wait until one master leads all running nodes, and all have one log."""
        async with asyncio.timeout(within_s):
            while not self.is_settled():
                await asyncio.sleep(0.1)

    def is_settled(self) -> bool:
        logs = [node.log for node in self.nodes.values()]
        positions = {
            (log.appended.seq, log.commit_seq, log.durable_position, log.chain) for log in logs
        }
        is_one = len(positions) == 1 and len(self.masters()) == 1
        return is_one and all(
            log.replica.state.seq == log.appended.seq == log.durable_position.seq for log in logs
        )

    async def close(self) -> None:
        for node_id in list(self.nodes):
            node = self.nodes.pop(node_id)
            node.rooms.gateway.close()
            await node.transport.close()
            assert node.deaths == []
            await node.tasks.close(5)
        await self.tasks.close(5)


def _raise(story: str, error: BaseException) -> None:
    raise AssertionError(story) from error
