"""What each side adds to a deterministic engine: to whole answers, first tokens and frames."""

from dataclasses import dataclass
from statistics import median
from typing import Final

from bench.field import Field
from bench.harness import Result, percentile, spread
from bench.load import Outcome
from bench.side_by_side import (
    CEILING_RATIO,
    FLOOR,
    N_ROUNDS,
    OURS,
    Setup,
    Side,
    Turns,
    added,
    counted,
    in_turn,
    result,
)
from bench.sides import PACED, QUICK, Ask

N_REQUESTS: Final = 200
"""Of a round with one client."""
ROUND_S: Final = 0.4
"""How long a round with several clients is meant to take."""
N_STREAMS: Final = 32
_FIRST_TOKEN: Final = {1: (1.0, 0.5), 8: (3.0, 1.5), 32: (10.0, 5.0)}
"""Gate and stretch in ms, by clients."""
_LIMITS: Final = (200, 2000)


def measure(field: Field, setup: Setup) -> list[Result]:
    """Measure P1, P5 and P7 in a set-up, and P3, P4 and P6 where it is the isolated one."""
    field.set_up(setup)
    is_isolated = setup == "isolated"
    results = _added_latency(field, setup)
    if is_isolated:
        results += [_cpu_per_request(field), _requests_a_second(field)]
    for concurrency in _FIRST_TOKEN if is_isolated else (8,):
        results.append(_first_token(field, setup, concurrency))
    return [*results, *_frames(field, setup)]


def _goal(goal: str, setup: Setup) -> str:
    return goal if setup == "isolated" else f"{goal} {setup}"


def _added_latency(field: Field, setup: Setup) -> list[Result]:
    """P1: whole answers, one client."""
    ask = Ask(concurrency=1, requests=N_REQUESTS, stream=False)
    turns = in_turn(field.sides, lambda side: side.ask(QUICK, ask).latency_s)
    mid = added(field.sides, turns.map(lambda values: median(values) * 1e3))
    pooled = {
        name: percentile([value for values in rounds.values() for value in values], 99) * 1e3
        for name, rounds in turns.by_side.items()
        if rounds
    }
    tail = {
        side.name: [pooled[side.name] - pooled[side.floor]]
        for side in field.sides
        if side.floor and side.name in pooled
    }
    direct = median(median(values) for values in turns.values(FLOOR)) * 1e3
    how = f"direct {direct:.3f} ms; {N_ROUNDS} rounds of {N_REQUESTS}"
    metric = "added latency, whole answer, c=1"
    return [
        result(_goal("P1 p50", setup), metric, "ms", (0.5, 0.2), mid, how),
        result(
            _goal("P1 p99", setup),
            metric,
            "ms",
            (2, 1),
            tail,
            f"direct {pooled[FLOOR]:.3f} ms, through {pooled[OURS]:.3f} ms",
        ),
    ]


@dataclass(frozen=True, slots=True)
class _Busy:
    """One round of whole answers to several clients."""

    cpu_us: float
    """Of all its processes, per request."""
    rate: float
    """Requests a second."""


def _busy_turns(field: Field, concurrency: int) -> Turns[_Busy]:
    n_requests = {side.name: _n_of_a_round(side, concurrency) for side in field.sides}

    def once(side: Side) -> _Busy:
        n = n_requests[side.name]
        before_s = side.cpu_s()
        outcome = side.ask(QUICK, Ask(concurrency=concurrency, requests=n, stream=False))
        return _Busy((side.cpu_s() - before_s) / n * 1e6, n / outcome.wall_s)

    return in_turn(field.sides, once)


def _n_of_a_round(side: Side, concurrency: int) -> int:
    n_tried = _LIMITS[0]
    outcome = side.ask(QUICK, Ask(concurrency=concurrency, requests=n_tried, stream=False))
    return min(max(_LIMITS[0], int(n_tried / outcome.wall_s * ROUND_S)), _LIMITS[1])


def _cpu_per_request(field: Field) -> Result:
    """P3: processor time of a whole answer, eight clients."""
    turns = _busy_turns(field, 8)
    return result(
        "P3",
        "CPU per whole answer, c=8",
        "µs",
        (250, 120),
        counted(field.sides, turns.map(lambda busy: busy.cpu_us)),
        "user + system of whatever stands before the engine",
    )


def _requests_a_second(field: Field) -> Result:
    """P4: whole answers a second, 32 clients."""
    turns = _busy_turns(field, 32)
    rates = turns.map(lambda busy: busy.rate)
    ceiling = median(rates.values(FLOOR))
    is_void = median(rates.values(OURS)) > CEILING_RATIO * ceiling
    note = ", void: too close to it" if is_void else ""
    return result(
        "P4",
        "whole answers a second, c=32",
        "1/s",
        (2500, 5000),
        counted(field.sides, rates),
        f"the engine's own limit {ceiling:,.0f}{note}",
        better="higher",
    )


def _first_token(field: Field, setup: Setup, concurrency: int) -> Result:
    """P5: time to the first event that carries text."""
    ask = Ask(concurrency=concurrency, requests=max(100, 4 * concurrency), stream=True)
    turns = in_turn(field.sides, lambda side: median(side.ask(QUICK, ask).first_content_s) * 1e3)
    return result(
        _goal(f"P5 c={concurrency}", setup),
        "added time to first token, p50",
        "ms",
        _FIRST_TOKEN[concurrency],
        added(field.sides, turns),
        f"direct {median(turns.values(FLOOR)):.3f} ms; unpaced, {ask.max_tokens} tokens",
    )


@dataclass(frozen=True, slots=True)
class _Streams:
    """One round of 32 streams of 50 tokens a second."""

    cpu_us: float
    """Per frame."""
    gaps_ms: list[float]


def _frames(field: Field, setup: Setup) -> list[Result]:
    """P7 and, isolated, P6: 32 streams at 50 tokens a second."""
    ask = Ask(
        concurrency=N_STREAMS, requests=N_STREAMS, stream=True, max_tokens=64, times_gaps=True
    )

    def once(side: Side) -> _Streams:
        before_s = side.cpu_s()
        outcome: Outcome = side.ask(PACED, ask)
        used_s = side.cpu_s() - before_s
        return _Streams(used_s / outcome.n_events * 1e6, [gap * 1e3 for gap in outcome.gaps_s])

    turns = in_turn(field.sides, once)
    results = [
        result(
            _goal("P7", setup),
            "CPU per streamed frame, 32 × 50 tok/s",
            "µs",
            (45, 30),
            counted(field.sides, turns.map(lambda streams: streams.cpu_us)),
            f"{N_STREAMS} streams of {ask.max_tokens} tokens, user + system",
        )
    ]
    if setup == "isolated":
        for percent, marks in ((50, (0.3, 0.1)), (99, (5.0, 2.0))):
            results.append(_gap(field, turns, percent, marks))
    return results


def _gap(field: Field, turns: Turns[_Streams], percent: int, marks: tuple[float, float]) -> Result:
    """P6: what lies between two frames of a stream, more than at the engine."""
    at = turns.map(lambda streams: percentile(streams.gaps_ms, percent))
    direct = spread(at.values(FLOOR))
    return result(
        f"P6 p{percent}",
        f"added gap between frames, 32 × 50 tok/s, p{percent}",
        "ms",
        marks,
        added(field.sides, at),
        f"direct {direct} ms",
    )
