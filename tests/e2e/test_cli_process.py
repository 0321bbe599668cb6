"""The installed `skulk` as a process: signals, closed pipes, a terminal, an old shell's habits."""

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.builders import MODEL, an_instance_id
from tests.support.daemon import SCRIPTS, clean_environment, wait_until
from tests.support.fake_node import Answer, FakeNode, a_view, chat_stream

pytestmark = pytest.mark.e2e
SKULK = str(SCRIPTS / "skulk")
TIMEOUT_S = 30
INSTANCE = f"/instance/{an_instance_id()}"


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode() as running:
        yield running


def start(*arguments: str, node: FakeNode) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [SKULK, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment({"SKULK_NODE": node.url}),
        text=True,
    )


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_during_a_wait_leaves_the_work_and_says_so(
    node: FakeNode, number: signal.Signals, code: int
) -> None:
    node.on("GET", INSTANCE, a_view("load"))
    process = start("place", MODEL, node=node)
    wait_until(lambda: bool(node.asked("GET", INSTANCE)), timeout_s=TIMEOUT_S, what="the wait")
    process.send_signal(number)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out) == (code, "")
    assert "the work goes on" in err
    assert f"skulk stop {an_instance_id()}" in err
    assert "Traceback" not in err
    assert node.asked("DELETE", INSTANCE) == []


def test_ctrl_c_during_an_answer_ends_it_without_a_word(node: FakeNode) -> None:
    slow = chat_stream(*["word "] * 200)
    node.on("POST", "/v1/chat/completions", Answer(pieces=slow.pieces, pause_s=0.05))
    process = start("chat", MODEL, "hello", node=node)
    assert process.stdout is not None
    assert process.stdout.read(5) == "word "
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "arguments", [("ps",), ("status", "--json"), ("--help",), ("chat", MODEL, "x")]
)
def test_a_reader_that_has_gone_is_no_error(node: FakeNode, arguments: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run(
        [SKULK, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=writing,
        stderr=subprocess.PIPE,
        env=clean_environment({"SKULK_NODE": node.url}),
        timeout=TIMEOUT_S,
        check=False,
    )
    os.close(writing)
    assert (process.returncode, process.stderr) == (0, b"")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-"])
def test_a_closed_stream_is_no_bug(node: FakeNode, closed: str) -> None:
    process = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" ps {closed}', SKULK],
        capture_output=True,
        env=clean_environment({"SKULK_NODE": node.url}),
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (process.returncode, process.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
@pytest.mark.parametrize("line", ["ps", "nodes -o name", "help exit-codes", "chat test/tiny hello"])
def test_a_full_disk_is_told_in_three_lines(node: FakeNode, line: str) -> None:
    process = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" {line} >/dev/full', SKULK],
        stderr=subprocess.PIPE,
        env=clean_environment({"SKULK_NODE": node.url}),
        timeout=TIMEOUT_S,
        check=False,
        text=True,
    )
    assert process.returncode == 1
    error, *more = process.stderr.splitlines()
    assert error.startswith("error: standard output cannot be written: ")
    assert len(more) <= 2


def test_an_error_that_nobody_reads_still_has_its_exit_code() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run(
        [SKULK, "ps"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=writing,
        env=clean_environment({"SKULK_NODE": "http://127.0.0.1:1"}),
        timeout=TIMEOUT_S,
        check=False,
    )
    os.close(writing)
    assert (process.returncode, process.stdout) == (3, b"")


def test_an_ascii_terminal_shows_what_it_can(node: FakeNode) -> None:
    node.on("POST", "/v1/chat/completions", chat_stream("café ✓"))
    process = subprocess.run(
        [SKULK, "chat", MODEL, "x"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=clean_environment({"SKULK_NODE": node.url, "PYTHONIOENCODING": "ascii"}),
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (process.returncode, process.stdout) == (0, b"caf? ?\n")


def test_a_terminal_gets_a_live_line_and_a_table_that_fits(node: FakeNode) -> None:
    node.on("GET", INSTANCE, *[a_view("load")] * 3, a_view("ready"))
    shown = in_terminal("place", MODEL, node=node, columns=60)
    assert "\r\x1b[Kload" in shown
    table = shown.rpartition("\x1b[1mINSTANCE")[2].splitlines()
    assert len(table) == 2
    assert all(len(line) <= 60 for line in table[1:])


def in_terminal(*arguments: str, node: FakeNode, columns: int) -> str:
    """Run `skulk` with a terminal of its own and give everything that it wrote there."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [SKULK, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=clean_environment(
            {"SKULK_NODE": node.url, "COLUMNS": str(columns), "TERM": "xterm-256color"}
        ),
    )
    os.close(theirs)
    shown = b""
    deadline_s = time.monotonic() + TIMEOUT_S
    try:
        while time.monotonic() < deadline_s:
            if not select.select([ours], [], [], 0.1)[0]:
                continue
            try:
                piece = os.read(ours, 65536)
            except OSError:  # Linux: the other side is closed
                break
            if not piece:
                break
            shown += piece
        assert process.wait(timeout=TIMEOUT_S) == 0, shown
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return shown.decode().replace("\r\n", "\n")


def test_help_exists_without_a_home_or_a_daemon() -> None:
    environment = clean_environment({"HOME": "/nonexistent", "SKULK_NODE": "http://127.0.0.1:1"})
    for arguments in (["--help"], ["help", "exit-codes"], ["version"]):
        process = subprocess.run(
            [SKULK, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert (process.returncode, process.stderr) == (0, b"")
        assert process.stdout
