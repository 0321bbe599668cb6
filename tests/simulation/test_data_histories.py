"""Random histories of the data path: whatever breaks, every request ends, and once."""

import asyncio
import random

import pytest

from protocol.data_frames import Chunk
from skulkd.cluster.simulated import NetworkFaults, SimulatedNetwork
from skulkd.runtime.tasks import sleep
from skulkd.runtime.virtual_time import run_virtual
from tests.support.data_nodes import DataNetwork, Got, Script, a_task, ask

N_NODES = 4
N_STEPS = 60
MAX_DEAD = 2
FAULTS = (
    NetworkFaults(),
    NetworkFaults(loss_ratio=0.01),
    NetworkFaults(duplicate_ratio=0.1),
    NetworkFaults(min_delay_s=0.05, max_delay_s=0.3),
)


class History:
    """One cluster, its clients, and what happens to them."""

    def __init__(self, net: DataNetwork, rng: random.Random) -> None:
        self.net = net
        self.rng = rng
        self.asked: list[tuple[Got, str, asyncio.Task[Got]]] = []
        self.dead: set[int] = set()
        self.number = 0

    def ask(self) -> None:
        """Let a client ask a living node for an instance anywhere."""
        alive = [index for index in range(N_NODES) if index not in self.dead]
        index, instance = self.rng.choice(alive), self.rng.randrange(N_NODES) + 1
        self.number += 1
        content = "x" * self.rng.choice((10, 10, 10, 400_000, 3_000_000))
        task = a_task(self.number, content)
        got = Got()
        node = self.net.nodes[index]
        pause_s = self.rng.choice((0.0, 0.0, 0.05, 2.0))
        asking = asyncio.get_running_loop().create_task(
            ask(node, instance, task, got, pause_s=pause_s)
        )
        script = self.net.nodes[instance - 1].worker.script
        whole = script.chunk.text * script.n_chunks
        self.asked.append((got, whole, asking))

    async def step(self) -> None:
        """Let one thing happen."""
        ids = [node.node_id for node in self.net.nodes]
        one, other = self.rng.sample(ids, 2)
        index = self.rng.randrange(N_NODES)
        match self.rng.randrange(14):
            case 0:
                self.net.network.cut(one, other)
            case 1:
                self.net.network.heal_all()
            case 2:
                self.net.network.partition(ids[:2], ids[2:])
            case 3 if index not in self.dead and len(self.dead) < MAX_DEAD:
                self.dead.add(index)
                await self.net.nodes[index].die()
            case 4 if index in self.dead:
                self.dead.discard(index)
                script = self.net.nodes[index].worker.script
                self.net.restart(index).worker.script = script
            case 5:
                self.net.network.faults = self.rng.choice(FAULTS)
            case 6 if index not in self.dead:
                self.net.nodes[index].inference.cancel(a_task(self.number).command_id)
            case 7 if index not in self.dead:
                self.net.nodes[index].server.cancel(a_task(self.number).command_id)
            case 8 if self.asked:
                self.rng.choice(self.asked)[2].cancel()
            case _:
                self.ask()
        await sleep(self.rng.choice((0.0, 0.01, 0.3, 1.0, 4.0)))


@pytest.mark.parametrize("seed", range(25))
def test_every_request_ends_in_order_with_one_terminal_and_leaves_nothing(seed: int) -> None:
    async def main() -> None:
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
        rng = random.Random(seed)
        net = DataNetwork(SimulatedNetwork(rng), N_NODES)
        for node in net.nodes:
            node.worker.script = Script(
                n_chunks=rng.choice((1, 50, 400)),
                pause_s=rng.choice((0.0, 0.01, 0.2)),
                queue_s=rng.choice((0.0, 1.0)),
                chunk=Chunk(rng.choice(("word ", "long" * 5_000))),
            )
        await net.connect()
        history = History(net, rng)
        for _ in range(N_STEPS):
            await history.step()
        net.network.faults = NetworkFaults()
        net.network.heal_all()
        # Slow clients have an hour; all others end within the time that silence may take.
        done, open_still = await asyncio.wait([task for *_, task in history.asked], timeout=3600)
        assert open_still == set()
        for got, whole, task in history.asked:
            assert task in done
            if task.cancelled():
                continue
            assert task.exception() is None
            got.assert_ordered()
            assert got.code != "open"
            if got.code == "finished":
                assert got.text == whole
            else:
                assert whole.startswith(got.text)
        await sleep(10)
        for index, node in enumerate(net.nodes):
            if index not in history.dead:
                left = (node.worker.n_running, node.server.n_open, node.server.held_bytes)
                assert left == (0, 0, 0)
                assert node.inference.n_remote == 0
                await node.close()

    run_virtual(main, seed=seed, limit_s=20_000)
