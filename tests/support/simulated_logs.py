"""Replicated logs of several nodes in one simulated network, under a mastership that a test moves.

Real are the log in all its parts, and the requests between nodes; simulated are the network, the
disks and time. Who is master is said by the test, by the rules of elections: only a log that is at
least as fresh as those of its voters is elected.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, final

from protocol.commands import Command, CommandReply
from protocol.errors import SkulkError
from protocol.ids import NodeId
from protocol.peer_messages import TermPair
from protocol.readings import Readings
from protocol.state import ClusterState
from skulkd.cluster.peer_calls import ControlCalls
from skulkd.cluster.roles import ElectedLog, MasterView
from skulkd.cluster.simulated import NetworkFaults, SimulatedNetwork, SimulatedTransport
from skulkd.core.apply import state_hash
from skulkd.eventlog.cluster_gateway import ClusterGateway, GatewayLimits
from skulkd.eventlog.cluster_log import ClusterLog
from skulkd.eventlog.durable_log import DurableLog
from skulkd.eventlog.following import FollowingLimits
from skulkd.eventlog.journal import JournalLimits
from skulkd.eventlog.leading import LeadingLimits
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.simulated_disk import SimulatedDisk
from skulkd.runtime.tasks import Tasks
from skulkd.runtime.virtual_time import VirtualLoop, run_virtual
from tests.support.builders import (
    a_cluster_id,
    a_node_id,
    an_added_card,
    an_admission,
    an_invitation,
)
from tests.support.simulated_power import PoweredDisk

HOME: Final = Path("/home/skulk")
JOURNAL: Final = HOME / "journal"
EPOCH_MS: Final = 1_700_000_000_000
HEARTBEAT_S: Final = 0.5
DAY_MS: Final = 86_400_000


@final
class ScriptedMasters:
    """What one node believes about mastership: what the test says."""

    def __init__(self, node_id: NodeId, is_heard: Callable[[NodeId, NodeId], bool]) -> None:
        self._node_id = node_id
        self._is_heard = is_heard
        self._watchers: list[Callable[[], None]] = []
        self.term: TermPair | None = None
        self.last_master: NodeId | None = None
        self.is_master = False

    def is_alive(self, node_id: NodeId) -> bool:
        return node_id == self._node_id or self._is_heard(self._node_id, node_id)

    def silent_s(self, node_id: NodeId) -> float | None:
        return 0.0 if self.is_alive(node_id) else None

    def is_reachable(self, node_id: NodeId) -> bool:
        return self.is_alive(node_id)

    def on_change(self, watcher: Callable[[], None]) -> None:
        self._watchers.append(watcher)

    def change(self, term: TermPair | None) -> None:
        self.term = term
        self.is_master = term is not None and term.master == self._node_id
        if term is not None:
            self.last_master = term.master
        self.tell()

    def tell(self) -> None:
        for watcher in self._watchers:
            watcher()


@final
class LogNode:
    """One life of a node's log."""

    def __init__(self, world: "LogWorld", node_id: NodeId) -> None:
        self.world = world
        self.node_id = node_id
        self.disk = PoweredDisk(world.disk_of(node_id))
        self.deaths: list[str] = []
        self.tasks = Tasks("log", on_death=lambda story, _error: self.deaths.append(story))
        self.masters = ScriptedMasters(node_id, world.is_heard)
        self.transport: SimulatedTransport
        self.log: ClusterLog
        self.gateway: ClusterGateway
        self.durable_log: DurableLog
        self.resets: list[int] = []
        self.seen: list[int] = []

    @classmethod
    async def start(cls, world: "LogWorld", node_id: NodeId) -> "LogNode":
        node = cls(world, node_id)
        await node._begin()
        return node

    async def _begin(self) -> None:
        world = self.world
        self.durable_log, appended, _ = await DurableLog.open(
            self.disk,
            JOURNAL,
            cluster_id=a_cluster_id(),
            clock=world.clock,
            tasks=self.tasks,
            limits=world.journal_limits,
        )
        self.transport = world.network.attach(self.node_id)
        self.calls = ControlCalls(self.transport, rng=world.chance, tasks=self.tasks)
        self.log = ClusterLog(
            self.durable_log,
            appended,
            transport=self.transport,
            calls=self.calls,
            readings=Readings,
            clock=world.clock,
            tasks=self.tasks,
            leading=world.leading,
            following=world.following,
        )
        self.log.attach(self.masters)
        self.gateway = ClusterGateway(
            node_id=self.node_id,
            log=self.log,
            masters=self.masters,
            calls=self.calls,
            limits=world.gateway_limits,
            random_bytes=world.chance.randbytes,
        )
        self.log.replica.subscribe(
            lambda sequenced, _state: self.seen.append(sequenced.seq),
            lambda state: self.resets.append(state.seq),
        )
        # The two interfaces that the log implements and uses are checked here, by the type checker.
        self.elected: ElectedLog = self.log
        self.view: MasterView = self.masters

    @property
    def state(self) -> ClusterState:
        return self.log.replica.state

    async def submit(self, command: Command) -> CommandReply:
        return await self.gateway.submit(command)


