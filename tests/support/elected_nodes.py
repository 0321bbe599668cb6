"""Nodes that elect one another in virtual time, each with a log as small as a log can be.

The election plane is real; the log replicates by looking into the master's, when its heartbeat says
that there is more and no cut is in between. What is durable survives a crash, the rest does not.
"""

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import starmap
from pathlib import Path
from typing import Final, final

from protocol.commands import AdmitMember, Command, CommandReply
from protocol.envelope import Plane
from protocol.errors import ClusterError
from protocol.events import Event, MasterElected, SequencedEvent, SettingsChanged
from protocol.ids import CommandId, NodeId, command_id_of, node_id_of
from protocol.nodes import Member
from protocol.peer_messages import (
    ElectionMessage,
    LogPosition,
    TermPair,
    unpack_election,
)
from protocol.readings import Readings
from protocol.state import ClusterSettings, ClusterState, Policy
from skulkd.cluster.mastership import Mastership
from skulkd.cluster.mastership_ports import MastershipPorts
from skulkd.cluster.simulated import NetworkFaults, SimulatedNetwork
from skulkd.cluster.transport import LinkState, OnLink, OnReceive, Peer, Refusal, Transport
from skulkd.core.apply import apply
from skulkd.core.decide import decide
from skulkd.core.election_inputs import ElectionSpec
from skulkd.core.voting import TermVote
from skulkd.eventlog.journal_term import TermFile
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.simulated_disk import SimulatedDisk
from skulkd.runtime.tasks import Tasks, sleep
from skulkd.runtime.virtual_time import VirtualLoop
from tests.support.builders import a_cluster_id
from tests.support.durable_words import is_kept, promised_by
from tests.support.simulated_power import PoweredDisk

TERM_PATH: Final = Path("/home/term")
APPEND_S: Final = 0.003
"""From an append to its being durable."""

Entry = tuple[bytes, ClusterState]
"""The chain after an event, and the state."""


def a_key(number: int) -> bytes:
    """Make the public key of node `number`."""
    return bytes([number]) * 32


def chance(seed: float) -> random.Random:
    """Make a generator that repeats."""
    # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeating is the aim
    return random.Random(seed)


