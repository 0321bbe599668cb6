"""`--watch`: what a person, a pipe and a program get of what changes, and how it ends."""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from protocol.session import row_key
from tests.support.builders import a_node_id, an_instance_id
from tests.support.command_line import Ran, Stream, skulk
from tests.support.den_cluster import (
    den_failure,
    den_head,
    den_instance,
    den_member,
    den_node,
    fill,
)
from tests.support.scripted_session import ScriptedSession
from tests.support.session_answers import refusal

SECOND = row_key("node", a_node_id(2))
LARGE = row_key("instance", an_instance_id(1))
PERSON = frozenset({"stdout"})


@pytest.fixture
def den() -> Iterator[ScriptedSession]:
    with ScriptedSession() as node:
        fill(node)
        yield node


def watched(
    node: ScriptedSession,
    *arguments: str,
    meanwhile: Callable[[], None] = lambda: None,
    ends_by: signal.Signals = signal.SIGINT,
    terminals: frozenset[str] = frozenset(),
    term: str = "xterm",
) -> Ran:
    """Run a command that watches; another thread changes things, then ends it with a signal."""
    problems: list[BaseException] = []

    def direct() -> None:
        try:
            node.wait_for(written)
            meanwhile()
        except BaseException as wrong:  # ruff: ignore[blind-except]  raised again below
            problems.append(wrong)
        finally:
            os.kill(os.getpid(), ends_by)

    director = threading.Thread(target=direct, name="director")
    director.start()
    environment = {"TERM": term}
    ran = skulk(*arguments, node=node.url, terminals=terminals, environment=environment)
    director.join()
    for problem in problems:
        raise problem
    return ran


def written() -> str:
    """Give what the command has written so far."""
    return sys.stdout.getvalue() if isinstance(sys.stdout, Stream) else ""


def told() -> str:
    return sys.stderr.getvalue() if isinstance(sys.stderr, Stream) else ""


def test_a_pipe_gets_a_line_of_words_for_each_thing_and_then_for_each_change(
    den: ScriptedSession,
) -> None:
    def meanwhile() -> None:
        lost = den_member(2, liveness="lost", presence="lost")
        den.rows("cluster", {SECOND: den_node(2, member=lost)})
        den.wait_for(lambda: "node den-02: lost" in written())
        den.rows("placements", {LARGE: None})
        den.wait_for(lambda: "gone" in written())

    ran = watched(den, "status", "--watch", meanwhile=meanwhile)
    lines = ran.out.splitlines()
    assert ran.code == 130
    assert lines[0] == "cluster home-lab: master den-01 in term 7, 4 of 4 voters alive"
    assert "node den-01: alive, full, master, health warn, disk_low" in lines
    assert any(line.startswith("download Qwen/") and "30 %" in line for line in lines)
    assert lines[-2:] == [
        "node den-02: lost, full, health unknown",
        f"instance {an_instance_id(1)}: gone",
    ]
    assert "\x1b" not in ran.out


def test_a_reading_that_never_rests_is_no_line_for_people(den: ScriptedSession) -> None:
    def meanwhile() -> None:
        den.rows("cluster", {SECOND: den_node(2, cpu_ratio=0.9)})
        den.rows("cluster", {"cluster": den_head(master=a_node_id(2))})
        den.wait_for(lambda: "master den-02" in written())

    ran = watched(den, "nodes", "-w", meanwhile=lambda: None)
    assert len(ran.out.splitlines()) == 4
    ran = watched(den, "status", "-w", meanwhile=meanwhile)
    assert sum(line.startswith("node den-02") for line in ran.out.splitlines()) == 1


def test_members_are_told_of_with_their_links(den: ScriptedSession) -> None:
    def meanwhile() -> None:
        lost = den_member(
            2, liveness="lost", presence="lost", link="refused", link_reason="nobody listens"
        )
        den.rows("cluster", {SECOND: den_node(2, member=lost)})
        den.wait_for(lambda: "refused" in written())

    ran = watched(den, "cluster", "members", "-w", meanwhile=meanwhile)
    assert ran.code == 130
    assert "member den-01: alive, full, master" in ran.out
    assert "member den-02: lost, full, link refused (nobody listens)" in ran.out.splitlines()


def test_the_doctor_tells_when_a_verdict_changes(den: ScriptedSession) -> None:
    def meanwhile() -> None:
        lost = den_member(2, liveness="lost", presence="lost")
        den.rows("cluster", {SECOND: den_node(2, member=lost)})
        den.wait_for(lambda: "den-02: degraded" in written())

    ran = watched(den, "doctor", "--watch", meanwhile=meanwhile)
    lines = ran.out.splitlines()
    assert ran.code == 130
    assert "node den-01: degraded, disk_low" in lines
    assert [line for line in lines if "den-02" in line] == [
        "node den-02: well",
        "node den-02: degraded, lost",
    ]


