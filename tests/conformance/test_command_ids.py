"""Every answer of an inference route has a command id, and whatever runs under it can be ended."""

import asyncio
import re
from typing import Any

import pytest

from protocol.data_frames import Chunk, Started
from protocol.ids import COMMAND_ID_PATTERN
from tests.support.api_harness import CHAT, Api, chat_body, until, with_api
from tests.support.fake_ports import FakeDaemon

HEADER = "x-skulk-command-id"
GENERATING: dict[str, dict[str, Any]] = {
    CHAT: chat_body(),
    "/bench/chat/completions": chat_body(),
    "/v1/messages": chat_body(max_tokens=9),
    "/v1/responses": {"model": "test/scripted", "input": "hi"},
    "/v1/completions": {"model": "test/scripted", "prompt": "hi"},
    "/ollama/api/chat": chat_body(stream=False),
    "/ollama/api/generate": {"model": "test/scripted", "prompt": "hi", "stream": False},
}


def _filled(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "x", path)


def test_every_answer_of_an_inference_route_has_a_command_id_of_its_own() -> None:
    daemon = FakeDaemon()

    async def story(api: Api) -> None:
        seen: set[str] = set()
        routes = [route for route in api.app.routes if route.kind == "inference"]
        for route in routes:
            reply = await api.client.request(
                route.method, _filled(route.path), content=b"{", headers={"x-api-key": "any"}
            )
            assert re.fullmatch(COMMAND_ID_PATTERN, reply.headers[HEADER]), route.path
            seen.add(reply.headers[HEADER])
        assert len(seen) == len(routes)

    with_api(story, daemon)


def test_a_refusal_before_the_body_is_read_has_one_too() -> None:
    daemon = FakeDaemon()
    daemon.max_concurrent_requests = 0

    async def story(api: Api) -> None:
        reply = await api.chat()
        assert reply.status_code == 503
        assert reply.headers[HEADER] == reply.json()["error"]["command_id"]

    with_api(story, daemon)


@pytest.mark.parametrize("path", GENERATING)
def test_the_id_of_an_answer_is_that_of_its_task(path: str) -> None:
    async def story(api: Api) -> None:
        reply = await api.client.post(path, json=GENERATING[path])
        assert reply.status_code == 200
        assert [task.command_id for task in api.daemon.inference.tasks] == [reply.headers[HEADER]]

    with_api(story)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", GENERATING)
def test_a_request_of_any_dialect_is_cancelled_by_its_id(path: str, stream: bool) -> None:
    daemon = FakeDaemon()
    daemon.inference.script = [Started(7), Chunk("a"), asyncio.Event()]

    async def story(api: Api) -> None:
        asking = asyncio.ensure_future(
            api.client.post(path, json={**GENERATING[path], "stream": stream})
        )
        await until(lambda: bool(daemon.inference.running))
        [command_id] = daemon.inference.running
        ended = await api.client.post(f"/v1/cancel/{command_id}")
        assert ended.json() == {"message": "Command cancelled.", "command_id": command_id}
        reply = await asking
        assert reply.headers[HEADER] == command_id
        assert daemon.inference.cancelled == [command_id]
        assert "cancelled" in reply.text
        again = await api.client.post(f"/v1/cancel/{command_id}")
        assert again.status_code == 404

    with_api(story, daemon)
