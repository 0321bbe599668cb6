"""`skulk top`: the busiest first, once or kept up."""

import json

import pytest

from protocol.nodes import Member
from tests.support.builders import GIB, a_member, a_node_id, an_instance_id
from tests.support.command_line import skulk
from tests.support.fake_node import FakeNode, a_state_document, a_view


@pytest.fixture
def node(node: FakeNode) -> FakeNode:
    """Two nodes, the second busier and fuller; two instances, the second busier."""
    first, second = a_node_id(1), a_node_id(2)
    known = a_state_document()
    resources = known.node_resources[first]
    fuller = resources.model_copy(update={"cpu_ratio": 0.9, "memory_available_bytes": GIB})
    other: Member = a_member(2)
    state = a_state_document(
        a_view(),
        a_view(number=2, in_flight=3),
        members={first: a_member(), second: other},
        node_resources={first: resources, second: fuller},
        liveness={first: "alive", second: "alive"},
    )
    node.on("GET", "/state", state)
    return node


def test_the_busiest_node_and_instance_come_first(node: FakeNode) -> None:
    ran = skulk("top", "--json", node=node.url)
    (status,) = json.loads(ran.out)["items"]
    assert [one["node_id"] for one in status["nodes"]] == [a_node_id(2), a_node_id(1)]
    assert [one["instance_id"] for one in status["instances"]] == [
        an_instance_id(2),
        an_instance_id(1),
    ]


def test_by_name_nothing_is_sorted_by_load(node: FakeNode) -> None:
    ran = skulk("top", "--json", "--by", "name", node=node.url)
    (status,) = json.loads(ran.out)["items"]
    names = [one["name"] for one in status["nodes"]]
    assert names == sorted(names)


def test_a_pipe_gets_one_picture(node: FakeNode) -> None:
    ran = skulk("top", node=node.url)
    head, totals, blank, titles, busiest, *_ = ran.out.splitlines()
    assert head.startswith("MASTER")
    assert "2 of 2" in totals
    assert not blank
    assert titles.split()[:3] == ["NODE", "LIVENESS", "HEALTH"]
    assert "90 %" in busiest
    assert "15.0 GiB" in busiest


def test_once_is_once_on_a_terminal_too(node: FakeNode) -> None:
    ran = skulk("top", "--once", node=node.url, terminals=frozenset({"stdout"}))
    assert ran.code == 0
    assert "\x1b[?1049h" not in ran.out


def test_an_unknown_order_names_the_nearest(node: FakeNode) -> None:
    ran = skulk("top", "--by", "memry", node=node.url)
    assert (ran.code, ran.err.splitlines()[-1]) == (2, "  remedy: Did you mean 'memory'?")
