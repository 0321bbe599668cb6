"""`skulk cluster links` and `skulk probe links`."""

import json

import pytest

from protocol.errors import ErrorBody
from protocol.link_api import LinkNode, LinksDocument, LinkView, ProbeFailure
from tests.support.builders import a_node_id
from tests.support.cluster_documents import a_probe, some_links
from tests.support.command_line import skulk
from tests.support.fake_node import FakeNode, document, refusal

SHOW, PROBE = "/v1/cluster/links", "/v1/cluster/links/probe"
ONE, TWO = a_node_id(1), a_node_id(2)


def failed(source: str, target: str) -> ProbeFailure:
    error = ErrorBody(
        code="cluster.probe_disturbs", message="node-2 is answering requests", remediation="later"
    )
    return ProbeFailure.model_validate(
        {"source": source, "target": target, "error": error.model_dump()}
    )


def test_each_direction_is_a_line_and_what_is_not_known_is_no_zero(node: FakeNode) -> None:
    ran = skulk("cluster", "links", node=node.url)
    assert ran.code == 0, ran.err
    head, there, back, *rest = ran.out.splitlines()
    assert head.split() == [
        *("FROM", "TO", "LINK", "KIND", "NOMINAL", "RTT", "MS", "P99", "MS", "RATE", "MEASURED"),
    ]
    assert there.split() == [
        *("node-1", "node-2", "up", "ethernet", "1", "Gbit/s", "0.25", "2.50"),
        *("112", "MiB/s", "1", "m", "05", "s", "ago"),
    ]
    assert back.split() == ["node-2", "node-1", "silent", "-", "-", "-", "-", "-", "-"]
    assert rest == []


def test_four_nodes_are_a_matrix_and_the_lines_are_wide(node: FakeNode) -> None:
    names = ("a", "b", "c", "d")
    ids = [a_node_id(number) for number in (1, 2, 3, 4)]
    nodes = tuple(
        LinkNode(node_id=node_id, name=name, liveness="alive")
        for node_id, name in zip(ids, names, strict=True)
    )
    link = LinkView(
        source=ids[0], target=ids[1], state="up", rtt_median_ms=0.5, rate_bytes_s=10 << 20
    )
    node.on("GET", SHOW, LinksDocument(node_id=ids[0], nodes=nodes, links=(link,)))
    ran = skulk("cluster", "links", node=node.url)
    head, first, second, *_ = ran.out.splitlines()
    assert head.split() == ["FROM", "/", "TO", "A", "B", "C", "D"]
    assert first.split() == ["a", ".", "0.50", "ms,", "10.0", "MiB/s", "-", "-"]
    assert second.split() == ["b", "-", ".", "-", "-"]
    assert "INTERFACE" not in ran.out
    assert "INTERFACE" in skulk("cluster", "links", "-o", "wide", node=node.url).out


@pytest.mark.usefixtures("no_real_waiting")
def test_a_measurement_is_followed_until_all_pairs_have_been_tried(node: FakeNode) -> None:
    running = a_probe("running", current=(ONE, TWO))
    node.on("GET", SHOW, some_links(running), some_links(a_probe()))
    ran = skulk("probe", "links", "node-1", "--even-busy", node=node.url)
    assert ran.code == 0, ran.err
    assert "measured 0 of 1 pairs; now node-1 and node-2" in ran.err
    (seen,) = node.asked("POST", PROBE)
    assert seen.body == {"nodes": ["node-1"], "even_busy": True, "dry_run": False}


@pytest.mark.parametrize(
    ("failures", "code"),
    [((failed(ONE, TWO),), 6), ((failed(ONE, TWO), failed(TWO, ONE)), 1)],
)
def test_what_was_not_measured_is_named_with_its_cause_and_in_the_exit_code(
    node: FakeNode, failures: tuple[ProbeFailure, ...], code: int
) -> None:
    node.on("GET", SHOW, some_links(a_probe(failures=failures)))
    ran = skulk("probe", "links", node=node.url)
    assert ran.code == code
    assert "WHY IT WAS NOT MEASURED" in ran.out
    assert "node-2 is answering requests" in ran.out
    listed = json.loads(skulk("probe", "links", "--json", node=node.url).out)["items"]
    problems = {(one["source_name"], one["target_name"]): one["problem"] for one in listed}
    assert problems["node-1", "node-2"] == "node-2 is answering requests"


def test_a_series_that_ended_early_shows_what_is_known_and_is_an_error(node: FakeNode) -> None:
    error = ErrorBody(code="cluster.no_master", message="no master is known", remediation="wait")
    node.on("GET", SHOW, some_links(a_probe("failed", error=error)))
    ran = skulk("probe", "links", node=node.url)
    assert ran.code == 1
    assert "112 MiB/s" in ran.out
    assert "no master is known" in ran.err


def test_while_another_one_measures_it_is_a_conflict(node: FakeNode) -> None:
    node.on("POST", PROBE, refusal("cluster.probe_busy", status=409))
    ran = skulk("probe", "links", node=node.url)
    assert (ran.code, ran.out) == (5, "")


def test_without_waiting_and_before_beginning_only_the_pairs_are_counted(node: FakeNode) -> None:
    ran = skulk("probe", "links", "--no-wait", node=node.url)
    assert "pair after pair: 1 in all" in ran.out
    node.on("POST", PROBE, document(a_probe("planned", began_ms=None, n_pairs=6)))
    ran = skulk("probe", "links", "--dry-run", node=node.url)
    assert "pairs that would be measured: 6, in 7.2 s" in ran.out
    assert node.asked("GET", SHOW) == []
