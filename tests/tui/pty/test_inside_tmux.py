"""The driver and the clipboard inside tmux with its default settings, where tmux is installed."""

import base64
import os
import sys
from pathlib import Path

import pytest

from tests.support.den_cluster import fill
from tests.support.scripted_session import ScriptedSession
from tests.support.terminal_app import READY
from tests.support.tmux_server import TMUX, TmuxServer

pytestmark = pytest.mark.skipif(TMUX is None, reason="tmux is not installed")

COPIED = "skulk stop 3fa2"


BOARD = ("-m", "tests.support.terminal_app", "--copy", COPIED)


def start(root: Path, *arguments: str, **environ: str) -> TmuxServer:
    return TmuxServer(
        [sys.executable, *(arguments or BOARD)],
        environ={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path(__file__).parents[3]),
            "HOME": str(root),
            "SKULK_STATE_DIR": str(root / "state"),
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
        }
        | environ,
        root=root,
    )


def test_a_copy_reaches_the_terminal_outside(tmp_path: Path) -> None:
    """[11]"""
    with start(tmp_path) as tmux:
        tmux.outside.read_until(READY)
        tmux.outside.mark()
        tmux.outside.send(b"y")
        sent = tmux.outside.read_until(base64.b64encode(COPIED.encode()))
        assert b"\x1b]52;" in sent
        tmux.outside.read_until(b"copied 15 bytes to tmux")
        assert tmux.command("show-buffer") == COPIED


def test_a_copy_of_the_interface_itself_does_too(tmp_path: Path) -> None:
    """[11]"""
    with ScriptedSession() as node:
        fill(node)
        program = "from skulk_tui.cli.main import main; main()"
        with start(tmp_path, "-c", program, "--node", node.url, "tui", "--ascii") as tmux:
            tmux.outside.read_until(b"attic-mini", within_s=20)
            tmux.outside.send(b"y")
            tmux.outside.read_until(b"Copy attic-mini")
            tmux.outside.mark()
            tmux.outside.send(b"n")
            tmux.outside.read_until(base64.b64encode(b"attic-mini"))
            tmux.outside.read_until(b"copied 10 bytes to tmux")
            assert tmux.command("show-buffer") == "attic-mini"
            tmux.outside.send(b"q")
            assert tmux.outside.wait() == 0


def test_the_plain_sequence_does_not_which_is_why_tmux_is_asked(tmp_path: Path) -> None:
    """If this fails, tmux has changed its default and the first way is needed no more."""
    with start(tmp_path, SKULK_CLIPBOARD="osc52") as tmux:
        tmux.outside.read_until(READY)
        tmux.outside.mark()
        tmux.outside.send(b"y")
        tmux.outside.read_until(b"sent 15 bytes")
        tmux.outside.read_for(0.5)
        assert base64.b64encode(COPIED.encode()) not in tmux.outside.since_mark


def test_a_window_resized_from_outside_is_drawn_anew(tmp_path: Path) -> None:
    with start(tmp_path) as tmux:
        tmux.outside.read_until(READY)
        tmux.outside.mark()
        tmux.outside.resize(72, 20)
        tmux.outside.read_until(b"<size 72x19>")
        tmux.outside.send(b"q")
        assert tmux.outside.wait() == 0
