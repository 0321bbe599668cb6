"""Questions over a real socket."""

import asyncio

import pytest

from protocol.cluster_api import ClusterDocument, Invitation, InviteBody
from protocol.errors import ClientError, PlacementError, SkulkError
from protocol.session import (
    Cancel,
)
from skulk_tui.client import envelope_of
from tests.support.builders import a_plan
from tests.support.linked import WAIT_S, linked, live, run, until
from tests.support.scripted_session import ScriptedSession
from tests.support.session_answers import Scripted


def test_a_request_is_answered_with_its_document() -> None:
    async def story(node: ScriptedSession) -> None:
        async with linked(node) as link:
            await live(link)
            cluster = await link.request(
                "GET", "/v1/cluster", ClusterDocument, query={"node": "den-02", "x": ["1", "2"]}
            )
            assert cluster.name == "home-lab"
            asked = node.asked("GET", "/v1/cluster")[0]
            assert (asked.query, asked.body) == ("node=den-02&x=1&x=2", None)
            answered = await link.request_raw("POST", "/v1/cluster/invite", {"uses": 2})
            assert isinstance(answered, dict)
            await link.request("POST", "/v1/cluster/invite", Invitation, InviteBody(uses=3))
            bodies = [one.body for one in node.asked("POST", "/v1/cluster/invite")]
            assert bodies == [{"uses": 2}, {"kind": "token", "uses": 3}]

    run(story)


def test_a_refusal_is_the_error_it_came_from_with_its_documents() -> None:
    async def story(node: ScriptedSession) -> None:
        plan = a_plan()
        node.refuse("GET", "/x", "placement.plan_changed", status=409, plan=plan)
        async with linked(node) as link:
            await live(link)
            with pytest.raises(PlacementError) as caught:
                await link.request("GET", "/x", ClusterDocument)
            envelope = envelope_of(caught.value)
            assert envelope is not None
            assert envelope.plan == plan

    run(story)


def test_an_answer_that_is_no_document_is_named() -> None:
    async def story(node: ScriptedSession) -> None:
        node.answer("GET", "/x", {"seq": 1})
        node.answer("GET", "/y", Scripted(status=500, body="oh no"))
        async with linked(node) as link:
            await live(link)
            with pytest.raises(ClientError, match="answered no ClusterDocument"):
                await link.request("GET", "/x", ClusterDocument)
            with pytest.raises(ClientError, match="refused with 500"):
                await link.request("GET", "/y", ClusterDocument)

    run(story)


def test_a_request_while_the_link_is_down_fails_at_once_unless_told_to_wait() -> None:
    async def story(node: ScriptedSession) -> None:
        async with linked(node) as link:
            await live(link)
            node.close()
            await until(lambda: link.view.word == "lost")
            with pytest.raises(ClientError) as caught:
                await link.request("GET", "/v1/cluster", ClusterDocument)
            assert caught.value.code == "client.unreachable"
            waiting = asyncio.get_running_loop().create_task(
                link.request("GET", "/v1/cluster", ClusterDocument, wait_s=WAIT_S)
            )
            node.reopen()
            link.retry_now()
            assert (await waiting).name == "home-lab"

    run(story)


def test_a_request_whose_link_breaks_fails_and_says_that_it_may_have_been_done() -> None:
    async def story(node: ScriptedSession) -> None:
        node.answer("POST", "/slow", Scripted(is_silent=True))
        async with linked(node) as link:
            await live(link)
            asking = asyncio.get_running_loop().create_task(link.request_raw("POST", "/slow"))
            await until(lambda: node.asked("POST", "/slow"))
            node.drop()
            with pytest.raises(ClientError) as caught:
                await asking
            assert caught.value.code == "client.unreachable"
            assert "whether it was done" in caught.value.remediation

    run(story)


def test_a_request_that_is_cancelled_is_given_up_on_the_node_too() -> None:
    async def story(node: ScriptedSession) -> None:
        node.answer("GET", "/slow", Scripted(is_silent=True))
        async with linked(node) as link:
            await live(link)
            asking = asyncio.get_running_loop().create_task(link.request_raw("GET", "/slow"))
            await until(lambda: node.asked("GET", "/slow"))
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await until(lambda: any(isinstance(frame, Cancel) for frame in node.seen))
            assert link.view.word == "live"

    run(story)


def test_a_request_that_nobody_answers_ends_by_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("skulk_tui.session_link.ANSWER_GRACE_S", 0.05)

    async def story(node: ScriptedSession) -> None:
        node.answer("GET", "/slow", Scripted(is_silent=True))
        async with linked(node) as link:
            await live(link)
            with pytest.raises(ClientError) as caught:
                await link.request_raw("GET", "/slow", deadline_s=0.05)
            assert caught.value.code == "client.timeout"

    run(story)


def test_a_body_that_does_not_fit_is_refused_here_and_the_session_lives_on() -> None:
    async def story(node: ScriptedSession) -> None:
        async with linked(node) as link:
            await live(link)
            with pytest.raises(SkulkError) as caught:
                await link.request_raw("POST", "/x", {"image": "x" * (1 << 20)})
            assert caught.value.code == "protocol.too_large"
            with pytest.raises(SkulkError) as caught:
                link.open_chat({"image": "x" * (1 << 20)})
            assert caught.value.code == "protocol.too_large"
            assert (await link.request("GET", "/v1/cluster", ClusterDocument)).term == 7
            assert node.n_sessions == 1

    run(story)


def test_more_than_the_session_allows_is_refused_here() -> None:
    async def story(node: ScriptedSession) -> None:
        node.answer("GET", "/slow", Scripted(is_silent=True))
        async with linked(node) as link:
            await live(link)
            loop = asyncio.get_running_loop()
            asking = [loop.create_task(link.request_raw("GET", "/slow")) for _ in range(64)]
            await until(lambda: len(node.asked("GET", "/slow")) == 64)
            with pytest.raises(SkulkError) as caught:
                await link.request_raw("GET", "/slow")
            assert caught.value.code == "request.overloaded"
            for one in asking:
                one.cancel()
            await asyncio.wait(asking)
            for _ in range(63):
                link.subscribe("health")
            with pytest.raises(SkulkError) as caught:
                link.subscribe("health")
            assert caught.value.code == "request.overloaded"

    run(story)
