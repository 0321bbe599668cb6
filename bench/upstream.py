"""What the client of an engine costs: ours, httpx and a bare socket against the scripted engine.

The engine is a process of its own; only this process's CPU time is counted, so the numbers are
what the client adds to a request or a frame. Variants take turns (A-B-C-C-B-A) in one run.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import uvloop

from bench.harness import Result
from engines.base import Endpoint
from engines.openai_request import chat_body
from engines.upstream import UpstreamClient
from protocol.data_frames import Finished
from protocol.ids import CommandId, ModelId
from protocol.tasks import ChatMessage, ChatTask

N_FRAMES: Final = 64
N_STREAMS: Final = 32
N_REQUESTS: Final = 200
N_ROUNDS: Final = 7
FRAME_BUDGET_US: Final = 10.0
"""Of the 45 us that the whole daemon may spend on a frame."""

_TASK: Final = ChatTask(
    command_id=CommandId("benchm-" + "a" * 20),
    model_id=ModelId("bench/scripted"),
    messages=(ChatMessage(role="user", content="What is the capital of France?"),),
    max_tokens=N_FRAMES,
)
_STREAM_BODY: Final = chat_body(_TASK, is_stream=True)
_WHOLE_BODY: Final = chat_body(_TASK, is_stream=False)
_PATH: Final = "/v1/chat/completions"

Call = Callable[[], Awaitable[None]]


class RawSocket:
    """The floor: a fixed request written to a bare stream, the answer counted and thrown away."""

    def __init__(self, socket_path: Path) -> None:
        self._socket_path = str(socket_path)
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, body: bytes, end: bytes) -> None:
        """Post a body and read until the end mark."""
        reader, writer = (
            self._idle.pop()
            if self._idle
            else await asyncio.open_unix_connection(self._socket_path)
        )
        head = f"POST {_PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        last = b""
        while not last.endswith(end):
            piece = await reader.read(65536)
            last = (last + piece)[-64:]
        self._idle.append((reader, writer))

    def close(self) -> None:
        """Close every connection."""
        for _, writer in self._idle:
            writer.close()


@asynccontextmanager
async def scripted_engine(**script: object) -> AsyncGenerator[Path, None]:
    """Run the scripted engine for a while; ended by its process handle."""
    with tempfile.TemporaryDirectory() as directory:
        socket_path = Path(directory) / "engine.sock"
        parameters = {
            "socket": str(socket_path),
            "script": {"slots": 64, "context_tokens": 8192, "reply": "word ", **script},
        }
        argv = [sys.executable, "-m", "engines.scripted.server", json.dumps(parameters)]
        process = await asyncio.create_subprocess_exec(*argv, stderr=subprocess.DEVNULL)
        try:
            client = UpstreamClient(Endpoint(socket_path=socket_path))
            while not (await client.load_status()).loaded:
                await asyncio.sleep(0.01)
            await client.close()
            yield socket_path
        finally:
            process.kill()
            await process.wait()


async def _cpu_us_per_call(call: Call, n_calls: int, concurrency: int) -> tuple[float, float]:
    """CPU and wall microseconds of one call."""
    rest = iter(range(n_calls))

    async def worker() -> None:
        for _ in rest:
            await call()

    began_cpu_s, began_s = time.process_time(), time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    cpu_s, wall_s = time.process_time() - began_cpu_s, time.perf_counter() - began_s
    return cpu_s / n_calls * 1e6, wall_s / n_calls * 1e6 * concurrency


async def _compare(
    variants: dict[str, Call], n_calls: int, concurrency: int, n_rounds: int
) -> dict[str, tuple[float, float]]:
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    for call in variants.values():
        await _cpu_us_per_call(call, max(1, n_calls // 10), concurrency)
    for turn in range(n_rounds):
        names: Sequence[str] = list(variants) if turn % 2 == 0 else list(reversed(variants))
        for name in names:
            seen[name].append(await _cpu_us_per_call(variants[name], n_calls, concurrency))
    return {
        name: (
            statistics.median(cpu_us for cpu_us, _ in rounds),
            statistics.median(wall_us for _, wall_us in rounds),
        )
        for name, rounds in seen.items()
    }


def _ours(client: UpstreamClient, task: ChatTask) -> Call:
    async def call() -> None:
        last = None
        async for frame in client.chat(task):
            last = frame
        if not isinstance(last, Finished):
            msg = f"the benchmark's request failed: {last}"
            raise TypeError(msg)

    return call


def _httpx(client: httpx.AsyncClient, body: bytes, *, is_stream: bool) -> Call:
    async def whole() -> None:
        (await client.post(_PATH, content=body)).json()

    async def stream() -> None:
        async with client.stream("POST", _PATH, content=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    json.loads(line[6:])

    return stream if is_stream else whole


def _raw(client: RawSocket, body: bytes, *, is_stream: bool) -> Call:
    end = b"data: [DONE]\n\n\r\n0\r\n\r\n" if is_stream else b"}}"

    async def call() -> None:
        await client.ask(body, end)

    return call


async def _measure(*, n_rounds: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    async with (
        scripted_engine(repeat=True) as burst,
        scripted_engine(repeat=True, token_delay_ms=20) as paced,
    ):
        for name, socket_path, is_stream, n_calls, concurrency, rounds in (
            ("whole answer, c=1", burst, False, N_REQUESTS, 1, n_rounds),
            ("whole answer, c=8", burst, False, N_REQUESTS, 8, n_rounds),
            ("streamed frame, unpaced, c=1", burst, True, N_REQUESTS // 4, 1, n_rounds),
            ("streamed frame, 32 x 50/s", paced, True, N_STREAMS, N_STREAMS, min(3, n_rounds)),
        ):
            ours = UpstreamClient(Endpoint(socket_path=socket_path), can_answer_whole=True)
            raw = RawSocket(socket_path)
            transport = httpx.AsyncHTTPTransport(uds=str(socket_path))
            body = _STREAM_BODY if is_stream else _WHOLE_BODY
            task = _TASK.model_copy(update={"stream": is_stream})
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as general:
                seen = await _compare(
                    {
                        "raw socket": _raw(raw, body, is_stream=is_stream),
                        "ours": _ours(ours, task),
                        "httpx": _httpx(general, body, is_stream=is_stream),
                    },
                    n_calls,
                    concurrency,
                    rounds,
                )
            raw.close()
            await ours.close()
            per = N_FRAMES if is_stream else 1
            for client, (cpu_us, wall_us) in seen.items():
                rows.append(
                    {
                        "case": name,
                        "client": client,
                        "cpu_us": round(cpu_us / per, 2),
                        "wall_us": round(wall_us / per, 1),
                    }
                )
    return rows


def measure(*, n_rounds: int = N_ROUNDS) -> list[dict[str, Any]]:
    """Measure every case; one row a case and client, times in microseconds."""
    return uvloop.run(_measure(n_rounds=n_rounds))


def run() -> list[Result]:
    """Give the client's share of P3 and P7."""
    cpu_us = {(row["case"], row["client"]): float(row["cpu_us"]) for row in measure()}

    def result(goal: str, case: str, gate: float, stretch: float) -> Result:
        raw, general = cpu_us[case, "raw socket"], cpu_us[case, "httpx"]
        return Result(
            goal=goal,
            metric=f"CPU of the engine client, {case}",
            unit="µs",
            gate=gate,
            stretch=stretch,
            seen=cpu_us[case, "ours"],
            detail=f"bare socket {raw:.1f} µs, httpx {general:.1f} µs",
        )

    return [
        result("P3 client", "whole answer, c=8", 100, 50),
        result("P7 client", "streamed frame, 32 x 50/s", FRAME_BUDGET_US, FRAME_BUDGET_US / 2),
    ]


def main() -> None:
    for row in measure():
        print(
            f"{row['case']:30} {row['client']:12} {row['cpu_us']:9.2f} us CPU"
            f" {row['wall_us']:9.1f} us"
        )


if __name__ == "__main__":
    main()
