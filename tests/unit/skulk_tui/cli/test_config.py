import json

import pytest

from protocol.admin_api import ConfigDocument, InterruptedInstance, RestartDocument
from protocol.control_api import NodeIdentity
from tests.support.builders import MODEL, a_node_id, an_instance_id
from tests.support.command_line import skulk
from tests.support.config_documents import an_identity, some_settings
from tests.support.fake_node import FakeNode, refusal

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


def test_settings_are_shown_with_their_source_and_what_waits(node: FakeNode) -> None:
    ran = skulk("config", "get", node=node.url)
    assert ran.code == 0, ran.err
    rows = {line.split()[0]: line.split()[1:] for line in ran.out.splitlines()}
    assert rows["priority"] == ["50", "file", "60", "after", "a", "restart"]
    assert rows["bind"] == ["eth0,eth1", "environment", "-"]
    assert rows["cluster.policy"][:2] == ["availability", "cluster"]
    assert "skulk node restart studio" in ran.err


def test_a_key_that_is_none_is_answered_with_the_nearest(node: FakeNode) -> None:
    ran = skulk("config", "get", "priorty", node=node.url)
    assert ran.code == 2
    assert "Did you mean 'priority'?" in ran.err


def test_changes_are_sent_as_they_were_given(node: FakeNode) -> None:
    ran = skulk(
        "config", "set", "priority=60", "join_file=a=b", "cluster.policy=quorum", "--unset", "bind",
        "--on", "studio", "--dry-run", node=node.url,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    (seen,) = node.asked("PUT", "/config")
    assert seen.query == {"node": ["studio"]}
    assert seen.body == {
        "settings": {"priority": "60", "join_file": "a=b"},
        "unset": ["bind"],
        "cluster": {"policy": "quorum"},
        "dry_run": True,
    }


@pytest.mark.parametrize(
    "arguments", [(), ("priority",), ("=1",), ("cluster.nothing=1",), ("Name!=x",)]
)
def test_what_is_no_change_is_refused_before_a_node_is_asked(
    node: FakeNode, arguments: tuple[str, ...]
) -> None:
    ran = skulk("config", "set", *arguments, node=node.url)
    assert ran.code == 2
    assert node.seen == []


def test_a_setting_that_the_node_refuses_ends_with_2(node: FakeNode) -> None:
    node.on("PUT", "/config", refusal("config.invalid", "priority: too large"))
    ran = skulk("config", "set", "priority=900", node=node.url)
    assert ran.code == 2
    assert ran.err.startswith("error: priority: too large")


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


def test_the_document_of_the_fake_node_is_one() -> None:
    document = some_settings()
    assert ConfigDocument.model_validate_json(document.model_dump_json()) == document