@final
class SmallLog:
    """Implements `skulkd.cluster.roles.ElectedLog`."""

    def __init__(self, node: "ElectedNode", entries: list[Entry], base: int) -> None:
        self._node = node
        self.entries = entries
        self._base = base
        self.durable_seq = self.head_seq
        self.commit_seq = base
        self.leads: TermPair | None = None
        self.follows: TermPair | None = None
        self._follows_settled = False
        self.story: list[str] = []
        self.n_discarded = 0
        self._journalled: dict[NodeId, int] = {}
        self._term_began_seq = 0

    @property
    def head_seq(self) -> int:
        return self._base + len(self.entries) - 1

    @property
    def appended(self) -> ClusterState:
        return self.entries[-1][1]

    @property
    def durable_position(self) -> LogPosition:
        state = self.at(self.durable_seq)[1]
        return LogPosition(state.settled_term, state.settled_seq, state.term, state.seq)

    @property
    def chain(self) -> bytes:
        return self.at(self.durable_seq)[0]

    @property
    def state_hash(self) -> tuple[int, bytes]:
        return 0, b""

    def at(self, seq: int) -> Entry:
        return self.entries[seq - self._base]

    def on_append(self, watcher: Callable[[], None]) -> None:
        raise NotImplementedError

    def lead(self, term: TermPair, *, is_minority: bool) -> None:
        assert self.leads != term, "one term is begun once"
        self.follows, self.leads = None, term
        self.story.append(f"lead {term.number}")
        self._journalled = {}
        self._term_began_seq = self.head_seq + 1
        self._node.cluster.on_lead(self._node, term)
        self.append([MasterElected(master=term.master, is_minority=is_minority)])

    def follow(self, term: TermPair) -> None:
        is_minority = self._node.mastership.seen().is_minority
        if is_minority and self.follows is not None and self._follows_settled:
            self._node.cluster.on_displaced(self.follows, term)
        self._follows_settled = not is_minority
        self.leads, self.follows = None, term
        self.story.append(f"follow {term.number}")

    def rest(self) -> None:
        self.leads = self.follows = None
        self.story.append("rest")

    def append(self, events: Iterable[Event]) -> None:
        """Decide; only a master's log is asked to."""
        assert self.leads is not None
        for event in events:
            state = self.appended
            sequenced = SequencedEvent(self.leads.number, state.seq + 1, 0, None, event)
            mark = f"{self.chain!r}{sequenced}{self._node.node_id}".encode()
            chain = hashlib.blake2b(self.entries[-1][0] + mark, digest_size=16).digest()
            self._add((chain, apply(state, sequenced)))

    def append_something(self) -> None:
        """Decide what changes nothing but the log's length."""
        settings = self.appended.settings
        self.append([SettingsChanged(settings=settings)])

    def journalled(self, member: NodeId, number: int, seq: int, chain: bytes) -> None:
        assert self.leads is not None
        assert self.leads.number == number
        if seq <= self.head_seq and self.at(max(seq, self._base))[0] == chain:
            self._journalled[member] = seq
            self._commit()

    def hear_commit(self, term: TermPair, commit_seq: int, head_seq: int, chain: bytes) -> None:
        assert self.follows == term, "whom it does not follow it does not hear"
        master = self._node.cluster.reach(self._node, term.master)
        if master is None or master.log.leads != term:
            return
        theirs = master.log.entries
        n_same = min(len(theirs), len(self.entries))
        if theirs[n_same - 1][0] != self.entries[n_same - 1][0] or n_same < len(self.entries):
            same = [own for own, their in zip(self.entries, theirs, strict=False) if own == their]
            self.n_discarded += len(self.entries) - len(same)
            self.entries[:] = theirs
            self.durable_seq = self.head_seq
            return
        for entry in theirs[n_same:]:
            self._add(entry)
        self.commit_seq = max(self.commit_seq, min(commit_seq, self.head_seq))

    def hear_hash(self, term: TermPair, seq: int, state_hash: bytes) -> None:
        raise AssertionError("no hash was said")

    def _add(self, entry: Entry) -> None:
        self.entries.append(entry)
        asyncio.get_running_loop().call_later(APPEND_S, self._sync, self.head_seq, entry[0])

    def _sync(self, seq: int, chain: bytes) -> None:
        if self._node.is_on and seq <= self.head_seq and self.at(seq)[0] == chain:
            self.durable_seq = max(self.durable_seq, seq)
            if self.leads is not None:
                self._commit()

    def _commit(self) -> None:
        """Count by the policy; what is committed must be in every later master's log."""
        me, cluster = self._node.node_id, self._node.cluster
        voters = [m for m in self.appended.members.values() if m.presence != "left"]
        if cluster.policy == "quorum":
            seqs = [self.durable_seq if m.node_id == me else self._seq_of(m) for m in voters]
            seq = sorted(seqs)[(len(seqs) - 1) // 2]
        else:
            alive = self._node.mastership.is_alive
            others = [self._seq_of(m) for m in voters if m.node_id != me and alive(m.node_id)]
            seq = min(self.durable_seq, max(others, default=self.durable_seq))
        if seq >= self._term_began_seq and seq > self.commit_seq:
            self.commit_seq = seq
            self._node.cluster.on_commit(self._node, seq, self.at(seq)[0])

    def _seq_of(self, member: Member) -> int:
        return self._journalled.get(member.node_id, 0)


@final
class WatchedTransport:
    """Implements `skulkd.cluster.transport.Transport`: shows what is said, and says it.

    Args:
        transport: Says it.
        watcher: Gets the sender and each election message.
    """

    def __init__(
        self, transport: Transport, watcher: Callable[[NodeId, NodeId, ElectionMessage], None]
    ) -> None:
        self._transport = transport
        self._watcher = watcher
        self.receivers: dict[Plane, OnReceive] = {}

    @property
    def node_id(self) -> NodeId:
        return self._transport.node_id

    def peers(self) -> tuple[NodeId, ...]:
        return self._transport.peers()

    def link(self, peer: NodeId) -> LinkState:
        return self._transport.link(peer)

    def set_peers(self, peers: Mapping[NodeId, Peer]) -> None:
        self._transport.set_peers(peers)

    def send(
        self, peer: NodeId, plane: Plane, payload: bytes, *, key: str | None = None
    ) -> Refusal | None:
        self._watcher(self.node_id, peer, unpack_election(payload))
        return self._transport.send(peer, plane, payload, key=key)

    def on_receive(self, plane: Plane, receiver: OnReceive) -> None:
        self.receivers[plane] = receiver
        self._transport.on_receive(plane, receiver)

    def on_link(self, watcher: OnLink) -> None:
        self._transport.on_link(watcher)

    async def wait_room(self, peer: NodeId, plane: Plane) -> None:
        await self._transport.wait_room(peer, plane)

    async def close(self) -> None:
        await self._transport.close()


@final
class ElectedNode:
    """One node: what survives a crash, and what runs between two."""

    def __init__(self, cluster: "ElectedCluster", number: int, *, priority: int) -> None:
        self.cluster = cluster
        self.number = number
        self.priority = priority
        self.node_id = node_id_of(a_key(number))
        self.disk = SimulatedDisk(stall=cluster.stall)
        self.disk.make_private_directory(TERM_PATH.parent)
        TermFile(self.disk, TERM_PATH).write(TermVote(term=1))
        self.kept: list[Entry] = list(cluster.base)
        self.n_lives = 0
        self.is_on = False
        self.mastership: Mastership
        self.log: SmallLog
        self.clock: LoopClock
        self.tasks: Tasks

    async def start(self, *, opened_s: float = 0.0) -> None:
        """Begin a life, and take part after a while."""
        self.n_lives += 1
        self.is_on = True
        self.power = PoweredDisk(self.disk)
        cluster = self.cluster
        self.transport = cluster.network.attach(self.node_id, public_key=a_key(self.number))
        self.clock = LoopClock(asyncio.get_running_loop(), epoch_ms=1_700_000_000_000)
        self.tasks = Tasks(f"node {self.number}", on_death=cluster.on_death)
        self.log = SmallLog(self, list(self.kept), cluster.base[0][1].seq)
        spec = ElectionSpec(
            node_id=self.node_id,
            boot_id=f"{self.number:08x}{self.n_lives:08x}",
            priority=self.priority,
        )
        self.watched = WatchedTransport(self.transport, cluster.on_send)
        ports = MastershipPorts(
            transport=self.watched,
            log=self.log,
            keeper=TermFile(self.power, TERM_PATH),
            clock=self.clock,
            submit=self.submit,
            mint=self.mint,
            own_entry=self.entry,
        )
        self.mastership = await Mastership.open(
            spec, ports, rng=chance(cluster.rng.random()), tasks=self.tasks
        )
        await sleep(opened_s)
        self.mastership.start()
        cluster.introduce()

    async def crash(self) -> None:
        """End a life at once; what was not durable is lost."""
        self.is_on = False
        self.power.cut()
        self.disk.crash()
        await self.transport.close()
        await self.tasks.close(5)
        self.kept = self.log.entries[: self.log.durable_seq - self.cluster.base[0][1].seq + 1]

    async def leave(self) -> float:
        """Say goodbye and stop; gives how long the goodbye took."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await self.mastership.farewell()
        took_s = loop.time() - began_s
        await sleep(0.05)
        await self.crash()
        return took_s

    def entry(self, command_id: CommandId) -> AdmitMember:
        return AdmitMember(
            command_id=command_id,
            node_id=self.node_id,
            name=f"box-{self.number}",
            public_key=a_key(self.number).hex(),
        )

    def mint(self) -> CommandId:
        return command_id_of(self.node_id, self.cluster.rng.randbytes(20))

    async def submit(self, command: Command) -> CommandReply:
        """Have the master decide, as it is reached now."""
        term = self.mastership.term
        master = None if term is None else self.cluster.reach(self, term.master)
        await sleep(0.001)
        if master is None or not master.mastership.is_master:
            raise ClusterError("cluster.no_master", "nobody decides", remediation="Wait.")
        log = master.log
        log.append(decide(log.appended, Readings(), command, now_ms=master.clock.wall_ms()))
        self.cluster.commands.append(command)
        return CommandReply(
            command_id=command.command_id,
            term=log.appended.term,
            seq=log.head_seq,
            durable="local",
        )


@final
class ElectedCluster:
    """All the nodes, on one network, with what must hold between them.

    Args:
        n_nodes: How many; numbered from 1.
        policy: Of the elections.
        seed: Of everything.
        faults: Of the network.
        priorities: By number; 50 elsewhere.
    """

    def __init__(
        self,
        n_nodes: int,
        *,
        policy: Policy = "availability",
        seed: int = 0,
        faults: NetworkFaults | None = None,
        priorities: Mapping[int, int] | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.stall = loop.stall_job
        """Lets a slow disk take its time."""
        self.rng = chance(seed)
        self.policy: Policy = policy
        self.keeps_committed = policy == "quorum"
        """What was committed is in every later master's log; set where no more than one at a time
        is killed, so that it holds for `availability` too."""
        self.network = SimulatedNetwork(chance(self.rng.random()), faults)
        self.commands: list[Command] = []
        self.deaths: list[str] = []
        self.known: dict[NodeId, Peer] = {}
        self.votes: dict[tuple[NodeId, int], NodeId] = {}
        self.n_said: Counter[str] = Counter()
        self.n_said_by: Counter[NodeId] = Counter()
        self.elections: list[tuple[float, TermPair]] = []
        self.committed: dict[int, bytes] = {}
        keys = [a_key(number) for number in range(1, n_nodes + 1)]
        members = {
            node_id_of(key): Member(
                node_id=node_id_of(key), name=f"box-{key[0]}", public_key=key.hex()
            )
            for key in keys
        }
        state = ClusterState(
            cluster_id=a_cluster_id(),
            term=1,
            seq=10,
            settled_term=1,
            settled_seq=10,
            master=node_id_of(keys[0]),
            members=members,
            settings=ClusterSettings(policy=policy),
        )
        self.base: list[Entry] = [(b"\0" * 16, state)]
        ranks = priorities or {}
        self.nodes = {
            number: ElectedNode(self, number, priority=ranks.get(number, 50))
            for number in range(1, n_nodes + 1)
        }

    async def start(self, numbers: Sequence[int] = ()) -> None:
        """Start these nodes, or all."""
        for number in numbers or tuple(self.nodes):
            await self.nodes[number].start()

    async def close(self) -> None:
        """End every life."""
        for node in self.nodes.values():
            if node.is_on:
                await node.crash()
        assert self.deaths == []

    def introduce(self) -> None:
        """Let those that run name all members."""
        for node in self.on():
            self.known[node.node_id] = self.network.peer(node.node_id)
        for node in self.on():
            others = {key: peer for key, peer in self.known.items() if key != node.node_id}
            node.transport.set_peers(others)

    def on(self) -> list[ElectedNode]:
        return [node for node in self.nodes.values() if node.is_on]

    def reach(self, node: ElectedNode, other_id: NodeId) -> ElectedNode | None:
        """Give another node that runs and is not cut off from this one."""
        other = next(known for known in self.nodes.values() if known.node_id == other_id)
        if not other.is_on or self.network.is_cut(node.node_id, other_id):
            return None
        return other

    def masters(self) -> list[ElectedNode]:
        return [node for node in self.on() if node.mastership.is_master]

    async def wait_agreed(self, numbers: Iterable[int] = (), *, limit_s: float = 30.0) -> float:
        """Wait until they agree on a master among them; gives how long that took."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        numbers = tuple(numbers) or tuple(self.nodes)
        while True:
            nodes = [self.nodes[number] for number in numbers if self.nodes[number].is_on]
            terms = {node.mastership.term for node in nodes}
            if len(terms) == 1 and any(node.mastership.is_master for node in nodes):
                return loop.time() - began_s
            assert loop.time() - began_s < limit_s, self.story()
            await sleep(0.01)

    def node_of(self, node_id: NodeId) -> ElectedNode:
        return next(node for node in self.nodes.values() if node.node_id == node_id)

    def ids(self, *numbers: int) -> list[NodeId]:
        return [self.nodes[number].node_id for number in numbers]

    def partition(self, *groups: Iterable[int]) -> None:
        self.network.partition(*starmap(self.ids, groups))

    def story(self) -> str:
        """Tell what each node sees, for a test that fails."""
        lines = [*self.deaths, f"elections: {self.elections}"]
        for node in self.on():
            lines += [f"{node.number} {node.node_id}: {node.mastership.seen()}"]
            lines += [f"  {node.log.durable_position} {node.log.story[-8:]}"]
        return "\n".join(lines)

    # What nodes tell.

    def on_lead(self, node: ElectedNode, term: TermPair) -> None:
        assert term.master == node.node_id
        assert all(pair != term for _, pair in self.elections), "one term is won once"
        if self.policy == "quorum":
            assert all(pair.number != term.number for _, pair in self.elections), self.story()
        if self.keeps_committed:
            for seq, chain in self.committed.items():
                assert seq <= node.log.head_seq, f"{seq} was committed and is lost"
                assert node.log.at(seq)[0] == chain, f"{seq} was committed and is another"
        self.elections.append((asyncio.get_running_loop().time(), term))

    def on_displaced(self, old: TermPair, new: TermPair) -> None:
        """A master whom half or fewer elected takes the place of one whom a majority did."""
        if old.master == new.master:
            return
        ours, theirs = (self.node_of(pair.master).log.appended for pair in (old, new))
        settled = (ours.settled_term, ours.settled_seq)
        assert (theirs.settled_term, theirs.settled_seq) > settled, (
            f"{new}, of few, displaces {old}"
        )

    def on_send(self, sender: NodeId, receiver: NodeId, message: ElectionMessage) -> None:
        """Count what is said; a vote, once given, is durable, and the only one of its number."""
        self.n_said[type(message).__name__] += 1
        self.n_said_by[sender] += 1
        promise = promised_by(sender, receiver, message)
        if promise is None or promise.voted_for is None:
            return
        known = self.votes.setdefault((sender, promise.term), promise.voted_for)
        assert known == promise.voted_for, f"{sender} voted twice in {promise.term}"
        disk = self.node_of(sender).disk
        assert is_kept(promise, disk, TERM_PATH), f"{sender} says {promise} before it is durable"

    def on_commit(self, node: ElectedNode, seq: int, chain: bytes) -> None:
        for earlier in range(self.base[0][1].seq, seq + 1):
            known = self.committed.setdefault(earlier, node.log.at(earlier)[0])
            if self.keeps_committed:
                assert known == node.log.at(earlier)[0], "two histories were committed"

    def on_death(self, story: str, _error: BaseException) -> None:
        self.deaths.append(story)
