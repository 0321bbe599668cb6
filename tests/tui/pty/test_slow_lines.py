"""How much is written: what stands between a key and its effect is a slow line's delay.

Bytes are counted here; how long things take is measured by `bench`. Numbers in brackets are rows of
the acceptance list for the terminal interface.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.session import row_key
from tests.support.builders import a_node_id
from tests.support.den_cluster import den_member, den_node, fill
from tests.support.pty_screen import TuiProgram
from tests.support.scripted_session import ScriptedSession

SHOWN_S = 20.0
N_FURTHER_NODES = 20
N_CHANGING = 5
STEP_S = 0.5
LETTERS = "ÄÖÜß"
SLOW_LINES = ((32_000, 0.5), (8_000, 1.0))
"""Bytes a second, and how soon a key has its effect on such a line."""
FENCE_LINES = 400
TOKENS_PER_S = 60
FENCE_BYTES_PER_S = 30 * 1024


@pytest.fixture
def node() -> Iterator[ScriptedSession]:
    with ScriptedSession() as scripted:
        fill(scripted)
        yield scripted


def test_little_stands_before_the_effect_of_a_key_on_a_slow_line(
    node: ScriptedSession, tmp_path: Path
) -> None:
    """[4] 24 nodes, a fifth of them changing twice a second."""
    keys = [row_key("node", a_node_id(number)) for number in range(10, 10 + N_FURTHER_NODES)]

    def change(turn: int) -> None:
        for number in range(N_CHANGING):
            key = keys[(turn * N_CHANGING + number) % len(keys)]
            free = (turn % 9 + 1) * (4 << 30)
            member = den_member(2, node_id=key.partition("/")[2], name=f"node-{key[-3:]}")
            row = den_node(2, member=member, memory_available_bytes=free)
            node.rows("cluster", {key: row})

    for turn in range(N_FURTHER_NODES // N_CHANGING):
        change(turn)
    with TuiProgram(tmp_path, "--node", node.url, size=(80, 24)) as screen:
        program = screen.program
        screen.until_shows("LIVE", "Nodes 24", within_s=SHOWN_S)
        screen.type(":")
        program.read_for(STEP_S)
        for turn, letter in enumerate(LETTERS):
            bytes_per_s, within_s = SLOW_LINES[turn % len(SLOW_LINES)]
            for step in range(2):
                change(2 * turn + step)
                program.read_slowly(bytes_per_s, for_s=STEP_S)
            program.mark()
            program.type_unread(letter.encode())
            n_bytes = program.read_slowly(bytes_per_s, for_s=SHOWN_S, until=letter.encode())
            assert letter.encode() in program.since_mark
            assert n_bytes <= bytes_per_s * within_s
        screen.type("\x1b")
        assert screen.leave() == 0


def test_the_end_of_a_long_code_block_costs_no_more_than_a_screenful(
    node: ScriptedSession, tmp_path: Path
) -> None:
    """[5] The last of 400 lines, 60 tokens a second."""
    tokens = ["```python\n"]
    for number in range(FENCE_LINES):
        tokens += ["    ", f"value_{number}", " = ", "step(", "rank, ", f"chunks[{number}]", ")\n"]
    seconds = 3
    n_late = seconds * TOKENS_PER_S
    node.chat(*tokens, hold_after=len(tokens) - n_late)
    with TuiProgram(tmp_path, "--node", node.url, size=(100, 30)) as screen:
        screen.until_shows("LIVE", "attic-mini", within_s=SHOWN_S)
        screen.type("3")
        screen.until_shows("enter sends")
        screen.type("go\r")
        first_late = FENCE_LINES - n_late // 7 - 2
        screen.until_shows(f"value_{first_late}", within_s=SHOWN_S)
        screen.program.read_for(1.0)
        n_before = len(screen.program.output)
        began_s = time.monotonic()
        for number in range(1, n_late + 1):
            node.let_chats_go(1)
            screen.program.read_for(max(0.0, began_s + number / TOKENS_PER_S - time.monotonic()))
        screen.until_shows(f"chunks[{FENCE_LINES - 1}]")
        took_s = time.monotonic() - began_s
        assert len(screen.program.output) - n_before <= FENCE_BYTES_PER_S * took_s
        assert screen.leave() == 0
