"""The driver on a real pty: what goes in, what comes out, and how the terminal is left.

Numbers in brackets are rows of the acceptance list for the terminal interface.
"""

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.pty_program import PtyProgram
from tests.support.terminal_app import READY

Start = Callable[..., PtyProgram]

COLOUR = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;\d+)*m")
LEFT = b"\x1b[?1049l"
SLOW_BYTES_PER_S = 8_000
KERNEL_BYTES = 64 * 1024
"""What the system may hold of a pty's output; nothing of it can be called back."""


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def start_program(
        *arguments: str, size: tuple[int, int] = (120, 40), **environ: str
    ) -> PtyProgram:
        base = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path(__file__).parents[3]),
            "HOME": str(tmp_path),
            "SKULK_STATE_DIR": str(tmp_path / "state"),
            "TERM": "xterm-256color",
            "LANG": "en_US.UTF-8",
        }
        argv = [sys.executable, "-m", "tests.support.terminal_app", *arguments]
        return PtyProgram(argv, environ=base | environ, size=size)

    return start_program


def assert_restored(program: PtyProgram) -> None:
    assert program.modes.are_usual, program.modes
    assert program.attributes == program.attributes_before


def test_no_input_ends_it(start: Start) -> None:
    """[7] Old mouse bytes past column 95, broken UTF-8, a number that is no character, 1 MB."""
    with start() as program:
        program.read_until(READY)
        program.mark()
        program.send(b"\x1b[M \x80\x25")
        program.read_until(b"<mouse 95 4>")
        program.send(b"\xff\xfe\xc3(")
        program.read_until(b"<key left_parenthesis>")
        program.send(b"\x1b[99999999999;1u" + b"k")
        program.read_until(b"<key k>")
        program.send(b"\x1b]11;rgb:0000/0000/0000\x1b\\\x1b[?64;1c" + b"j")
        program.read_until(b"<key j>")
        program.send(b"\x1b[200~" + b"a" * 1_000_000 + b"\x1b[201~")
        program.read_until(b"<paste 1000000>")
        program.send(b"ab" * 5_000)  # a paste that the terminal does not call one
        program.read_for(0.5)  # its rest is pasted too, however small it is
        program.send(b"\x1b")
        program.read_until(b"<key escape>")
        program.send(b"q")
        assert program.wait() == 0
        assert_restored(program)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_it_in_order(start: Start, number: signal.Signals, code: int) -> None:
    """[8]"""
    with start() as program:
        program.read_until(READY)
        assert not program.modes.are_usual
        program.send_signal(number)
        assert program.wait() == code
        assert_restored(program)


def test_a_second_signal_ends_a_program_that_hangs(start: Start) -> None:
    """[8]"""
    with start() as program:
        program.read_until(READY)
        program.send(b"h")
        program.read_until(b"<hanging>")
        program.read_for(0.5)
        program.send_signal(signal.SIGTERM)
        program.read_for(0.2)
        assert program.exit_code is None
        program.send_signal(signal.SIGTERM)
        assert program.wait() == 143
        assert_restored(program)


def test_a_terminal_that_hangs_up_ends_it(start: Start) -> None:
    """[8] The original spins or dies of the signal; nobody sees the difference but the machine."""
    with start() as program:
        program.read_until(READY)
        program.hang_up()
        assert program.wait_unread() == 129


def test_a_crash_leaves_three_lines_a_file_and_a_usual_terminal(
    start: Start, tmp_path: Path
) -> None:
    """[8]"""
    with start() as program:
        program.read_until(READY)
        program.send(b"x")
        assert program.wait() == 1
        assert_restored(program)
        told = program.output.rpartition(b"\x1b[0m")[2].decode().split("\r\n")
    assert told[0].endswith("error: skulk tui crashed: KeyError: 'asked to'")
    assert "skulk diag bundle" in told[2]
    assert told[3:] == [""]
    (crash_file,) = (tmp_path / "state").iterdir()
    assert str(crash_file) in told[1]


def test_a_worker_that_fails_does_not_end_it(start: Start) -> None:
    """[8]"""
    with start() as program:
        program.read_until(READY)
        program.send(b"w")
        program.read_for(0.3)
        program.send(b"k")
        program.read_until(b"<key k>")
        program.send(b"q")
        assert program.wait() == 0


@pytest.mark.parametrize("stream", [1, 2])
def test_a_stream_that_is_no_terminal_is_refused(start: Start, stream: int, tmp_path: Path) -> None:
    """[9]"""
    path = tmp_path / "stream"
    with path.open("wb") as file:
        program = start()
        program.replace_stream(stream, file.fileno())
        with program:
            assert program.wait() == 2
            said = program.output + path.read_bytes()
    assert b"skulk status --watch" in said
    assert b"\x1b" not in said


