"""What the terminal interface costs, and how soon it does what is typed: `skulk tui` on a real pty.

A scripted node tells it what a cluster of 24 machines would. Its CPU time is read from outside, so
that all of it counts: reading the session, deciding, drawing and writing. An effect is a letter
that nothing else on the screen has, typed into the command line and looked for in the output.
"""

import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, Final

from bench.harness import ROOT, Result, cpu_seconds, percentile, spread
from protocol.session import row_key
from tests.support.builders import a_node_id
from tests.support.cluster_documents import an_event
from tests.support.daemon import SCRIPTS, clean_environment
from tests.support.den_cluster import den_node, fill
from tests.support.pty_program import PtyProgram
from tests.support.scripted_session import ScriptedSession

N_FURTHER_NODES: Final = 20
"""Beside the four that the scripted node has of itself."""
WIDE: Final = (160, 50)
USUAL: Final = (80, 24)
EVENTS_PER_S: Final = 1000
FEED_STEP_S: Final = 0.02
FRAME_S: Final = 0.1
"""The fastest rate that can be chosen; the load is measured at it."""
N_FRAMES: Final = 150
N_KEYS: Final = 100
N_STARTS: Final = 7
REST_S: Final = 20.0
LETTERS: Final = "ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖØÙÚÛÜÝÞßàáâãäåæçèéêëìíîïðñòóôõöøùúûüýþÿ"
"""Typed to be looked for: no row shows them."""
_BACKGROUND_ASKED: Final = b"\x1b[c"
_BACKGROUND: Final = b"\x1b]11;rgb:1010/1010/1010\x1b\\\x1b[?62c"
_ESCAPE: Final = b"\x1b"

Row = dict[str, Any]


def process_cpu_s(pid: int) -> float:
    """Read a process's CPU time to the nanosecond, where the system has a clock for it."""
    if sys.platform == "linux":
        return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3) gives this number
    return cpu_seconds(pid, descendants=False)


@contextmanager
def tui_on_a_pty(url: str, size: tuple[int, int] = USUAL) -> Generator[PtyProgram]:
    """Run `skulk tui` on a terminal that answers what programs ask terminals."""
    with tempfile.TemporaryDirectory(prefix="skulk-bench-") as home:
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": home,
            "SKULK_CONFIG_DIR": f"{home}/config",
            "SKULK_STATE_DIR": f"{home}/state",
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
        }
        argv = [str(SCRIPTS / "skulk"), "--node", url, "tui", "--ascii"]
        with PtyProgram(argv, environ=environ, size=size) as program:
            program.read_until(_BACKGROUND_ASKED, within_s=30)
            program.type_unread(_BACKGROUND)
            try:
                yield program
            finally:
                program.send(b"\x11")
                program.wait()


class _Feed:
    """Lets the scripted node tell of changes, from a thread, at a pace.

    Args:
        node: It; gets the further machines at once.
    """

    def __init__(self, node: ScriptedSession) -> None:
        self._node = node
        self._base: dict[str, Row] = {}
        for number in range(10, 10 + N_FURTHER_NODES):
            usual = den_node(2)
            member = usual.member.model_copy(
                update={"node_id": a_node_id(number), "name": f"node-{number}"}
            )
            document = usual.model_copy(update={"member": member}).model_dump_json()
            self._base[row_key("node", a_node_id(number))] = json.loads(document)
        node.rows("cluster", self._base)
        self._event: Row = json.loads(an_event(1).model_dump_json())
        self._seqs = itertools.count(10_000)
        self._loads = itertools.count()

    def change(self, n_rows: int) -> None:
        """Change some machines' load and memory, each time other ones."""
        rows: dict[str, Row] = {}
        keys = list(self._base)
        for _ in range(n_rows):
            turn = next(self._loads)
            key = keys[turn % len(keys)]
            resources = self._base[key]["resources"]
            free = resources["memory_total_bytes"] * (turn % 89 + 1) // 100
            changed = {"cpu_ratio": turn % 97 / 100, "memory_available_bytes": free}
            rows[key] = {**self._base[key], "resources": {**resources, **changed}}
        self._node.rows("cluster", rows)

    def happen(self, n_events: int) -> None:
        """Append events to the log."""
        events = [{**self._event, "seq": next(self._seqs)} for _ in range(n_events)]
        self._node.lines("events", events)

    @contextmanager
    def every(self, step_s: float, *work: Callable[[], None]) -> Generator[None]:
        """Work at a pace until the block ends; what came too late is made up for."""
        ends = threading.Event()

        def run() -> None:
            due_s = time.monotonic()
            while not ends.wait(max(0.0, due_s - time.monotonic())):
                for each in work:
                    each()
                due_s += step_s

        thread = threading.Thread(target=run, name="feed")
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()


