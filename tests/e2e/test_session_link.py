"""The operator's link to a real daemon: up, asked, killed, and back where it was."""

import asyncio
from pathlib import Path

import pytest

from protocol.cluster_api import ClusterDocument
from protocol.errors import RequestError
from skulk_tui.clock import SystemClock
from skulk_tui.session_link import SessionLink
from skulk_tui.session_socket import WebSocketConnector
from skulk_tui.target import Target
from skulk_tui.tls_pins import TlsTrust
from skulk_tui.view_state import ViewState
from tests.support.daemon import Daemon
from tests.support.linked import Impatience, Seen, live, until

pytestmark = pytest.mark.e2e


def test_a_link_follows_a_daemon_through_its_death(tmp_path: Path) -> None:
    async def story(daemon: Daemon) -> None:
        seen = Seen()
        link = SessionLink(
            Target(url=daemon.url, url_rule="--node"),
            ViewState(),
            clock=SystemClock(),
            randomness=Impatience(),
            on_change=seen.take,
            connect=WebSocketConnector(TlsTrust(tmp_path / "pins")),
        )
        seen.link = link
        for topic in ("cluster", "placements", "transfers", "models", "health"):
            link.subscribe(topic)
        events = link.subscribe("events")
        link.start()
        try:
            await live(link)
            assert link.state.head is not None
            assert [view.member.is_self for view in link.state.nodes] == [True]
            await until(lambda: link.state.lines(events).n_seen > 0)
            cluster = await link.request("GET", "/v1/cluster", ClusterDocument)
            assert cluster.cluster_id == link.state.head.cluster_id
            with pytest.raises(RequestError, match="no route '/nowhere'"):
                await link.request("GET", "/nowhere", ClusterDocument)

            first = link.state.lines(events).items[0].item
            await asyncio.to_thread(daemon.kill)
            await until(lambda: link.view.word == "lost")
            await asyncio.to_thread(daemon.start)
            await live(link)
            assert seen.words[-3:] == ["lost", "resuming", "live"]
            seqs = [one.item.get("seq") for one in link.state.lines(events).items]
            assert link.state.lines(events).items[0].item == first
            assert len(set(seqs)) == len(seqs), "nothing is told twice"
            assert link.state.n_unreadable == 0
        finally:
            await link.close()

    with Daemon(tmp_path / "node") as daemon:
        asyncio.run(story(daemon))
