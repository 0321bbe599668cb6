"""Logs over HTTP: of this node, of another, of an instance wherever it runs; followed."""

import asyncio
import json

import pytest

from protocol.cluster_api import LogsDocument
from protocol.control_api import read_answer
from protocol.errors import ClusterError, RequestError
from protocol.ids import InstanceId
from protocol.peer_messages import CallApi
from skulkd.api import logs as log_routes
from skulkd.api.peer_api import PeerApiServer
from tests.support.api_harness import Api, with_api
from tests.support.fake_ports import NODE, make_instance, make_state
from tests.support.two_nodes import BETA, TwoNodes


def on_beta(nodes: TwoNodes) -> InstanceId:
    """Have the only instance run on beta."""
    instance = make_instance()
    (shard,) = instance.plan.shards
    plan = instance.plan.model_copy(
        update={"shards": (shard.model_copy(update={"node_id": BETA}),)}
    )
    moved = make_state(
        instance.model_copy(update={"plan": plan}), members=dict(nodes.state.members)
    )
    nodes.alpha.state.state = nodes.beta.state.state = moved
    nodes.beta.logs.lines[instance.instance_id] = ["engine line"]
    return instance.instance_id


async def page(api: Api, query: str = "") -> LogsDocument:
    answer = await api.client.get(f"/v1/logs{query}")
    assert answer.status_code == 200, answer.text
    return read_answer(LogsDocument, answer.content)


def messages(document: LogsDocument) -> list[str]:
    return [line.message for line in document.lines]


def test_the_last_lines_of_this_node_and_what_follows_them() -> None:
    async def story(api: Api) -> None:
        first = await page(api, "?limit=2")
        assert messages(first) == ["second", "third"]
        api.daemon.logs.lines[None].append("fourth")
        assert messages(await page(api, f"?after={first.next_after}")) == ["fourth"]

    with_api(story, TwoNodes().alpha)


def test_a_limit_is_kept_within_bounds() -> None:
    async def story(api: Api) -> None:
        await page(api, "?limit=99999")
        await page(api, "?limit=0")
        assert [query.limit for query in api.daemon.logs.asked] == [1000, 1]
        assert (await api.client.get("/v1/logs?limit=many")).status_code == 400
        assert (await api.client.get("/v1/logs?instance=no-id")).status_code == 400

    with_api(story, TwoNodes().alpha)


def test_the_lines_of_one_command_are_asked_for_there_too() -> None:
    nodes = TwoNodes()
    command_id = "aaaaaa-" + "b" * 20

    async def story(api: Api) -> None:
        await page(api, f"?command_id={command_id}")
        await page(api, f"?command_id={command_id}&node=beta")
        for daemon in (nodes.alpha, nodes.beta):
            assert [query.command_id for query in daemon.logs.asked] == [command_id]
        assert (await api.client.get("/v1/logs?command_id=none")).status_code == 400

    with_api(story, nodes.alpha)


def test_the_log_of_another_node_comes_through_this_one() -> None:
    async def story(api: Api) -> None:
        there = await page(api, "?node=beta&limit=5")
        assert (there.node_id, messages(there)) == (BETA, ["of beta"])
        assert api.daemon.logs.asked == []

    with_api(story, TwoNodes().alpha)


def test_an_instances_log_comes_from_the_node_that_runs_it() -> None:
    nodes = TwoNodes()
    instance_id = on_beta(nodes)

    async def story(api: Api) -> None:
        there = await page(api, f"?instance={instance_id}")
        assert (there.node_id, messages(there)) == (BETA, ["engine line"])
        here = await page(api, f"?instance={instance_id}&node=alpha")
        assert here.node_id == NODE

    with_api(story, nodes.alpha)


def test_the_log_of_an_instance_that_failed_and_is_gone_comes_from_where_it_failed() -> None:
    nodes = TwoNodes()
    failed = make_instance("failed")
    assert failed.failure is not None
    story_of_it = failed.failure.model_copy(update={"node_id": BETA})
    state = make_state(members=dict(nodes.state.members), failures=(story_of_it,))
    nodes.alpha.state.state = nodes.beta.state.state = state
    nodes.beta.logs.lines[failed.instance_id] = ["boom"]

    async def story(api: Api) -> None:
        assert messages(await page(api, f"?instance={failed.instance_id}")) == ["boom"]

    with_api(story, nodes.alpha)


def test_what_is_wrong_there_is_told_here() -> None:
    nodes = TwoNodes()
    nodes.beta.logs.refusal = RequestError("request.not_found", "no such log")

    async def story(api: Api) -> None:
        missing = await api.client.get("/v1/logs?node=beta")
        assert missing.status_code == 404
        followed = await api.client.get("/v1/logs?node=beta&follow=1")
        assert followed.status_code == 404

    with_api(story, nodes.alpha)


@pytest.mark.parametrize("node", ["alpha", "beta"])
def test_a_log_is_followed_wherever_it_is(node: str) -> None:
    nodes = TwoNodes()
    lines = (nodes.alpha if node == "alpha" else nodes.beta).logs.lines[None]
    lines[:] = ["old"]

    async def story(api: Api) -> None:
        async with api.client.stream("GET", f"/v1/logs?node={node}&follow=1") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            texts = answer.aiter_lines()
            seen: list[str] = []
            async with asyncio.timeout(5):
                async for text in texts:
                    if text.startswith("data: "):
                        document = LogsDocument.model_validate_json(text[6:])
                        seen += messages(document)
                        if seen == ["old"]:
                            lines.append("new")
                        if "new" in seen:
                            break
        assert seen == ["old", "new"]

    with_api(story, nodes.alpha)