def test_a_terminal_that_cannot_place_its_cursor_is_refused(start: Start) -> None:
    """[9]"""
    with start(TERM="dumb") as program:
        assert program.wait() == 2
        assert b"skulk status --watch" in program.output
        assert b"\x1b" not in program.output


@pytest.mark.parametrize("colours", [{}, {"COLORTERM": "truecolor"}, {"TERM": "xterm"}])
def test_no_color_means_no_colour_code_at_all(start: Start, colours: dict[str, str]) -> None:
    """[10]"""
    with start("--hz", "20", NO_COLOR="1", **colours) as program:
        program.read_until(b"<mono>")
        program.read_for(0.3)
        program.send(b"q")
        assert program.wait() == 0
        assert COLOUR.findall(program.output) == []


def test_an_empty_no_color_is_as_none(start: Start) -> None:
    """[10]"""
    with start(NO_COLOR="") as program:
        program.read_until(b"<dark>")
        program.send(b"q")
        assert program.wait() == 0
        assert COLOUR.search(program.output)


def test_sixteen_colours_are_the_terminals_own(start: Start) -> None:
    with start(TERM="xterm") as program:
        program.read_until(b"<ansi>")
        program.send(b"q")
        assert program.wait() == 0
        assert not re.search(rb"[34]8;[25];", program.output)


def test_plain_locales_get_plain_glyphs(start: Start) -> None:
    with start(LANG="C") as program:
        program.read_until(b"<ascii>")
        program.send(b"q")
        assert program.wait() == 0


def test_the_terminal_tells_its_background_and_what_is_typed_meanwhile_is_kept(
    start: Start,
) -> None:
    with start() as program:
        program.read_until(b"\x1b]11;?\x1b\\\x1b[c")
        program.send(b"k\x1b]11;rgb:ffff/ffff/ffff\x1b\\\x1b[?64;1c")
        program.read_until(b"<light>")
        program.read_until(b"<key k>")
        program.send(b"q")
        assert program.wait() == 0
        assert_restored(program)


def test_two_hundred_sizes_settle(start: Start) -> None:
    """[19]; down to one cell, and COLUMNS does not deceive it."""
    with start(COLUMNS="33", LINES="7") as program:
        program.read_until(b"<size 120x40>")
        for number in range(200):
            program.resize(1 + number % 160, 1 + number % 50)
            program.read_for(0.005)
        program.mark()
        program.resize(101, 31)
        program.read_until(b"<size 101x31>", within_s=5)
        assert program.exit_code is None
        program.send(b"q")
        assert program.wait() == 0


def test_suspended_it_gives_the_terminal_back_and_draws_anew_when_it_returns(
    start: Start,
) -> None:
    with start() as program:
        program.read_until(READY)
        program.send(b"k")
        program.read_until(b"<key k>")
        program.send(b"\x1a")
        program.read_until(LEFT)
        program.read_for(0.5)
        assert_restored(program)
        program.mark()
        program.send_signal(signal.SIGCONT)
        program.read_until(b"<key k>")
        assert not program.modes.are_usual
        program.send_signal(signal.SIGCONT)  # one that no stop preceded
        program.send(b"j")
        program.read_until(b"<key j>")
        program.send(b"q")
        assert program.wait() == 0
        assert_restored(program)


def test_on_a_slow_line_it_leaves_at_once(start: Start) -> None:
    """[4] After `q` nothing comes but what the system holds and what sets the terminal right."""
    with start("--hz", "60") as program:
        program.read_until(READY)
        program.read_slowly(SLOW_BYTES_PER_S, for_s=1.5)
        program.type_unread(b"q")
        program.mark()
        n_bytes = program.read_slowly(10 * SLOW_BYTES_PER_S, until=LEFT)
        assert LEFT in program.since_mark
        assert n_bytes <= KERNEL_BYTES
        assert program.wait() == 0
        assert_restored(program)


def test_a_terminal_that_reads_nothing_does_not_hold_it_up(start: Start) -> None:
    with start("--hz", "60") as program:
        program.read_until(READY)
        time.sleep(1.5)
        program.type_unread(b"q")
        assert program.wait_unread() == 0


def test_at_rest_it_writes_nothing(start: Start) -> None:
    with start() as program:
        program.read_until(READY)
        program.read_for(0.5)
        assert program.read_for(1.0) == 0
        program.send(b"q")
        assert program.wait() == 0
