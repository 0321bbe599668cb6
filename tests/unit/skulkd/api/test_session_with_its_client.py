"""The node's end of a session and the program's own, over a real socket."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from protocol.cluster_api import NodesDocument
from protocol.data_frames import Chunk, Finished, Started
from protocol.errors import SkulkError
from protocol.events import SettingsChanged
from protocol.state import ClusterSettings
from skulk_tui.clock import SystemClock
from skulk_tui.session_link import SessionLink
from skulk_tui.session_socket import WebSocketConnector
from skulk_tui.target import Target
from skulk_tui.tls_pins import TlsTrust
from skulk_tui.view_state import ViewState
from tests.support.api_harness import Api, chat_body, until, with_api
from tests.support.builders import a_command_id
from tests.support.fake_ports import MODEL, NODE, USAGE


class Impatience(random.Random):  # ruff: ignore[suspicious-non-cryptographic-random-usage]
    """Makes waits before a retry short."""

    def uniform(self, a: float, b: float) -> float:
        del a, b
        return 0.02


@asynccontextmanager
async def linked(api: Api) -> AsyncGenerator[SessionLink]:
    link = SessionLink(
        Target(url=f"http://127.0.0.1:{api.port}", url_rule="test"),
        ViewState(),
        clock=SystemClock(),
        randomness=Impatience(),
        on_change=lambda changes: None,
        connect=WebSocketConnector(TlsTrust(Path("/nonexistent/pins"))),
    )
    link.subscribe("cluster")
    link.start()
    try:
        await until(lambda: link.view.word == "live")
        yield link
    finally:
        await link.close()


def cut(api: Api) -> None:
    """Drop every connection, as a network that goes away does."""
    for connection in api.server.connections():
        connection.abort()


def test_the_program_shows_what_the_node_has_and_goes_on_after_a_break() -> None:
    async def story(api: Api) -> None:
        api.daemon.state.state = api.daemon.state.state.model_copy(update={"seq": 0})
        async with linked(api) as link:
            for topic in ("placements", "transfers", "models", "health"):
                link.subscribe(topic)
            events = link.subscribe("events")
            logs = link.subscribe("logs")
            command = link.subscribe("command", command_id=a_command_id(1))
            view = link.state
            await until(lambda: view.row(f"model/{MODEL}") is not None)
            await until(lambda: len(view.lines(logs).items) == 3)
            assert [one.member.node_id for one in view.nodes] == [NODE]
            assert view.row(f"health/{NODE}") is not None
            assert view.n_unreadable == 0
            replica = api.daemon.state
            replica.state = replica.state.model_copy(update={"seq": 1})
            replica.commit(SettingsChanged(settings=ClusterSettings()))
            await until(lambda: len(view.lines(events).items) == 1)
            cut(api)
            await until(lambda: link.view.word != "live")
            api.daemon.logs.lines[None].append("fourth")
            await until(lambda: link.view.word == "live")
            await until(lambda: len(view.lines(logs).items) == 4)
            assert view.lines(logs).items[-1].item["message"] == "fourth"
            assert len(view.lines(events).items) == 1, "nothing was told twice"
            assert link.error_of(command) is None
            link.unsubscribe(command)

    with_api(story)


def test_the_program_asks_and_hears_refusals() -> None:
    async def story(api: Api) -> None:
        async with linked(api) as link:
            nodes = await link.request("GET", "/v1/nodes", NodesDocument)
            assert [one.member.name for one in nodes.items] == ["alpha"]
            with pytest.raises(SkulkError) as refused:
                await link.request("GET", "/v1/nodes/no/such", NodesDocument)
            assert refused.value.code == "request.not_found"

    with_api(story)


def test_a_chat_of_the_program_survives_a_break() -> None:
    async def story(api: Api) -> None:
        gate = asyncio.Event()
        api.daemon.inference.script = [
            Started(1),
            *(Chunk(f"{number} ") for number in range(10)),
            gate,
            *(Chunk(f"{number} ") for number in range(10, 20)),
            Finished("stop", USAGE),
        ]
        async with linked(api) as link:
            chat = link.open_chat(chat_body())
            await until(lambda: chat.n_events >= 10)
            cut(api)
            gate.set()
            text = ""
            async for event in chat:
                for choice in event["choices"]:
                    text += choice["delta"].get("content") or ""
            assert text == "".join(f"{number} " for number in range(20))

    with_api(story)