def test_following_resumes_where_the_last_event_ended() -> None:
    async def story(api: Api) -> None:
        headers = {"last-event-id": "2"}
        async with api.client.stream("GET", "/v1/logs?follow=1", headers=headers) as answer:
            async with asyncio.timeout(5):
                async for text in answer.aiter_lines():
                    if text.startswith("data: "):
                        assert messages(LogsDocument.model_validate_json(text[6:])) == ["third"]
                        break

    with_api(story, TwoNodes().alpha)


def test_a_node_that_goes_while_its_log_is_followed_ends_the_stream_with_an_error() -> None:
    nodes = TwoNodes()

    async def story(api: Api) -> None:
        async with api.client.stream("GET", "/v1/logs?node=beta&follow=1") as answer:
            texts: list[str] = []
            async with asyncio.timeout(5):
                async for text in answer.aiter_lines():
                    texts.append(text)
                    gone = ClusterError("cluster.peer_unreachable", "gone")
                    nodes.alpha.peers.servers[BETA] = gone
        errors = [index for index, text in enumerate(texts) if text == "event: error"]
        error = json.loads(texts[errors[0] + 1].removeprefix("data: "))["error"]
        assert error["skulk_code"] == "cluster.peer_unreachable"

    with_api(story, nodes.alpha)


def test_followers_are_bounded_and_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_routes, "MAX_FOLLOWERS", 1)
    nodes = TwoNodes()

    async def story(api: Api) -> None:
        async with api.client.stream("GET", "/v1/logs?follow=1") as answer:
            async with asyncio.timeout(5):
                await anext(answer.aiter_bytes())
            refused = await api.client.get("/v1/logs?follow=1")
            assert refused.status_code == 503
        async with asyncio.timeout(5):
            while (await api.client.get("/health")).status_code == 200:
                async with api.client.stream("GET", "/v1/logs?follow=1") as again:
                    if again.status_code == 200:
                        break
        api.app.stop()

    with_api(story, nodes.alpha)


# ---- Questions that wait for lines ---------------------------------------------------------------


def the_line(text: str) -> list[str]:
    """Read an event's lines."""
    if not text.startswith("data: "):
        return []
    return messages(LogsDocument.model_validate_json(text.removeprefix("data: ")))


@pytest.mark.parametrize("node", ["alpha", "beta"])
def test_a_line_of_a_quiet_log_shows_within_a_fifth_of_a_second(node: str) -> None:
    nodes = TwoNodes()
    logs = (nodes.alpha if node == "alpha" else nodes.beta).logs

    async def story(api: Api) -> None:
        loop = asyncio.get_running_loop()
        took_s: list[float] = []
        async with api.client.stream("GET", f"/v1/logs?node={node}&follow=1") as answer:
            texts = answer.aiter_lines()
            async with asyncio.timeout(20):
                for number in range(3):
                    await asyncio.sleep(0.3)
                    written_s = loop.time()
                    logs.lines[None].append(f"new {number}")
                    async for text in texts:
                        if f"new {number}" in the_line(text):
                            break
                    took_s.append(loop.time() - written_s)
        assert min(took_s) < 0.2

    with_api(story, nodes.alpha)


def test_a_quiet_log_of_another_node_is_asked_for_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_routes, "REST_S", 0.01)
    nodes = TwoNodes()

    async def story(api: Api) -> None:
        async with api.client.stream("GET", "/v1/logs?node=beta&follow=1") as answer:
            pieces = answer.aiter_bytes()
            await anext(pieces)
            await asyncio.sleep(1)
        assert len(nodes.alpha.peers.calls) == 2
        assert "wait_s=10" in nodes.alpha.peers.calls[1][1].query
        assert nodes.beta.logs.n_looks > 5
        assert len(nodes.beta.logs.asked) == 2

    with_api(story, nodes.alpha)


def test_a_question_waits_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_routes, "HOLD_S", 0.2)
    nodes = TwoNodes()

    async def story(api: Api) -> None:
        server = nodes.alpha.peers.servers[BETA]
        assert isinstance(server, PeerApiServer)
        call = CallApi(method="GET", path="/v1/logs", query="after=1&wait_s=9999")
        async with asyncio.timeout(5):
            answer = await server.handle(NODE, call)
        assert read_answer(LogsDocument, answer.body).lines == ()
        assert api.daemon.logs.asked == []

    with_api(story, nodes.alpha)


def test_no_more_questions_wait_than_there_are_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_routes, "MAX_HELD", 2)
    nodes = TwoNodes()

    async def story(api: Api) -> None:
        server = nodes.alpha.peers.servers[BETA]
        assert isinstance(server, PeerApiServer)
        call = CallApi(method="GET", path="/v1/logs", query="after=1&wait_s=10")
        waiting = [asyncio.create_task(server.handle(NODE, call)) for _ in range(2)]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(2):
            answer = await server.handle(NODE, call)
        assert read_answer(LogsDocument, answer.body).lines == ()
        assert not any(one.done() for one in waiting)
        nodes.beta.logs.lines[None].append("new")
        async with asyncio.timeout(2):
            answers = await asyncio.gather(*waiting)
        for one in answers:
            assert messages(read_answer(LogsDocument, one.body)) == ["new"]
        assert api.daemon.logs.asked == []

    with_api(story, nodes.alpha)
