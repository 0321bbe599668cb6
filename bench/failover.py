"""What the loss of the master costs: three real daemons, whose master is killed or stopped.

Commands go through a node that stays. Streams run between the two nodes that stay, and should not
notice at all: no frame of theirs passes by the master.
"""

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.harness import Result, percentile, spread
from bench.load import Job
from bench.prober import Stream, outage_s
from bench.sides import CHAT_PATH, PACED, Ask, stop, write_cards
from skulkd.core.sight import LAG_REMEMBERED_S
from tests.support.cluster import Cluster, cluster_of
from tests.support.daemon import Daemon, wait_until

N_KILLS: Final = 12
N_STOPS: Final = 5
SETTLED_S: Final = LAG_REMEMBERED_S + 1.0
"""Between two stops. A node that was stopped a moment ago knows that it was late, and waits twice
as long before it takes another for silent: two strikes in that time are another story than this."""
N_STREAM_KILLS: Final = 3
N_STREAMS: Final = 8
N_TOKENS: Final = 200
"""Four seconds of a stream."""
KILL_AFTER_S: Final = 1.0
WATCHED_S: Final = 2.5
"""After the kill: an election and its aftermath."""
_CONTEXT_TOKENS: Final = 4096


def _roles(cluster: Cluster) -> tuple[Daemon, Daemon, Daemon]:
    """Wait until all agree; give the master and the other two."""
    master = cluster.by_id(cluster.wait_agreed())
    first, second = (node for node in cluster if node is not master)
    return master, first, second


def _kill_once(cluster: Cluster) -> float:
    master, door, _ = _roles(cluster)
    took_s = asyncio.run(outage_s(door.port, master.kill))
    master.start()
    return took_s


def _stop_once(cluster: Cluster) -> float:
    time.sleep(SETTLED_S)
    master, door, _ = _roles(cluster)
    try:
        return asyncio.run(outage_s(door.port, lambda: os.kill(master.pid, signal.SIGSTOP)))
    finally:
        os.kill(master.pid, signal.SIGCONT)


def _outages(
    cluster: Cluster, goal: str, once: Callable[[Cluster], float], rounds: int, what: str
) -> list[Result]:
    seen_s = [once(cluster) for _ in range(rounds)]
    is_kill = goal == "P10"
    gates = (1.0, 2.0) if is_kill else (3.0, 5.0)
    stretches = (0.3, 0.8) if is_kill else (1.5, 2.5)
    apart = "" if is_kill else f", {SETTLED_S:.0f} s apart"
    detail = f"{spread(seen_s)}, longest {max(seen_s):.2f} s; {rounds} times{apart}, 3 nodes"
    return [
        Result(
            goal=f"{goal} p{percent}",
            metric=f"no command is answered after {what} the master",
            unit="s",
            gate=gate,
            stretch=stretch,
            seen=percentile(seen_s, percent),
            detail=detail,
        )
        for percent, gate, stretch in zip((50, 99), gates, stretches, strict=True)
    ]


async def _read_streams(master: Daemon, door: Daemon) -> tuple[list[Stream], float]:
    ask = Ask(concurrency=1, requests=1, stream=True, max_tokens=N_TOKENS)
    job = Job(
        address=f"tcp:127.0.0.1:{door.port}",
        path=CHAT_PATH,
        body=ask.body(PACED),
        concurrency=1,
        requests=1,
    )
    streams = [Stream(job) for _ in range(N_STREAMS)]
    reading = [asyncio.create_task(stream.read()) for stream in streams]
    await asyncio.sleep(KILL_AFTER_S)
    struck_s = time.perf_counter()
    master.kill()
    await asyncio.gather(*reading)
    return streams, struck_s


def _answers(door: Daemon) -> bool:
    """Whether a node reaches the model; one whose host has just begun is refused for a moment."""
    question = {"role": "user", "content": "?"}
    body = {"model": PACED, "messages": [question], "max_tokens": 1}
    return door.http.post(CHAT_PATH, json=body).is_success


def _streams_once(cluster: Cluster) -> tuple[int, float, float]:
    """Kill the master during streams; give lost frames, and the longest gap after and before."""
    master, door, host = _roles(cluster)
    host_id = cluster_of(host)["node_id"]
    instance = host.place(PACED, nodes=[host_id], slots=N_STREAMS, context_tokens=_CONTEXT_TOKENS)
    host.wait_phase(instance)
    door.wait_phase(instance)
    wait_until(lambda: _answers(door), timeout_s=5, what="the door reaches the host")
    streams, struck_s = asyncio.run(_read_streams(master, door))
    n_lost = sum(N_TOKENS - len(stream.frames_s) for stream in streams)
    assert all(stream.is_whole for stream in streams), "a stream did not end as it should"
    after_s = max(stream.longest_gap_s(struck_s, struck_s + WATCHED_S) for stream in streams)
    before_s = max(stream.longest_gap_s(0, struck_s) for stream in streams)
    master.start()
    cluster.wait_agreed()
    stop(host, instance)
    return n_lost, after_s, before_s


def _streams(cluster: Cluster) -> list[Result]:
    rounds = [_streams_once(cluster) for _ in range(N_STREAM_KILLS)]
    lost, after_s, before_s = zip(*rounds, strict=True)
    how = f"{N_STREAM_KILLS} kills during {N_STREAMS} streams of 50 frames a second over one hop"
    return [
        Result(
            goal="P12 lost",
            metric="frames of other nodes' streams lost when the master is killed",
            unit="frames",
            gate=0,
            stretch=0,
            seen=sum(lost),
            detail=how,
        ),
        Result(
            goal="P12 gap",
            metric="longest gap in them",
            unit="ms",
            gate=250,
            stretch=50,
            seen=max(after_s) * 1e3,
            detail=f"a frame is due every 20 ms; before the kill the longest was "
            f"{max(before_s) * 1e3:.0f} ms",
        ),
    ]


def run() -> list[Result]:
    """Measure P10, P11 and P12."""
    with tempfile.TemporaryDirectory(prefix="skulk-bench-") as name:
        cluster = Cluster(Path(name), 3)
        try:
            for node in cluster:
                write_cards(node.models_dir)
            cluster.start()
            cluster.form()
            return [
                *_outages(cluster, "P10", _kill_once, N_KILLS, "a kill -9 of"),
                *_outages(cluster, "P11", _stop_once, N_STOPS, "a SIGSTOP of"),
                *_streams(cluster),
            ]
        finally:
            cluster.destroy()
