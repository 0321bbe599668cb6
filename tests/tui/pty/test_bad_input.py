"""`skulk tui` on a terminal, in front of a node that lies, breaks off, floods, or has odd names.

Numbers in brackets are rows of the acceptance list for the terminal interface.
"""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from rich.cells import cell_len

from protocol.session import NODE_FRAME_MAX_BYTES, SessionAnswer, row_key
from skulk_tui.view_state import LINES_KEPT
from tests.support.builders import a_cluster_id, a_node_id
from tests.support.den_cluster import den_head, den_member, den_node, fill
from tests.support.pty_screen import TuiProgram
from tests.support.scripted_session import ScriptedSession

SHOWN_S = 20.0
NAMES = (
    "[red]x[/red]",
    "\x1b]52;c;aGk=\x07\x1b[2J",
    "日本語の名前",
    "\u202egnp.exe\u2066",
    "n" * 300,
    "a\u0301b",
    "\x9b31m",
    "x\ty\r\nz",
)
MALFORMED = (
    "",
    "{",
    "[]",
    "null",
    '{"type":"rows"}',
    '{"type":"nothing of the kind"}',
    '{"type":"ping","n":NaN}',
    '{"type":"ping","n":' + "9" * 5000 + "}",
    "[" * 100_000,
    b"\xff\xfe",
)


@pytest.fixture
def node() -> Iterator[ScriptedSession]:
    with ScriptedSession() as scripted:
        fill(scripted)
        yield scripted


def attached(root: Path, node: ScriptedSession) -> TuiProgram:
    return TuiProgram(root, "--node", node.url)


def is_back(
    screen: TuiProgram, node: ScriptedSession, n_sessions: int, what: str = "another session"
) -> None:
    """Wait until the program has hung up, and come back with all that it knew."""
    screen.until(lambda: node.n_sessions > n_sessions, what, within_s=SHOWN_S)
    screen.until_gone("retry now")
    screen.until_shows("LIVE", "attic-mini")


def test_names_are_shown_literally_and_aligned(node: ScriptedSession, tmp_path: Path) -> None:
    """[16]"""
    for number, name in enumerate(NAMES, start=20):
        member = den_member(2, name=name, node_id=a_node_id(number))
        node.rows("cluster", {row_key("node", a_node_id(number)): den_node(2, member=member)})
    node.rows("cluster", {"cluster": den_head(name=NAMES[1])})
    with attached(tmp_path, node) as screen:
        screen.until_shows("LIVE", "attic-mini", "[red]x[/re", "日本語の", "gnp.exe", "nnnnnn>")
        memory = "44/64G"
        rows = [row for row in screen.frame if memory in row]
        assert len(rows) == len(NAMES) + 1
        assert len({cell_len(row[: row.index(memory)]) for row in rows}) == 1
        screen.type("2")
        screen.until_shows("[2 Models]", "nnnnnn>")
        screen.type("1\x1b[F\r")  # opens one of them
        screen.until_shows("Runs")
        assert b"\x1b]52" not in screen.program.output
        assert not [code for code in "\u202e\u2066\x9b" if code.encode() in screen.program.output]
        assert screen.leave() == 0


def test_a_message_that_is_no_frame_ends_the_session_and_the_next_one_is_whole(
    node: ScriptedSession, tmp_path: Path
) -> None:
    with attached(tmp_path, node) as screen:
        screen.until_shows("LIVE", "attic-mini", within_s=SHOWN_S)
        for message in (*MALFORMED, "x" * (NODE_FRAME_MAX_BYTES + 1)):
            n_sessions = node.n_sessions
            node.send_raw(message)
            is_back(screen, node, n_sessions, f"a session after {message[:40]!r}")
            assert b"this program failed" not in screen.program.output, message[:40]
        assert screen.leave() == 0