@final
class LogWorld:
    """Disks and network, which outlive nodes, and who is master.

    Args:
        seed: Draws everything.
        faults: Of the network.
    """

    def __init__(self, seed: int = 0, faults: NetworkFaults | None = None) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._loop = loop
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  a repeatable history is the aim
        self.chance = random.Random(seed)
        self.clock = LoopClock(loop, epoch_ms=EPOCH_MS)
        self.network = SimulatedNetwork(self.chance, faults)
        self.journal_limits = JournalLimits(max_segment_bytes=16_384, retry_s=0.5)
        self.leading = LeadingLimits()
        self.following = FollowingLimits()
        self.gateway_limits = GatewayLimits()
        self.disks: dict[NodeId, SimulatedDisk] = {}
        self.nodes: dict[NodeId, LogNode] = {}
        """Those that run."""
        self.number = 0
        self._groups: list[set[NodeId]] = []
        self.tasks = Tasks("world", on_death=_raise)
        self.tasks.start(self._beat(), name="heartbeats")

    def disk_of(self, node_id: NodeId) -> SimulatedDisk:
        disk = self.disks.get(node_id)
        if disk is None:
            disk = self.disks[node_id] = SimulatedDisk(stall=self._loop.stall_job)
            disk.make_private_directory(HOME)
        return disk

    def node(self, number: int) -> LogNode:
        return self.nodes[a_node_id(number)]

    async def start(self, number: int) -> LogNode:
        """Start a node, on what its last life left."""
        node_id = a_node_id(number)
        node = self.nodes[node_id] = await LogNode.start(self, node_id)
        self.introduce()
        return node

    def introduce(self) -> None:
        self.network.introduce_all()
        for node in self.nodes.values():
            node.masters.tell()

    async def crash(self, number: int, *, n_unsynced_bytes_kept: int = 0) -> None:
        """Take a node's power away; its disk keeps what was synced."""
        node = self.nodes.pop(a_node_id(number))
        node.disk.cut()
        self.disk_of(node.node_id).crash(n_unsynced_bytes_kept=n_unsynced_bytes_kept)
        await node.transport.close()
        assert node.deaths == []
        await node.tasks.close(5)
        for other in self.nodes.values():
            other.masters.tell()

    async def stop(self, number: int) -> None:
        """Stop a node in good order."""
        node = self.nodes.pop(a_node_id(number))
        await node.log.close()
        await node.durable_log.close()
        await node.transport.close()
        assert node.deaths == []
        assert await node.tasks.close(5) == ()

    def partition(self, *groups: set[int]) -> None:
        self._groups = [{a_node_id(number) for number in group} for group in groups]
        self.network.partition(*self._groups)
        for node in self.nodes.values():
            node.masters.tell()

    def heal(self) -> None:
        self._groups = []
        self.network.heal_all()
        for node in self.nodes.values():
            node.masters.tell()

    def is_heard(self, one: NodeId, other: NodeId) -> bool:
        if other not in self.nodes:
            return False
        return not self._groups or any({one, other} <= group for group in self._groups)

    def around(self, node_id: NodeId) -> list[LogNode]:
        """Give the nodes that hear a node, itself included."""
        return [node for node in self.nodes.values() if self.is_heard(node_id, node.node_id)]

    def elect(self, among: set[int] | None = None, *, number: int | None = None) -> LogNode | None:
        """Hold an election among nodes that hear each other; None where the policy allows none.

        The winner has the freshest log; all that hear it follow.
        """
        ids = set(self.nodes) if among is None else {a_node_id(one) for one in among}
        candidates = [self.nodes[node_id] for node_id in sorted(ids) if node_id in self.nodes]
        if not candidates:
            return None
        best = max(candidates, key=lambda node: node.log.durable_position)
        state = best.log.appended
        voters = {node_id for node_id, member in state.members.items() if member.is_voter}
        voting = voters & {node.node_id for node in candidates}
        is_minority = bool(voters) and 2 * len(voting) <= len(voters)
        if is_minority and state.settings.policy == "quorum":
            return None
        self.number = max(self.number + 1, number or 0)
        term = TermPair(self.number, best.node_id)
        for node in candidates:
            node.masters.change(term)
            if node is best:
                node.log.lead(term, is_minority=is_minority)
            else:
                node.log.follow(term)
            node.masters.tell()
        return best

    def rest(self, number: int) -> None:
        node = self.node(number)
        node.masters.change(None)
        node.log.rest()

    def follow(self, number: int, term: TermPair) -> None:
        node = self.node(number)
        node.masters.change(term)
        node.log.follow(term)

    async def found(self, n_nodes: int) -> LogNode:
        """Start nodes, and make them members of one cluster led by the first."""
        first = await self.start(1)
        self.elect()
        await first.submit(an_admission(1, command=9001))
        for number in range(2, n_nodes + 1):
            await self.start(number)
            await self.admit(first, number)
        await self.settle()
        return first

    async def admit(self, master: LogNode, number: int) -> None:
        """Make a running node a member, by an invitation of the master's."""
        if a_node_id(number) not in master.log.appended.members:
            await master.submit(
                an_invitation(
                    number,
                    command=9500 + number,
                    inviter=next(one for one in range(1, 99) if a_node_id(one) == master.node_id),
                    expires_at_ms=EPOCH_MS + DAY_MS,
                )
            )
            await master.submit(an_admission(number, command=9000 + number, token=number))
        term = master.masters.term
        assert term is not None
        self.follow(number, term)
        node = self.node(number)
        await node.submit(an_admission(number, command=9700 + number))

    async def settle(self, within_s: float = 30.0) -> None:
        """Wait until all running nodes that hear each other have one log, committed to its end."""
        async with asyncio.timeout(within_s):
            while not self.is_settled():
                await asyncio.sleep(0.05)

    def is_settled(self) -> bool:
        positions = {
            (node.log.appended.seq, node.log.commit_seq, node.log.durable_position, node.log.chain)
            for node in self.nodes.values()
        }
        return len(positions) == 1 and all(
            node.state.seq == node.log.appended.seq == node.log.durable_position.seq
            for node in self.nodes.values()
        )

    async def close(self) -> None:
        for node_id in list(self.nodes):
            node = self.nodes.pop(node_id)
            node.gateway.close()
            await node.transport.close()
            assert node.deaths == []
            await node.tasks.close(5)
        await self.tasks.close(5)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            for master in list(self.nodes.values()):
                term = master.masters.term
                if not master.masters.is_master or term is None:
                    continue
                for node in self.around(master.node_id):
                    if node is not master and node.masters.term == term:
                        self._exchange(master, node, term)

    def _exchange(self, master: LogNode, member: LogNode, term: TermPair) -> None:
        log = master.log
        member.log.hear_commit(term, log.commit_seq, log.durable_position.seq, log.chain)
        member.log.hear_hash(term, *log.state_hash)
        position = member.log.durable_position
        log.journalled(member.node_id, term.number, position.seq, member.log.chain)


def _raise(story: str, error: BaseException) -> None:
    raise AssertionError(story) from error


async def code_of(calling: "asyncio.Future[CommandReply]") -> str:
    """Give the code that a command was refused with."""
    try:
        await calling
    except SkulkError as error:
        return error.code
    return "ok"


def with_world(
    story: Callable[[LogWorld], Awaitable[None]],
    *,
    seed: int = 1,
    faults: NetworkFaults | None = None,
) -> None:
    async def main() -> None:
        world = LogWorld(seed, faults)
        await story(world)
        await world.close()

    run_virtual(main, seed=seed, limit_s=3600)


async def add(node: LogNode, *numbers: int) -> None:
    for number in numbers:
        await node.submit(an_added_card(number))


def cards(node: LogNode) -> set[str]:
    return set(node.state.cards)


def agree(world: LogWorld) -> bool:
    nodes = list(world.nodes.values())
    hashes = {state_hash(node.state) for node in nodes}
    return len({node.log.chain for node in nodes}) == 1 and len(hashes) == 1
