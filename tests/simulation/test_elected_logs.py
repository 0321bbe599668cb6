"""Replicated logs under real elections, through seeded histories of deaths and partitions.

What `test_replicated_log` asks of the log under a scripted mastership is asked here of both
together: nothing acknowledged on another member is lost when one node dies, and in `quorum` nothing
that was ever shown is taken back, whatever is cut.
"""

import asyncio
import contextlib
from dataclasses import dataclass, field

import pytest

from protocol.commands import AddCard, ChangeSettings, Command, RemoveCard
from protocol.errors import SkulkError
from protocol.events import SequencedEvent
from protocol.ids import CommandId, ModelId, NodeId
from protocol.state import ClusterSettings, ClusterState, Policy
from skulkd.cluster.simulated import NetworkFaults
from skulkd.core.apply import repeated, state_hash
from skulkd.core.invariants import violations
from skulkd.runtime.virtual_time import run_virtual
from tests.support.builders import a_card, a_command_id, a_node_id
from tests.support.elected_logs import ElectedNode, ElectedWorld

N_SEEDS = 6
SETTLED_S = 120.0
LONGEST_CALL_S = 25.0


@dataclass
class Told:
    """What was said about a command."""

    seqs: set[int] = field(default_factory=set[int])
    is_on_member: bool = False


