"""Sessions over real sockets: what opens one, what it carries, and what ends it."""

import asyncio
import json

import pytest
from websockets.exceptions import InvalidStatus

from protocol.errors import RequestError
from protocol.events import SettingsChanged
from protocol.ids import NodeId
from protocol.nodes import Member
from protocol.session import CLIENT_FRAME_MAX_BYTES, read_node_frame
from protocol.state import ClusterSettings
from tests.support.api_harness import (
    Api,
    request_bytes,
    with_api,
)
from tests.support.builders import a_command_id
from tests.support.fake_ports import NODE, FakeDaemon, make_instance
from tests.support.session_client import Frame, session_with

UPGRADE = (
    "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


def test_the_node_says_who_it_is_and_what_the_key_allows() -> None:
    async def story(api: Api) -> None:
        async with session_with(api.port, says_hello=False) as client:
            hello = await client.hello(client="test 1")
            read_node_frame(json.dumps(hello))
            assert hello["node_id"] == NODE
            assert hello["version"] == 1
            assert (hello["scope"], hello["who"]) == ("admin", "loopback")
            assert hello["boot_id"] == "boot1"

    with_api(story)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("", 426),
        ("connection: Upgrade\r\nupgrade: h2c\r\n", 426),
        (UPGRADE.replace("13", "8"), 426),
        (UPGRADE.replace("dGhlIHNhbXBsZSBub25jZQ==", "short"), 400),
        (UPGRADE + "origin: http://evil.example\r\n", 403),
        (UPGRADE, 101),
        (UPGRADE + "origin: http://localhost\r\n", 101),
        (UPGRADE.replace("connection: Upgrade", "connection: keep-alive, UPGRADE"), 101),
    ],
)
def test_what_is_no_upgrade_is_refused_in_the_form_of_every_error(
    headers: str, status: int
) -> None:
    async def story(api: Api) -> None:
        answer = await api.raw(
            request_bytes("GET", "/v1/session", headers=headers).replace(
                b"content-length: 0\r\n", b""
            ),
            until=b"\r\n\r\n",
        )
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer
        if status == 426:
            assert b"upgrade: websocket" in answer

    with_api(story)


