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
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.harness import ROOT, Machine, Result, this_machine

BENCHES: Final = (
    "startup",
    "journal",
    "transport",
    "files",
    "replication",
    "upstream",
    "gateway",
    "hop",
    "failover",
    "join",
    "idle",
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
        console.print(f"[dim]{name} …[/dim]")
        results += importlib.import_module(f"bench.{name}").run()
        console.print(f"[dim]{name} took {time.monotonic() - began_s:.0f} s[/dim]")
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


def _conditions(machine: Machine, load_after: float) -> str:
    noisy = "noisy: " if machine.is_noisy else ""
    return (
        f"{noisy}{machine.machine_class}, {machine.cpu}, {machine.memory_gib} GiB, "
        f"Linux {machine.kernel}, Python {machine.python}, commit {machine.commit}, "
        f"load {machine.load_before} before and {load_after} after, "
        f"steal {machine.steal_before_ratio:.1%}"
    )


def _markdown(run: dict[str, Any]) -> str:
    lines = [
        "# Benchmarks",
        "",
        f"{run['conditions']}.",
        "",
        "| goal | metric | gate | stretch | seen | unit | verdict | how |",
        "|---|---|--:|--:|--:|---|---|---|",
    ]
    lines += [
        f"| {row['goal']} | {row['metric']} | {_number(row['gate'])} | {_number(row['stretch'])} "
        f"| {_number(row['seen'])} | {row['unit']} | {row['verdict']} | {row['detail']} |"
        for row in run["results"]
    ]
    lines += ["", "Made by `make bench`; what a column means is in `bench/harness.py`.", ""]
    return "\n".join(lines)


def _keep(machine: Machine, results: list[Result], load_after: float) -> Path:
    path = RESULTS / f"{machine.machine_class}.json"
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    run: dict[str, Any] = {
        "conditions": _conditions(machine, load_after),
        "machine": asdict(machine),
        "noisy": machine.is_noisy,
        "load_after": load_after,
        "results": [{**asdict(result), "verdict": result.verdict} for result in results],
    }
    kept["latest"] = run
    if not machine.is_noisy:
        kept["baseline"] = run
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(_markdown(run), encoding="utf-8")
    return path


def main() -> int:
    """Run what was named, or all; 0 when every gate is reached or the machine was busy."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHES, []], help="default: all")
    parser.add_argument("--no-keep", action="store_true", help="leave bench/results as it is")
    arguments = parser.parse_args()
    names: list[str] = arguments.names or list(BENCHES)
    console = Console(width=None if sys.stdout.isatty() else 200)
    machine = this_machine()
    results = _collect(names, console)
    load_after = round(os.getloadavg()[0], 2)
    console.print(_table(results))
    console.print(_conditions(machine, load_after), style="dim")
    if not arguments.no_keep and len(names) == len(BENCHES):
        console.print(f"kept in {_keep(machine, results, load_after).relative_to(ROOT)}")
    missed = [result.goal for result in results if result.verdict == "missed"]
    if missed:
        console.print(f"missed: {', '.join(missed)}")
    return 1 if missed and not machine.is_noisy else 0


if __name__ == "__main__":
    sys.exit(main())
