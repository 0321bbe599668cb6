"""`python -m bench [NAME …]`: run the benchmarks, print the table, keep the results.

Results of one machine class lie in `bench/results/<class>.json`, and beside it as a table to read.
A run on a busy machine is kept as the latest and marked noisy; only a quiet one becomes the
baseline that later runs are compared with.
"""

import argparse
import importlib
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.harness import ROOT, Machine, OthersShare, Result, this_machine

BENCHES: Final = (
    "startup",
    "journal",
    "transport",
    "files",
    "tunnel",
    "replication",
    "upstream",
    "gateway",
    "hop",
    "failover",
    "join",
    "idle",
    "planner",
    "session",
    "tui",
    "tui_chat",
    "tui_mishaps",
)
RESULTS: Final = ROOT / "bench" / "results"
MARKS: Final = {"stretch": "green", "gate": "yellow", "missed": "red"}


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _collect(names: list[str], console: Console) -> list[Result]:
    results: list[Result] = []
    for name in names:
        began_s = time.monotonic()
        others = OthersShare()
        console.print(f"[dim]{name} …[/dim]")
        results += importlib.import_module(f"bench.{name}").run()
        console.print(
            f"[dim]{name} took {time.monotonic() - began_s:.0f} s; others used "
            f"{others.ratio():.0%} of the machine meanwhile[/dim]"
        )
    return results


def _table(results: list[Result]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("goal", "metric", "gate", "stretch", "seen", "unit", "verdict", "how"):
        table.add_column(title, justify="right" if title in {"gate", "stretch", "seen"} else "left")
    for result in results:
        table.add_row(
            result.goal,
            result.metric,
            _number(result.gate),
            _number(result.stretch),
            _number(result.seen),
            result.unit,
            f"[{MARKS[result.verdict]}]{result.verdict}[/]",
            f"[dim]{result.detail}[/dim]",
        )
    return table


def _beside(results: list[Result]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Give columns and rows of what was measured with others, each figure with its unit's goal."""
    compared = [result for result in results if result.sides]
    names = tuple(dict.fromkeys(name for result in compared for name in result.sides))
    rows = [
        (
            result.goal,
            result.metric,
            result.unit,
            *(_number(result.sides[name]) if name in result.sides else "" for name in names),
        )
        for result in compared
    ]
    return ("goal", "metric", "unit", *names), rows


def _side_table(results: list[Result]) -> Table:
    columns, rows = _beside(results)
    table = Table(box=None, pad_edge=False, title="side by side", title_justify="left")
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number > 2 else "left")
    for row in rows:
        table.add_row(*row)
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What was measured, and how busy the machine was."""

    machine: Machine
    results: list[Result]
    load_after: float
    others_ratio: float
    """Of all processor time, taken by others meanwhile."""


def _conditions(run: _Run) -> str:
    machine = run.machine
    noisy = "noisy: " if machine.is_noisy else ""
    return (
        f"{noisy}{machine.machine_class}, {machine.cpu}, {machine.memory_gib} GiB, "
        f"Linux {machine.kernel}, Python {machine.python}, commit {machine.commit}, "
        f"load {machine.load_before} before and {run.load_after} after, "
        f"steal {machine.steal_before_ratio:.1%}, others used {run.others_ratio:.0%} meanwhile"
    )


def _markdown(run: _Run) -> str:
    rows = [
        (
            result.goal,
            result.metric,
            _number(result.gate),
            _number(result.stretch),
            _number(result.seen),
            result.unit,
            result.verdict,
            result.detail,
        )
        for result in run.results
    ]
    lines = ["# Benchmarks", "", f"{_conditions(run)}.", ""]
    columns = ("goal", "metric", "gate", "stretch", "seen", "unit", "verdict", "how")
    lines += _markdown_table(columns, "--rrr---", rows)
    columns, rows = _beside(run.results)
    if rows:
        alignment = "---" + "r" * (len(columns) - 3)
        lines += ["", "## Side by side", "", *_markdown_table(columns, alignment, rows)]
    lines += ["", "Made by `make bench`; what is measured is in [README.md](../README.md).", ""]
    return "\n".join(lines)


def _markdown_table(
    columns: Sequence[str], alignment: str, rows: Sequence[Sequence[str]]
) -> list[str]:
    marks = ("--:" if mark == "r" else "---" for mark in alignment)
    lines = (columns, *rows)
    head, *body = ("| " + " | ".join(cells) + " |" for cells in lines)
    return [head, "|" + "|".join(marks) + "|", *body]


def _keep(run: _Run, names: Sequence[str]) -> Path:
    machine = run.machine
    suffix = "" if len(names) == len(BENCHES) else "-" + "-".join(names)
    path = RESULTS / f"{machine.machine_class}{suffix}.json"
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    kept["latest"] = {
        "conditions": _conditions(run),
        "machine": asdict(machine),
        "noisy": machine.is_noisy,
        "load_after": run.load_after,
        "others_ratio": round(run.others_ratio, 3),
        "results": [{**asdict(result), "verdict": result.verdict} for result in run.results],
    }
    if not machine.is_noisy:
        kept["baseline"] = kept["latest"]
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(_markdown(run), encoding="utf-8")
    return path


def main() -> int:
    """Run what was named, or all; 0 when every gate is reached or the machine was busy."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHES, []], help="default: all")
    keeping = parser.add_mutually_exclusive_group()
    keeping.add_argument("--no-keep", action="store_true", help="leave bench/results as it is")
    keeping.add_argument("--keep", action="store_true", help="keep the results of a part, too")
    arguments = parser.parse_args()
    names: list[str] = arguments.names or list(BENCHES)
    console = Console(width=None if sys.stdout.isatty() else 200)
    machine = this_machine()
    others = OthersShare()
    results = _collect(names, console)
    run = _Run(
        machine=machine,
        results=results,
        load_after=round(os.getloadavg()[0], 2),
        others_ratio=others.ratio(),
    )
    console.print(_table(results))
    if any(result.sides for result in results):
        console.print(_side_table(results))
    console.print(_conditions(run), style="dim")
    if arguments.keep or (not arguments.no_keep and len(names) == len(BENCHES)):
        console.print(f"kept in {_keep(run, names).relative_to(ROOT)}")
    missed = [result.goal for result in results if result.verdict == "missed"]
    if missed:
        console.print(f"missed: {', '.join(missed)}")
    return 1 if missed and not machine.is_noisy else 0


if __name__ == "__main__":
    sys.exit(main())
