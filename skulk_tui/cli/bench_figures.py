"""What a run of `skulk bench` measured, and the figures that follow from it. Pure.

A request's rate is that of the tokens after its first: the time before is the prompt's.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from skulk_tui.cli.output import Column, Table, key_values
from skulk_tui.formatting import UNKNOWN, format_count, format_duration

_PERCENTILES: Final = (50, 90, 99)
_ALL_BEFORE_POINT: Final = 99.95
_ONE_AFTER_POINT: Final = 9.995
"""What is rounded to 100 and to 10.0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One measured request; what is not known is null, also where the request failed."""

    number: int
    """From 1, in the order of sending."""
    error_code: str | None
    error: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    first_token_s: float | None
    per_token_s: float | None
    """Between two tokens after the first, on average."""
    longest_gap_s: float | None
    """The longest silence after the first piece of text."""
    total_s: float | None
    finish_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadRecord:
    """How a figure spreads over the requests; a percentile is a value that was measured."""

    mean: float
    p50: float
    p90: float
    p99: float
    min: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRecord:
    """A whole run."""

    model_id: str
    node: str
    """Through which the requests went."""
    concurrency: int
    requests: int
    """That were wanted."""
    completed: int
    failed: int
    partial: bool
    """It was ended before all requests were done."""
    failures: dict[str, int]
    """How many requests failed with each error code."""
    wall_s: float
    prompt_tokens: int
    completion_tokens: int
    tokens_per_s: float | None
    """Of all requests together, by the clock on the wall."""
    requests_per_s: float | None
    first_token_s: SpreadRecord | None
    per_token_s: SpreadRecord | None
    request_tokens_per_s: SpreadRecord | None
    """Of each request by itself."""
    longest_gap_s: SpreadRecord | None
    total_s: SpreadRecord | None
    results: tuple[RequestRecord, ...]


def summary(  # a run is all of these
    results: Sequence[RequestRecord],
    *,
    model_id: str,
    node: str,
    concurrency: int,
    requests: int,
    wall_s: float,
) -> BenchRecord:
    """Sum a run up.

    Args:
        results: In any order; fewer than `requests` where the run was ended early.
        model_id: Who was asked.
        node: Through which address.
        concurrency: How many requests were under way at once.
        requests: How many were wanted.
        wall_s: From the first request's start to the last one's end.
    """
    done = [one for one in results if one.error_code is None]
    failed = [one for one in results if one.error_code is not None]
    n_tokens = sum(one.completion_tokens or 0 for one in done)
    per_token = [one.per_token_s for one in done]
    return BenchRecord(
        model_id=model_id,
        node=node,
        concurrency=concurrency,
        requests=requests,
        completed=len(done),
        failed=len(failed),
        partial=len(results) < requests,
        failures=dict(Counter(one.error_code for one in failed if one.error_code)),
        wall_s=wall_s,
        prompt_tokens=sum(one.prompt_tokens or 0 for one in done),
        completion_tokens=n_tokens,
        tokens_per_s=n_tokens / wall_s if wall_s > 0 and n_tokens else None,
        requests_per_s=len(done) / wall_s if wall_s > 0 and done else None,
        first_token_s=spread([one.first_token_s for one in done]),
        per_token_s=spread(per_token),
        request_tokens_per_s=spread([1 / one for one in per_token if one]),
        longest_gap_s=spread([one.longest_gap_s for one in done]),
        total_s=spread([one.total_s for one in done]),
        results=tuple(sorted(results, key=lambda one: one.number)),
    )


def spread(values: Sequence[float | None]) -> SpreadRecord | None:
    """Give mean, percentiles and ends of what is known; None where nothing is."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    p50, p90, p99 = (_percentile(known, percent) for percent in _PERCENTILES)
    mean = sum(known) / len(known)
    return SpreadRecord(mean=mean, p50=p50, p90=p90, p99=p99, min=known[0], max=known[-1])


def _percentile(ordered: Sequence[float], percent: int) -> float:
    """Give the nearest rank: the least value that so many percent do not exceed."""
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, rank - 1)]


# ---- For people --------------------------------------------------------------------------------


def bench_tables(record: BenchRecord) -> tuple[Table, ...]:
    """Draw a run: what was done, and how each figure spreads."""
    return (_head(record), _spreads(record), _failures(record))


def _head(record: BenchRecord) -> Table:
    failed = f", {record.failed} failed" if record.failed else ""
    left = record.requests - record.completed - record.failed
    not_done = f", {left} not done" if left else ""
    n_prompt = _each(record.prompt_tokens, record.completed)
    n_answer = _each(record.completion_tokens, record.completed)
    return key_values(
        [
            ("model", record.model_id),
            ("through", record.node),
            (
                "requests",
                f"{record.completed} done{failed}{not_done}; {record.concurrency} at a time",
            ),
            ("took", format_duration(record.wall_s)),
            ("prompt tokens", n_prompt),
            ("answer tokens", n_answer),
            ("tokens/s", _number(record.tokens_per_s)),
            ("requests/s", _number(record.requests_per_s)),
        ]
    )


def _each(total: int, n: int) -> str:
    return f"{format_count(total)} ({total / n:,.1f} a request)" if n else UNKNOWN


def _spreads(record: BenchRecord) -> Table:
    heads = ("MEAN", "P50", "P90", "P99", "LEAST", "MOST")
    shown = (
        ("first token, ms", record.first_token_s, 1000.0),
        ("per token, ms", record.per_token_s, 1000.0),
        ("longest gap, ms", record.longest_gap_s, 1000.0),
        ("whole answer, s", record.total_s, 1.0),
        ("tokens/s a request", record.request_tokens_per_s, 1.0),
    )
    return Table(
        (Column("FIGURE"), *(Column(head, right=True) for head in heads)),
        tuple(
            (title, *(_number(value * factor) for value in _values(one)))
            for title, one, factor in shown
            if one is not None
        ),
    )


def _values(one: SpreadRecord) -> tuple[float, ...]:
    return (one.mean, one.p50, one.p90, one.p99, one.min, one.max)


def _number(value: float | None) -> str:
    """Write three significant digits, or all before the point."""
    if value is None:
        return UNKNOWN
    if value >= _ALL_BEFORE_POINT:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= _ONE_AFTER_POINT else f"{value:.2f}"


def _failures(record: BenchRecord) -> Table:
    said = {one.error_code: one.error or "" for one in record.results if one.error_code}
    return Table(
        (Column("FAILED", right=True), Column("CODE"), Column("FIRST MESSAGE", wraps=True)),
        tuple((str(n), code, said.get(code, "")) for code, n in record.failures.items()),
    )
