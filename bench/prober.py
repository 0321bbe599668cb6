"""What clients notice while something happens to a cluster: when commands are answered, and frames.

Probes are open-loop: one begins every 20 ms, whatever became of those before it, as an operator's
tools would go on asking. Each is an idempotent command to one node, on a connection of its own.
"""

import asyncio
import json
import re
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Final, final

from bench.load import Job

PROBE_S: Final = 0.02
WARM_S: Final = 1.0
"""Of probes before the strike."""
_AFTER: Final = 25
"""Successes of probes that began after the strike: then it is over."""
_LIMIT_S: Final = 30.0
_HOST: Final = "127.0.0.1"
_POLICY: Final = json.dumps({"policy": "availability"})
_FRAME: Final = re.compile(rb'"content": ?"[^"]')


def _command() -> bytes:
    """Have the cluster confirm the policy that it has: decided by its master, and no event."""
    return (
        f"PUT /v1/cluster/policy HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(_POLICY)}\r\n\r\n{_POLICY}"
    ).encode()


@final
class _Probes:
    """Those of one outage."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._command = _command()
        self._under_way: set[asyncio.Task[None]] = set()
        self.successes_s: list[float] = []
        self.struck_s: float | None = None
        self.n_after = 0

    def begin(self) -> None:
        """Send one."""
        probe = asyncio.create_task(self._probe(time.perf_counter()))
        self._under_way.add(probe)
        probe.add_done_callback(self._under_way.discard)

    async def close(self) -> None:
        """Give up those that are not answered."""
        for probe in self._under_way:
            probe.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _probe(self, began_s: float) -> None:
        try:
            reader, writer = await asyncio.open_connection(_HOST, self._port)
        except OSError:
            return
        try:
            writer.write(self._command)
            answer = await reader.readline()
        except OSError:
            return
        finally:
            writer.close()
        if b" 200 " in answer:
            self.successes_s.append(time.perf_counter())
            if self.struck_s is not None and began_s > self.struck_s:
                self.n_after += 1


async def outage_s(port: int, strike: Callable[[], None]) -> float:
    """Probe a node, strike another, and give the longest time without an answered command.

    Args:
        port: Of the API of a node that stays.
        strike: What is done to the master; called once, in between.

    Raises:
        AssertionError: Commands are not answered before the strike, or not within 30 s after it.
    """
    probes = _Probes(port)
    began_s = next_s = time.perf_counter()
    try:
        while probes.n_after < _AFTER:
            now_s = time.perf_counter()
            if probes.struck_s is None and now_s - began_s >= WARM_S:
                assert probes.successes_s, "no command was answered before the strike"
                probes.struck_s = now_s
                strike()
            assert now_s - began_s < WARM_S + _LIMIT_S, "no command is answered after the strike"
            probes.begin()
            next_s = max(next_s + PROBE_S, now_s)
            await asyncio.sleep(next_s - time.perf_counter())
    finally:
        await probes.close()
    assert probes.struck_s is not None
    seen_s = sorted(probes.successes_s)
    return max(later - earlier for earlier, later in pairwise(seen_s) if later > probes.struck_s)


@final
class Stream:
    """One streamed answer, frame by frame.

    Args:
        job: Asks for it; `concurrency` and `requests` count for nothing.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self.frames_s: list[float] = []
        """When each frame with text came."""
        self.is_whole = False
        """It ended as it should."""

    async def read(self) -> None:
        """Ask, and read to the end."""
        host, _, port = self._job.address.removeprefix("tcp:").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(self._job.wire())
        try:
            while line := await reader.readline():
                if _FRAME.search(line):
                    self.frames_s.append(time.perf_counter())
                elif line.startswith(b"data: [DONE]"):
                    self.is_whole = True
                    return
        finally:
            writer.close()

    def longest_gap_s(self, from_s: float, until_s: float) -> float:
        """Give the longest time between two frames of which the later came in this time."""
        gaps = [
            later - earlier
            for earlier, later in pairwise(self.frames_s)
            if from_s < later <= until_s
        ]
        return max(gaps, default=0.0)
