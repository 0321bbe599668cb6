"""The links over HTTP: what is known of them, and having them measured."""

import pytest

from protocol.control_api import read_answer
from protocol.errors import ErrorBody
from protocol.link_api import LinksDocument, ProbeView
from protocol.readings import LinkReading, LinksReading, Readings
from skulkd.core.link_probe import Direction, ProbeRun, probe_busy
from tests.support.api_harness import Api, with_api
from tests.support.fake_ports import NODE, FakeDaemon
from tests.support.two_nodes import BETA, TwoNodes

PROBE = "/v1/cluster/links/probe"


def told(daemon: FakeDaemon, *readings: LinksReading) -> None:
    daemon.readings.readings = Readings(links={one.node_id: one for one in readings})


async def shown(api: Api) -> LinksDocument:
    return read_answer(LinksDocument, (await api.client.get("/v1/cluster/links")).content)


def test_a_direction_is_what_its_source_tells_of_the_way_and_its_target_of_what_came() -> None:
    daemon = TwoNodes().alpha
    now = daemon.clock.monotonic_s()
    there = LinkReading(
        peer=BETA, state="up", interface="eth0", kind="ethernet", rtt_median_ms=0.25
    )
    back = LinkReading(peer=NODE, state="silent", rate_bytes_s=112e6, rate_at_s=now - 60)
    told(
        daemon,
        LinksReading(node_id=NODE, at_s=now, links=(there,)),
        LinksReading(node_id=BETA, at_s=now - 5, links=(back,)),
    )

    async def story(api: Api) -> None:
        document = await shown(api)
        assert [node.name for node in document.nodes] == ["alpha", "beta"]
        outward, homeward = document.links
        assert (outward.source, outward.target, outward.state) == (NODE, BETA, "up")
        assert (outward.kind, outward.interface) == ("ethernet", "eth0")
        assert (outward.rtt_median_ms, outward.rate_bytes_s) == (0.25, 112e6)
        assert outward.rate_age_s == pytest.approx(60, abs=5)
        assert (homeward.source, homeward.state, homeward.rate_bytes_s) == (BETA, "silent", None)
        assert homeward.told_ago_s == pytest.approx(5, abs=5)
        assert document.probe is None

    with_api(story, daemon)


def test_a_link_that_nobody_has_told_of_is_not_shown() -> None:
    async def story(api: Api) -> None:
        assert (await shown(api)).links == ()

    with_api(story, TwoNodes().alpha)


def test_all_pairs_that_are_there_are_measured_or_those_of_the_named() -> None:
    daemon = TwoNodes().alpha
    pair = tuple(sorted((NODE, BETA)))

    async def story(api: Api) -> None:
        answer = await api.client.post(PROBE)
        assert answer.status_code == 202
        assert read_answer(ProbeView, answer.content).state == "running"
        await api.client.post(PROBE, json={"nodes": ["beta"], "even_busy": True})
        assert daemon.probes.asked == [((pair,), False), ((pair,), True)]
        dry = await api.client.post(PROBE, json={"dry_run": True})
        assert read_answer(ProbeView, dry.content) == ProbeView(state="planned", n_pairs=1)
        assert len(daemon.probes.asked) == 2

    with_api(story, daemon)


def test_a_node_that_is_away_is_measured_only_when_it_is_named() -> None:
    daemon = TwoNodes().alpha
    daemon.cluster.liveness[BETA] = "suspect"

    async def story(api: Api) -> None:
        refused = await api.client.post(PROBE)
        assert refused.status_code == 400
        assert refused.json()["error"]["skulk_code"] == "request.invalid"
        assert (await api.client.post(PROBE, json={"nodes": ["beta"]})).status_code == 202

    with_api(story, daemon)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"nodes": ["nobody"]}, 404, "request.node_not_found"),
        ({"nodes": ["a"] * 65}, 400, "request.invalid"),
        ({"node": "beta"}, 400, "request.invalid"),
    ],
)
def test_a_wrong_wish_is_refused_by_name(body: dict[str, object], status: int, code: str) -> None:
    async def story(api: Api) -> None:
        refused = await api.client.post(PROBE, json=body)
        assert refused.status_code == status
        assert refused.json()["error"]["skulk_code"] == code

    with_api(story, TwoNodes().alpha)


def test_while_somebody_measures_the_answer_is_a_conflict_that_says_who() -> None:
    daemon = TwoNodes().alpha
    daemon.probes.error = probe_busy("beta", "measures the cluster's links now")

    async def story(api: Api) -> None:
        refused = await api.client.post(PROBE)
        assert refused.status_code == 409
        assert refused.json()["error"]["skulk_code"] == "cluster.probe_busy"
        assert "beta" in refused.json()["error"]["message"]

    with_api(story, daemon)


def test_a_direction_that_failed_is_named_with_its_cause() -> None:
    daemon = TwoNodes().alpha
    error = ErrorBody(code="cluster.peer_timeout", message="too little came", remediation="again")
    daemon.probes.last = ProbeRun(
        began_ms=1,
        pairs=((NODE, BETA),),
        done=(
            Direction(source=NODE, target=BETA, rate_bytes_s=1e6),
            Direction(source=BETA, target=NODE, error=error),
        ),
        ended_ms=2,
    )

    async def story(api: Api) -> None:
        probe = (await shown(api)).probe
        assert probe is not None
        assert (probe.state, probe.n_pairs, probe.n_tried) == ("done", 1, 1)
        (failure,) = probe.failures
        assert (failure.source, failure.target, failure.error) == (BETA, NODE, error)

    with_api(story, daemon)
