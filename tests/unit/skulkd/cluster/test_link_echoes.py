import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable

from protocol.ids import NodeId, node_id_of
from protocol.telemetry_wire import Echo, is_echo, pack_echo
from skulkd.cluster.link_echoes import AT_A_TIME, ECHO_S
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.cluster.simulated import NetworkFaults, SimulatedNetwork, SimulatedTransport
from skulkd.cluster.telemetry import Telemetry
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.tasks import sleep
from skulkd.runtime.virtual_time import run_virtual


class Net:
    """Nodes that tell each other their readings."""

    def __init__(self, n_nodes: int) -> None:
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
        self.network = SimulatedNetwork(
            random.Random(3), NetworkFaults(min_delay_s=0.002, max_delay_s=0.002)
        )
        clock = LoopClock(asyncio.get_running_loop())
        keys = [bytes([number]) * 32 for number in range(1, n_nodes + 1)]
        self.ids = [node_id_of(key) for key in keys]
        self.transports: dict[NodeId, SimulatedTransport] = {
            node_id_of(key): self.network.attach(node_id_of(key), public_key=key) for key in keys
        }
        self.told = {
            node_id: Telemetry(transport, ReadingsTable(), clock)
            for node_id, transport in self.transports.items()
        }
        self.network.introduce_all()


def _run(story: Callable[[Net], Awaitable[None]], n_nodes: int = 2) -> None:
    async def main() -> None:
        net = Net(n_nodes)
        await sleep(1.0)
        await story(net)
        for telemetry in net.told.values():
            telemetry.close()

    run_virtual(main, seed=1, limit_s=600)


def test_each_end_knows_how_long_a_word_takes_as_soon_as_the_link_is_up() -> None:
    async def story(net: Net) -> None:
        a, b = net.ids
        for one, other in ((a, b), (b, a)):
            rtt = net.told[one].echoes.rtt(other)
            assert rtt is not None
            assert 3.9 < rtt.median_ms < 4.1
            assert rtt.median_ms == rtt.last_ms
        net.network.faults = NetworkFaults(min_delay_s=0.01, max_delay_s=0.01)
        await sleep(ECHO_S + 1)
        rtt = net.told[a].echoes.rtt(b)
        assert rtt is not None
        assert 19 < rtt.last_ms < 21
        assert rtt.median_ms < rtt.last_ms

    _run(story)


def test_a_link_that_breaks_is_unknown_until_it_is_up_again() -> None:
    async def story(net: Net) -> None:
        a, b = net.ids
        net.network.partition([a], [b])
        await sleep(10.0)
        assert net.told[a].echoes.rtt(b) is None
        net.network.heal_all()
        await sleep(5.0)
        assert net.told[a].echoes.rtt(b) is not None

    _run(story)


def test_every_peer_is_asked_once_in_a_while_and_few_at_a_time() -> None:
    async def story(net: Net) -> None:
        sent: Counter[tuple[NodeId, float]] = Counter()
        asked: Counter[NodeId] = Counter()
        loop = asyncio.get_running_loop()

        def watch(sender: NodeId, receiver: NodeId, _plane: str, payload: bytes) -> None:
            if sender == net.ids[0] and is_echo(payload) and payload.endswith(b"\xc2"):
                sent[sender, loop.time()] += 1
                asked[receiver] += 1

        await sleep(ECHO_S)
        net.network.watcher = watch
        await sleep(6 * ECHO_S)
        assert set(asked) == set(net.ids[1:])
        assert set(asked.values()) <= {5, 6, 7}
        assert max(sent.values()) <= AT_A_TIME

    _run(story, n_nodes=20)


def test_a_bad_echo_is_refused_as_a_bad_reading_is() -> None:
    async def story(net: Net) -> None:
        a, b = net.ids
        bad = pack_echo(Echo(1, is_answer=True))[:-1] + b"\x07"
        net.transports[b].send(a, "telemetry", bad)
        await sleep(1.0)
        assert net.told[a].n_refused == 1

    _run(story)
