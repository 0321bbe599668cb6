"""Seeded histories of elections: crashes, cuts, bad disks and sleeping machines, in any order.

What must hold at each step is asserted where it happens (`tests/support/elected_nodes`): a node
votes once in a number, however often it crashes; a pair of number and master is won once, in
`quorum` a number; and what `quorum` committed is in the log of every later master. At the end,
with everything mended, all agree.
"""

import asyncio
import errno

import pytest

from protocol.errors import SkulkError
from protocol.peer_messages import TermPair
from protocol.state import Policy
from skulkd.cluster.simulated import NetworkFaults
from skulkd.core.sight import LEASE_S
from skulkd.runtime.tasks import sleep
from skulkd.runtime.virtual_time import run_virtual
from tests.support.elected_nodes import ElectedCluster, ElectedNode, chance

N_SEEDS = 300
N_STEPS = 14
LOOK_S = 0.5
REPLACED_S = 3.5
"""As `simulated_cluster_ledger` says it, of whom messages take up to 0.3 s."""


class History:
    """One seed's story."""

    def __init__(self, seed: int) -> None:
        self.rng = chance(seed)
        self.policy: Policy = "quorum" if seed % 2 else "availability"
        self.cluster = ElectedCluster(
            self.rng.randint(2, 7),
            policy=self.policy,
            seed=seed,
            faults=NetworkFaults(
                min_delay_s=0.0005,
                max_delay_s=self.rng.choice((0.002, 0.05, 0.3)),
                loss_ratio=self.rng.choice((0.0, 0.0, 0.05, 0.2)),
                duplicate_ratio=self.rng.choice((0.0, 0.05)),
            ),
        )
        self.story: list[str] = []

    def note(self, what: str) -> None:
        self.story.append(f"{asyncio.get_running_loop().time():.2f} {what}")

    async def run(self) -> None:
        await self.cluster.start()
        for _ in range(N_STEPS):
            await self.pass_time(self.rng.choice((0.05, 0.5, 1.5, 3.0, 7.0)))
            await self.step()
            self.write()
            self.check()
        await self.mend()
        await self.cluster.wait_agreed(limit_s=40.0)
        await sleep(3.0)
        self.check()
        (master,) = self.cluster.masters()
        assert all(node.mastership.term == master.mastership.term for node in self.cluster.on())
        await self.cluster.close()

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and look now and then."""
        end_s = asyncio.get_running_loop().time() + seconds
        while (left_s := end_s - asyncio.get_running_loop().time()) > 0:
            await sleep(min(left_s, LOOK_S))
            self.check()

    async def step(self) -> None:
        node = self.rng.choice(tuple(self.cluster.nodes.values()))
        other = self.rng.choice(tuple(self.cluster.nodes.values()))
        match self.rng.randrange(10):
            case 0 | 1:
                await self.flip(node)
            case 2:
                self.note(f"cut {node.number} -> {other.number}")
                self.cluster.network.cut(node.node_id, other.node_id)
            case 3:
                self.partition()
            case 4 | 5:
                self.note("heal")
                self.cluster.network.heal_all()
            case 6:
                if node.is_on:
                    slept_s = self.rng.choice((0.7, 2.5, 12.0))
                    self.note(f"{node.number} sleeps for {slept_s} s")
                    node.clock.sleep(slept_s)
                    # Nothing has run on it since; it must know all the same.
                    assert slept_s < LEASE_S or not node.mastership.is_master
            case 7:
                self.harm_disk(node)
            case 8:
                await self.hand_over()
            case _:
                if node.is_on and len(self.cluster.on()) > 1:
                    self.note(f"{node.number} leaves")
                    assert await node.leave() < 1.1

    async def flip(self, node: ElectedNode) -> None:
        if node.is_on:
            self.note(f"{node.number} crashes")
            await node.crash()
        else:
            self.note(f"{node.number} starts")
            await node.start()

    def partition(self) -> None:
        numbers = list(self.cluster.nodes)
        self.rng.shuffle(numbers)
        place = self.rng.randint(1, len(numbers) - 1)
        self.note(f"partition {numbers[:place]} | {numbers[place:]}")
        self.cluster.partition(numbers[:place], numbers[place:])

    def harm_disk(self, node: ElectedNode) -> None:
        match self.rng.randrange(4):
            case 0:
                node.disk.sync_delay_s = self.rng.choice((0.1, 4.0))
            case 1:
                node.disk.sync_error = OSError(errno.EIO, "input/output error")
            case _:
                node.disk.sync_error = None
                node.disk.sync_delay_s = 0.0
        self.note(f"disk of {node.number}: {node.disk.sync_delay_s} {node.disk.sync_error}")

    async def hand_over(self) -> None:
        masters = self.cluster.masters()
        if not masters:
            return
        target = self.rng.choice(tuple(self.cluster.nodes.values()))
        self.note(f"{masters[0].number} hands over to {target.number}")
        try:
            await masters[0].mastership.handover(target.node_id)
        except SkulkError as error:
            self.note(f"refused: {error.message}")

    def write(self) -> None:
        """Let every master decide something."""
        for master in self.cluster.masters():
            if master.log.leads == master.mastership.term:
                master.log.append_something()

    def check(self) -> None:
        """Hold what nodes say of themselves against what their logs were told."""
        for node in self.cluster.on():
            term = node.mastership.term
            if node.mastership.is_master:
                assert term is not None
                assert node.log.leads == term
                assert self.policy != "quorum" or not self.is_replaced(term), self.cluster.story()
            elif term is not None and term.master != node.node_id:
                assert node.log.follows == term

    def is_replaced(self, term: TermPair) -> bool:
        """Say whether a higher term was won long ago."""
        limit_s = asyncio.get_running_loop().time() - REPLACED_S
        return any(pair > term and won_s < limit_s for won_s, pair in self.cluster.elections)

    async def mend(self) -> None:
        self.note("mend")
        self.cluster.network.heal_all()
        self.cluster.network.faults = NetworkFaults()
        for node in self.cluster.nodes.values():
            node.disk.sync_error = None
            node.disk.sync_delay_s = 0.0
            if not node.is_on:
                await node.start()


def run_history(seed: int) -> tuple[list[str], object]:
    history: History | None = None

    async def main() -> None:
        nonlocal history
        history = History(seed)
        await history.run()

    try:
        run_virtual(main, seed=seed, limit_s=600)
    except BaseException as error:
        error.add_note(f"seed {seed}")
        if history is not None:
            error.add_note("\n".join(history.story[-20:]))
        raise
    assert history is not None
    return history.story, history.cluster.elections


@pytest.mark.parametrize("first_seed", range(0, N_SEEDS, 20))
def test_elections_are_safe_through_everything_and_end_in_agreement(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        run_history(seed)


def test_a_seed_tells_the_same_story_twice() -> None:
    assert run_history(11) == run_history(11)
