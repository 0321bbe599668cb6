"""The link over a real socket, against a node that does as each test says."""

import asyncio
import random
from pathlib import Path

import pytest

from protocol.errors import ErrorCode
from protocol.session import (
    NODE_FRAME_MAX_BYTES,
    ClientHello,
    Credit,
    Subscribe,
    Unsubscribe,
)
from skulk_tui.clock import SystemClock
from skulk_tui.session_link import SessionLink
from skulk_tui.session_socket import WebSocketConnector
from skulk_tui.target import Target
from skulk_tui.tls_pins import TlsTrust
from skulk_tui.view_state import Changes, ViewState
from tests.support.builders import a_cluster_id, a_command_id
from tests.support.cluster_documents import an_event
from tests.support.den_cluster import den_head, den_node, fill
from tests.support.linked import Impatience, Seen, linked, live, run, until
from tests.support.scripted_session import ScriptedSession
from tests.support.session_answers import Scripted, refusal

SECOND_HELLO = (
    '{"type":"hello","version":1,"build":"x","node_id":"%n","name":"x","boot_id":"b",'
    '"cluster_id":"%k","at_ms":1}'
)

# ---- Coming up ------------------------------------------------------------------------------


def test_a_link_comes_up_and_holds_what_the_node_tells() -> None:
    async def story(node: ScriptedSession) -> None:
        seen = Seen()
        async with linked(node, seen=seen, topics=("cluster", "placements")) as link:
            await live(link)
            assert seen.words == ["connecting", "syncing", "live"][-len(seen.words) :]
            assert link.view.node_name == "den-01"
            assert link.state.nodes[0].member.name == "attic-mini"
            assert len(link.state.instances) == 2
            hello = node.seen[0]
            assert isinstance(hello, ClientHello)
            assert hello.client == "skulk"

    run(story)


def test_a_topic_that_is_late_keeps_the_link_syncing_with_its_progress() -> None:
    async def story(node: ScriptedSession) -> None:
        node.withhold("placements")
        async with linked(node, topics=("cluster", "placements")) as link:
            await until(lambda: link.view.progress_ratio == pytest.approx(0.5))
            assert link.view.word == "syncing"
            node.release()
            await live(link)

    run(story)


def test_rows_that_change_and_go_are_told_by_key() -> None:
    async def story(node: ScriptedSession) -> None:
        seen = Seen()
        async with linked(node, seen=seen) as link:
            await live(link)
            gone = next(key for key in node_keys(link) if "attic" in link.state.name_of(key))
            node.rows("cluster", {"cluster": den_head(ready=9), f"node/{gone}": None})
            await until(lambda: link.state.head is not None and link.state.head.ready == 9)
            assert seen.changes[-1].keys == {"cluster", f"node/{gone}"}
            assert len(link.state.nodes) == 3

    run(story)


def node_keys(link: SessionLink) -> list[str]:
    return [view.member.node_id for view in link.state.nodes]


def test_a_row_of_a_kind_that_this_build_does_not_know_is_passed_over() -> None:
    async def story(node: ScriptedSession) -> None:
        node.rows("cluster", {"flux/1": {"capacity": 3}})
        async with linked(node) as link:
            await live(link)
            assert link.state.row("flux/1") is None

    run(story)


# ---- Loss and return ------------------------------------------------------------------------


def test_a_node_that_goes_and_comes_back_is_resumed_by_cursor_under_the_same_ids() -> None:
    async def story(node: ScriptedSession) -> None:
        seen = Seen()
        async with linked(node, seen=seen, topics=()) as link:
            rows_id, lines_id = link.subscribe("cluster"), link.subscribe("events")
            await live(link)
            await until(lambda: link.state.lines(lines_id).n_seen == 3)
            node.close()
            await until(lambda: link.view.word == "lost")
            assert len(link.state.nodes) == 4
            node.lines("events", [an_event(8818)])
            node.reopen()
            await live(link)
            await until(lambda: link.state.lines(lines_id).n_seen == 4)
            again = [frame for frame in node.seen if isinstance(frame, Subscribe)][2:]
            assert [frame.cursor is not None for frame in again] == [True, True]
            assert "resuming" in seen.words
            link.unsubscribe(rows_id)
            assert link.state.nodes == ()

    run(story)


def test_after_a_reboot_rows_come_as_a_snapshot_and_events_by_their_place_in_the_log() -> None:
    async def story(node: ScriptedSession) -> None:
        async with linked(node, topics=("cluster", "events")) as link:
            await live(link)
            await until(lambda: link.state.lines(2).n_seen == 3)
            node.close()
            node.snapshot("cluster", {"cluster": den_head(term=8)})
            node.lines("events", [an_event(9000)], gap="8818 to 8999 are no longer kept")
            node.reopen(is_reboot=True)
            await until(lambda: link.state.head is not None and link.state.head.term == 8)
            assert link.state.nodes == ()
            await until(lambda: link.state.lines(2).n_seen == 5)
            items = link.state.lines(2).items
            assert items[3].gap == "8818 to 8999 are no longer kept"
            assert items[4].item["seq"] == 9000

    run(story)