def test_frames_out_of_their_order_end_the_session_and_late_ones_do_not(
    node: ScriptedSession, tmp_path: Path
) -> None:
    never_asked = SessionAnswer(id=1 << 30, status=200, body={}).model_dump_json()
    hello = (
        f'{{"type":"hello","version":1,"build":"0","node_id":"{node.node_id}","name":"again",'
        f'"boot_id":"b","cluster_id":"{a_cluster_id()}","scope":"admin","who":"x","at_ms":1}}'
    )
    with attached(tmp_path, node) as screen:
        screen.until_shows("LIVE", "attic-mini", within_s=SHOWN_S)
        (followed, *_) = node.subscribed("cluster")
        late = f'{{"type":"ended","id":{followed.id}}}'
        n_sessions = node.n_sessions
        node.send_raw(late)
        node.send_raw(late)
        node.rows("health", {})
        screen.until(lambda: node.n_open == 1, "the session is kept")
        for message in (never_asked, hello):
            n_sessions = node.n_sessions
            node.send_raw(message)
            is_back(screen, node, n_sessions)
        assert screen.leave() == 0


def test_a_node_of_another_version_is_named_and_the_program_stays(
    node: ScriptedSession, tmp_path: Path
) -> None:
    node.version = 9
    with attached(tmp_path, node) as screen:
        screen.until_shows("NODE INCOMPATIBLE", "version 9", within_s=SHOWN_S)
        screen.type("5")
        screen.until_shows("[5 Diag]")
        assert screen.leave() == 0


def test_a_node_that_stops_in_the_middle_of_a_frame_is_found_again(
    node: ScriptedSession, tmp_path: Path
) -> None:
    with attached(tmp_path, node) as screen:
        screen.until_shows("LIVE", "attic-mini", within_s=SHOWN_S)
        n_sessions = node.n_sessions
        node.break_off()
        node.close()
        screen.until_shows("LOST", "attic-mini")
        node.reopen()
        screen.type("r")
        is_back(screen, node, n_sessions)
        n_sessions = node.n_sessions
        node.break_off()
        node.rows("cluster", {"cluster": den_head(seq=9000)})  # becomes the rest of it
        is_back(screen, node, n_sessions)
        assert screen.leave() == 0


def test_a_key_that_may_only_read_is_offered_nothing_and_asks_for_nothing(
    node: ScriptedSession, tmp_path: Path
) -> None:
    """[14]"""
    node.scope = "read"
    with attached(tmp_path, node) as screen:
        screen.until_shows("LIVE", "RO", "attic-mini", within_s=SHOWN_S)
        assert "x remove" not in screen.frame[-1]
        screen.type(":remove den-01\r")
        screen.until_shows("remove: the key may not")
        screen.until_gone(":remove den-01")
        screen.type("?")
        screen.until_shows("Help")
        assert "Remove a node" not in screen.text
        screen.type("\x1b")
        screen.until_gone("Help")
        screen.type(":rem\t")
        screen.until_shows(":rem")
        assert "remove" not in screen.frame[-2]
        screen.type("\x1b")
        assert screen.leave() == 0
    assert [one for one in node.requests if one.method != "GET"] == []


def test_a_flood_of_log_lines_is_counted_and_takes_no_more_memory(
    node: ScriptedSession, tmp_path: Path
) -> None:
    """[6] How soon keys are done meanwhile is measured by `bench`."""
    batch = LINES_KEPT // 10
    n_sent = len("12")  # what the log holds from the start

    def send(n_batches: int) -> None:
        nonlocal n_sent
        for _ in range(n_batches):
            items = [
                {"at": "2026-01-01T00:00:00Z", "level": "info", "message": f"line {n_sent + n}."}
                for n in range(batch)
            ]
            n_sent += batch
            node.lines("logs", items)
            screen.program.read_for(0.01)
        screen.until_shows(f"line {n_sent - 1}.", f"{n_sent - LINES_KEPT} dropped", within_s=60)

    with attached(tmp_path, node) as screen:
        screen.until_shows("LIVE", "attic-mini", within_s=SHOWN_S)
        screen.type("\x1b[H\rl")
        screen.until(lambda: bool(node.subscribed("logs")), "the log is followed")
        send(20)
        program = psutil.Process(screen.program.pid)
        before = program.memory_info().rss
        send(40)
        assert program.memory_info().rss - before < 16 << 20
        screen.type("l\x1b[A\x1b[A\x1b[A")
        screen.until_shows("3 new below")
        assert screen.leave() == 0
