"""Names completed by what a node knows, within the patience of somebody who pressed Tab."""

import time

import pytest

from skulk_tui.cli.suggestions import complete_node, complete_node_or_instance
from tests.support.builders import MODEL, an_instance_id
from tests.support.fake_node import Answer, FakeNode, refusal


@pytest.fixture
def node(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    monkeypatch.setenv("SKULK_NODE", node.url)
    monkeypatch.delenv("SKULK_API_KEY", raising=False)
    return node


@pytest.mark.usefixtures("node")
def test_nodes_instances_and_placed_models_are_completed_by_how_they_begin() -> None:
    assert complete_node("bo") == ["box-1"]
    assert complete_node("x") == []
    assert complete_node_or_instance("") == sorted(["box-1", MODEL, an_instance_id()])
    assert complete_node_or_instance(MODEL[:3]) == [MODEL]


def test_a_node_that_refuses_or_is_slow_completes_nothing_and_says_nothing(node: FakeNode) -> None:
    node.on("GET", "/state", refusal("request.unauthenticated", status=401))
    assert complete_node("b") == []
    node.on("GET", "/state", Answer(pieces=(b"{",), pause_s=1.0))
    began_s = time.perf_counter()
    assert complete_node("b") == []
    assert time.perf_counter() - began_s < 0.9


def test_no_node_completes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKULK_NODE", "http://127.0.0.1:1")
    assert complete_node("b") == []
