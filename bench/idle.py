"""What an idle daemon costs in a cluster of 20 and of 100: one real one against fake peers.

The daemon is the master, which has the most to do: it sends the events and judges who is lost. Its
peers are `bench.fake_peers`. Only the daemon's own CPU time and memory count; that the machine is
shared with them matters little, since a wake-up costs the same whoever caused it.
"""

import http.client
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, final

import psutil

from bench.harness import ROOT, Result, percentile, spread
from bench.memory import ReadCost, measure_reads
from tests.support.cluster import cluster_of, describe, invite
from tests.support.daemon import Daemon

SIZES: Final = ((20, 70.0, 50.0, 1.0, 0.3), (100, 90.0, 60.0, 3.0, 1.0))
"""Nodes; gate and stretch of P18 in MB, and of P20 in percent of a core."""
SETTLE_S: Final = 8.0
WINDOW_S: Final = 5.0
N_WINDOWS: Final = 5
N_REQUESTS: Final = 1000
_JOIN_TIMEOUT_S: Final = 120.0
_RENEW_S: Final = 5.0
_PAUSE_S: Final = 0.005


@final
class FakePeers:
    """The process that plays them; a context manager."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.fake_peers"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def join(self, token: str, count: int) -> None:
        """Let so many more of them join, and wait until they have.

        Raises:
            RuntimeError: They could not; what they printed says why.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"token": token, "count": count}) + "\n")
        self._process.stdin.flush()
        if not self._process.stdout.readline():
            message = f"the fake peers ended with {self._process.wait()}"
            raise RuntimeError(message)

    def renew(self) -> None:
        """Have all of them say again that they are there."""
        assert self._process.stdin is not None
        self._process.stdin.write("{}\n")
        self._process.stdin.flush()


@dataclass(frozen=True, slots=True)
class _Idle:
    """What one daemon took while nothing was asked of it."""

    core_percent: list[float]
    user_ratio: float
    wake_ups_s: float
    rss_mb: float
    n_threads: int


def _all_are_heard(daemon: Daemon, n_nodes: int) -> bool:
    document = cluster_of(daemon)
    heard = [
        member
        for member in document["members"]
        if member["liveness"] == "alive" and member["presence"] == "present"
    ]
    return document["role"] == "master" and len(heard) == n_nodes


def _wait_heard(daemon: Daemon, peers: FakePeers, n_nodes: int) -> None:
    """Wait until the daemon hears all; on a busy machine it may have lost some meanwhile."""
    deadline_s = time.monotonic() + _JOIN_TIMEOUT_S
    while not _all_are_heard(daemon, n_nodes):
        assert time.monotonic() < deadline_s, describe([daemon])
        peers.renew()
        time.sleep(_RENEW_S)


def _measure(daemon: Daemon, peers: FakePeers, n_nodes: int) -> _Idle:
    _wait_heard(daemon, peers, n_nodes)
    time.sleep(SETTLE_S)
    process = psutil.Process(daemon.pid)
    core_percent: list[float] = []
    first = before = process.cpu_times()
    n_wake_ups, first_s = _wake_ups(daemon.pid), time.perf_counter()
    for _ in range(N_WINDOWS):
        began_s = time.perf_counter()
        time.sleep(WINDOW_S)
        after = process.cpu_times()
        used_s = after.user + after.system - before.user - before.system
        core_percent.append(used_s / (time.perf_counter() - began_s) * 100)
        before = after
    used_s = before.user + before.system - first.user - first.system
    assert _all_are_heard(daemon, n_nodes), "a fake peer was lost while the daemon was measured"
    return _Idle(
        core_percent,
        wake_ups_s=(_wake_ups(daemon.pid) - n_wake_ups) / (time.perf_counter() - first_s),
        user_ratio=(before.user - first.user) / used_s if used_s else 0.0,
        rss_mb=process.memory_info().rss / 1e6,
        n_threads=process.num_threads(),
    )


def _wake_ups(pid: int) -> int:
    """Count how often a thread of a process has waited so far."""
    return sum(
        int(line.split()[1])
        for status in Path(f"/proc/{pid}/task").glob("*/status")
        for line in status.read_text().splitlines()
        if line.startswith("voluntary_ctxt_switches")
    )


def _state_ms(daemon: Daemon) -> tuple[list[float], int]:
    """Ask for the state in turn, a moment apart; give each answer's time, and the size."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=10)
    took_ms: list[float] = []
    body = b""
    try:
        for _ in range(N_REQUESTS):
            began_s = time.perf_counter()
            connection.request("GET", "/state")
            answer = connection.getresponse()
            body = answer.read()
            took_ms.append((time.perf_counter() - began_s) * 1000)
            assert answer.status == http.client.OK, answer.status
            time.sleep(_PAUSE_S)
        members: dict[str, Any] = json.loads(body)["members"]
        assert len(members) == SIZES[-1][0], f"the state has {len(members)} members"
    finally:
        connection.close()
    return took_ms, len(body)


def _results(
    n_nodes: int, idle: _Idle, reads: ReadCost, goals: tuple[float, float, float, float]
) -> list[Result]:
    seen = spread(idle.core_percent)
    return [
        Result(
            goal=f"P18 {n_nodes} nodes",
            metric="memory of an idle daemon (RSS)",
            unit="MB",
            gate=goals[0],
            stretch=goals[1],
            seen=idle.rss_mb,
            detail=f"one daemon, {n_nodes - 1} fake peers; {idle.n_threads} threads",
        ),
        Result(
            goal=f"P20 {n_nodes} nodes",
            metric="an idle daemon's share of a core",
            unit="% of a core",
            gate=goals[2],
            stretch=goals[3],
            seen=seen.median,
            detail=f"{seen}; {N_WINDOWS} times {WINDOW_S:g} s of the master against "
            f"{n_nodes - 1} fake peers, {idle.user_ratio:.0%} of it user time, "
            f"{idle.wake_ups_s:.0f} wake-ups a second; {reads}",
        ),
    ]


def run() -> list[Result]:
    """Measure P18 and P20 at 20 and 100 nodes, and P26 at 100."""
    results: list[Result] = []
    reads = measure_reads()
    with (
        tempfile.TemporaryDirectory(prefix="skulk-bench-") as name,
        Daemon(
            Path(name), arguments=("--cluster", "127.0.0.1:0", "--no-mdns", "--name", "real")
        ) as daemon,
        FakePeers() as peers,
    ):
        n_joined = 1
        for n_nodes, *goals in SIZES:
            peers.join(invite(daemon, uses=n_nodes - n_joined), n_nodes - n_joined)
            n_joined = n_nodes
            a, b, c, d = goals
            idle = _measure(daemon, peers, n_nodes)
            results += _results(n_nodes, idle, reads, (a, b, c, d))
        took_ms, size = _state_ms(daemon)
    results.append(
        Result(
            goal="P26",
            metric="GET /state with 100 members, p99",
            unit="ms",
            gate=5,
            stretch=1,
            seen=percentile(took_ms, 99),
            detail=f"{size:,} bytes, p50 {percentile(took_ms, 50):.2f} ms; {N_REQUESTS} requests, "
            f"{_PAUSE_S * 1000:g} ms apart, on one connection",
        )
    )
    return results