def test_another_host_is_refused_before_the_upgrade() -> None:
    async def story(api: Api) -> None:
        head = request_bytes("GET", "/v1/session", headers=UPGRADE)
        answer = await api.raw(head.replace(b"localhost", b"evil.example"), until=b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 421 ")

    with_api(story)


@pytest.mark.parametrize(
    "message",
    [
        "not json",
        "{}",
        '{"type":"nonsense"}',
        '{"type":"subscribe","id":1,"topic":"cluster"}',
        '{"type":"hello","versions":[1],"more":1}',
        "[" * 100_000,
        '{"type":"hello","client":"\\ud800"}',
    ],
)
def test_a_first_message_that_is_no_hello_ends_the_session(message: str) -> None:
    async def story(api: Api) -> None:
        async with session_with(api.port, says_hello=False) as client:
            await client.socket.send(message)
            closing = await client.closed()
            assert closing is not None
            assert closing["error"]["code"] == "protocol.bad_frame"

    with_api(story)


@pytest.mark.parametrize(
    "message",
    [
        '{"type":"hello"}',
        '{"type":"unknown"}',
        '{"type":"ping","n":-1}',
        '{"type":"subscribe","id":0,"topic":"cluster"}',
        '{"type":"subscribe","id":7,"topic":"weather"}',
        '{"type":"credit","bytes":1e400}',
        '{"type":"request","id":1,"method":"PATCH","path":"/"}',
        "null",
    ],
)
def test_a_message_that_is_none_ends_the_session(message: str) -> None:
    async def story(api: Api) -> None:
        async with session_with(api.port) as client:
            await client.socket.send(message)
            closing = await client.closed()
            assert closing is not None
            assert closing["error"]["code"] == "protocol.bad_frame"
            assert closing["error"]["remediation"]

    with_api(story)


def test_an_id_in_use_ends_the_session() -> None:
    async def story(api: Api) -> None:
        async with session_with(api.port) as client:
            for _ in range(2):
                await client.send(type="subscribe", id=5, topic="health")
            closing = await client.closed()
            assert closing is not None
            assert "5" in closing["error"]["message"]

    with_api(story)


def test_a_binary_message_ends_the_session() -> None:
    async def story(api: Api) -> None:
        async with session_with(api.port) as client:
            await client.socket.send(b'{"type":"ping"}')
            closing = await client.closed()
            assert closing is not None
            assert closing["error"]["code"] == "protocol.bad_frame"
            assert client.socket.close_code == 1003

    with_api(story)


def test_a_message_that_is_too_large_ends_the_session() -> None:
    async def story(api: Api) -> None:
        async with session_with(api.port) as client:
            await client.socket.send("x" * (CLIENT_FRAME_MAX_BYTES + 1))
            closing = await client.closed()
            assert closing is not None
            assert closing["error"]["code"] == "protocol.too_large"
            assert client.socket.close_code == 1009

    with_api(story)


def test_a_message_may_come_in_fragments() -> None:
    async def story(api: Api) -> None:
        async with session_with(api.port) as client:
            await client.socket.send(['{"type":', '"ping",', "", '"n":7}'])
            assert (await client.next("pong"))["n"] == 7

    with_api(story)


def test_a_client_of_another_version_is_told_so() -> None:
    async def story(api: Api) -> None:
        async with session_with(api.port, says_hello=False) as client:
            await client.send(type="hello", versions=[2, 3])
            closing = await client.closed()
            assert closing is not None
            assert closing["error"]["code"] == "session.incompatible"

    with_api(story)


def test_who_says_no_hello_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skulkd.api.session.HELLO_WITHIN_S", 0.1)

    async def story(api: Api) -> None:
        async with session_with(api.port, says_hello=False) as client:
            closing = await client.closed()
            assert closing is not None
            assert closing["error"]["code"] == "protocol.bad_frame"
            assert "hello" in closing["error"]["message"]

    with_api(story)


def test_the_node_pings_when_it_has_nothing_to_say() -> None:
    async def story(api: Api) -> None:
        async with session_with(api.port) as client:
            await client.send(type="ping", n=3)
            assert (await client.next("pong"))["n"] == 3
            with pytest.raises(TimeoutError):
                await client.next("never", wait_s=1.6)
            assert client.n_pings == 1

    with_api(story)


def test_a_stopping_node_says_so() -> None:
    async def story(api: Api) -> None:
        async with session_with(api.port) as client:
            closing = asyncio.ensure_future(client.closed())
            await api.server.close(grace_s=2)
            frame = await closing
            assert frame is not None
            assert frame["error"]["code"] == "cluster.stopping"
        assert api.server.connections() == []

    with_api(story)


def test_a_bug_ends_its_own_session_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(text: bytes) -> None:
        del text
        message = "a bug"
        raise RuntimeError(message)

    async def story(api: Api) -> None:
        async with session_with(api.port) as client:
            with monkeypatch.context() as patched:
                patched.setattr("skulkd.api.session.read_client_frame", broken)
                await client.send(type="ping")
                closing = await client.closed()
            assert closing is not None
            assert closing["error"]["code"] == "internal.bug"
        async with session_with(api.port):
            pass

    with_api(story)
    assert "a bug" in caplog.text


def test_so_many_sessions_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skulkd.api.session_routes.MAX_SESSIONS", 1)

    async def story(api: Api) -> None:
        async with session_with(api.port):
            with pytest.raises(InvalidStatus) as refused:
                async with session_with(api.port):
                    pass
            assert refused.value.response.status_code == 503
        async with session_with(api.port):
            pass

    with_api(story)


# ---- Rows ----------------------------------------------------------------------------------


def test_a_topic_is_first_told_as_a_whole() -> None:
    async def story(api: Api) -> None:
        async with session_with(api.port) as client:
            topics = ("cluster", "placements", "transfers", "models", "health")
            ids = {await client.subscribe(topic): topic for topic in topics}
            seen: dict[str, dict[str, object]] = {}
            while len(seen) < len(topics):
                frame = await client.next("rows")
                read_node_frame(json.dumps(frame))
                assert frame["is_snapshot"], frame
                seen[ids[frame["id"]]] = frame["rows"]
            assert set(seen["cluster"]) == {"cluster", f"node/{NODE}"}
            instance = make_instance()
            assert set(seen["placements"]) == {f"instance/{instance.instance_id}"}
            assert set(seen["models"]) == {"model/test/scripted"}
            assert set(seen["health"]) == {f"health/{NODE}"}
            assert seen["transfers"] == {}

    with_api(story)


def joined(daemon: FakeDaemon, name: str, letter: str) -> None:
    """Have a node join."""
    member = Member(node_id=NodeId(NODE[:-1] + letter), name=name, public_key=letter * 64)
    state = daemon.state.state
    daemon.state.reset(
        state.model_copy(
            update={"members": {**state.members, member.node_id: member}, "seq": state.seq + 1}
        )
    )


def test_what_one_client_changes_the_other_sees_within_half_a_second() -> None:
    async def story(api: Api) -> None:
        async with session_with(api.port) as one, session_with(api.port) as other:
            for client in (one, other):
                await client.subscribe("cluster")
                await client.next("rows")
            began = asyncio.get_running_loop().time()
            joined(api.daemon, "beta", "b")
            for client in (one, other):
                key = f"node/{NODE[:-1]}b"
                rows = await client.rows_until(lambda rows, key=key: key in rows)
                assert rows[key]["member"]["name"] == "beta"
            assert asyncio.get_running_loop().time() - began < 0.5

    with_api(story)


def test_a_cursor_goes_on_where_it_was_and_a_foreign_one_begins_anew() -> None:
    async def story(api: Api) -> None:
        async with session_with(api.port) as client:
            await client.subscribe("cluster")
            cursor = (await client.next("rows"))["cursor"]
        joined(api.daemon, "beta", "b")
        async with session_with(api.port) as client:
            await client.subscribe("cluster", cursor=cursor)
            frame = await client.next("rows")
            assert not frame["is_snapshot"]
            assert f"node/{NODE[:-1]}b" in frame["rows"]
            assert f"node/{NODE}" not in frame["rows"], "it has not changed"
            for foreign in ("nonsense", "boot0.cluster.1.0", cursor.replace("cluster", "health")):
                number = await client.subscribe("cluster", cursor=foreign)
                frame = await client.next("rows", where=lambda one, n=number: one["id"] == n)
                assert frame["is_snapshot"], foreign
                assert f"node/{NODE}" in frame["rows"]

    with_api(story)


def test_unsubscribing_ends_the_rows() -> None:
    async def story(api: Api) -> None:
        async with session_with(api.port) as client:
            number = await client.subscribe("cluster")
            await client.next("rows")
            await client.send(type="unsubscribe", id=number)
            assert (await client.next("ended"))["error"] is None
            joined(api.daemon, "beta", "b")
            with pytest.raises(TimeoutError):
                await client.next("rows", wait_s=0.7)
        await asyncio.sleep(0.05)
        assert api.daemon.state.subscribers == [], "nobody follows, so nothing is looked at"

    with_api(story)


@pytest.mark.parametrize(
    "fields",
    [
        {"topic": "cluster", "node": "alpha"},
        {"topic": "command"},
        {"topic": "command", "command_id": "caaaaaaaaaaaaaaaa", "cursor": "1"},
        {"topic": "events", "cursor": "nonsense"},
        {"topic": "events", "cursor": "1:" + "9" * 30},
        {"topic": "logs", "node": "nobody"},
    ],
)
def test_a_subscription_that_makes_no_sense_is_ended_and_the_session_goes_on(
    fields: dict[str, str],
) -> None:
    async def story(api: Api) -> None:
        async with session_with(api.port) as client:
            await client.send(type="subscribe", id=1, **fields)
            frame = await client.next("ended", "closing")
            if frame["type"] == "ended":
                assert frame["error"]["code"].startswith("request.")
                await client.send(type="ping")
                await client.next("pong")
            else:
                assert fields.get("command_id") is not None

    with_api(story)


def test_sixty_four_subscriptions_and_no_more() -> None:
    async def story(api: Api) -> None:
        async with session_with(api.port) as client:
            for _ in range(65):
                await client.subscribe("health")
            ended = await client.next("ended")
            assert ended["id"] == 65
            assert ended["error"]["code"] == "request.overloaded"

    with_api(story)


# ---- Lines ---------------------------------------------------------------------------------


def commit(daemon: FakeDaemon) -> None:
    """Have one event decided."""
    daemon.state.state = daemon.state.state.model_copy(update={"seq": len(daemon.state.events) + 1})
    daemon.state.commit(SettingsChanged(settings=ClusterSettings(policy="quorum")))


def seqs(frame: Frame) -> list[int]:
    return [item["seq"] for item in frame["items"]]


def test_events_begin_with_as_many_as_were_asked_for_and_go_on() -> None:
    async def story(api: Api) -> None:
        for _ in range(9):
            commit(api.daemon)
        async with session_with(api.port) as client:
            await client.subscribe("events", backlog=3)
            first = await client.next("lines")
            assert seqs(first) == [7, 8, 9]
            assert not first["was_cut"]
            assert first["items"][0]["event"]["kind"] == first["items"][0]["kind"]
            commit(api.daemon)
            assert seqs(await client.next("lines")) == [10]

    with_api(story)


def test_events_resume_from_a_cursor_of_any_node() -> None:
    async def story(api: Api) -> None:
        for _ in range(9):
            commit(api.daemon)
        async with session_with(api.port) as client:
            await client.subscribe("events", cursor="1:7")
            frame = await client.next("lines")
            assert seqs(frame) == [8, 9]
            assert frame["cursor"] == "1:9"
            assert not frame["was_cut"]

    with_api(story)


def test_events_that_are_no_longer_kept_are_told_as_a_gap() -> None:
    async def story(api: Api) -> None:
        for _ in range(9):
            commit(api.daemon)
        del api.daemon.state.events[:5]
        async with session_with(api.port) as client:
            await client.subscribe("events", cursor="1:2")
            frame = await client.next("lines")
            assert frame["was_cut"]
            assert "3 to 5" in frame["gap"]
            assert seqs(frame) == [6, 7, 8, 9]

    with_api(story)


def test_a_cursor_of_another_history_is_told_as_a_gap() -> None:
    async def story(api: Api) -> None:
        for _ in range(3):
            commit(api.daemon)
        async with session_with(api.port) as client:
            await client.subscribe("events", cursor="0:2")
            frame = await client.next("lines")
            assert "another" in frame["gap"]
            assert seqs(frame) == [3]
            await client.subscribe("events", cursor="0:9")
            frame = await client.next("lines")
            assert "replaced" in frame["gap"]
            assert frame["cursor"].endswith(":3")

    with_api(story)


def test_a_node_that_is_behind_the_cursor_says_nothing_until_it_is_there() -> None:
    async def story(api: Api) -> None:
        for _ in range(3):
            commit(api.daemon)
        async with session_with(api.port) as client:
            await client.subscribe("events", cursor="2:4")
            frame = await client.next("lines")
            assert frame["items"] == []
            assert not frame["was_cut"]
            for _ in range(2):
                commit(api.daemon)
            assert seqs(await client.next("lines")) == [5]

    with_api(story)


def test_a_log_is_followed_from_its_last_lines_and_from_a_cursor() -> None:
    async def story(api: Api) -> None:
        lines = api.daemon.logs.lines[None]
        async with session_with(api.port) as client:
            await client.subscribe("logs", backlog=2)
            first = await client.next("lines")
            assert [item["message"] for item in first["items"]] == ["second", "third"]
            lines.append("fourth")
            second = await client.next("lines")
            assert [item["message"] for item in second["items"]] == ["fourth"]
            await client.subscribe("logs", cursor=first["cursor"])
            again = await client.next("lines")
            assert [item["message"] for item in again["items"]] == ["fourth"]
            await client.subscribe("logs", backlog=0)
            assert (await client.next("lines"))["items"] == []

    with_api(story)


def test_a_log_that_is_not_there_ends_the_subscription() -> None:
    async def story(api: Api) -> None:
        api.daemon.logs.refusal = RequestError("request.not_found", "no log")
        async with session_with(api.port) as client:
            await client.subscribe("logs")
            ended = await client.next("ended")
            assert ended["error"]["code"] == "request.not_found"

    with_api(story)


def test_a_command_is_told_by_its_events_and_the_log_lines_of_its_nodes() -> None:
    async def story(api: Api) -> None:
        command_id = a_command_id(1)
        api.daemon.state.commit(SettingsChanged(settings=ClusterSettings(policy="quorum")))
        event = api.daemon.state.events[-1]
        api.daemon.state.events[-1] = event._replace(command_id=command_id)
        api.daemon.state.commit(SettingsChanged(settings=ClusterSettings(policy="quorum")))
        async with session_with(api.port) as client:
            await client.subscribe("command", command_id=command_id)
            frame = await client.next("lines")
            kinds = [(item["source"], item["kind"]) for item in frame["items"]]
            assert kinds.count(("event", "settings_changed")) == 1
            assert {item["node_name"] for item in frame["items"] if item["source"] == "log"} == {
                "alpha"
            }
            assert api.daemon.logs.asked[-1].command_id == command_id

    with_api(story)


def test_so_many_follow_logs_over_all_sessions_and_no_more() -> None:
    async def story(api: Api) -> None:
        async with session_with(api.port) as one:
            for _ in range(32):
                await one.subscribe("logs", backlog=0)
            async with session_with(api.port) as other:
                number = await other.subscribe("logs")
                ended = await other.next("ended")
                assert ended["error"]["code"] == "request.overloaded"
                await one.send(type="unsubscribe", id=1)
                await one.next("ended")
                await other.send(type="unsubscribe", id=number)
                await other.subscribe("logs")
                assert (await other.next("lines"))["items"]

    with_api(story)
