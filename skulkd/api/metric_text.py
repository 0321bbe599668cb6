"""Metrics as text that Prometheus reads, in version 0.0.4 of its format. Pure.

Source: Prometheus documentation, "Exposition formats", text-based format.
"""

from itertools import accumulate
from typing import Final, final

from skulkd.api.metric_families import FAMILIES, Family
from skulkd.core.meters import Histogram

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"

_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


@final
class MetricText:
    """Gathers series, and writes them family by family."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def add(self, family: Family, value: float | None, *labels: str) -> None:
        """Add one series.

        Args:
            family: Which one.
            value: None for an unknown one: it is left out, and never shown as 0.
            labels: The values of the family's labels, in their order.
        """
        if value is not None:
            pairs = _pairs(family, labels)
            self._lines_of(family).append(_line(family.name, pairs, value))

    def add_histogram(self, family: Family, histogram: Histogram, *labels: str) -> None:
        """Add the series of a histogram."""
        pairs, lines = _pairs(family, labels), self._lines_of(family)
        counts = list(accumulate(histogram.counts))
        bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
        lines += [
            _line(f"{family.name}_bucket", [*pairs, f'le="{bound}"'], count)
            for bound, count in zip(bounds, counts, strict=True)
        ]
        lines.append(_line(f"{family.name}_sum", pairs, histogram.total))
        lines.append(_line(f"{family.name}_count", pairs, counts[-1]))

    def encode(self) -> bytes:
        """Give the whole text; a family without series has its head all the same."""
        lines: list[str] = []
        for family in FAMILIES:
            name = family.name
            lines += (f"# HELP {name} {family.help}.", f"# TYPE {name} {family.kind}")
            lines += self._lines.get(name, ())
        return ("\n".join(lines) + "\n").encode()

    def _lines_of(self, family: Family) -> list[str]:
        return self._lines.setdefault(family.name, [])


def _pairs(family: Family, values: tuple[str, ...]) -> list[str]:
    return [
        f'{name}="{value.translate(_ESCAPES)}"'
        for name, value in zip(family.labels, values, strict=True)
    ]


def _line(name: str, pairs: list[str], value: float) -> str:
    labels = f"{{{','.join(pairs)}}}" if pairs else ""
    return f"{name}{labels} {value!r}"
