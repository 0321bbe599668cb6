"""What a long answer costs while it comes: a fence of 400 lines at 60 tokens a second, on a pty.

The fence is the worst there is: nothing of it closes until its end, so that whatever draws the open
block anew each time pays for all of it, again and again. Its last quarter is compared with its
first for that reason.
"""

import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from bench.harness import Result
from bench.tui import LETTERS, process_cpu_s, tui_on_a_pty
from tests.support.den_cluster import fill
from tests.support.pty_program import PtyProgram
from tests.support.scripted_session import ScriptedSession

N_LINES: Final = 400
TOKENS_PER_S: Final = 60
SIZE: Final = (100, 30)
N_KEYS: Final = 20
_STEP_S: Final = 1.0 / TOKENS_PER_S
_KEYS_EVERY_S: Final = 1.5


def _tokens() -> Iterator[str]:
    yield "```python\n"
    for number in range(N_LINES):
        yield from ("    ", f"value_{number}", " = ", "step(", "rank, ", f"chunks[{number}]", ")\n")
    yield "```\n"


@dataclass(slots=True, kw_only=True)
class _Seen:
    """What was measured while the answer came."""

    shares: list[float] = field(default_factory=list[float])
    """Of a core, a stretch each."""
    keys_s: list[float] = field(default_factory=list[float])
    cpu_s: float = 0.0
    took_s: float = 0.0
    n_bytes: int = 0


def _watch(program: PtyProgram, talking: threading.Thread) -> _Seen:
    """Read what is drawn until the model has ended, and press a key now and then."""
    seen = _Seen()
    letters = itertools.cycle(LETTERS)
    n_before, first_s = len(program.output), process_cpu_s(program.pid)
    began_s = time.perf_counter()
    while talking.is_alive():
        round_s, before_s = time.perf_counter(), process_cpu_s(program.pid)
        program.read_for(_KEYS_EVERY_S)
        spent_s = process_cpu_s(program.pid) - before_s
        seen.shares.append(spent_s / (time.perf_counter() - round_s))
        if len(seen.keys_s) < N_KEYS:
            letter = next(letters).encode()
            program.mark()
            pressed_s = time.perf_counter()
            program.type_unread(letter)
            program.read_until(letter, within_s=10)
            seen.keys_s.append(time.perf_counter() - pressed_s)
    seen.took_s = time.perf_counter() - began_s
    seen.cpu_s = process_cpu_s(program.pid) - first_s
    seen.n_bytes = len(program.output) - n_before
    return seen


def _measure() -> _Seen:
    tokens = list(_tokens())
    with ScriptedSession() as node:
        fill(node)
        node.chat(*tokens, hold_after=1)
        with tui_on_a_pty(node.url, SIZE) as program:
            program.read_until(b"rack-a6k", within_s=30)
            program.send(b"3")
            program.read_until(b"enter sends", within_s=30)
            program.send(b"go\r")
            program.read_until(b"python", within_s=30)
            talking = threading.Thread(target=_talk, args=(node, len(tokens)), name="model")
            talking.start()
            try:
                return _watch(program, talking)
            finally:
                talking.join()


def run() -> list[Result]:
    """Measure CPU, bytes and keys over the whole answer."""
    seen = _measure()
    quarter = max(1, len(seen.shares) // 4)
    early = median(seen.shares[:quarter])
    late = median(seen.shares[-quarter - 1 : -1])
    size = f"{SIZE[0]}x{SIZE[1]}"
    how = f"{N_LINES} lines, {TOKENS_PER_S} tokens/s, {size}, {seen.took_s:.0f} s"
    return [
        Result(
            goal="TUI 5 CPU",
            metric="CPU of the terminal interface while a long fence comes",
            unit="% of a core",
            gate=30,
            stretch=15,
            seen=100 * seen.cpu_s / seen.took_s,
            detail=how,
        ),
        Result(
            goal="TUI 5 growth",
            metric="CPU in its last quarter against its first",
            unit="ratio",
            gate=1.5,
            stretch=1.2,
            seen=late / early if early else 0.0,
            detail=f"{early:.1%} and {late:.1%} of a core",
        ),
        Result(
            goal="TUI 5 bytes",
            metric="bytes to the terminal meanwhile",
            unit="bytes/s",
            gate=30 * 1024,
            stretch=15 * 1024,
            seen=seen.n_bytes / seen.took_s,
            detail=how,
        ),
        Result(
            goal="TUI 5 keys",
            metric="key to screen meanwhile, the slowest",
            unit="ms",
            gate=100,
            stretch=50,
            seen=max(seen.keys_s) * 1e3,
            detail=f"{len(seen.keys_s)} keys, median {median(seen.keys_s) * 1e3:.1f} ms",
        ),
    ]


def _talk(node: ScriptedSession, n_tokens: int) -> None:
    due_s = time.monotonic()
    for _ in range(n_tokens + 2):
        node.let_chats_go(1)
        due_s += _STEP_S
        time.sleep(max(0.0, due_s - time.monotonic()))