def test_logs_of_the_node_attached_to_go_on_after_a_gap_at_another_node() -> None:
    async def story(node: ScriptedSession) -> None:
        with ScriptedSession(name="den-02", number=2) as other:
            fill(other)
            async with linked(node, topics=("cluster", "logs")) as link:
                await live(link)
                await until(lambda: link.state.lines(2).n_seen == 2)
                link.attach(other.url)
                await live(link)
                await until(lambda: link.state.lines(2).n_seen == 5)
                assert link.state.lines(2).items[2].gap == "from here on the log of den-02"
                assert link.view.node_name == "den-02"

    run(story)


def test_a_stalled_node_goes_stale_and_talks_again() -> None:
    async def story(node: ScriptedSession) -> None:
        seen = Seen()
        async with linked(node, seen=seen) as link:
            await live(link)
            node.stall()
            await until(lambda: link.view.word == "stale")
            node.go_on()
            await live(link)
            assert node.n_sessions == 1

    run(story)


def test_a_node_that_only_pings_stays_live_and_gets_its_pongs_and_credit() -> None:
    async def story(node: ScriptedSession) -> None:
        async with linked(node) as link:
            await live(link)
            await until(lambda: any(isinstance(frame, Credit) for frame in node.seen))
            assert any(frame.type == "pong" for frame in node.seen) or await _pong(node)
            assert link.view.word == "live"

    run(story)


async def _pong(node: ScriptedSession) -> bool:
    await until(lambda: any(frame.type == "pong" for frame in node.seen))
    return True


def test_credit_is_given_back_byte_for_byte() -> None:
    async def story(node: ScriptedSession) -> None:
        big = {f"node/{n}": {"x": "y" * 50_000} for n in range(8)}
        async with linked(node) as link:
            await live(link)
            node.rows("cluster", big)
            await until(lambda: any(isinstance(frame, Credit) for frame in node.seen))
            given = [frame.bytes for frame in node.seen if isinstance(frame, Credit)]
            assert given[0] > 400_000
            assert link.view.word == "live"

    run(story)


def test_the_next_address_is_used_when_the_first_does_not_answer() -> None:
    async def story(node: ScriptedSession) -> None:
        with ScriptedSession(name="den-02", number=2) as other:
            fill(other)
            node.close()
            async with linked(node, other) as link:
                await live(link)
                assert link.view.node_name == "den-02"
                assert link.view.url == other.url

    run(story)


def test_retry_now_does_not_wait_for_the_backoff() -> None:
    async def story(node: ScriptedSession) -> None:
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable retries
        async with linked(node, randomness=random.Random(1)) as link:
            await live(link)
            node.close()
            await until(lambda: link.view.attempt >= 1)
            retry_at = link.view.retry_at
            node.reopen()
            link.retry_now()
            await live(link)
            assert retry_at is not None
            assert link.view.since < retry_at - 0.1

    run(story)


# ---- Who is not let in ----------------------------------------------------------------------


def test_a_refused_key_is_denied_and_another_one_is_tried_at_once() -> None:
    async def story(node: ScriptedSession) -> None:
        node.api_key = "right"
        async with linked(node, api_key="wrong") as link:
            await until(lambda: link.view.word == "denied")
            assert "key from test" in link.view.reason
            assert "wrong" not in link.view.reason
            link.use_key("right", "prompt")
            await live(link)
            assert node.headers[-1]["authorization"] == "Bearer right"

    run(story)


def test_a_key_is_never_sent_in_the_clear_to_another_machine() -> None:
    async def story() -> None:
        seen = Seen()
        link = SessionLink(
            Target(url="http://192.0.2.1:52415", url_rule="--node", api_key="secret"),
            ViewState(),
            clock=SystemClock(),
            randomness=Impatience(),
            on_change=seen.take,
            connect=WebSocketConnector(TlsTrust(Path("/nonexistent/pins"))),
        )
        link.start()
        await until(lambda: link.view.word == "denied")
        assert "ssh -L" in link.view.remedy
        await link.close()

    asyncio.run(story())


def test_a_node_of_another_version_is_incompatible_and_says_both() -> None:
    async def story(node: ScriptedSession) -> None:
        node.version = 99
        async with linked(node) as link:
            await until(lambda: link.view.word == "incompatible")
            assert "speaks version 99" in link.view.reason
            assert "this program 1" in link.view.reason

    run(story)


def test_a_node_without_sessions_is_incompatible() -> None:
    async def story(node: ScriptedSession) -> None:
        node.upgrade_refusal = refusal("request.not_found", "no such route", status=404)
        async with linked(node) as link:
            await until(lambda: link.view.word == "incompatible")
            assert "too old" in link.view.reason

    run(story)