@contextmanager
def _attached(size: tuple[int, int], *, rate_hz: int = 2) -> Generator[tuple[PtyProgram, _Feed]]:
    with ScriptedSession() as node:
        fill(node)
        feed = _Feed(node)
        with tui_on_a_pty(node.url, size) as program:
            program.read_until(b"node-10", within_s=30)
            program.send(f":rate {rate_hz}\r".encode())
            program.read_for(2.0)
            yield program, feed


# ---- Frames and keys under load ----------------------------------------------------------------


def _letters() -> Iterator[bytes]:
    return (letter.encode() for letter in itertools.cycle(LETTERS))


def _key_to_effect_s(
    program: PtyProgram, letters: Iterator[bytes], read: Callable[[bytes], object]
) -> float:
    letter = next(letters)
    program.mark()
    began_s = time.perf_counter()
    program.type_unread(letter)
    read(letter)
    took_s = time.perf_counter() - began_s
    assert letter in program.since_mark, f"{letter!r} was not drawn"
    return took_s


def _frame_cpu_s(program: PtyProgram) -> tuple[list[float], float]:
    """Give CPU seconds of each tenth of a second, and the share of a core over all of them."""
    frames: list[float] = []
    began_s, first = time.perf_counter(), process_cpu_s(program.pid)
    before = first
    for _ in range(N_FRAMES):
        program.read_for(FRAME_S)
        now = process_cpu_s(program.pid)
        frames.append(now - before)
        before = now
    return frames, (before - first) / (time.perf_counter() - began_s)


