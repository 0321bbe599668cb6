"""`skulk tui` itself on a real pty, with a scripted node and with none.

Numbers in brackets are rows of the acceptance list for the terminal interface.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.session import row_key
from tests.support.builders import a_node_id
from tests.support.den_cluster import den_node, fill
from tests.support.pty_program import PtyProgram
from tests.support.pty_screen import Grid, TuiProgram
from tests.support.scripted_session import ScriptedSession

COLOUR = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;\d+)*m")
REST_BYTES_PER_S = 200
CHANGES_BYTES_PER_S = 4096
PROGRAM = "from skulk_tui.cli.main import main; main()"
BUG_IN_THE_DATA_CLOCK = """
from skulk_tui.app import SkulkTui
def fail(self): raise KeyError("asked to")
SkulkTui._commit = fail
"""
BUG_IN_THE_LINK = """
from skulk_tui.session_connection import Connection
take, failed = Connection._take, []
def fail(self, raw):
    if b'"ping"' in raw and not failed:
        failed.append(raw)
        raise KeyError("asked to")
    take(self, raw)
Connection._take = fail
"""
TOLD_TEXTUAL = """
import atexit, os, sys
@atexit.register
def tell(): os.write(int(os.environ["TOLD"]), str("textual" in sys.modules).encode())
"""


@pytest.fixture
def node() -> Iterator[ScriptedSession]:
    with ScriptedSession() as scripted:
        fill(scripted)
        yield scripted


def start(
    root: Path,
    url: str,
    *arguments: str,
    size: tuple[int, int] = (80, 24),
    bug: str = "",
    **environ: str,
) -> PtyProgram:
    """Give the program on a terminal, not started; `bug` is Python that is run in it first."""
    argv = [sys.executable, "-c", f"{bug}\n{PROGRAM}", "--node", url, "tui", *arguments]
    return PtyProgram(argv, environ=environment(root) | environ, size=size)


def environment(root: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "HOME": str(root),
        "SKULK_CONFIG_DIR": str(root / "config"),
        "SKULK_STATE_DIR": str(root / "state"),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
    }


def test_it_shows_the_cluster_leaves_by_q_and_restores_the_terminal(
    node: ScriptedSession, tmp_path: Path
) -> None:
    """[8]"""
    with start(tmp_path, node.url) as program:
        program.read_until(b"attic-mini", within_s=20)
        program.send(b"q")
        assert program.wait() == 0
        assert program.modes.are_usual, program.modes
        assert program.attributes == program.attributes_before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_end_it_with_their_code(
    node: ScriptedSession, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """[8]"""
    with start(tmp_path, node.url) as program:
        program.read_until(b"attic-mini", within_s=20)
        program.send_signal(number)
        assert program.wait() == code
        assert program.modes.are_usual


def test_an_exception_leaves_three_lines_a_file_and_a_usual_terminal(
    node: ScriptedSession, tmp_path: Path
) -> None:
    """[8]"""
    with start(tmp_path, node.url, bug=BUG_IN_THE_DATA_CLOCK) as program:
        assert program.wait(within_s=20) == 1
        assert program.modes.are_usual, program.modes
        assert program.attributes == program.attributes_before
        told = program.output.rpartition(b"\x1b[0m")[2].decode().splitlines()
    assert told[0].endswith("error: skulk tui crashed: KeyError: 'asked to'")
    assert [line.split()[0] for line in told[1:]] == ["at:", "remedy:"]
    (crash_file,) = (tmp_path / "state").glob("crash-*")
    assert str(crash_file) in told[1]


def test_a_link_that_dies_of_a_bug_is_lost_and_made_anew(
    node: ScriptedSession, tmp_path: Path
) -> None:
    """[8]"""
    with start(tmp_path, node.url, bug=BUG_IN_THE_LINK) as program:
        program.read_until(b"attic-mini", within_s=20)
        program.read_until(b"this program failed: KeyError", within_s=20)
        ends_s = time.monotonic() + 20
        while node.n_sessions < 2:
            assert time.monotonic() < ends_s, "no other session"
            program.read_for(0.05)
        program.mark()
        program.send(b"2")
        program.read_until(b"SmolLM2")
        program.send(b"q")
        assert program.wait() == 0


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_a_stream_that_is_no_terminal_is_refused_before_anything_is_loaded(
    tmp_path: Path, stream: int
) -> None:
    """[9] How soon is measured by `bench`."""
    ours, theirs = os.openpty()
    told, telling = os.pipe()
    path = tmp_path / "stream"
    path.touch()
    streams = [theirs, theirs, theirs]
    with path.open("r+b") as file:
        streams[stream] = file.fileno()
        code = subprocess.run(
            [sys.executable, "-c", f"{TOLD_TEXTUAL}\n{PROGRAM}", "tui"],
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            env=environment(tmp_path) | {"TOLD": str(telling)},
            pass_fds=[telling],
            check=False,
            timeout=30,
        ).returncode
    said = path.read_bytes() if stream == 2 else os.read(ours, 4096)
    is_textual_loaded = os.read(told, 10)
    for descriptor in (ours, theirs, told, telling):
        os.close(descriptor)
    assert code == 2
    assert b"not a terminal" in said
    assert b"skulk status --watch" in said
    assert b"\x1b" not in said
    assert is_textual_loaded == b"False"


def test_a_terminal_that_cannot_place_its_cursor_is_refused(tmp_path: Path) -> None:
    """[9]"""
    with start(tmp_path, "http://127.0.0.1:9", TERM="dumb") as program:
        assert program.wait(within_s=20) == 2
        assert b"skulk status --watch" in program.output
        assert b"\x1b" not in program.output


def test_without_a_node_it_paints_waits_and_finds_the_node_that_comes(tmp_path: Path) -> None:
    """[1], [17]"""
    with ScriptedSession() as node:
        fill(node)
        url = node.url
        node.close()
        with start(tmp_path, url) as program:
            program.read_until(b"CONNECTING", within_s=20)
            program.read_until(b"no node has answered yet", within_s=20)
            node.reopen()
            program.read_until(b"attic-mini", within_s=20)
            program.send(b"q")
            assert program.wait() == 0


def test_a_node_that_goes_is_lost_with_what_was_known_and_comes_back(
    node: ScriptedSession, tmp_path: Path
) -> None:
    """[1]"""
    with start(tmp_path, node.url) as program:
        program.read_until(b"attic-mini", within_s=20)
        program.mark()
        node.close()
        program.read_until(b"LOST", within_s=20)
        node.reopen()
        program.read_until(b"LIVE", within_s=30)
        assert program.exit_code is None
        program.send(b"q")
        assert program.wait() == 0


def test_a_lost_link_takes_no_cursor_no_filter_and_no_draft(
    node: ScriptedSession, tmp_path: Path
) -> None:
    """[1]"""
    with TuiProgram(tmp_path, "--node", node.url) as screen:
        screen.until_shows("LIVE", "attic-mini", within_s=20)
        screen.type("3")
        screen.until_shows("enter sends")
        screen.type("half a question")
        screen.until_shows("half a question")
        screen.type("\x1bOQ1/den\r")
        screen.until_shows("filter: den (2 of 4)")
        screen.type("j")
        screen.until_shows("> den-02")
        node.close()
        screen.until_shows("LOST", "> den-02", "filter: den (2 of 4)")
        node.reopen()
        screen.type("r")
        screen.until_shows("LIVE", "> den-02", "filter: den (2 of 4)")
        screen.until_gone("LOST", "retry now")
        screen.type("3")
        screen.until_shows("half a question")
        assert screen.leave() == 0


def test_no_color_means_no_colour_at_all(node: ScriptedSession, tmp_path: Path) -> None:
    """[10]"""
    with start(tmp_path, node.url, NO_COLOR="1") as program:
        program.read_until(b"attic-mini", within_s=20)
        program.send(b"2:theme dark\r")
        program.read_for(1.0)
        assert COLOUR.findall(program.output) == []
        program.send(b"\x11")
        assert program.wait() == 0


def test_lines_that_are_typed_ahead_are_run_one_after_the_other(
    node: ScriptedSession, tmp_path: Path
) -> None:
    with start(tmp_path, node.url) as program:
        program.read_until(b"attic-mini", within_s=20)
        program.send(b":rate 4\r:readonly on\r/den\r:rate 10\r")
        program.read_until(b"new values are shown 10 times a second")
        assert b"RO" in program.output
        assert b"takes no" not in program.output
        program.send(b"q")
        assert program.wait() == 0


def test_an_empty_no_color_is_as_unset(node: ScriptedSession, tmp_path: Path) -> None:
    """[10]"""
    with start(tmp_path, node.url, NO_COLOR="") as program:
        program.read_until(b"attic-mini", within_s=20)
        assert COLOUR.search(program.output)
        program.send(b"q")
        assert program.wait() == 0


def test_at_rest_it_says_next_to_nothing_and_a_few_changing_rows_cost_a_few_bytes(
    node: ScriptedSession, tmp_path: Path
) -> None:
    """[2], [3] 24 nodes, a fifth of them changing twice a second; the limit then is 4 KiB/s."""
    many = {
        row_key("node", a_node_id(number)): den_node(
            2, member=den_node(2).member.model_copy(
                update={"node_id": a_node_id(number), "name": f"node-{number:02}"}
            ),
        )
        for number in range(10, 30)
    }  # fmt: skip
    node.rows("cluster", many)
    with start(tmp_path, node.url) as program:
        program.read_until(b"node-1", within_s=20)
        program.read_for(2.0)
        seconds = 4
        assert program.read_for(seconds) <= REST_BYTES_PER_S * seconds
        n_bytes = 0
        for step in range(6):
            changed = {
                key: many[key].model_copy(
                    update={
                        "resources": den_node(2, cpu_ratio=0.1 + step / 20).resources
                    }
                )
                for key in list(many)[:5]
            }  # fmt: skip
            node.rows("cluster", changed)
            n_bytes += program.read_for(0.5)
        assert n_bytes <= CHANGES_BYTES_PER_S * 3
        program.send(b"q")
        assert program.wait() == 0


def test_two_hundred_sizes_in_two_seconds_settle_on_the_last(
    node: ScriptedSession, tmp_path: Path
) -> None:
    """[19] How soon is measured by `bench`."""
    with start(tmp_path, node.url, "--ascii", size=(80, 24)) as program:
        program.read_until(b"attic-mini", within_s=20)
        for number in range(200):
            program.resize(1 + number * 7 % 160, 1 + number * 3 % 50)
            program.read_for(0.01)
        program.resize(97, 31)
        program.mark()
        ends_s = time.monotonic() + 20
        while True:
            grid = Grid(97, 31)
            grid.feed(program.since_mark.decode(errors="ignore"))
            rows = grid.lines
            is_drawn = rows[0].startswith(" skulk  home-lab") and "attic-mini" in "".join(rows)
            if is_drawn and rows[-1].strip():  # a frame comes in pieces, from above
                break
            assert time.monotonic() < ends_s, "\n".join(rows)
            program.read_for(0.1)
        assert rows[1].startswith("[1 Cluster]")
        assert rows[-1].startswith(" enter open")
        program.send(b"q")
        assert program.wait() == 0
    assert not list((tmp_path / "state").glob("crash-*"))


def test_a_pasted_megabyte_and_old_mouse_bytes_do_not_end_it(
    node: ScriptedSession, tmp_path: Path
) -> None:
    """[7]"""
    with start(tmp_path, node.url) as program:
        program.read_until(b"attic-mini", within_s=20)
        program.send(b"\x1b[M \x80\x25\xff\xfe\xc3(")
        program.send(b":")
        program.read_for(0.5)
        program.send(b"\x1b[200~" + b"a" * 1_000_000 + b"\x1b[201~")
        program.read_for(1.0)
        program.send(b"\x11")
        program.read_for(0.5)
        program.send(b"\x1b")
        program.read_for(0.5)
        program.send(b"\x11")
        assert program.wait() == 0
