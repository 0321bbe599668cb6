"""The load generator: closed-loop HTTP clients in a process of their own.

It reads one job a line from standard input and answers each with one line. It does as little as it
can between the socket and the clock, and it is the same for both sides of a comparison.

    python -m bench.load
"""

import asyncio
import json
import re
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Final, cast, final

import uvloop

CONTENT: Final = re.compile(rb'"content": ?"[^"]')
"""A piece of an answer's text."""
_EVENT: Final = b"data: {"
_TOKENS: Final = re.compile(rb'"completion_tokens": ?(\d+)')
_LENGTH: Final = re.compile(rb"\r\ncontent-length: ?(\d+)\r\n", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to send, where, and how often."""

    address: str
    """`unix:PATH` or `tcp:HOST:PORT`."""
    path: str
    body: str
    concurrency: int
    requests: int
    times_gaps: bool = False
    """Time what lies between the events of each stream."""

    def wire(self) -> bytes:
        """Give the whole request as bytes."""
        body = self.body.encode()
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n"
        )
        return head.encode() + b"\r\n" + body


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What was seen; times in seconds, one a request, in order of completion."""

    wall_s: float
    latency_s: list[float]
    first_content_s: list[float]
    """From the request to the first event that carries text; empty for whole answers."""
    n_events: int
    completion_tokens: int
    gaps_s: list[float] = field(default_factory=list[float])
    """Between one event of a stream and the next; 0.0 where they came together."""
    n_replaced: int = 0
    """Connections that the server closed under a request before it answered; asked anew."""
    error: str = ""


@final
class _Client(asyncio.Protocol):
    """One keep-alive connection that asks until the job's requests are used up."""

    def __init__(self, run: "_Run") -> None:
        self._run = run
        self._transport: asyncio.Transport
        self._reset()

    def _reset(self) -> None:
        self._buffer = bytearray()
        self._body_at = -1
        self._length: int | None = None
        self._first_s: float | None = None
        self._event_s: float | None = None
        """When the last one came."""
        self._began_s = 0.0
        self._is_waiting = False

    def ask(self) -> None:
        """Send the next request, if one is left."""
        if self._run.left == 0:
            self._run.on_idle()
            return
        self._run.left -= 1
        self._reset()
        self._is_waiting = True
        self._began_s = time.perf_counter()
        self._transport.write(self._run.wire)

    def close(self) -> None:
        """Drop the connection."""
        self._is_waiting = False
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_waiting and not self._buffer:
            self._run.replace()  # closed as idle just when the request was written: ask anew
        elif self._is_waiting:
            seen = bytes(self._buffer[-600:]).decode(errors="replace")
            self._run.fail(f"the connection was closed ({exc}) after {seen!r}")

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._run.job.times_gaps:
            self._time_events(data.count(_EVENT))
        if self._first_s is None and CONTENT.search(self._buffer):
            self._first_s = time.perf_counter()
        if self._body_at < 0 and not self._read_head():
            return
        if self._length is None:
            if not self._buffer.endswith(b"\r\n0\r\n\r\n", self._body_at):
                return
        elif len(self._buffer) - self._body_at < self._length:
            return
        self._on_answer(time.perf_counter())

    def _time_events(self, n_events: int) -> None:
        if not n_events:
            return
        now_s = time.perf_counter()
        gaps_s = self._run.outcome.gaps_s
        if self._event_s is not None:
            gaps_s.append(now_s - self._event_s)
        gaps_s.extend([0.0] * (n_events - 1))
        self._event_s = now_s

    def _read_head(self) -> bool:
        at = self._buffer.find(b"\r\n\r\n")
        if at < 0:
            return False
        self._body_at = at + 4
        length = _LENGTH.search(self._buffer, 0, at + 2)
        self._length = int(length[1]) if length else None
        return True

    def _on_answer(self, now_s: float) -> None:
        outcome = self._run.outcome
        if not self._buffer.startswith(b"HTTP/1.1 200"):
            self._run.fail(self._buffer[:500].decode(errors="replace"))
            return
        self._is_waiting = False
        outcome.latency_s.append(now_s - self._began_s)
        if self._length is None:
            if self._first_s is not None:
                outcome.first_content_s.append(self._first_s - self._began_s)
            outcome.n_events += self._buffer.count(_EVENT)
        tokens = _TOKENS.findall(self._buffer)
        outcome.completion_tokens += int(tokens[-1]) if tokens else 0
        self.ask()


@final
class _Run:
    """One job under way."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.wire = job.wire()
        self.left = job.requests
        self.outcome = Outcome(
            wall_s=0, latency_s=[], first_content_s=[], n_events=0, completion_tokens=0
        )
        self._busy = job.concurrency
        self._done = asyncio.get_running_loop().create_future()
        self._clients: list[_Client] = []
        self._replacements: set[asyncio.Task[None]] = set()

    def on_idle(self) -> None:
        """A client has nothing left to ask."""
        self._busy -= 1
        if self._busy == 0 and not self._done.done():
            self._done.set_result(None)

    def fail(self, reason: str) -> None:
        """Give the job up; what was counted means nothing."""
        if not self._done.done():
            self.outcome.error = reason
            self._done.set_result(None)

    async def __call__(self) -> Outcome:
        """Connect every client, then let them all start at once."""
        for _ in range(self.job.concurrency):
            self._clients.append(await self._connect())
        began_s = time.perf_counter()
        for client in self._clients:
            client.ask()
        await self._done
        self.outcome.wall_s = time.perf_counter() - began_s
        for client in self._clients:
            client.close()
        return self.outcome

    def replace(self) -> None:
        """Take a new connection for one that was lost before a byte of its answer came."""
        if self._done.done():
            return
        self.left += 1
        self.outcome.n_replaced += 1
        if self.outcome.n_replaced > self.job.requests:
            self.fail("every connection is closed before it answers")
            return
        replacement = asyncio.create_task(self._replace())
        self._replacements.add(replacement)
        replacement.add_done_callback(self._replacements.discard)

    async def _replace(self) -> None:
        try:
            client = await self._connect()
        except OSError as error:
            self.fail(f"no new connection: {error}")
            return
        self._clients.append(client)
        client.ask()

    async def _connect(self) -> _Client:
        loop = asyncio.get_running_loop()
        kind, _, where = self.job.address.partition(":")
        if kind == "unix":
            _, client = await loop.create_unix_connection(lambda: _Client(self), where)
        else:
            host, _, port = where.rpartition(":")
            _, client = await loop.create_connection(lambda: _Client(self), host, int(port))
        return client


async def _serve() -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        fields: dict[str, Any] = json.loads(line)
        outcome = await _Run(Job(**fields))()
        print(json.dumps(asdict(outcome)), flush=True)


if __name__ == "__main__":
    uvloop.run(_serve())
