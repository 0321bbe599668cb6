"""Replicated logs under real elections, through seeded histories of deaths and partitions.

What `test_replicated_log` asks of the log under a scripted mastership is asked here of both
together: nothing acknowledged on another member is lost when one node dies, and in `quorum` nothing
that was ever shown is taken back, whatever is cut.
"""

import asyncio

import pytest

from protocol.commands import ChangeSettings
from protocol.state import ClusterSettings, Policy
from skulkd.cluster.simulated import NetworkFaults
from skulkd.core.apply import state_hash
from skulkd.runtime.virtual_time import run_virtual
from tests.support.builders import a_command_id, a_node_id
from tests.support.elected_logs import ElectedWorld
from tests.support.log_witness import LogWitness

N_SEEDS = 6
SETTLED_S = 120.0


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
        self.n_nodes = self.chance.choice((3, 3, 4, 5))
        self.witness = LogWitness(
            policy, is_gentle=is_gentle, chance=self.chance, clock=self.world.clock
        )

    async def live(self) -> str:
        """Live it through; give what it came to."""
        world, chance = self.world, self.chance
        first = await world.found(self.n_nodes)
        settings = ClusterSettings(policy=self.policy)
        await first.submit(ChangeSettings(command_id=a_command_id(8000), settings=settings))
        await world.settle(SETTLED_S)
        for node in world.nodes.values():
            self.witness.watch(node)
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
        nodes = list(world.nodes.values())
        self.witness.check(nodes)
        state = nodes[0].state
        await world.close()
        return f"{state.seq} {state_hash(state)} {world.network.n_sent}"

    async def call(self) -> None:
        while True:
            await asyncio.sleep(self.chance.uniform(0.0, 0.4))
            running = [number for number in range(1, self.n_nodes + 1) if self.runs(number)]
            node = self.world.node(self.chance.choice(running))
            change = self.witness.a_change(of_settings=self.chance.randrange(6) == 0)
            await self.witness.submit(node, change)

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
        kept = await self.witness.wait_death(self.world.node(number))
        await self.world.crash(number, n_unsynced_bytes_kept=kept)

    async def start(self, number: int) -> None:
        self.witness.watch(await self.world.start(number))

    def runs(self, number: int) -> bool:
        return a_node_id(number) in self.world.nodes

    async def mend(self) -> None:
        """End all trouble, and wait until every node has the same log."""
        self.world.heal()
        self.world.network.faults = NetworkFaults()
        for number in range(1, self.n_nodes + 1):
            if not self.runs(number):
                await self.start(number)
        await self.world.settle(SETTLED_S)


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
