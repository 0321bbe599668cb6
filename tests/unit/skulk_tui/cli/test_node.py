import json

import pytest

from protocol.admin_api import InterruptedInstance, RestartDocument
from protocol.cluster_api import ClusterDocument
from protocol.control_api import NodeIdentity
from protocol.drain_api import DrainedInstance
from protocol.errors import ErrorBody
from protocol.ids import ModelId
from protocol.nodes import Eligibility
from tests.support.builders import MODEL, a_command_id, a_node_id, an_instance_id
from tests.support.cluster_documents import a_cluster, a_member_view
from tests.support.command_line import skulk
from tests.support.config_documents import a_drain, an_identity
from tests.support.fake_node import FakeNode, accepted, refusal

PLAN = RestartDocument(
    node_id=a_node_id(),
    name="studio",
    boot_id="life-1",
    restarting=False,
    interrupted=(
        InterruptedInstance(
            instance_id=an_instance_id(), model_id=MODEL, phase="ready", requests=3
        ),
    ),
)
ROUTE = "/admin/restart"
DRAIN_ROUTE = "/v1/nodes/studio/drain"
STOPS = (
    DrainedInstance(
        instance_id=an_instance_id(),
        model_id=MODEL,
        phase="ready",
        requests=3,
        copies=1,
        elsewhere="attic",
    ),
    DrainedInstance(
        instance_id=an_instance_id(2),
        model_id=ModelId("test/large"),
        phase="load",
        why_not=ErrorBody(code="placement.no_fit", message="attic: 4.0 GiB too little"),
    ),
)
DRAIN = a_drain().model_copy(update={"stops": STOPS})
BEGUN = DRAIN.model_copy(
    update={"is_applied": True, "command_id": a_command_id(), "durable": "member"}
)


def seen_as(eligibility: Eligibility) -> ClusterDocument:
    """The cluster, in which the node is as far as this with its drain."""
    return a_cluster(a_member_view(1, name="studio", eligibility=eligibility))


def identity(boot_id: str) -> NodeIdentity:
    return an_identity().model_copy(update={"boot_id": boot_id})


@pytest.mark.usefixtures("no_real_waiting")
def test_a_restart_says_what_it_interrupts_and_waits_for_the_next_life(node: FakeNode) -> None:
    node.on("POST", ROUTE, PLAN, PLAN.model_copy(update={"restarting": True}))
    node.on(
        "GET",
        "/node/identity",
        identity("life-1"),
        refusal("cluster.peer_unreachable", status=503),
        identity("life-2"),
    )
    ran = skulk("node", "restart", "studio", "--yes", "--json", node=node.url)
    assert ran.code == 0, ran.err
    (item,) = json.loads(ran.out)["items"]
    assert (item["outcome"], item["requests"]) == ("restarted", 3)
    assert item["instances"] == [an_instance_id()]
    assert len(node.asked("GET", "/node/identity")) == 3
    assert [seen.body for seen in node.asked("POST", ROUTE)] == [
        {"dry_run": True},
        {"dry_run": False},
    ]


def test_without_a_yes_nothing_is_restarted_and_the_question_names_the_cost(node: FakeNode) -> None:
    node.on("POST", ROUTE, PLAN)
    ran = skulk("node", "restart", "studio", node=node.url)
    assert ran.code == 2
    assert f"{MODEL} (3 requests)" in ran.err
    assert [seen.body["dry_run"] for seen in node.asked("POST", ROUTE)] == [True]


def test_a_restart_under_way_is_a_conflict(node: FakeNode) -> None:
    node.on("POST", ROUTE, PLAN, refusal("cluster.restart_pending", status=409))
    ran = skulk("node", "restart", "studio", "--yes", node=node.url)
    assert ran.code == 5


def test_a_dry_run_shows_what_a_drain_stops_and_where_it_could_run(node: FakeNode) -> None:
    node.on("POST", DRAIN_ROUTE, DRAIN)
    ran = skulk("node", "drain", "studio", "--dry-run", node=node.url)
    assert ran.code == 0, ran.err
    assert "would be drained" in ran.out
    assert "skulk move" not in ran.err  # a copy goes on
    first, second = [line for line in ran.out.splitlines() if line.startswith("test/")]
    assert first.split() == [MODEL, "3", "1", "attic"]
    assert "no other node: attic: 4.0 GiB too little" in second
    assert [seen.body for seen in node.asked("POST", DRAIN_ROUTE)] == [
        {"deadline_s": 60, "dry_run": True}
    ]


