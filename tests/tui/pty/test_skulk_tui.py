"""`skulk tui` itself on a real pty, with a scripted node and with none.

Numbers in brackets are rows of the acceptance list for the terminal interface.
"""

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.session import row_key
from tests.support.builders import a_node_id
from tests.support.den_cluster import den_node, fill
from tests.support.pty_program import PtyProgram
from tests.support.scripted_session import ScriptedSession

COLOUR = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;\d+)*m")
REST_BYTES_PER_S = 200


@pytest.fixture
def node() -> Iterator[ScriptedSession]:
    with ScriptedSession() as scripted:
        fill(scripted)
        yield scripted


def start(
    root: Path, url: str, *arguments: str, size: tuple[int, int] = (80, 24), **environ: str
) -> PtyProgram:
    base = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "HOME": str(root),
        "SKULK_CONFIG_DIR": str(root / "config"),
        "SKULK_STATE_DIR": str(root / "state"),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
    }
    code = "from skulk_tui.cli.main import main; main()"
    argv = [sys.executable, "-c", code, "--node", url, "tui", *arguments]
    return PtyProgram(argv, environ=base | environ, size=size)


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


def test_at_rest_it_says_next_to_nothing(node: ScriptedSession, tmp_path: Path) -> None:
    """[2]"""
    with start(tmp_path, node.url) as program:
        program.read_until(b"attic-mini", within_s=20)
        program.read_for(3.0)
        seconds = 5
        n_bytes = program.read_for(seconds)
        assert n_bytes <= REST_BYTES_PER_S * seconds
        program.send(b"q")
        assert program.wait() == 0


def test_a_few_changing_rows_cost_a_few_bytes(node: ScriptedSession, tmp_path: Path) -> None:
    """[3] 24 nodes, a fifth of them changing twice a second; the limit there is 4 KiB/s."""
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
        n_bytes = 0
        for step in range(8):
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
        assert n_bytes <= 4096 * 4
        program.send(b"q")
        assert program.wait() == 0


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
