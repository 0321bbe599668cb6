"""What one attached session costs a daemon that has nothing else to do, in a cluster of three.

Windows with a session and without alternate on the same daemon; the session follows all that the
terminal interface follows. Only the daemon's own CPU time counts.
"""

import asyncio
import tempfile
from pathlib import Path
from statistics import median
from typing import Final

from bench.harness import Result, cpu_seconds, interleaved
from protocol.session import Topic
from tests.support.cluster import running_cluster
from tests.support.daemon import Daemon
from tests.support.session_client import session_with

WINDOW_S: Final = 30.0
SETTLE_S: Final = 3.0
N_ROUNDS: Final = 3
TOPICS: Final[tuple[Topic, ...]] = (
    "cluster",
    "placements",
    "transfers",
    "models",
    "health",
    "events",
    "logs",
)


async def _alone(node: Daemon) -> float:
    await asyncio.sleep(SETTLE_S)
    before_s = cpu_seconds(node.pid, descendants=False)
    await asyncio.sleep(WINDOW_S)
    return (cpu_seconds(node.pid, descendants=False) - before_s) / WINDOW_S * 100


async def _attached(node: Daemon, bytes_s: list[float]) -> float:
    async with session_with(node.port) as client:
        for topic in TOPICS:
            await client.subscribe(topic)

        async def read() -> None:
            while True:
                await client.read()

        reading = asyncio.ensure_future(read())
        try:
            await asyncio.sleep(SETTLE_S)
            before_bytes = client.n_bytes
            percent = await _alone(node)
            bytes_s.append((client.n_bytes - before_bytes) / (WINDOW_S + SETTLE_S))
        finally:
            reading.cancel()
    return percent


def run() -> list[Result]:
    """Measure; takes four minutes."""
    bytes_s: list[float] = []
    with tempfile.TemporaryDirectory() as folder, running_cluster(Path(folder)) as nodes:
        pair = interleaved(
            lambda: asyncio.run(_alone(nodes[0])),
            lambda: asyncio.run(_attached(nodes[0], bytes_s)),
            rounds=N_ROUNDS,
        )
    added = pair.difference()
    return [
        Result(
            goal="session",
            metric="CPU of the daemon for one attached session, 3 nodes at rest",
            unit="% of a core",
            gate=2.0,
            stretch=0.5,
            seen=added.median,
            detail=f"without {median(pair.a):.2f} %, added {added}; {median(bytes_s):.0f} bytes/s "
            f"to the client; {N_ROUNDS} rounds of {WINDOW_S:g} s",
        )
    ]