def test_a_program_gets_an_object_a_line_and_a_bookmark_when_all_is_told(
    den: ScriptedSession,
) -> None:
    def meanwhile() -> None:
        den.wait_for(lambda: "bookmark" in written())
        den.rows("placements", {LARGE: den_instance(1, "stopping")})
        den.wait_for(lambda: "modified" in written())
        den.rows("placements", {LARGE: None})
        den.wait_for(lambda: "deleted" in written())

    ran = watched(den, "ps", "--watch", "-o", "jsonl", meanwhile=meanwhile)
    lines = [json.loads(line) for line in ran.out.splitlines()]
    words = [line["type"] for line in lines]
    assert words == ["added", "added", "bookmark", "modified", "deleted"]
    assert {line["seq"] for line in lines} == {8817}
    assert lines[2]["object"] is None
    assert lines[3]["object"]["phase"] == "stopping"
    assert lines[4]["object"]["instance_id"] == an_instance_id(1)
    as_json = watched(den, "ps", "--watch", "--json")
    assert json.loads(as_json.out.splitlines()[0])["type"] == "added"


def test_names_alone_are_written_where_only_names_are_wanted(den: ScriptedSession) -> None:
    ran = watched(den, "models", "list", "-w", "-o", "name")
    assert len(ran.out.splitlines()) == 3


def test_a_failed_instance_is_told_with_its_cause_and_remedy(den: ScriptedSession) -> None:
    failed = den_instance(2, "failed", failure=den_failure(2))
    den.rows("placements", {row_key("instance", an_instance_id(2)): failed})
    ran = watched(den, "ps", "-w")
    (line,) = [one for one in ran.out.splitlines() if "failed" in one]
    assert "runner.out_of_memory: the kernel ended" in line
    assert "--context 4096" in line


def test_a_link_that_breaks_is_told_and_what_changed_meanwhile_is_caught_up_on(
    den: ScriptedSession,
) -> None:
    def meanwhile() -> None:
        den.close()
        den.wait_for(lambda: "connecting again" in told())
        den.rows("placements", {LARGE: None})
        den.reopen(is_reboot=True)
        den.wait_for(lambda: "gone" in written())

    ran = watched(den, "ps", "-w", meanwhile=meanwhile)
    assert "den-01 is back; going on" in ran.err
    assert len(ran.out.splitlines()) == 3


def test_at_a_terminal_the_tables_change_in_place_and_the_last_ones_stay(
    den: ScriptedSession,
) -> None:
    def meanwhile() -> None:
        den.rows("placements", {LARGE: den_instance(1, "stopping")})
        den.wait_for(lambda: "stopping" in written())

    ran = watched(den, "ps", "-w", meanwhile=meanwhile, terminals=PERSON)
    entered, _, rest = ran.out.partition("\x1b[?1049h")
    screen, _, after = rest.partition("\x1b[?1049l")
    assert not entered
    assert "ready" in screen
    assert "stopping" in after
    assert "\x1b[?25h" in screen
    assert "\x1b[H" not in after


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_that_ends_it_leaves_the_terminal_as_it_was(
    den: ScriptedSession, number: signal.Signals, code: int
) -> None:
    before = signal.getsignal(number)
    signal.signal(number, signal.default_int_handler)
    try:
        ran = watched(den, "ps", "-w", ends_by=number, terminals=PERSON)
    finally:
        signal.signal(number, before)
    assert ran.code == code
    assert ran.out.count("\x1b[?1049l") == 1


def test_a_terminal_that_cannot_place_its_cursor_gets_lines(den: ScriptedSession) -> None:
    ran = watched(den, "ps", "-w", terminals=PERSON, term="dumb")
    assert "\x1b" not in ran.out
    assert ran.out.startswith("instance ")


def test_hostile_names_do_nothing_to_a_terminal(den: ScriptedSession) -> None:
    evil = den_member(2, name="evil\x1b]52;c;x\x07\x1b[2J")
    den.rows("cluster", {SECOND: den_node(2, member=evil)})
    ran = watched(den, "nodes", "-w", terminals=PERSON, term="dumb")
    assert "\x1b" not in ran.out
    assert "\x07" not in ran.out


def test_the_budget_ends_it_with_124(den: ScriptedSession) -> None:
    ran = skulk("ps", "-w", "--timeout", "300ms", node=den.url)
    assert ran.code == 124
    assert ran.out.startswith("instance ")


def test_without_a_node_it_ends_with_3_at_once(den: ScriptedSession) -> None:
    url = den.url
    den.close()
    ran = skulk("status", "-w", node=url)
    assert (ran.code, ran.out) == (3, "")
    error, at, remedy = ran.err.splitlines()
    assert error.startswith("error: no node answers at")
    assert at == f"  at: {url}"
    assert remedy.startswith("  remedy: ")


def test_a_key_that_is_refused_ends_it_with_4_and_a_right_one_is_asked_for() -> None:
    with ScriptedSession(api_key="skulk-right") as node:
        fill(node)
        ran = skulk("ps", "-w", node=node.url)
        assert ran.code == 4
        assert "the key is not known" in ran.err


def test_an_older_node_without_sessions_is_told(den: ScriptedSession) -> None:
    den.upgrade_refusal = refusal("request.not_found", "there is no such route", status=404)
    ran = skulk("ps", "-w", node=den.url)
    assert ran.code == 1
    assert "its build is too old" in ran.err
