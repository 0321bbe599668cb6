"""Chats over a real socket, cut and resumed."""

import asyncio
from typing import Any

import pytest

from protocol.errors import ClientError, SkulkError
from protocol.session import (
    OpenStream,
    ResumeStream,
    SessionRequest,
)
from tests.support.den_cluster import fill
from tests.support.linked import linked, live, run, until
from tests.support.scripted_session import ScriptedSession
from tests.support.session_answers import Scripted, refusal


def texts(events: list[Any]) -> str:
    return "".join(
        choice["delta"].get("content", "") for event in events for choice in event["choices"]
    )


def test_a_chat_is_read_to_its_end() -> None:
    async def story(node: ScriptedSession) -> None:
        node.chat("The capital ", "is ", "Paris.")
        async with linked(node) as link:
            await live(link)
            chat = link.open_chat({"model": "m", "messages": []})
            assert texts([event async for event in chat]) == "The capital is Paris."
            assert (chat.n_tokens, chat.n_events, chat.is_over) == (3, 5, True)
            assert [event async for event in chat] == []

    run(story)


def test_a_cut_chat_resumes_at_the_same_node_and_nothing_is_lost() -> None:
    async def story(node: ScriptedSession) -> None:
        node.chat("one ", "two ", "three ", "four", hold_after=2)
        async with linked(node) as link:
            await live(link)
            chat = link.open_chat({"model": "m"})
            got = [await anext(chat), await anext(chat)]
            node.drop()
            await until(lambda: link.view.word == "lost")
            await live(link)
            await until(lambda: any(isinstance(frame, ResumeStream) for frame in node.seen))
            node.let_chats_go()
            got += [event async for event in chat]
            assert texts(got) == "one two three four"
            resumed = next(frame for frame in node.seen if isinstance(frame, ResumeStream))
            assert (resumed.command_id, resumed.offset) == (chat.command_id, 2)

    run(story)


@pytest.mark.parametrize("how", ["reboot", "forgotten", "elsewhere"])
def test_a_chat_whose_rest_is_lost_says_after_how_many_tokens(how: str) -> None:
    async def story(node: ScriptedSession) -> None:
        with ScriptedSession(name="den-02", number=2) as other:
            fill(other)
            node.chat("one ", "two ", "three ", "four", hold_after=3)
            async with linked(node) as link:
                await live(link)
                chat = link.open_chat({"model": "m"})
                for _ in range(3):
                    await anext(chat)
                if how == "elsewhere":
                    link.attach(other.url)
                else:
                    node.forget_chats()
                    node.close()
                    node.reopen(is_reboot=how == "reboot")
                    link.retry_now()
                with pytest.raises(ClientError, match="cut after 3 tokens") as caught:
                    await anext(chat)
                assert caught.value.code == "client.stream_cut"
                assert caught.value.details["tokens"] == 3

    run(story)


def test_a_chat_that_is_refused_or_ends_badly_raises_what_the_node_said() -> None:
    async def story(node: ScriptedSession) -> None:
        error = refusal("engine.gone", "the engine is gone", status=502).body["error"]
        node.chat("some ", "text", error=error)
        async with linked(node) as link:
            await live(link)
            chat = link.open_chat({"model": "m"})
            got = [await anext(chat), await anext(chat)]
            with pytest.raises(SkulkError) as caught:
                await anext(chat)
            assert caught.value.code == "engine.gone"
            assert texts(got) == "some text"
            node.refuse_chats("request.model_not_found")
            with pytest.raises(SkulkError) as caught:
                await anext(link.open_chat({"model": "m"}))
            assert caught.value.code == "request.model_not_found"

    run(story)


def test_a_chat_is_stopped_on_the_node_or_here_while_the_link_is_down() -> None:
    async def story(node: ScriptedSession) -> None:
        node.chat("one ", "two ", "three", hold_after=1)
        async with linked(node) as link:
            await live(link)
            chat = link.open_chat({"model": "m"})
            await anext(chat)
            chat.cancel()
            assert [event async for event in chat] == []
            again = link.open_chat({"model": "m"})
            await anext(again)
            node.close()
            await until(lambda: link.view.word == "lost")
            again.cancel()
            with pytest.raises(SkulkError) as caught:
                await anext(again)
            assert caught.value.code == "request.cancelled"
            with pytest.raises(ClientError):
                link.open_chat({"model": "m"})

    run(story)


def test_events_that_are_missing_are_asked_for_once_and_then_the_chat_is_cut() -> None:
    async def story(node: ScriptedSession) -> None:
        node.chat("one ", "two", hold_after=1)
        async with linked(node) as link:
            await live(link)
            chat = link.open_chat({"model": "m"})
            await anext(chat)
            for _ in range(2):
                opened = [f for f in node.seen if isinstance(f, OpenStream | ResumeStream)]
                seen = opened[-1].id
                node.send_raw(
                    f'{{"type":"stream","id":{seen},"command_id":"{chat.command_id}","offset":7}}'
                )
                n = node.n_sessions
                await until(lambda n=n: node.n_sessions > n or chat.is_over)
                await live(link)
                await until(lambda: chat.is_over or _resumed(node))
            with pytest.raises(ClientError, match="no longer has events 1 to 7"):
                await anext(chat)
            assert link.view.word == "live"

    run(story)


def _resumed(node: ScriptedSession) -> bool:
    return any(isinstance(frame, ResumeStream) for frame in node.seen)


def test_closing_ends_chats_and_questions_with_it() -> None:
    async def story(node: ScriptedSession) -> None:
        node.answer("GET", "/slow", Scripted(is_silent=True))
        node.chat("one", hold_after=0)
        async with linked(node) as link:
            await live(link)
            chat = link.open_chat({"model": "m"})
            asking = asyncio.get_running_loop().create_task(link.request_raw("GET", "/slow"))
            await until(lambda: node.asked("GET", "/slow"))
        with pytest.raises(ClientError):
            await anext(chat)
        with pytest.raises(ClientError):
            await asking
        assert isinstance(node.requests[0], SessionRequest)

    run(story)
