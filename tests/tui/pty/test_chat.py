"""The screen Chat on a real terminal: its keys as bytes, pastes, the editor, a killed program."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.session import OpenStream
from tests.support.den_cluster import fill
from tests.support.pty_program import PtyProgram
from tests.support.scripted_session import ScriptedSession


@pytest.fixture
def node() -> Iterator[ScriptedSession]:
    with ScriptedSession() as scripted:
        fill(scripted)
        yield scripted


def start(root: Path, url: str, **environ: str) -> PtyProgram:
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
    argv = [sys.executable, "-c", code, "--node", url, "tui", "--ascii"]
    return PtyProgram(argv, environ=base | environ, size=(80, 24))


def to_chat(program: PtyProgram) -> None:
    program.read_until(b"attic-mini", within_s=20)
    program.send(b"3")
    program.read_until(b"enter sends", within_s=20)


def asked(node: ScriptedSession) -> list[object]:
    return [
        frame.body["messages"][-1]["content"]
        for frame in node.seen
        if isinstance(frame, OpenStream)
    ]


def test_enter_sends_ctrl_j_does_not_and_a_paste_waits_for_enter(
    node: ScriptedSession, tmp_path: Path
) -> None:
    with start(tmp_path, node.url) as program:
        to_chat(program)
        program.send(b"one\x0a")
        program.send(b"\x1b[200~two\r\nthree\r\x1b[201~")
        program.read_until(b"three", within_s=10)
        assert asked(node) == []
        program.send(b"\r")
        program.read_until(b"It works.", within_s=10)
        assert asked(node) == ["one\ntwo\nthree"]
        program.send(b"\x11")
        assert program.wait() == 0


def test_keys_that_come_at_once_are_taken_in_their_order(
    node: ScriptedSession, tmp_path: Path
) -> None:
    with start(tmp_path, node.url) as program:
        to_chat(program)
        program.send(b"one\x0atwo\rthree\r")
        program.read_until(b"still coming", within_s=10)
        assert asked(node) == ["one\ntwo"]
        program.read_until(b"It works.", within_s=10)
        program.send(b"\r")
        node.wait_for(lambda: asked(node) == ["one\ntwo", "three"])
        program.send(b"\x11")
        assert program.wait() == 0


def test_a_megabyte_pasted_is_cut_to_what_fits_and_keys_go_on_working(
    node: ScriptedSession, tmp_path: Path
) -> None:
    with start(tmp_path, node.url) as program:
        to_chat(program)
        program.send(b"\x1b[200~" + b"word\r" * 200_000 + b"\x1b[201~")
        program.read_until(b"[pasted 80001 lines]", within_s=20)
        program.send(b"\x7fok\r")
        program.read_until(b"It works.", within_s=10)
        assert asked(node) == ["ok"]
        program.send(b"\x11")
        assert program.wait() == 0


def test_f4_hands_the_terminal_to_the_editor_and_takes_the_text_back(
    node: ScriptedSession, tmp_path: Path
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf "\\nfrom the editor\\n" >> "$1"\nstat -c %a "$1" >&2\n')
    editor.chmod(0o755)
    with start(tmp_path, node.url, EDITOR=str(editor)) as program:
        to_chat(program)
        program.send(b"draft")
        program.read_until(b"draft", within_s=10)
        program.send(b"\x1bOS")
        program.read_until(b"from the editor", within_s=20)
        program.send(b"\r")
        program.read_until(b"It works.", within_s=10)
        assert asked(node) == ["draft\nfrom the editor"]
        program.send(b"\x11")
        assert program.wait() == 0
        assert program.modes.are_usual
    assert not list((tmp_path / "state").glob("question-*"))


def test_an_editor_that_is_not_there_is_told_and_the_draft_stays(
    node: ScriptedSession, tmp_path: Path
) -> None:
    with start(tmp_path, node.url, EDITOR="/nowhere/editor") as program:
        to_chat(program)
        program.send(b"draft\x1bOS")
        program.read_until(b"editor did not open", within_s=20)
        program.send(b"\r")
        program.read_until(b"It works.", within_s=10)
        assert asked(node) == ["draft"]
        program.send(b"\x11")
        assert program.wait() == 0


def test_what_was_written_survives_a_program_that_is_killed(
    node: ScriptedSession, tmp_path: Path
) -> None:
    with start(tmp_path, node.url) as program:
        to_chat(program)
        program.send(b"remember me")
        program.read_until(b"draft saved", within_s=10)
        program.read_for(0.5)
        program.send_signal(signal.SIGKILL)
    with start(tmp_path, node.url) as program:
        program.read_until(b"attic-mini", within_s=20)
        program.send(b"3")
        program.read_until(b"remember me", within_s=20)
        program.send(b"\x11")
        assert program.wait() == 0
