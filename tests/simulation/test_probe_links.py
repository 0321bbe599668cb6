"""Whole simulated nodes whose links are measured, whatever happens meanwhile."""

# pyright: reportPrivateUsage=false

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, final

import pytest

from protocol.link_api import LinksDocument, LinkView, ProbeView
from skulkd.runtime.virtual_time import run_virtual
from tests.support.simulated_cluster_history import ClusterHistory
from tests.support.simulated_cluster_story import MASTER, ClusterStory
from tests.support.simulated_story import Crash

RATE_BYTES_S: Final = 20e6
SHOW: Final = "/v1/cluster/links"
PROBE: Final = "/v1/cluster/links/probe"


@final
class Links:
    """Three nodes on lines of a known rate: the master and two others."""

    def __init__(self, seed: int) -> None:
        story = ClusterStory(n_nodes=3, policy="availability", is_gentle=True, steps=())
        self.history = ClusterHistory(seed, story)

    async def begin(self) -> None:
        """Found the cluster."""
        await self.history._found()
        self.master = self.history._number(MASTER)
        self.here, self.there = (one for one in self.history.boxes if one != self.master)
        network = self.history.boxes[self.here].world.network
        network.faults = replace(network.faults, rate_bytes_s=RATE_BYTES_S)

    async def probe(self, via: int, **body: object) -> ProbeView | None:
        """Ask a node to measure; None where it refuses: why is the last thing that was told."""
        answer = await self.history._ask(via, "POST", PROBE, body)
        return ProbeView.model_validate(answer) if "n_pairs" in answer else None

    async def show(self, via: int) -> LinksDocument:
        """Give what a node knows."""
        answer = await self.history._ask(via, "GET", SHOW, {})
        return LinksDocument.model_validate(answer)

    async def ended(self, via: int) -> ProbeView:
        """Wait until a node's series is over."""
        while True:
            probe = (await self.show(via)).probe
            assert probe is not None
            if probe.state in {"done", "failed"}:
                return probe
            await asyncio.sleep(0.2)

    def name(self, number: int) -> str:
        """Give a node's id."""
        return self.history.boxes[number].world.node_id


def run(story: Callable[[Links], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    async def main() -> None:
        links = Links(seed)
        await links.begin()
        await story(links)
        await links.history._stop_all()
        for box in links.history.boxes.values():
            await box.stop()

    run_virtual(main, seed=seed, limit_s=1200.0)


def measured(document: LinksDocument) -> list[LinkView]:
    return [link for link in document.links if link.rate_bytes_s is not None]


@pytest.mark.parametrize("seed", [1, 2])
def test_all_links_are_measured_and_every_node_shows_them(seed: int) -> None:
    async def story(links: Links) -> None:
        begun = await links.probe(links.here)
        assert begun is not None
        assert begun.n_pairs == 3
        ended = await links.ended(links.here)
        assert (ended.state, ended.n_tried, ended.failures) == ("done", 3, ())
        await asyncio.sleep(45.0)  # words have been said back by then
        for number in links.history.boxes:
            document = await links.show(number)
            assert len(measured(document)) == 6
            for link in document.links:
                assert link.rate_bytes_s == pytest.approx(RATE_BYTES_S, rel=0.15)
                assert link.rate_age_s is not None
                assert 40.0 < link.rate_age_s < 60.0
                assert (link.state, link.kind, link.interface) == ("up", "ethernet", "sim0")
                assert link.rtt_median_ms is not None

    run(story, seed)


def test_of_two_operators_the_second_is_told_who_measures() -> None:
    async def story(links: Links) -> None:
        assert await links.probe(links.here) is not None
        assert await links.probe(links.there) is None
        assert "cluster.probe_busy" in links.history.told[-1]
        assert await links.probe(links.here) is None
        assert (await links.ended(links.here)).failures == ()
        await asyncio.sleep(0.5)
        assert await links.probe(links.there) is not None
        assert (await links.ended(links.there)).failures == ()

    run(story)


def test_a_node_that_dies_meanwhile_fails_its_pairs_by_name_and_the_others_are_measured() -> None:
    async def story(links: Links) -> None:
        assert await links.probe(links.master) is not None
        await asyncio.sleep(0.3)
        crash = Crash(what="power", n_unsynced_bytes_kept=0, down_s=60.0)
        dying = asyncio.create_task(links.history.boxes[links.there].crash(crash))
        ended = await links.ended(links.master)
        assert (ended.state, ended.n_tried) == ("done", 3)
        assert ended.failures
        for failure in ended.failures:
            assert links.name(links.there) in {failure.source, failure.target}
            assert failure.error.code in {"cluster.peer_unreachable", "cluster.peer_timeout"}
        await asyncio.sleep(2.0)
        ends = {(one.source, one.target) for one in measured(await links.show(links.master))}
        assert (links.name(links.master), links.name(links.here)) in ends
        await dying

    run(story)


def test_a_series_outlives_the_master_that_let_it() -> None:
    async def story(links: Links) -> None:
        assert await links.probe(links.here) is not None
        await asyncio.sleep(0.2)
        crash = Crash(what="power", n_unsynced_bytes_kept=0, down_s=60.0)
        dying = asyncio.create_task(links.history.boxes[links.master].crash(crash))
        ended = await links.ended(links.here)
        assert (ended.state, ended.n_tried) == ("done", 3), ended.error
        await asyncio.sleep(2.0)
        ends = {(one.source, one.target) for one in measured(await links.show(links.here))}
        assert (links.name(links.here), links.name(links.there)) in ends
        assert (links.name(links.there), links.name(links.here)) in ends
        await dying

    run(story)


def test_a_node_that_asked_and_died_holds_nobody_up_for_long() -> None:
    async def story(links: Links) -> None:
        assert await links.probe(links.here) is not None
        crash = Crash(what="power", n_unsynced_bytes_kept=0, down_s=60.0)
        dying = asyncio.create_task(links.history.boxes[links.here].crash(crash))
        await asyncio.sleep(1.0)
        assert await links.probe(links.there) is None
        await asyncio.sleep(35.0)
        assert await links.probe(links.there) is not None
        await links.ended(links.there)
        await dying

    run(story)