class History:
    """One seed's story.

    Args:
        seed: Draws it.
        policy: Of the cluster.
        is_gentle: Only one node is ever away, and only when all the others are whole.
    """

    def __init__(self, seed: int, policy: Policy, *, is_gentle: bool) -> None:
        self.world = ElectedWorld(seed)
        self.chance = self.world.chance
        self.policy: Policy = policy
        self.is_gentle = is_gentle
        self.is_strict = policy == "quorum" or is_gentle
        self.n_nodes = self.chance.choice((3, 3, 4, 5))
        self.told: dict[CommandId, Told] = {}
        self.committed: dict[int, tuple[int, CommandId | None]] = {}
        """What some replica has shown at a seq."""
        self.shown: dict[NodeId, int] = {}
        self.problems: list[str] = []
        self.n_commands = 0

    async def live(self) -> str:
        """Live it through; give what it came to."""
        world, chance = self.world, self.chance
        first = await world.found(self.n_nodes)
        settings = ClusterSettings(policy=self.policy)
        await first.submit(ChangeSettings(command_id=a_command_id(8000), settings=settings))
        await world.settle(SETTLED_S)
        for node in world.nodes.values():
            self.watch(node)
        world.network.faults = NetworkFaults(
            min_delay_s=0.0002,
            max_delay_s=chance.choice((0.001, 0.02, 0.1)),
            loss_ratio=chance.choice((0.0, 0.0, 0.02)),
            duplicate_ratio=chance.choice((0.0, 0.02)),
        )
        actors = [world.tasks.start(self.call(), name=f"caller {n}") for n in range(3)]
        for _ in range(6):
            await asyncio.sleep(chance.uniform(0.1, 8.0))
            await self.trouble()
        for actor in actors:
            actor.cancel()
        await self.mend()
        self.check()
        state = next(iter(world.nodes.values())).state
        await world.close()
        return f"{state.seq} {state_hash(state)} {world.network.n_sent}"

    async def call(self) -> None:
        while True:
            await asyncio.sleep(self.chance.uniform(0.0, 0.4))
            running = [number for number in range(1, self.n_nodes + 1) if self.runs(number)]
            node = self.world.node(self.chance.choice(running))
            await self.submit(node, self.some_command())

    def some_command(self) -> Command:
        self.n_commands += 1
        command_id, chance = a_command_id(100_000 + self.n_commands), self.chance
        model = ModelId(f"model-{chance.randrange(6)}")
        match chance.randrange(6):
            case 0:
                return RemoveCard(command_id=command_id, model_id=model)
            case 1:
                loopback = chance.choice(("open", "keyed"))
                settings = ClusterSettings(policy=self.policy, loopback=loopback)
                return ChangeSettings(command_id=command_id, settings=settings)
            case _:
                return AddCard(command_id=command_id, card=a_card(model_id=model))

    async def submit(self, node: ElectedNode, command: Command) -> None:
        told = self.told.setdefault(command.command_id, Told())
        began_s = self.world.clock.monotonic_s()
        with contextlib.suppress(SkulkError):
            reply = await node.submit(command)
            if repeated(node.log.appended, command.command_id) is not None:
                told.seqs.add(reply.seq)
                told.is_on_member |= reply.durable == "member"
        if self.world.clock.monotonic_s() - began_s > LONGEST_CALL_S:
            self.problems.append(f"{command.kind} took too long")

    # ---- What befalls nodes ----

    async def trouble(self) -> None:
        if self.is_gentle:
            await self.one_death()
            return
        match self.chance.randrange(6):
            case 0 | 1:
                running = [number for number in range(1, self.n_nodes + 1) if self.runs(number)]
                if len(running) > 1:
                    await self.kill(self.chance.choice(running))
            case 2 | 3:
                away = [number for number in range(1, self.n_nodes + 1) if not self.runs(number)]
                if away:
                    await self.start(self.chance.choice(away))
            case 4:
                numbers = list(range(1, self.n_nodes + 1))
                self.chance.shuffle(numbers)
                cut = self.chance.randrange(1, self.n_nodes)
                self.world.partition(set(numbers[:cut]), set(numbers[cut:]))
            case _:
                self.world.heal()

    async def one_death(self) -> None:
        """Let one node die and come back, and wait until all is whole."""
        number = self.chance.randrange(1, self.n_nodes + 1)
        await self.kill(number)
        await asyncio.sleep(self.chance.uniform(0.0, 15.0))
        await self.start(number)
        async with asyncio.timeout(SETTLED_S):
            while not self.is_whole():
                await asyncio.sleep(0.1)

    def is_whole(self) -> bool:
        """Say whether one master leads, and every node has what it knows to be committed."""
        masters = self.world.masters()
        return len(masters) == 1 and all(
            node.log.durable_position.seq >= masters[0].log.commit_seq
            and node.rooms.mastership.term == masters[0].rooms.mastership.term
            and not node.log.health().is_catching_up
            for node in self.world.nodes.values()
        )

    async def kill(self, number: int) -> None:
        """End a node's life, at once or in the middle of what it asks of its disk."""
        if self.chance.random() < 0.5:
            self.world.node(number).disk.calls_left = self.chance.randrange(12)
            await asyncio.sleep(self.chance.uniform(0.0, 0.5))
        kept = self.chance.choice((0, 0, 3, 100, 5000))
        await self.world.crash(number, n_unsynced_bytes_kept=kept)

    async def start(self, number: int) -> None:
        node = await self.world.start(number)
        self.shown[node.node_id] = node.state.seq
        self.watch(node)

    def runs(self, number: int) -> bool:
        return a_node_id(number) in self.world.nodes

    # ---- What must hold ----

    def watch(self, node: ElectedNode) -> None:
        def on_event(sequenced: SequencedEvent, state: ClusterState) -> None:
            self.note(node, sequenced.seq, (sequenced.term, sequenced.command_id))
            self.problems.extend(violations(state) if sequenced.seq % 50 == 0 else ())

        def on_reset(state: ClusterState) -> None:
            if self.policy == "quorum" and state.seq < self.shown.get(node.node_id, 0):
                self.problems.append(f"{node.node_id} went back to {state.seq}")
            self.problems.extend(violations(state))

        node.log.replica.subscribe(on_event, on_reset)

    def note(self, node: ElectedNode, seq: int, what: tuple[int, CommandId | None]) -> None:
        self.shown[node.node_id] = seq
        before = self.committed.setdefault(seq, what)
        if before != what and self.is_strict:
            self.problems.append(f"seq {seq} was shown as {before}, on {node.number} as {what}")

    async def mend(self) -> None:
        """End all trouble, and wait until every node has the same log."""
        self.world.heal()
        self.world.network.faults = NetworkFaults()
        for number in range(1, self.n_nodes + 1):
            if not self.runs(number):
                await self.start(number)
        await self.world.settle(SETTLED_S)

    def check(self) -> None:
        nodes = list(self.world.nodes.values())
        assert len({state_hash(node.state) for node in nodes}) == 1
        assert self.problems == []
        state = nodes[0].state
        assert violations(state) == ()
        for command_id, told in self.told.items():
            if self.is_strict:
                assert len(told.seqs) <= 1, f"{command_id} was acknowledged as {told.seqs}"
            if self.is_strict and told.is_on_member:
                result = repeated(state, command_id)
                assert result is not None, f"{command_id}, on a member, is lost"
                assert told.seqs == {result.seq}


def lived(seed: int, policy: Policy, *, is_gentle: bool) -> str:
    async def main() -> str:
        return await History(seed, policy, is_gentle=is_gentle).live()

    return run_virtual(main, seed=seed, limit_s=3600)


@pytest.mark.parametrize("first_seed", range(0, N_SEEDS, 3))
@pytest.mark.parametrize(
    ("policy", "is_gentle"),
    [("quorum", False), ("availability", False), ("availability", True), ("quorum", True)],
)
def test_elections_and_log_keep_their_promises(
    first_seed: int, policy: Policy, is_gentle: bool
) -> None:
    for seed in range(first_seed, first_seed + 3):
        try:
            lived(seed, policy, is_gentle=is_gentle)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
