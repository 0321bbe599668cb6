"""`skulk timeline`: one command's story, whole or as it goes on."""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from protocol.session import TimelineEntry
from tests.support.builders import NOW_MS, a_command_id, a_node_id
from tests.support.command_line import Stream, skulk
from tests.support.scripted_session import ScriptedSession


def entry(text: str, **changes: object) -> TimelineEntry:
    fields: dict[str, object] = {
        "at_ms": NOW_MS,
        "node_id": a_node_id(),
        "node_name": "den-01",
        "source": "log",
        "kind": "info",
        "text": text,
    }
    return TimelineEntry.model_validate(fields | changes)


PLACED = entry("on den-01", node_id=None, node_name="", source="event", kind="InstancePlaced")


@pytest.fixture
def den() -> Iterator[ScriptedSession]:
    with ScriptedSession() as node:
        yield node


def test_events_and_log_lines_stand_in_order(den: ScriptedSession) -> None:
    den.lines("command", [PLACED, entry("engine started")])
    ran = skulk("timeline", a_command_id(), node=den.url)
    first, second = ran.out.splitlines()
    assert ran.code == 0
    assert first.endswith(" cluster InstancePlaced: on den-01")
    assert second.endswith(" den-01 info: engine started")
    den.wait_for(lambda: den.n_open == 0)


def test_json_is_a_record_for_each(den: ScriptedSession) -> None:
    den.lines("command", [PLACED, entry("engine started")])
    document = json.loads(skulk("timeline", a_command_id(), "--json", node=den.url).out)
    assert document["kind"] == "timeline"
    assert [one["node_name"] for one in document["items"]] == [None, "den-01"]


def test_a_command_that_nobody_remembers_is_an_empty_list(den: ScriptedSession) -> None:
    ran = skulk("timeline", a_command_id(), node=den.url)
    assert (ran.code, ran.out) == (0, "")
    assert "No node has anything about it" in ran.err


def test_what_is_no_id_is_refused_before_anything_is_asked(den: ScriptedSession) -> None:
    ran = skulk("timeline", "../x", node=den.url)
    assert ran.code == 2
    assert den.n_sessions == 0


def test_a_refused_topic_is_the_commands_error(den: ScriptedSession) -> None:
    def refuse() -> None:
        den.wait_for(lambda: den.subscribed("command"))
        den.end_topic("command", "request.forbidden", "the key may not read")

    refuser = threading.Thread(target=refuse)
    refuser.start()
    ran = skulk("timeline", a_command_id(), "-f", "--timeout", "10s", node=den.url)
    refuser.join()
    assert ran.code == 4
    assert "the key may not read" in ran.err


def test_control_characters_of_a_log_do_nothing_to_a_terminal(den: ScriptedSession) -> None:
    den.lines("command", [entry("\x1b]52;c;x\x07evil")])
    ran = skulk("timeline", a_command_id(), node=den.url, terminals=frozenset({"stdout"}))
    assert "\x1b" not in ran.out
    assert "evil" in ran.out


def test_following_goes_on_over_a_broken_link_and_tells_nothing_twice(
    den: ScriptedSession,
) -> None:
    den.lines("command", [PLACED])

    def written() -> str:
        return sys.stdout.getvalue() if isinstance(sys.stdout, Stream) else ""

    def direct() -> None:
        try:
            den.wait_for(lambda: "InstancePlaced" in written())
            den.drop()
            den.wait_for(lambda: den.n_sessions == 2)
            den.lines("command", [entry("engine started")])
            den.wait_for(lambda: "engine started" in written())
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    director = threading.Thread(target=direct)
    director.start()
    ran = skulk("timeline", a_command_id(), "-f", node=den.url)
    director.join()
    assert ran.code == 130
    assert len(ran.out.splitlines()) == 2
