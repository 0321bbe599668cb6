"""Replicated logs of three to five nodes through seeded histories, under a scripted mastership.

The network loses and doubles payloads, nodes die at any call to their disks and come back with what
was synced, the network falls apart. What must hold: nodes that agree on a seq agree on all before
it, nothing acknowledged on another member is lost when one node dies, and in `quorum` no replica
ever shows what is taken back.
"""

import asyncio
import errno

import pytest

from protocol.commands import AddCard, ChangeSettings, Command, ReportLeave
from protocol.peer_messages import TermPair
from protocol.state import ClusterSettings, Policy
from skulkd.cluster.simulated import NetworkFaults
from skulkd.core.apply import state_hash
from skulkd.runtime.virtual_time import run_virtual
from tests.support.builders import a_card, a_command_id, a_node_id, an_admission
from tests.support.log_witness import LogWitness
from tests.support.simulated_logs import LogWorld

N_SEEDS = 25
SETTLED_S = 400.0
"""A snapshot takes several questions, and each that is lost is waited for up to 20 s."""
RARELY = 0.05
"""One who left comes back by itself, but until then there are fewer voters to fall out."""


class History:
    """One seed's story.

    Args:
        seed: Draws it.
        policy: Of the cluster.
        is_gentle: Only one node is ever away, and only when all the others are whole.
    """

    def __init__(self, seed: int, policy: Policy, *, is_gentle: bool) -> None:
        self.world = LogWorld(seed)
        self.chance = self.world.chance
        self.policy: Policy = policy
        self.is_gentle = is_gentle
        self.n_nodes = self.chance.choice((3, 3, 4, 5))
        self.witness = LogWitness(
            policy, is_gentle=is_gentle, chance=self.chance, clock=self.world.clock
        )
        self.groups: list[set[int]] = []

    async def live(self) -> str:
        """Live it through; give what it came to."""
        world, chance = self.world, self.chance
        first = await world.found(self.n_nodes)
        settings = ClusterSettings(policy=self.policy)
        await first.submit(ChangeSettings(command_id=a_command_id(8000), settings=settings))
        await world.settle()
        for node in world.nodes.values():
            self.witness.watch(node)
        world.network.faults = NetworkFaults(
            min_delay_s=0.0002,
            max_delay_s=chance.choice((0.001, 0.02, 0.2)),
            loss_ratio=chance.choice((0.0, 0.0, 0.05, 0.2)),
            duplicate_ratio=chance.choice((0.0, 0.05)),
        )
        actors = [world.tasks.start(self.call(), name=f"caller {n}") for n in range(4)]
        for _ in range(14):
            await asyncio.sleep(chance.uniform(0.1, 1.5))
            await self.trouble()
        for actor in actors:
            actor.cancel()
        await self.mend()
        nodes = list(world.nodes.values())
        self.witness.check(nodes)
        assert all(node.deaths == [] for node in nodes)
        state = nodes[0].state
        await world.close()
        return f"{state.seq} {state_hash(state)} {world.network.n_sent}"

    # ---- What clients do ----

    async def call(self) -> None:
        while True:
            await asyncio.sleep(self.chance.uniform(0.0, 0.2))
            if not self.world.nodes:
                continue
            running = [number for number in range(1, self.n_nodes + 1) if self.runs(number)]
            number = self.chance.choice(running)
            command = self.some_command(number)
            for _ in range(self.chance.choice((1, 1, 2))):
                await self.witness.submit(self.world.node(number), command)

    def some_command(self, node: int) -> Command:
        chance = self.chance
        match chance.randrange(12):
            case 0:
                return self.witness.a_change(of_settings=True)
            case 1 if self.policy == "quorum" and chance.random() < RARELY:
                return ReportLeave(
                    command_id=self.witness.mint(),
                    node_id=a_node_id(chance.randrange(1, self.n_nodes + 1)),
                )
            case 2:
                return an_admission(node).model_copy(update={"command_id": self.witness.mint()})
            case _:
                return self.witness.a_change(of_settings=False)

    # ---- What befalls nodes ----

    async def trouble(self) -> None:
        if self.is_gentle:
            await self.one_death()
            return
        match self.chance.randrange(10):
            case 0 | 1:
                await self.die()
            case 2 | 3:
                await self.come_back()
            case 4 | 5 | 6:
                self.part()
            case 7:
                self.groups = []
                self.world.heal()
            case 8:
                self.spoil_a_disk()
            case _:
                self.mend_disks()
        self.direct()

    async def one_death(self) -> None:
        """Let one node die, elect, let it come back, and wait until all is whole."""
        number = self.chance.randrange(1, self.n_nodes + 1)
        await self.kill(number)
        await asyncio.sleep(self.chance.uniform(0.0, 3.0))
        self.direct()
        await asyncio.sleep(self.chance.uniform(0.0, 3.0))
        await self.start(number)
        self.direct()
        commit_seq = max(node.log.commit_seq for node in self.world.nodes.values())
        async with asyncio.timeout(SETTLED_S):
            while not self.is_whole(commit_seq):
                await asyncio.sleep(0.1)

    def is_whole(self, commit_seq: int) -> bool:
        """Say whether every node has what was committed a while ago."""
        return all(
            node.log.durable_position.seq >= commit_seq
            and node.masters.term is not None
            and not node.log.health().is_catching_up
            for node in self.world.nodes.values()
        )

    async def die(self) -> None:
        running = [number for number in range(1, self.n_nodes + 1) if self.runs(number)]
        if len(running) > 1:
            await self.kill(self.chance.choice(running))

    async def kill(self, number: int) -> None:
        kept = await self.witness.wait_death(self.world.node(number))
        await self.world.crash(number, n_unsynced_bytes_kept=kept)

    async def come_back(self) -> None:
        away = [number for number in range(1, self.n_nodes + 1) if not self.runs(number)]
        if away:
            await self.start(self.chance.choice(away))

    async def start(self, number: int) -> None:
        disk = self.world.disk_of(a_node_id(number))
        disk.sync_error = disk.write_error = None
        node = await self.world.start(number)
        if self.groups and not any(number in group for group in self.groups):
            self.groups[0].add(number)
        self.witness.watch(node)
        self.direct()

    def runs(self, number: int) -> bool:
        return a_node_id(number) in self.world.nodes

    def part(self) -> None:
        numbers = list(range(1, self.n_nodes + 1))
        self.chance.shuffle(numbers)
        cut = self.chance.randrange(1, self.n_nodes)
        self.groups = [set(numbers[:cut]), set(numbers[cut:])]
        self.world.partition(*self.groups)

    def spoil_a_disk(self) -> None:
        node_id = self.chance.choice(sorted(self.world.nodes))
        disk = self.world.disk_of(node_id)
        match self.chance.randrange(3):
            case 0:
                disk.sync_error = OSError(errno.EIO, "input/output error")
            case 1:
                disk.write_error = OSError(errno.ENOSPC, "no space left on device")
            case _:
                disk.sync_delay_s = self.chance.uniform(0.0, 0.3)

    def mend_disks(self) -> None:
        for disk in self.world.disks.values():
            disk.sync_error = disk.write_error = None
            disk.sync_delay_s = 0.0

    # ---- Who is master ----

    def direct(self) -> None:
        """Give every part of the network the master that the policy allows it."""
        groups = self.groups or [set(range(1, self.n_nodes + 1))]
        for group in groups:
            running = {number for number in group if self.runs(number)}
            if not running:
                continue
            master = self.master_among(running)
            if master is not None and self.chance.random() < 0.8:
                self.join(running, master)
            elif self.world.elect(running) is None and self.chance.random() < 0.5:
                # Otherwise a master of long ago goes on believing in itself, and must do no harm.
                for number in running:
                    self.world.rest(number)

    def master_among(self, running: set[int]) -> TermPair | None:
        """Give the highest term whose master is here and may still decide."""
        nodes = [self.world.node(number) for number in sorted(running)]
        terms = [
            node.masters.term
            for node in nodes
            if node.masters.is_master and node.masters.term is not None
        ]
        if not terms:
            return None
        highest = max(terms)
        known = max((node.masters.term for node in nodes if node.masters.term), default=highest)
        master = self.world.nodes[highest.master]
        voters = {
            node_id for node_id, member in master.log.appended.members.items() if member.is_voter
        }
        n_here = len(voters & {node.node_id for node in nodes})
        may_lead = self.policy == "availability" or 2 * n_here > len(voters)
        return highest if known <= highest and may_lead else None

    def join(self, running: set[int], term: TermPair) -> None:
        for number in sorted(running):
            node = self.world.node(number)
            if node.masters.term != term:
                self.world.follow(number, term)

    # ---- The end ----

    async def mend(self) -> None:
        """End all trouble, and wait until every node has the same log."""
        self.groups = []
        self.world.heal()
        self.mend_disks()
        self.world.network.faults = NetworkFaults()
        for number in range(1, self.n_nodes + 1):
            if not self.runs(number):
                await self.start(number)
        await asyncio.sleep(8.0)
        master = self.world.elect()
        assert master is not None, "all are there"
        await master.submit(AddCard(command_id=a_command_id(7), card=a_card()))
        await self.world.settle(SETTLED_S)


def lived(seed: int, policy: Policy, *, is_gentle: bool) -> str:
    async def main() -> str:
        return await History(seed, policy, is_gentle=is_gentle).live()

    return run_virtual(main, seed=seed, limit_s=3600)


@pytest.mark.parametrize("first_seed", range(0, N_SEEDS, 5))
@pytest.mark.parametrize(
    ("policy", "is_gentle"),
    [("quorum", False), ("availability", False), ("availability", True), ("quorum", True)],
)
def test_the_logs_of_all_nodes_stay_one(first_seed: int, policy: Policy, is_gentle: bool) -> None:
    for seed in range(first_seed, first_seed + 5):
        try:
            lived(seed, policy, is_gentle=is_gentle)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


def test_a_seed_tells_the_same_story_twice() -> None:
    first, second = (lived(7, "quorum", is_gentle=False) for _ in range(2))
    assert first == second
