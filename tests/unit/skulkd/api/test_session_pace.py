"""What a session does for clients that read slowly, and when: in virtual time, and on a socket."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from protocol.events import SettingsChanged
from protocol.state import ClusterSettings
from skulkd.api.app import ApiApp, create_app
from skulkd.api.auth import LOOPBACK
from skulkd.api.body_budget import BodyBudget
from skulkd.api.http import CONNECTION, AsgiScope, Message, Request
from skulkd.api.peer_api import NoConnection
from skulkd.api.session import Session
from skulkd.runtime.tasks import Tasks
from skulkd.runtime.virtual_time import run_virtual
from tests.support.api_harness import Api, chat_body, until, with_api
from tests.support.fake_ports import FakeDaemon, make_instance, plain_answer
from tests.support.session_client import Frame, session_with


class Socket:
    """The other end, which takes everything or nothing."""

    def __init__(self) -> None:
        self.is_writable = True
        self.sent: list[Frame] = []
        self.n_bytes = 0
        self.closed_with: int | None = None

    def send(self, message: bytes) -> None:
        assert self.closed_with is None
        self.sent.append(json.loads(message))
        self.n_bytes += len(message)

    def close(self, code: int = 1000, reason: str = "") -> None:
        self.closed_with = code

    def of_type(self, *types: str) -> list[Frame]:
        return [frame for frame in self.sent if frame["type"] in types]

    def clear(self) -> None:
        self.sent.clear()


class Stage:
    """A session of a fake daemon, without a network."""

    def __init__(self, daemon: FakeDaemon, app: ApiApp) -> None:
        self.daemon = daemon
        self.socket = Socket()
        sessions = app._services.sessions  # pyright: ignore[reportPrivateUsage]
        parts = sessions._parts()  # pyright: ignore[reportPrivateUsage]
        self.session = Session(opening(), parts)
        self.session.attach(self.socket)
        self.session.on_opened()

    def say(self, **fields: object) -> None:
        self.session.on_message(json.dumps(fields).encode())

    @property
    def credit_bytes(self) -> int:
        flow = self.session._flow  # pyright: ignore[reportPrivateUsage]
        assert flow is not None
        return flow._credit_bytes  # pyright: ignore[reportPrivateUsage]

    def decide(self, n_events: int = 1) -> None:
        """Have something decided that changes the row `cluster` and adds an event."""
        state = self.daemon.state
        for _ in range(n_events):
            state.state = state.state.model_copy(update={"seq": len(state.events) + 1})
            state.commit(SettingsChanged(settings=ClusterSettings()))


def opening() -> Request:
    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope: AsgiScope = {
        "type": "http",
        "method": "GET",
        "path": "/v1/session",
        "query_string": b"",
        "headers": [],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "extensions": {CONNECTION: NoConnection()},
    }
    request = Request(scope, receive, BodyBudget(1 << 20).share())
    request.principal = LOOPBACK
    return request


def play(story: Callable[[Stage], Awaitable[None]], daemon: FakeDaemon | None = None) -> None:
    async def run() -> None:
        tasks = Tasks("stage", on_death=lambda story, error: None)
        fake = daemon or FakeDaemon()
        stage = Stage(fake, create_app(fake.dependencies(tasks)))
        await story(stage)
        stage.session.on_lost()
        await tasks.close(1)

    run_virtual(run, limit_s=1000)


def test_a_living_session_is_never_quiet_for_long() -> None:
    async def story(stage: Stage) -> None:
        stage.say(type="hello", credit_bytes=1 << 20)
        await asyncio.sleep(20)
        assert 13 <= len(stage.socket.of_type("ping")) <= 20
        assert stage.socket.closed_with is None

    play(story)


def test_rows_wait_for_credit_and_are_sent_once_as_they_are_by_then() -> None:
    async def story(stage: Stage) -> None:
        stage.say(type="hello", credit_bytes=4096)
        stage.say(type="subscribe", id=1, topic="cluster")
        await asyncio.sleep(0.1)
        stage.say(type="subscribe", id=2, topic="placements")
        await asyncio.sleep(0.3)
        n_before = len(stage.socket.of_type("rows"))
        while stage.credit_bytes > 0:
            stage.decide()
            await asyncio.sleep(0.3)
        stage.socket.clear()
        for _ in range(5):
            stage.decide()
            await asyncio.sleep(0.2)
        assert stage.socket.of_type("rows") == []
        assert n_before >= 1
        stage.say(type="credit", bytes=8192)
        await asyncio.sleep(0.01)
        frames = [frame for frame in stage.socket.of_type("rows") if "cluster" in frame["rows"]]
        assert [frame["rows"]["cluster"]["seq"] for frame in frames] == [
            stage.daemon.state.state.seq
        ]

    play(story)


def test_a_client_that_takes_nothing_gets_latest_then_summary_and_is_let_go() -> None:
    async def story(stage: Stage) -> None:
        loop = asyncio.get_running_loop()
        stage.say(type="hello", credit_bytes=1 << 20)
        stage.say(type="subscribe", id=1, topic="cluster")
        stage.say(type="subscribe", id=2, topic="events")
        await asyncio.sleep(1)
        stage.socket.is_writable = False
        stage.socket.clear()
        stage.decide()
        began = loop.time()
        seen: list[tuple[float, str]] = []
        while stage.socket.closed_with is None:
            await asyncio.sleep(0.1)
            for frame in stage.socket.sent:
                kind = frame.get("state") or frame.get("error", {}).get("code")
                seen.append((loop.time() - began, str(kind)))
            stage.socket.clear()
        assert [kind for _, kind in seen] == ["latest", "summary", "session.slow_reader"]
        for (at, _), due in zip(seen, (2.0, 10.0, 60.0), strict=True):
            assert due <= at <= due + 1.2
        assert stage.daemon.state.subscribers == [], "nothing is held for it"

    play(story)


def test_a_client_without_credit_is_slow_too_even_if_nothing_happens() -> None:
    async def story(stage: Stage) -> None:
        stage.say(type="hello", credit_bytes=4096)
        for _ in range(400):
            await asyncio.sleep(1)
            stage.say(type="pong")
        assert stage.socket.closed_with is not None
        assert stage.socket.sent[-1]["error"]["code"] == "session.slow_reader"
        assert stage.socket.n_bytes < 3 * 4096

    play(story)


def test_a_client_that_is_never_heard_of_again_is_given_up() -> None:
    async def story(stage: Stage) -> None:
        stage.say(type="hello", credit_bytes=64 << 20)
        for _ in range(100):
            await asyncio.sleep(1)
            stage.say(type="pong")
        assert stage.socket.closed_with is None, "it answers"
        await asyncio.sleep(88)
        assert stage.socket.closed_with is None
        await asyncio.sleep(3)
        assert stage.socket.closed_with is not None
        error = stage.socket.sent[-1]["error"]
        assert error["code"] == "session.slow_reader"
        assert "heard" in error["message"]

    play(story)


def test_a_bug_in_the_look_at_the_key_ends_the_session_instead_of_the_looks() -> None:
    async def story(stage: Stage) -> None:
        def fail(opening: Request) -> object:
            raise KeyError(opening.path)

        stage.say(type="hello")
        door = stage.session._parts.door  # pyright: ignore[reportPrivateUsage]
        door.identify = fail  # type: ignore[method-assign, assignment]
        await asyncio.sleep(5)
        assert stage.socket.sent[-1]["error"]["code"] == "internal.bug"
        assert stage.socket.closed_with is not None

    play(story)


def test_who_catches_up_gets_what_it_lacks_and_is_told_what_it_lost() -> None:
    async def story(stage: Stage) -> None:
        stage.say(type="hello", credit_bytes=1 << 20)
        stage.say(type="subscribe", id=1, topic="cluster")
        stage.say(type="subscribe", id=2, topic="events")
        stage.say(type="subscribe", id=3, topic="placements")
        await asyncio.sleep(1)
        stage.socket.is_writable = False
        stage.decide(300)
        await asyncio.sleep(12)
        stage.daemon.state.reset(
            stage.daemon.state.state.model_copy(update={"instances": {}, "seq": 300})
        )
        stage.socket.clear()
        stage.socket.is_writable = True
        stage.session.on_writable()
        await asyncio.sleep(0.001)
        (head,) = stage.socket.of_type("rows")
        assert set(head["rows"]) == {"cluster"}, "first of all, and in the feed `summary` alone"
        await asyncio.sleep(1)
        assert stage.socket.of_type("feed") == [{"type": "feed", "state": "full"}]
        gone = [frame["rows"] for frame in stage.socket.of_type("rows") if frame["id"] == 3]
        assert gone == [{f"instance/{make_instance().instance_id}": None}]
        lines = stage.socket.of_type("lines")
        assert lines
        assert lines[0]["was_cut"] or lines[0]["items"]
        stage.socket.clear()
        stage.decide()
        await asyncio.sleep(0.2)
        assert stage.socket.of_type("rows", "lines") != []

    play(story)


def test_events_are_passed_over_for_a_client_with_feed_latest() -> None:
    async def story(stage: Stage) -> None:
        stage.say(type="hello", credit_bytes=4096)
        stage.say(type="subscribe", id=2, topic="events")
        await asyncio.sleep(0.1)
        stage.decide(40)
        await asyncio.sleep(3)
        assert stage.socket.of_type("feed")[-1]["state"] == "latest"
        stage.decide(40)
        stage.socket.clear()
        stage.say(type="credit", bytes=200 - stage.credit_bytes)
        await asyncio.sleep(0.01)
        (frame,) = stage.socket.of_type("lines")
        assert frame["items"] == []
        assert frame["was_cut"]
        assert "to 80 were passed over" in frame["gap"]

    play(story)


def test_answers_wait_for_credit_and_too_many_bytes_of_them_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("skulkd.api.session_requests.MAX_UNSENT_BYTES", 10_000)

    async def story(stage: Stage) -> None:
        stage.say(type="hello", credit_bytes=1 << 20)
        stage.socket.is_writable = False
        for number in range(1, 40):
            stage.say(type="request", id=number, method="GET", path="/v1/nodes")
            await asyncio.sleep(0.01)
        stage.socket.is_writable = True
        stage.session.on_writable()
        await asyncio.sleep(0.01)
        answers = stage.socket.of_type("answer")
        assert {answer["id"] for answer in answers} == set(range(1, 40)), "each has its answer"
        refused = [answer for answer in answers if answer["status"] == 503]
        assert refused
        assert len(refused) < 39

    play(story)


@pytest.mark.parametrize("asks", ["request", "subscribe"])
def test_who_asks_on_without_reading_that_it_is_refused_is_let_go(
    asks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skulkd.api.session_requests.MAX_UNSENT_BYTES", 10_000)
    monkeypatch.setattr("skulkd.api.session_requests.MAX_REFUSALS_BYTES", 5_000)

    async def story(stage: Stage) -> None:
        stage.say(type="hello", credit_bytes=1 << 20)
        stage.socket.is_writable = False
        n_asked = 0
        while stage.socket.closed_with is None:
            n_asked += 1
            assert n_asked < 1000, "what waits for it grows without a bound"
            if asks == "request":
                stage.say(type="request", id=n_asked, method="GET", path="/v1/nodes")
            else:
                stage.say(type="subscribe", id=n_asked, topic="health")
                stage.say(type="unsubscribe", id=n_asked)
        assert stage.socket.sent[-1]["error"]["code"] == "session.slow_reader"

    play(story)


def test_topics_that_come_and_go_in_one_turn_are_looked_at_once() -> None:
    async def story(stage: Stage) -> None:
        n_looks = 0
        status = stage.daemon.cluster.status

        def count() -> object:
            nonlocal n_looks
            n_looks += 1
            return status()

        stage.daemon.cluster.status = count  # type: ignore[method-assign, assignment]
        stage.say(type="hello", credit_bytes=1 << 20)
        for number in range(1, 1001):
            stage.say(type="subscribe", id=number, topic="cluster")
            stage.say(type="unsubscribe", id=number)
        for number, topic in enumerate(("cluster", "placements", "transfers", "health"), 2000):
            stage.say(type="subscribe", id=number, topic=topic)
        await asyncio.sleep(0.01)
        assert n_looks == 1
        assert {frame["id"] for frame in stage.socket.of_type("rows")} == {2000, 2001, 2002, 2003}

    play(story)


def test_a_chat_is_paced_by_the_credit_and_loses_nothing() -> None:
    daemon = FakeDaemon()
    texts = [f"{number}-" + "x" * 500 for number in range(3000)]
    daemon.inference.script = plain_answer(*texts)

    async def story(stage: Stage) -> None:
        stage.say(type="hello", credit_bytes=64 << 10)
        stage.say(type="open", id=1, body=chat_body())
        seen: list[str] = []
        is_end = False
        for _ in range(500):
            await asyncio.sleep(0.05)
            before = stage.socket.n_bytes
            for frame in stage.socket.of_type("stream"):
                assert frame["offset"] == len(seen)
                deltas = [event["choices"][0]["delta"] for event in frame["events"]]
                seen += [delta.get("content") or "" for delta in deltas]
                is_end = frame["is_end"]
            stage.socket.clear()
            assert stage.socket.n_bytes == before
            stage.say(type="credit", bytes=32 << 10)
            if is_end:
                break
        assert is_end
        assert [text for text in seen if text] == texts

    play(story, daemon)


def test_a_client_that_stops_reading_its_socket_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("skulkd.core.session_flow.LATEST_AFTER_S", 0.5)
    monkeypatch.setattr("skulkd.core.session_flow.SUMMARY_AFTER_S", 1.0)
    monkeypatch.setattr("skulkd.core.session_flow.CLOSE_AFTER_S", 2.0)
    daemon = FakeDaemon()
    daemon.inference.script = plain_answer(*(["y" * 1000] * 20_000))

    async def story(api: Api) -> None:
        async with session_with(api.port, credit_bytes=64 << 20) as stuck:
            await stuck.send(type="open", id=1, body=chat_body())
            stuck.socket.transport.pause_reading()
            async with session_with(api.port) as other:
                began = asyncio.get_running_loop().time()
                await other.subscribe("cluster")
                await other.next("rows")
                assert asyncio.get_running_loop().time() - began < 1
                sessions = api.app._services.sessions  # pyright: ignore[reportPrivateUsage]
                await until(lambda: sessions.n_open == 1, within_s=8)
            stuck.socket.transport.abort()

    with_api(story, daemon)