@pytest.mark.usefixtures("no_real_waiting")
def test_a_drain_does_what_was_seen_and_waits_until_nothing_is_left(node: FakeNode) -> None:
    node.on("POST", DRAIN_ROUTE, DRAIN, BEGUN)
    node.on("GET", "/v1/cluster", seen_as("draining"), seen_as("draining"), seen_as("drained"))
    ran = skulk("node", "drain", "studio", "--deadline", "90.5s", "--yes", "--json", node=node.url)
    assert ran.code == 0, ran.err
    (item,) = json.loads(ran.out)["items"]
    assert (item["name"], item["outcome"]) == ("studio", "drained")
    assert [one["elsewhere"] for one in item["stops"]] == ["attic", None]
    assert len(node.asked("GET", "/v1/cluster")) == 3
    seen = [an_instance_id(), an_instance_id(2)]
    assert [asked.body for asked in node.asked("POST", DRAIN_ROUTE)] == [
        {"deadline_s": 91, "dry_run": True},
        {"deadline_s": 91, "instances": seen, "dry_run": False},
    ]


def test_a_drain_by_force_gives_no_time_and_none_that_is_not_waited_for_is_watched(
    node: FakeNode,
) -> None:
    node.on("POST", DRAIN_ROUTE, DRAIN, BEGUN)
    ran = skulk("node", "drain", "studio", "--force", "--yes", "--no-wait", node=node.url)
    assert ran.code == 0, ran.err
    assert "draining" in ran.out
    assert [asked.body["deadline_s"] for asked in node.asked("POST", DRAIN_ROUTE)] == [0, 0]
    assert node.asked("GET", "/v1/cluster") == []


def test_what_could_be_moved_first_is_told_with_the_command(node: FakeNode) -> None:
    alone = STOPS[0].model_copy(update={"copies": 0})
    node.on("POST", DRAIN_ROUTE, DRAIN.model_copy(update={"stops": (alone,)}))
    ran = skulk("node", "drain", "studio", "--dry-run", node=node.url)
    assert f"skulk move {an_instance_id()} --nodes attic" in ran.err


def test_the_question_before_a_drain_names_the_cost(node: FakeNode) -> None:
    node.on("POST", DRAIN_ROUTE, DRAIN)
    ran = skulk("node", "drain", "studio", node=node.url)
    assert ran.code == 2
    assert "test/large, test/tiny (3 requests, with 60 s to end)" in ran.err
    assert [seen.body["dry_run"] for seen in node.asked("POST", DRAIN_ROUTE)] == [True]


def test_what_has_come_since_the_question_is_a_conflict(node: FakeNode) -> None:
    node.on("POST", DRAIN_ROUTE, DRAIN, refusal("placement.plan_changed", status=409))
    assert skulk("node", "drain", "studio", "--yes", node=node.url).code == 5


@pytest.mark.usefixtures("no_real_waiting")
def test_a_drain_that_somebody_ends_is_not_waited_for(node: FakeNode) -> None:
    node.on("POST", DRAIN_ROUTE, DRAIN, BEGUN)
    node.on("GET", "/v1/cluster", seen_as("draining"), seen_as("eligible"))
    ran = skulk("node", "drain", "studio", "--yes", node=node.url)
    assert ran.code == 2
    assert "studio was undrained by another command" in ran.err


def test_a_drain_that_takes_too_long_goes_on_and_says_how_to_follow_it(node: FakeNode) -> None:
    node.on("POST", DRAIN_ROUTE, DRAIN, BEGUN)
    node.on("GET", "/v1/cluster", seen_as("draining"))
    ran = skulk("node", "drain", "studio", "--yes", "--timeout", "300ms", node=node.url)
    assert ran.code == 124
    assert "skulk node undrain studio" in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--deadline", "0s"),
        ("--deadline", "soon"),
        ("--deadline", "25h"),
        ("--deadline", "5s", "--force"),
    ],
)
def test_a_deadline_that_is_none_is_refused_before_a_node_is_asked(
    node: FakeNode, arguments: tuple[str, ...]
) -> None:
    ran = skulk("node", "drain", "studio", "--yes", *arguments, node=node.url)
    assert ran.code == 2
    assert node.asked("POST", DRAIN_ROUTE) == []


def test_a_node_is_undrained_once(node: FakeNode) -> None:
    route = f"/v1/nodes/{a_node_id()}/drain"
    node.on("DELETE", route, accepted(9))
    node.on("GET", "/v1/cluster", seen_as("drained"), seen_as("eligible"))
    ran = skulk("node", "undrain", "studio", node=node.url)
    assert (ran.code, len(node.asked("DELETE", route))) == (0, 1)
    again = skulk("node", "undrain", "studio", node=node.url)
    assert again.code == 0
    assert "is not drained" in again.out
    assert len(node.asked("DELETE", route)) == 1


def test_nodes_say_that_no_models_may_be_placed_there(node: FakeNode) -> None:
    node.on("GET", "/v1/cluster", seen_as("drained"))
    assert "alive, drained" in skulk("cluster", "members", node=node.url).out
