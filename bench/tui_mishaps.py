"""How the terminal interface does in bad weather: a flood, a shaken window, a node that is killed.

The timed rows of its acceptance list that need no load of a whole cluster. What of them is a count
stands in `tests/tui/pty`.
"""

import subprocess
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from statistics import median
from typing import Final

import psutil

from bench.harness import ROOT, Result, percentile
from bench.tui import LETTERS, tui_on_a_pty
from skulk_tui.view_state import LINES_KEPT
from tests.support.daemon import SCRIPTS, clean_environment
from tests.support.den_cluster import fill
from tests.support.pty_program import PtyProgram
from tests.support.pty_screen import Grid
from tests.support.scripted_session import ScriptedSession

LINES_PER_S: Final = 10_000
_BATCH: Final = 500
_STEP_S: Final = _BATCH / LINES_PER_S
FLOOD_S: Final = 20.0
N_KEYS: Final = 30
"""As many as fit into the row that they are typed into."""
N_SIZES: Final = 200
SHAKEN_S: Final = 2.0
N_REFUSALS: Final = 7
_LAST_SIZE: Final = (97, 31)
_LOOK_S: Final = 0.02


@contextmanager
def _attached() -> Generator[tuple[ScriptedSession, PtyProgram]]:
    with ScriptedSession() as node:
        fill(node)
        with tui_on_a_pty(node.url) as program:
            program.read_until(b"attic-mini", within_s=30)
            yield node, program


@contextmanager
def _flooded(node: ScriptedSession) -> Generator[None]:
    """Append to the log at a pace until the block ends; what came too late is made up for."""
    ends = threading.Event()

    def run() -> None:
        items = [
            {"at": "2026-01-01T00:00:00Z", "level": "info", "message": f"line {number} of a flood"}
            for number in range(_BATCH)
        ]
        due_s = time.monotonic()
        while not ends.wait(max(0.0, due_s - time.monotonic())):
            node.lines("logs", items)
            due_s += _STEP_S

    thread = threading.Thread(target=run, name="flood")
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def _flood() -> list[Result]:
    took: list[float] = []
    with _attached() as (node, program):
        program.send(b":logs den-01\r")
        program.read_until(b"serving", within_s=30)
        process = psutil.Process(program.pid)
        with _flooded(node):
            program.read_for(2.0 + LINES_KEPT / LINES_PER_S)
            before = process.memory_info().rss
            program.send(b":")
            for letter in LETTERS[:N_KEYS]:
                program.mark()
                began_s = time.perf_counter()
                program.type_unread(letter.encode())
                program.read_until(letter.encode(), within_s=10)
                took.append(time.perf_counter() - began_s)
                program.read_for(FLOOD_S / N_KEYS)
            grown = process.memory_info().rss - before
        program.send(b"\x1b")
        program.read_for(0.3)
    how = f"{LINES_PER_S} log lines/s for {FLOOD_S:.0f} s, {LINES_KEPT} of them kept"
    return [
        Result(
            goal="TUI 6 keys",
            metric="key to screen while a log is flooded, 99 of 100",
            unit="ms",
            gate=100,
            stretch=50,
            seen=percentile([each * 1e3 for each in took], 99),
            detail=f"{how}; {len(took)} keys, median {median(took) * 1e3:.1f} ms",
        ),
        Result(
            goal="TUI 6 memory",
            metric="what the flood adds once the log is full",
            unit="MB",
            gate=16,
            stretch=4,
            seen=max(0.0, grown / 1e6),
            detail=how,
        ),
    ]


def _shaken() -> Result:
    """Measure from the last of many sizes to a screen that is whole."""
    with _attached() as (_, program):
        for number in range(N_SIZES):
            program.resize(1 + number * 7 % 160, 1 + number * 3 % 50)
            program.read_for(SHAKEN_S / N_SIZES)
        program.resize(*_LAST_SIZE)
        program.mark()
        began_s = time.perf_counter()
        while not _is_whole(program):
            program.read_for(_LOOK_S)
            assert time.perf_counter() - began_s < 30, "it does not settle"
        took_s = time.perf_counter() - began_s
    return Result(
        goal="TUI 19 settle",
        metric="the last of many sizes to a whole screen",
        unit="ms",
        gate=500,
        stretch=200,
        seen=took_s * 1e3,
        detail=f"{N_SIZES} sizes in {SHAKEN_S:g} s, looked at every {_LOOK_S * 1e3:.0f} ms",
    )


def _is_whole(program: PtyProgram) -> bool:
    grid = Grid(*_LAST_SIZE)
    grid.feed(program.since_mark.decode(errors="ignore"))
    first, *body, last = grid.lines
    return (
        first.startswith(" skulk  home-lab")
        and any("attic-mini" in row for row in body)
        and last.startswith(" enter open")
    )


def _return() -> Result:
    """Measure from `r`, with the node back, to a live link."""
    with _attached() as (node, program):
        program.mark()
        node.close()
        program.read_until(b"LOST", within_s=30)
        program.read_for(5.0)  # some attempts have failed, and the next is seconds away
        node.reopen()
        n_sessions = node.n_sessions
        began_s = time.perf_counter()
        program.send(b"r")
        while node.n_sessions == n_sessions:
            program.read_for(_LOOK_S)
        program.mark()
        program.read_until(b"LIVE", within_s=30)
        took_s = time.perf_counter() - began_s
    return Result(
        goal="TUI 1 return",
        metric="`r` to a live link, the node being back",
        unit="ms",
        gate=1000,
        stretch=300,
        seen=took_s * 1e3,
        detail="after five seconds without it",
    )


def _refusal() -> Result:
    """Measure how soon a stream that is no terminal is refused."""
    took: list[float] = []
    with tempfile.TemporaryDirectory(prefix="skulk-bench-") as home:
        environment = clean_environment({"HOME": home, "TERM": "xterm-256color"})
        for _ in range(N_REFUSALS + 1):  # the first one writes the bytecode
            began_s = time.perf_counter()
            refused = subprocess.run(
                [str(SCRIPTS / "skulk"), "tui"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environment,
                cwd=ROOT,
                check=False,
            )
            took.append(time.perf_counter() - began_s)
            assert refused.returncode == 2, refused.stderr
    return Result(
        goal="TUI 9 refusal",
        metric="exec to exit where there is no terminal",
        unit="s",
        gate=0.5,
        stretch=0.25,
        seen=median(took[1:]),
        detail=f"{N_REFUSALS} starts, the slowest {max(took[1:]):.2f} s",
    )


def run() -> list[Result]:
    """Measure; takes a minute."""
    return [_return(), *_flood(), _refusal(), _shaken()]
