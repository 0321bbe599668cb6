"""What the daemon costs between client and engine, measured against the same engine asked directly.

One daemon, real engine processes. The deterministic engine shows what is added to each request and
frame (P1, P3, P5, P7), llama-server what is left of its throughput (P9).
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Final

from bench.harness import Result, cpu_seconds, interleaved, percentile, spread
from bench.load import Outcome
from bench.sides import (
    PACED,
    QUICK,
    SCRIPTED_SERVER,
    Ask,
    LoadGenerator,
    Sides,
    place,
    stop,
    write_cards,
)
from tests.support.daemon import Daemon
from tests.support.demo_model import DEMO_MODEL_ID, demo_models_dir

N_ROUNDS: Final = 7
NEW_TOKENS: Final = 64
"""Of each request to the real engine."""


def added_latency(sides: Sides) -> list[Result]:
    """P1: whole answers, one client."""
    pooled: dict[str, list[float]] = {"direct": [], "through": []}

    def side(name: str, ask: Callable[[Ask], Outcome]) -> float:
        latency_s = ask(Ask(concurrency=1, requests=200, stream=False)).latency_s
        pooled[name] += latency_s
        return median(latency_s) * 1e3

    pair = interleaved(
        lambda: side("direct", sides.direct),
        lambda: side("through", sides.through),
        rounds=N_ROUNDS,
    )
    added = pair.difference()
    p99 = {name: percentile(values, 99) * 1e3 for name, values in pooled.items()}
    detail = f"direct {median(pair.a):.3f} ms, added {added}; 7 rounds of 200"
    return [
        Result(
            goal="P1 p50",
            metric="added latency, whole answer, c=1",
            unit="ms",
            gate=0.5,
            stretch=0.2,
            seen=added.median,
            detail=detail,
        ),
        Result(
            goal="P1 p99",
            metric="added latency, whole answer, c=1",
            unit="ms",
            gate=2,
            stretch=1,
            seen=p99["through"] - p99["direct"],
            detail=f"direct {p99['direct']:.3f} ms, through {p99['through']:.3f} ms",
        ),
    ]


def cpu_per_request(sides: Sides) -> Result:
    """P3: CPU time of the daemon a whole answer, eight clients."""
    n_requests = 2000

    def once() -> float:
        before_s = cpu_seconds(sides.daemon.pid, descendants=False)
        sides.through(Ask(concurrency=8, requests=n_requests, stream=False))
        return (cpu_seconds(sides.daemon.pid, descendants=False) - before_s) / n_requests * 1e6

    seen = spread([once() for _ in range(5)])
    return Result(
        goal="P3",
        metric="CPU per whole answer, c=8",
        unit="µs",
        gate=250,
        stretch=120,
        seen=seen.median,
        detail=f"{seen}; 5 rounds of {n_requests}, user + system of the daemon",
    )


def added_first_token(sides: Sides) -> list[Result]:
    """P5: time to the first event that carries text."""
    marks = {1: (1.0, 0.5), 8: (3.0, 1.5), 32: (10.0, 5.0)}
    results: list[Result] = []
    for concurrency, (gate, stretch) in marks.items():

        def side(ask: Callable[[Ask], Outcome], concurrency: int = concurrency) -> float:
            n_requests = max(100, 8 * concurrency)
            outcome = ask(Ask(concurrency=concurrency, requests=n_requests, stream=True))
            return median(outcome.first_content_s) * 1e3

        pair = interleaved(lambda: side(sides.direct), lambda: side(sides.through), rounds=N_ROUNDS)
        added = pair.difference()
        results.append(
            Result(
                goal=f"P5 c={concurrency}",
                metric="added time to first token, p50",
                unit="ms",
                gate=gate,
                stretch=stretch,
                seen=added.median,
                detail=f"direct {median(pair.a):.3f} ms, added {added}; unpaced, 8 tokens",
            )
        )
    return results


def cpu_per_frame(sides: Sides) -> Result:
    """P7: CPU time of the daemon a streamed event, 32 streams at 50 tokens a second."""

    def once() -> float:
        before_s = cpu_seconds(sides.daemon.pid, descendants=False)
        outcome = sides.through(Ask(concurrency=32, requests=64, stream=True, max_tokens=64))
        used_s = cpu_seconds(sides.daemon.pid, descendants=False) - before_s
        return used_s / outcome.n_events * 1e6

    seen = spread([once() for _ in range(5)])
    return Result(
        goal="P7",
        metric="CPU per streamed frame, 32 × 50 tok/s",
        unit="µs",
        gate=45,
        stretch=30,
        seen=seen.median,
        detail=f"{seen}; 5 rounds of 64 streams of 64 tokens, user + system of the daemon",
    )


def throughput(sides: Sides, concurrency: int, *, marks: tuple[float, float]) -> Result:
    """P9: tokens a second through the daemon over tokens a second of the same llama-server."""

    def side(ask: Callable[[Ask], Outcome]) -> float:
        outcome = ask(
            Ask(
                concurrency=concurrency,
                requests=max(8, concurrency),
                stream=True,
                max_tokens=NEW_TOKENS,
                prompt="Write a long story about a lighthouse keeper and the sea.",
            )
        )
        return outcome.completion_tokens / outcome.wall_s

    side(sides.direct)
    pair = interleaved(lambda: side(sides.direct), lambda: side(sides.through), rounds=N_ROUNDS)
    ratio = pair.ratio()
    return Result(
        goal=f"P9 c={concurrency}",
        metric="throughput over direct llama-server",
        unit="ratio",
        gate=marks[0],
        stretch=marks[1],
        seen=ratio.median,
        better="higher",
        detail=f"direct {median(pair.a):.0f} tok/s, ratio {ratio}; 7 rounds of "
        f"{max(8, concurrency)} requests of {NEW_TOKENS} tokens",
    )


def _scripted(root: Path) -> list[Result]:
    models = root / "models"
    write_cards(models)
    with Daemon(root, models_dir=models) as daemon, LoadGenerator() as generator:
        instance = place(daemon, QUICK)
        quick = Sides(daemon, generator, QUICK, SCRIPTED_SERVER)
        for ask in (quick.direct, quick.through):
            ask(Ask(concurrency=8, requests=200, stream=False))
        results = [*added_latency(quick), cpu_per_request(quick), *added_first_token(quick)]
        stop(daemon, instance)
        place(daemon, PACED)
        results.append(cpu_per_frame(Sides(daemon, generator, PACED, SCRIPTED_SERVER)))
    return results


def _real(root: Path) -> list[Result]:
    with Daemon(root, models_dir=demo_models_dir()) as daemon, LoadGenerator() as generator:
        place(daemon, DEMO_MODEL_ID, context_tokens=8192)
        sides = Sides(daemon, generator, DEMO_MODEL_ID, ".gguf")
        return [
            throughput(sides, 1, marks=(0.98, 0.995)),
            throughput(sides, 8, marks=(0.97, 0.99)),
            throughput(sides, 32, marks=(0.95, 0.98)),
        ]


def run() -> list[Result]:
    """Measure P1, P3, P5, P7 and P9."""
    with tempfile.TemporaryDirectory(prefix="skulk-bench-") as name:
        root = Path(name)
        return [*_scripted(root / "scripted"), *_real(root / "real")]
