"""What it costs when the node that is asked is not the one that serves: one hop, real daemons.

Two daemons of one cluster on one machine; the model lies on the second, and clients ask the first.
It is compared with the engine asked directly, as in `gateway`. How many frames a second the hop
carries is measured with both nodes in one process, behind a worker that has no engine: no engine
here is that fast.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Final

import uvloop

from bench.harness import Result, cpu_seconds, interleaved, percentile, spread
from bench.load import Outcome
from bench.sides import (
    CONTEXT_TOKENS,
    PACED,
    QUICK,
    SCRIPTED_SERVER,
    SLOTS,
    Ask,
    LoadGenerator,
    Sides,
    chat_job,
    daemon_address,
    stop,
    write_cards,
)
from tests.support.cluster import Cluster, cluster_of
from tests.support.daemon import Daemon
from tests.support.data_nodes import Script, a_task, ask
from tests.support.zmq_nodes import two_zmq_nodes

N_ROUNDS: Final = 7


class _Hop:
    """The engine asked directly, and through the node that does not have it."""

    def __init__(
        self, asked: Daemon, server: Daemon, generator: LoadGenerator, model_id: str
    ) -> None:
        self.asked = asked
        self.server = server
        self._generator = generator
        self._model_id = model_id
        self.direct = Sides(server, generator, model_id, SCRIPTED_SERVER).direct

    def through(self, ask: Ask) -> Outcome:
        """Ask the other node."""
        return self._ask(self.asked, ask)

    def at_home(self, ask: Ask) -> Outcome:
        """Ask the node that serves, without a hop."""
        return self._ask(self.server, ask)

    def cpu_s(self) -> float:
        """Add up what both daemons have used, without the engine."""
        pids = (self.asked.pid, self.server.pid)
        return sum(cpu_seconds(pid, descendants=False) for pid in pids)

    def _ask(self, daemon: Daemon, ask: Ask) -> Outcome:
        return self._generator(chat_job(daemon_address(daemon), self._model_id, ask))


def added_latency(hop: _Hop) -> list[Result]:
    """P2: whole answers, one client."""
    pooled: dict[str, list[float]] = {"direct": [], "at home": [], "through": []}

    def side(name: str, ask: Callable[[Ask], Outcome]) -> float:
        latency_s = ask(_WHOLE).latency_s
        pooled[name] += latency_s
        return median(latency_s) * 1e3

    at_home = side("at home", hop.at_home)
    pair = interleaved(
        lambda: side("direct", hop.direct),
        lambda: side("through", hop.through),
        rounds=N_ROUNDS,
    )
    added = pair.difference()
    p99 = {name: percentile(values, 99) * 1e3 for name, values in pooled.items()}
    return [
        Result(
            goal="P2 p50",
            metric="added latency by way of another node, whole answer, c=1",
            unit="ms",
            gate=1.0,
            stretch=0.5,
            seen=added.median,
            detail=f"direct {median(pair.a):.3f} ms, without a hop {at_home:.3f} ms, added "
            f"{added}; {N_ROUNDS} rounds of {_WHOLE.requests}",
        ),
        Result(
            goal="P2 p99",
            metric="added latency by way of another node, whole answer, c=1",
            unit="ms",
            gate=4,
            stretch=2,
            seen=p99["through"] - p99["direct"],
            detail=", ".join(f"{name} {value:.3f} ms" for name, value in p99.items()),
        ),
    ]


_WHOLE: Final = Ask(concurrency=1, requests=200, stream=False)


def cpu_per_frame(hop: _Hop) -> Result:
    """P7: CPU time of both daemons a streamed event, 32 streams at 50 tokens a second."""

    def once(ask: Callable[[Ask], Outcome]) -> float:
        before_s = hop.cpu_s()
        outcome = ask(Ask(concurrency=32, requests=64, stream=True, max_tokens=64))
        return (hop.cpu_s() - before_s) / outcome.n_events * 1e6

    pair = interleaved(lambda: once(hop.at_home), lambda: once(hop.through), rounds=5)
    seen = spread(pair.b)
    return Result(
        goal="P7 hop",
        metric="CPU of both nodes per streamed frame, 32 × 50 tok/s",
        unit="µs",
        gate=80,
        stretch=50,
        seen=seen.median,
        detail=f"{seen}, without a hop {spread(pair.a)}; 5 rounds of 64 streams of 64 tokens, user "
        "+ system of two daemons",
    )


def _daemons(root: Path) -> list[Result]:
    cluster = Cluster(root, 2)
    for daemon in cluster:
        write_cards(daemon.models_dir)
    try:
        cluster.start()
        cluster.form()
        with LoadGenerator() as generator:
            asked, server = cluster
            where = [cluster_of(server)["node_id"]]
            quick = _place(server, QUICK, where)
            hop = _Hop(asked, server, generator, QUICK)
            hop.through(Ask(concurrency=8, requests=200, stream=False))
            results = added_latency(hop)
            stop(server, quick)
            _place(server, PACED, where)
            results.append(cpu_per_frame(_Hop(asked, server, generator, PACED)))
        return results
    finally:
        cluster.destroy()


def _place(daemon: Daemon, model_id: str, where: list[str]) -> str:
    instance = daemon.place(model_id, slots=SLOTS, context_tokens=CONTEXT_TOKENS, nodes=where)
    daemon.wait_phase(instance, timeout_s=60)
    return instance


# ---- Frames a second ----

N_STREAMS: Final = 32
N_FRAMES: Final = 4000
"""Of each stream."""


async def _frames_a_second() -> Result:
    rates: list[float] = []
    used: list[float] = []
    async with two_zmq_nodes() as (asked, server):
        server.worker.script = Script(n_chunks=N_FRAMES, pause_s=0.0, slots=N_STREAMS)
        for number in range(5):
            began_s, used_s = time.perf_counter(), time.process_time()
            told = await asyncio.gather(
                *(ask(asked, 2, a_task(number * N_STREAMS + stream)) for stream in range(N_STREAMS))
            )
            n_frames = sum(len(got.frames) for got in told)
            assert n_frames == N_STREAMS * (N_FRAMES + 2), "frames were lost"
            assert all(got.code == "finished" for got in told)
            rates.append(n_frames / (time.perf_counter() - began_s))
            used.append((time.process_time() - used_s) / n_frames * 1e6)
    seen = spread(rates)
    return Result(
        goal="P8",
        metric="frames a second over one hop, none lost",
        unit="1/s",
        gate=40_000,
        stretch=80_000,
        seen=seen.median,
        better="higher",
        detail=f"{seen}; 5 rounds of {N_STREAMS} × {N_FRAMES}, both nodes in one process on one "
        f"core and ZeroMQ's threads, {median(used):.1f} µs of CPU a frame",
    )


def run() -> list[Result]:
    """Measure P2, P7 over one hop, and P8."""
    with tempfile.TemporaryDirectory(prefix="skulk-bench-") as name:
        return [*_daemons(Path(name)), uvloop.run(_frames_a_second())]
