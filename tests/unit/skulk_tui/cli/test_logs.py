"""`skulk logs` and `skulk events`: whose, how shown, and following."""

import json
from datetime import UTC, datetime

import pytest

from protocol.cluster_api import LogLineView
from skulk_tui.cli import following
from skulk_tui.clock import SystemClock
from tests.support.builders import MODEL, a_node_id, an_instance_id
from tests.support.cluster_documents import (
    a_page,
    an_engine_page,
    an_event,
    error_event,
    log_event,
    server_event,
    some_events,
)
from tests.support.command_line import skulk
from tests.support.fake_node import Answer, FakeNode, a_state_document, an_ending, refusal

pytestmark = pytest.mark.usefixtures("quick")

LOGS = "/v1/logs"
NOON_MS = 1_767_355_200_000
"""2026-01-02 at noon."""
EVENTS = "/events"


def streamed(*pieces: bytes) -> Answer:
    return Answer(pieces=pieces, content_type="text/event-stream")


@pytest.fixture
def soon_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a minute after the first line and the first event."""

    def wall_ms(_self: SystemClock) -> int:
        return NOON_MS + 60_000

    monkeypatch.setattr(SystemClock, "wall_ms", wall_ms)


def stamp(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()


# ---- Since when --------------------------------------------------------------------------------


@pytest.mark.usefixtures("soon_after")
@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (("--since", "2m"), ["first", "second", "third"]),
        (("--since", "45s"), ["second", "third"]),
        (("--since", "2m", "-n", "1"), ["third"]),
        (("--since", "10s"), []),
    ],
)
def test_lines_from_before_are_left_out(
    node: FakeNode, options: tuple[str, ...], shown: list[str]
) -> None:
    lines = tuple(
        LogLineView(at=stamp(NOON_MS + 20_000 * index), message=word)
        for index, word in enumerate(("first", "second", "third"))
    )
    node.on("GET", LOGS, a_page().model_copy(update={"lines": lines}))
    ran = skulk("logs", *options, "-o", "name", node=node.url)
    assert (ran.code, ran.out.split()) == (0, shown)
    assert node.asked("GET", LOGS)[0].query["limit"] == ["1000"]


@pytest.mark.usefixtures("soon_after")
def test_what_an_engine_wrote_has_no_time_and_stays(node: FakeNode) -> None:
    node.on("GET", LOGS, an_engine_page("loading tensors"))
    assert skulk("logs", MODEL, "--since", "1s", node=node.url).out == "loading tensors\n"


@pytest.mark.usefixtures("soon_after")
def test_events_from_before_are_left_out(node: FakeNode) -> None:
    old, new = (
        an_event(seq).model_copy(update={"at_ms": NOON_MS + 30_000 * index})
        for index, seq in enumerate((41, 42))
    )
    page = some_events(41, 42).model_copy(update={"events": (old, new)})
    node.on("GET", EVENTS, page)
    ran = skulk("events", "--since", "40s", "-o", "name", node=node.url)
    assert (ran.code, ran.out) == (0, "42\n")
    assert "no event of the last 1s" in skulk("events", "--since", "1s", node=node.url).err


@pytest.mark.usefixtures("soon_after")
def test_what_is_followed_begins_there_too(node: FakeNode) -> None:
    lines = tuple(
        LogLineView(at=stamp(NOON_MS + 20_000 * index), message=word)
        for index, word in enumerate(("first", "second"))
    )
    page = a_page().model_copy(update={"lines": lines})
    node.on("GET", LOGS, streamed(log_event(page), error_event("request.forbidden", "enough")))
    ran = skulk("logs", "-f", "--since", "45s", "-o", "name", node=node.url)
    assert "second" in ran.out
    assert "first" not in ran.out


def test_a_duration_that_is_none_is_refused_before_anything_is_asked(node: FakeNode) -> None:
    for verb in ("logs", "events"):
        assert skulk(verb, "--since", "yesterday", node=node.url).code == 2
    assert node.seen == []


# ---- Whose log ---------------------------------------------------------------------------------


def test_without_a_target_the_asked_nodes_own_log_is_shown(node: FakeNode) -> None:
    ran = skulk("logs", "-n", "7", node=node.url)
    first, second = ran.out.splitlines()
    assert first.startswith("2026-01-02T03:04:05.678+00:00 info     node: serving command_id=")
    assert first.endswith("peer=127.0.0.1")
    assert "stopping" in second
    assert dict(node.asked("GET", LOGS)[0].query) == {"limit": ["7"]}


@pytest.mark.parametrize(
    ("target", "field", "value"),
    [
        ("BOX-1", "node", a_node_id()),
        (a_node_id(), "node", a_node_id()),
        (MODEL, "instance", an_instance_id()),
        (an_instance_id(), "instance", an_instance_id()),
        (an_instance_id()[:12], "instance", an_instance_id()),
    ],
)
def test_a_target_is_a_node_or_an_instance_by_any_of_its_names(
    node: FakeNode, target: str, field: str, value: str
) -> None:
    assert skulk("logs", target, node=node.url).code == 0
    assert node.asked("GET", LOGS)[0].query[field] == [value]


def test_the_lines_of_one_command_are_asked_for(node: FakeNode) -> None:
    assert skulk("logs", "--command", an_instance_id(), node=node.url).code == 0
    assert node.asked("GET", LOGS)[0].query["command_id"] == [an_instance_id()]
    assert skulk("logs", "--command", "x", node=node.url).code == 2


def test_the_log_of_an_instance_that_failed_and_is_gone_is_still_asked_for(node: FakeNode) -> None:
    node.on("GET", "/state", a_state_document(failures=(an_ending(9),)))
    assert skulk("logs", an_instance_id(9), node=node.url).code == 0
    assert node.asked("GET", LOGS)[0].query["instance"] == [an_instance_id(9)]


def test_a_mistyped_target_names_the_nearest(node: FakeNode) -> None:
    ran = skulk("logs", "box-2", node=node.url)
    assert ran.code == 2
    assert "'box-1'" in ran.err
    assert node.asked("GET", LOGS) == []


def test_an_engines_lines_are_shown_as_they_are(node: FakeNode) -> None:
    node.on("GET", LOGS, an_engine_page("loading tensors", "done \x1b[31mred"))
    piped = skulk("logs", MODEL, node=node.url)
    assert piped.out == "loading tensors\ndone \x1b[31mred\n"
    shown = skulk("logs", MODEL, node=node.url, terminals=frozenset({"stdout"}))
    assert "\x1b" not in shown.out


def test_an_empty_log_is_no_failure(node: FakeNode) -> None:
    node.on("GET", LOGS, an_engine_page())
    ran = skulk("logs", node=node.url)
    assert (ran.code, ran.out) == (0, "")
    assert "no line" in ran.err


def test_an_exception_goes_on_indented(node: FakeNode) -> None:
    page = a_page("failed")
    (line,) = page.lines
    line = line.model_copy(update={"extra": {"exception": "Traceback\n  boom"}})
    node.on("GET", LOGS, page.model_copy(update={"lines": (line,)}))
    out = skulk("logs", node=node.url).out
    assert out.splitlines()[1:] == ["    Traceback", "      boom"]


# ---- Following ---------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "RETRY_S", 0.01)


def test_a_followed_log_goes_on_where_it_broke_off_until_it_is_ended(node: FakeNode) -> None:
    node.on(
        "GET",
        LOGS,
        streamed(b": logs\n\n", log_event(a_page("one", after="1.10"))),
        streamed(error_event("cluster.peer_unreachable", "node-2 is away")),
        streamed(log_event(a_page("two", after="1.20", was_cut=True))),
        refusal("request.node_not_found", "node-2 is no member", status=404),
    )
    ran = skulk("logs", "box-1", "-f", node=node.url)
    assert ran.code == 2
    assert [line.split("node: ")[1].split()[0] for line in ran.out.splitlines()] == ["one", "two"]
    asked = node.asked("GET", LOGS)
    assert [one.headers.get("last-event-id") for one in asked] == [None, "1.10", "1.10", "1.20"]
    assert asked[0].query["follow"] == ["1"]
    told = ran.err.splitlines()
    assert told[:3] == [
        "node-2 is away; asking again", "back; going on",
        "some lines are missing: the log was capped",
    ]  # fmt: skip


def test_a_stream_that_never_began_is_an_error(node: FakeNode) -> None:
    node.on("GET", LOGS, refusal("cluster.peer_unreachable", "away", status=503))
    assert skulk("logs", "-f", node=node.url).code == 3
    assert len(node.asked("GET", LOGS)) == 1


def test_a_followed_log_as_json_is_an_object_a_line(node: FakeNode) -> None:
    node.on("GET", LOGS, streamed(log_event(a_page("one", "two"))), refusal("internal.bug"))
    ran = skulk("logs", "-f", "--json", node=node.url)
    assert [json.loads(line)["message"] for line in ran.out.splitlines()] == ["one", "two"]


def test_a_budget_ends_following_with_124(node: FakeNode) -> None:
    node.on("GET", LOGS, streamed(log_event(a_page("one"))))
    ran = skulk("logs", "-f", "--timeout", "300ms", node=node.url)
    assert ran.code == 124
    assert "serving" not in ran.err


# ---- Events ------------------------------------------------------------------------------------


def test_the_last_events_are_asked_for_by_seq(node: FakeNode) -> None:
    ran = skulk("events", "-n", "5", node=node.url)
    lines = ran.out.splitlines()
    assert [line.split()[0] for line in lines] == ["3.41", "3.42"]
    assert lines[0].split()[2] == "master_elected"
    assert f'"master":"{a_node_id()}"' in lines[0]
    assert '"kind"' not in lines[0]
    query = node.asked("GET", EVENTS)[1].query
    assert (query["after_seq"], query["limit"]) == (["37"], ["5"])


def test_an_event_fills_one_line_of_a_terminal_and_the_whole_of_a_wide_one(node: FakeNode) -> None:
    terminal, narrow = frozenset({"stdout"}), {"COLUMNS": "60"}
    ran = skulk("events", node=node.url, terminals=terminal, environment=narrow)
    assert {len(line) for line in ran.out.splitlines()} == {60}
    wide = skulk("events", "-o", "wide", node=node.url, terminals=terminal, environment=narrow)
    assert a_node_id() in wide.out


def test_events_after_a_seq(node: FakeNode) -> None:
    node.on("GET", EVENTS, some_events(8))
    skulk("events", "--after", "7", node=node.url)
    (asked,) = node.asked("GET", EVENTS)
    assert asked.query["after_seq"] == ["7"]


def test_followed_events_resume_by_seq_and_a_new_snapshot_is_told(node: FakeNode) -> None:
    event = server_event("master_elected", an_event(43).model_dump_json(by_alias=True), "43")
    replaced = server_event("state_replaced", '{"term": 3, "seq": 99}', "99")
    node.on("GET", EVENTS, some_events(42), streamed(event, replaced), refusal("internal.bug"))
    ran = skulk("events", "-f", "-o", "jsonl", node=node.url)
    assert [json.loads(line)["seq"] for line in ran.out.splitlines()] == [43]
    assert "began anew from a snapshot at seq 99" in ran.err
    assert node.asked("GET", EVENTS)[-1].headers["last-event-id"] == "99"