def _keys(program: PtyProgram) -> list[float]:
    letters = _letters()
    program.send(b":")
    program.read_for(0.5)
    took: list[float] = []
    for number in range(1, N_KEYS + 1):
        took.append(_key_to_effect_s(program, letters, program.read_until))
        program.read_for(0.05)
        if number % (len(LETTERS) // 2) == 0:  # a fresh line, before the old one fills the row
            program.send(_ESCAPE)
            program.read_for(0.3)
            program.send(b":")
            program.read_for(0.3)
    program.send(_ESCAPE)
    program.read_for(0.3)
    return took


def _under_load(
    case: str, screen: bytes, work: Callable[[_Feed], Callable[[], None]]
) -> list[Result]:
    with _attached(WIDE, rate_hz=10) as (program, feed):
        program.send(screen)
        program.read_for(2.0)
        with feed.every(FEED_STEP_S, work(feed)):
            program.read_for(2.0)
            n_before = len(program.output)
            frames, share = _frame_cpu_s(program)
            n_bytes = len(program.output) - n_before
            assert n_bytes > N_FRAMES, f"{case}: this screen does not show what changes"
            keys = _keys(program)
    frames_ms = [frame * 1e3 for frame in frames]
    how = f"{EVENTS_PER_S}/s, {N_FRAMES} tenths of a second, the session's reading included"
    kib_s = n_bytes / (N_FRAMES * FRAME_S) / 1024
    return [
        Result(
            goal=f"P28 {case} p50",
            metric="CPU of a frame, 160x50",
            unit="ms",
            gate=12,
            stretch=5,
            seen=median(frames_ms),
            detail=how,
        ),
        Result(
            goal=f"P28 {case} p99",
            metric="CPU of a frame, 160x50",
            unit="ms",
            gate=30,
            stretch=12,
            seen=percentile(frames_ms, 99),
            detail=how,
        ),
        Result(
            goal=f"P28 {case} share",
            metric="CPU of the terminal interface, 10 frames/s",
            unit="% of a core",
            gate=15,
            stretch=6,
            seen=share * 100,
            detail=f"{kib_s:.1f} KiB/s to the terminal",
        ),
        Result(
            goal=f"P29 {case} p99",
            metric="key to screen under the same load",
            unit="ms",
            gate=60,
            stretch=30,
            seen=percentile([took * 1e3 for took in keys], 99),
            detail=f"{N_KEYS} keys, median {median(keys) * 1e3:.1f} ms",
        ),
    ]


# ---- Bytes, slow lines -------------------------------------------------------------------------


def _at_rest() -> Result:
    with _attached(USUAL) as (program, _):
        before_s = process_cpu_s(program.pid)
        n_bytes = program.read_for(REST_S)
        share = (process_cpu_s(program.pid) - before_s) / REST_S
    return Result(
        goal="TUI 2",
        metric="bytes to the terminal, live and nothing changing, 80x24",
        unit="bytes/s",
        gate=200,
        stretch=100,
        seen=n_bytes / REST_S,
        detail=f"24 nodes, {REST_S:g} s, {share:.2%} of a core",
    )


def _changing() -> list[Result]:
    with _attached(USUAL) as (program, feed), feed.every(0.5, lambda: feed.change(5)):
        program.read_for(2.0)
        before_s = process_cpu_s(program.pid)
        n_bytes = program.read_for(REST_S)
        share = (process_cpu_s(program.pid) - before_s) / REST_S
        slow = [_slow_line(program, bytes_s, gate_ms) for bytes_s, gate_ms in _SLOW_LINES]
    how = f"24 nodes, a fifth of them changing twice a second, {REST_S:g} s"
    return [
        Result(
            goal="TUI 3 bytes",
            metric="bytes to the terminal, 2 Hz, 80x24",
            unit="bytes/s",
            gate=4096,
            stretch=2048,
            seen=n_bytes / REST_S,
            detail=how,
        ),
        Result(
            goal="TUI 3 CPU",
            metric="CPU of the terminal interface, 2 Hz, 80x24",
            unit="% of a core",
            gate=5,
            stretch=2.5,
            seen=share * 100,
            detail=how,
        ),
        *slow,
    ]


_SLOW_LINES: Final = ((32_000, 500), (8_000, 1000))
_N_SLOW_KEYS: Final = 20


def _slow_line(program: PtyProgram, bytes_s: int, gate_ms: float) -> Result:
    """Measure keys while the output is read no faster than a slow line would take it."""
    letters = _letters()
    program.send(b":")
    program.read_slowly(bytes_s, for_s=2.0)
    took: list[float] = []
    for _ in range(_N_SLOW_KEYS):
        took.append(
            _key_to_effect_s(
                program, letters, lambda it: program.read_slowly(bytes_s, for_s=10, until=it)
            )
        )
        program.read_slowly(bytes_s, for_s=0.2)
    program.send(_ESCAPE)
    program.read_slowly(bytes_s, for_s=1.0)
    return Result(
        goal=f"TUI 4 {bytes_s // 1000} kB/s",
        metric="key to effect on a slow line, slowest",
        unit="ms",
        gate=gate_ms,
        stretch=gate_ms / 5,
        seen=max(took) * 1e3,
        detail=f"{_N_SLOW_KEYS} keys, median {median(took) * 1e3:.0f} ms, looked at every 20 ms",
    )


# ---- Starting ----------------------------------------------------------------------------------


def _first_paint() -> Result:
    took: list[float] = []
    cpu_s: list[float] = []
    for _ in range(N_STARTS + 1):  # the first one writes the bytecode
        began_s = time.perf_counter()
        with tui_on_a_pty("http://127.0.0.1:9") as program:
            program.read_until(b"CONNECTING", within_s=30)
            took.append(time.perf_counter() - began_s)
            cpu_s.append(process_cpu_s(program.pid))
    seen = spread(took[1:])
    return Result(
        goal="TUI 17 paint",
        metric="exec to first paint, no node up",
        unit="s",
        gate=0.5,
        stretch=0.35,
        seen=seen.median,
        detail=f"{seen}, CPU {min(cpu_s[1:]):.2f} s at least; {N_STARTS} starts, bytecode cached",
    )


def _command_start() -> Result:
    environment = clean_environment()

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [str(SCRIPTS / "skulk"), "--help"],
            env=environment,
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    once()
    seen = spread([once() for _ in range(N_STARTS)])
    return Result(
        goal="TUI 17 CLI",
        metric="CPU of `skulk --help`, start to end",
        unit="s",
        gate=0.25,
        stretch=0.2,
        seen=seen.median,
        detail=f"{seen}; {N_STARTS} starts, bytecode cached",
    )


def run() -> list[Result]:
    """Measure; takes three minutes."""
    n_a_step = round(EVENTS_PER_S * FEED_STEP_S)
    return [
        *_under_load("rows", b"1", lambda feed: lambda: feed.change(n_a_step)),
        *_under_load("events", b"5:timeline\r", lambda feed: lambda: feed.happen(n_a_step)),
        _at_rest(),
        *_changing(),
        _first_paint(),
        _command_start(),
    ]