def test_a_redirect_is_not_followed() -> None:
    async def story(node: ScriptedSession) -> None:
        node.upgrade_refusal = Scripted(status=307, body={"to": "elsewhere"})
        async with linked(node, api_key="secret") as link:
            await until(lambda: link.view.attempt >= 1)
            assert "HTTP 307" in link.view.reason

    run(story)


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("cluster.stopping", "lost"),
        ("session.incompatible", "incompatible"),
        ("request.unauthenticated", "denied"),
        ("request.overloaded", "lost"),
    ],
)
def test_a_closing_says_why_and_decides_whether_to_come_back(code: ErrorCode, word: str) -> None:
    async def story(node: ScriptedSession) -> None:
        seen = Seen()
        async with linked(node, seen=seen) as link:
            await live(link)
            node.end_sessions(code, "because of it")
            await until(lambda: word in seen.words)
            if word == "lost":
                await live(link)
                assert node.n_sessions == 2
            else:
                assert "because of it" in link.view.reason

    run(story)


# ---- What makes no sense --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("not json", "no frame"),
        ("{}", "no frame"),
        ('{"type":"wonder","id":1}', "no frame"),
        ('{"type":"rows","id":1}', "no frame"),
        (b"\x00\xff\xfe", "no frame"),
        ('{"type":"rows","id":999,"cursor":"x","at_ms":1}', "never asked"),
        ('{"type":"answer","id":999,"status":200}', "never asked"),
        ('{"type":"stream","id":999,"command_id":"%c","offset":0}', "never asked"),
        ('{"type":"lines","id":1,"cursor":"x","at_ms":1}', "lines for the topic cluster"),
        (SECOND_HELLO, "second hello"),
        ('{"type":"closing","error":{"code":"future.reason","message":"the moon is full"}}',
         "the moon is full"),
    ],
)  # fmt: skip
def test_a_frame_that_makes_no_sense_ends_the_connection_with_the_reason(
    message: str | bytes, said: str
) -> None:
    async def story(node: ScriptedSession) -> None:
        seen = Seen()
        async with linked(node, seen=seen) as link:
            await live(link)
            raw = message
            if isinstance(raw, str):
                raw = raw.replace("%c", a_command_id()).replace("%n", node.node_id)
                raw = raw.replace("%k", a_cluster_id())
            node.send_raw(raw)
            await until(lambda: "lost" in seen.words)
            assert link.view.word != "live"
            assert said in link.view.reason
            await live(link)

    run(story)


def test_an_oversized_message_ends_the_connection_with_the_reason() -> None:
    async def story(node: ScriptedSession) -> None:
        async with linked(node) as link:
            await live(link)
            node.send_raw("x" * (NODE_FRAME_MAX_BYTES + 1))
            await until(lambda: link.view.word == "lost")
            assert "more than 4 MiB" in link.view.reason

    run(story)


def test_a_topic_that_the_node_does_not_send_has_its_reason_and_does_not_hold_up_the_rest() -> None:
    async def story(node: ScriptedSession) -> None:
        node.withhold("models")
        async with linked(node, topics=("cluster", "models")) as link:
            await until(lambda: link.view.progress_ratio == pytest.approx(0.5))
            node.release()
            await live(link)
            node.end_topic("models", "request.forbidden", "the key may not read")
            await until(lambda: link.error_of(2) is not None)
            error = link.error_of(2)
            assert error is not None
            assert error.code == "request.forbidden"
            assert link.error_of(1) is None

    run(story)


def test_a_coalesced_feed_is_shown() -> None:
    async def story(node: ScriptedSession) -> None:
        seen = Seen()
        async with linked(node, seen=seen) as link:
            await live(link)
            node.feed("summary")
            await until(lambda: link.state.feed == "summary")
            assert seen.changes[-1].is_head

    run(story)


def test_a_resync_asks_for_all_rows_under_new_numbers_and_ignores_late_frames() -> None:
    async def story(node: ScriptedSession) -> None:
        async with linked(node) as link:
            await live(link)
            link.mark_resync()
            await until(lambda: len([f for f in node.seen if isinstance(f, Subscribe)]) == 2)
            assert any(isinstance(frame, Unsubscribe) for frame in node.seen)
            node.send_raw('{"type":"rows","id":1,"cursor":"x","rows":{"cluster":null},"at_ms":1}')
            node.rows("cluster", {"node/" + node.node_id: den_node(1, cpu_ratio=2.0)})
            await until(lambda: cpu_of(link, node.node_id) == pytest.approx(2.0))
            assert link.state.head is not None

    run(story)


def cpu_of(link: SessionLink, node_id: str) -> float | None:
    for view in link.state.nodes:
        if view.member.node_id == node_id and view.resources is not None:
            return view.resources.cpu_ratio
    return None


def test_a_bug_in_what_is_told_ends_the_connection_and_not_the_program(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(node: ScriptedSession) -> None:
        seen = Seen()
        async with linked(node, seen=seen) as link:
            await live(link)
            wanted = link.state.apply_rows

            def broken(*_: object) -> Changes:
                link.state.apply_rows = wanted  # type: ignore[method-assign]
                raise ZeroDivisionError

            link.state.apply_rows = broken  # type: ignore[method-assign]
            node.rows("cluster", {"cluster": den_head(ready=5)})
            await until(lambda: "lost" in seen.words)
            assert "ZeroDivisionError" in link.view.reason
            await live(link)

    run(story)
    assert "ZeroDivisionError" in caplog.text
