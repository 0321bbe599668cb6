"""tmux is a script here; the real one is tried in tests/tui/pty."""

import asyncio
import base64
import stat
from pathlib import Path

import pytest

from protocol.errors import ClientError
from skulk_tui import clipboard
from skulk_tui.clipboard import MAX_OSC52_BYTES, Choice, Clipboard, Copied, clipboard_choice

HOSTILE = "den-01\x1b]52;c;aGk=\x07"


class Desk:
    """A clipboard whose terminal is a list and whose tmux is a script."""

    def __init__(self, root: Path, choice: Choice = "auto", *, tmux: str | None = None) -> None:
        self.sent: list[str] = []
        self.buffer = root / "buffer"
        self.state_dir = root / "state"
        environ: dict[str, str] = {}
        if tmux is not None:
            program = root / "tmux"
            program.write_text(f"#!/bin/sh\n{tmux}\n")
            program.chmod(0o755)
            environ = {"TMUX": "socket,1,0", "PATH": f"{root}:/usr/bin:/bin"}
        environ["BUFFER"] = str(self.buffer)
        self._clipboard = Clipboard(
            choice, environ=environ, send=self.sent.append, state_dir=self.state_dir
        )

    def copy(self, text: str) -> Copied:
        return asyncio.run(self._clipboard.copy(text))


GOOD_TMUX = 'test "$*" = "load-buffer -w -" && cat > "$BUFFER"'


def test_inside_tmux_its_buffer_is_taken(tmp_path: Path) -> None:
    desk = Desk(tmp_path, tmux=GOOD_TMUX)
    copied = desk.copy("skulk stop 3fa2\n")
    assert copied == Copied(way="tmux", n_bytes=16)
    assert desk.buffer.read_text() == "skulk stop 3fa2\n"
    assert desk.sent == []


def test_outside_tmux_the_sequence_is_sent_and_not_called_copied(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    copied = desk.copy("ä")
    assert desk.sent == [f"\x1b]52;c;{base64.b64encode('ä'.encode()).decode()}\x07"]
    assert copied.said == "sent 2 bytes to the terminal's clipboard"


@pytest.mark.parametrize("tmux", ["exit 1", "echo unknown flag -w >&2; exit 1"])
def test_a_tmux_that_refuses_leaves_it_to_the_terminal(tmp_path: Path, tmux: str) -> None:
    desk = Desk(tmp_path, tmux=tmux)
    copied = desk.copy("x")
    assert copied.way == "osc52"
    assert copied.reason.startswith("tmux: ")


def test_a_tmux_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipboard, "TMUX_WITHIN_S", 0.2)
    copied = Desk(tmp_path, tmux="exec sleep 60").copy("x")
    assert copied.way == "osc52"
    assert "did not answer" in copied.reason


@pytest.mark.parametrize(("n_bytes", "way"), [(56_244, "osc52"), (56_247, "file")])
def test_what_a_terminal_may_cut_goes_to_a_file(tmp_path: Path, n_bytes: int, way: str) -> None:
    assert (len(base64.b64encode(b"x" * n_bytes)) <= MAX_OSC52_BYTES) == (way == "osc52")
    desk = Desk(tmp_path)
    copied = desk.copy("x" * n_bytes)
    assert copied.way == way
    if copied.path is not None:
        assert copied.path.read_text() == "x" * n_bytes
        assert stat.S_IMODE(copied.path.stat().st_mode) == 0o600
        assert str(copied.path) in copied.said


def test_the_operator_may_choose_the_way(tmp_path: Path) -> None:
    assert Desk(tmp_path, "osc52", tmux=GOOD_TMUX).copy("x").way == "osc52"
    assert Desk(tmp_path, "file", tmux=GOOD_TMUX).copy("x").way == "file"
    without = Desk(tmp_path, "tmux").copy("x")
    assert (without.way, without.reason) == ("file", "not inside tmux")
    off = Desk(tmp_path, "off", tmux=GOOD_TMUX)
    assert off.copy("x").way == "off"
    assert off.sent == []


def test_nothing_that_a_terminal_acts_on_is_copied(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "file")
    path = desk.copy(HOSTILE).path
    assert path is not None
    assert path.read_text() == "den-01]52;c;aGk="


def test_where_nothing_can_be_written_it_says_so(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "file")
    desk.state_dir.write_text("not a directory")
    with pytest.raises(ClientError, match="cannot be written"):
        desk.copy("x")


def test_the_choice_is_read_from_the_environment() -> None:
    assert clipboard_choice({}) == "auto"
    assert clipboard_choice({"SKULK_CLIPBOARD": ""}) == "auto"
    assert clipboard_choice({"SKULK_CLIPBOARD": "osc52"}) == "osc52"
    with pytest.raises(ClientError, match="SKULK_CLIPBOARD is 'x11'"):
        clipboard_choice({"SKULK_CLIPBOARD": "x11"})
