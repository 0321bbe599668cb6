import json

import pytest

from protocol.errors import ErrorBody
from protocol.instances import Replacement
from protocol.placements import Refusal
from tests.support.builders import MODEL, a_member, a_node_id, a_plan, an_instance_id
from tests.support.command_line import skulk
from tests.support.fake_node import (
    FakeNode,
    a_look_at_a_move,
    a_state_document,
    a_view,
    accepted,
    an_ending,
    document,
    refusal,
)

OLD, NEW = an_instance_id(1), an_instance_id(7)
MOVE = f"/instance/{OLD}/move"
GONE = refusal("request.not_found", "no such instance", status=404)
PLAN = a_plan(node=2)
SECOND = a_plan(node=3)

pytestmark = pytest.mark.usefixtures("no_real_waiting")


@pytest.fixture
def cluster(node: FakeNode) -> FakeNode:
    members = {a_node_id(number): a_member(number) for number in (1, 2, 3)}
    node.on("GET", "/state", a_state_document(a_view(), members=members))
    node.on("GET", MOVE, a_look_at_a_move(PLAN, SECOND))
    node.on("POST", MOVE, document(accepted(7, plan=PLAN), status=202))
    new = a_view("ready", 7, plan=PLAN, moved_from=(a_node_id(),))
    node.on("GET", f"/instance/{NEW}", a_view("load", 7, plan=PLAN), new)
    node.on("GET", f"/instance/{OLD}", a_view("stopping"), GONE)
    return node


def test_it_takes_the_plan_that_it_looked_at_and_waits_until_the_old_one_is_gone(
    cluster: FakeNode,
) -> None:
    ran = skulk("move", MODEL, "--nodes", "box-2,box-3", node=cluster.url)
    assert ran.code == 0, ran.err
    (look,) = cluster.asked("GET", MOVE)
    assert look.query["node_ids"] == [a_node_id(2), a_node_id(3)]
    (asked,) = cluster.asked("POST", MOVE)
    assert asked.body["plan_id"] == PLAN.plan_id
    assert (asked.body["stop_first"], asked.body["drain_s"]) == (False, 60)
    told = ran.err.splitlines()
    assert told[0].startswith(f"accepted as {NEW}: ")
    assert "on box-2" in told[0]
    assert told[1] == "box-1 goes on serving until box-2 is ready."
    assert told[-1] == f"moved; back: `skulk move {NEW} --nodes box-1`"
    assert ran.out.splitlines()[1].startswith(NEW)


def test_a_dry_run_shows_the_arithmetic_and_what_it_means(cluster: FakeNode) -> None:
    ran = skulk("move", OLD, "--stop-first", "--deadline", "2m", "--dry-run", node=cluster.url)
    assert ran.code == 0, ran.err
    (look,) = cluster.asked("GET", MOVE)
    assert (look.query["stop_first"], look.query["drain_s"]) == (["true"], ["120"])
    assert "box-1 goes on serving until box-2 is ready." in ran.out
    assert "HEADROOM" in ran.out
    assert cluster.asked("POST", MOVE) == []


def test_machines_get_candidates_and_consequences(cluster: FakeNode) -> None:
    ran = skulk("move", OLD, "--dry-run", "--json", node=cluster.url)
    shown = json.loads(ran.out)
    (item,) = shown["items"]
    assert shown["kind"] == "moves"
    assert item["from_node_names"] == ["box-1"]
    assert item["candidates"][0]["plan_id"] == PLAN.plan_id
    assert item["consequences"] == ["box-1 goes on serving until box-2 is ready."]


def test_a_plan_is_named_by_the_start_of_its_id(cluster: FakeNode) -> None:
    ran = skulk("move", OLD, "--plan", SECOND.plan_id[:12], "--no-wait", node=cluster.url)
    assert ran.code == 0, ran.err
    (asked,) = cluster.asked("POST", MOVE)
    assert asked.body["plan_id"] == SECOND.plan_id
    assert cluster.asked("GET", f"/instance/{OLD}") == []


def test_a_plan_that_is_no_more_is_5_with_the_plan_of_now(cluster: FakeNode) -> None:
    ran = skulk("move", OLD, "--plan", "0" * 12, node=cluster.url)
    assert ran.code == 5
    assert f"--plan {PLAN.plan_id[:12]}" in ran.err
    assert cluster.asked("POST", MOVE) == []
    assert skulk("move", OLD, "--plan", "", node=cluster.url).code == 2


def test_a_plan_that_the_master_refuses_tells_what_changed(cluster: FakeNode) -> None:
    now = SECOND.model_dump(mode="json")
    cluster.on("POST", MOVE, refusal("placement.plan_changed", "moved on", status=409, plan=now))
    ran = skulk("move", OLD, node=cluster.url)
    assert ran.code == 5
    assert f"changed: nodes {a_node_id(2)} -> {a_node_id(3)}" in ran.err
    assert f"--plan {SECOND.plan_id[:12]}" in ran.err


def test_what_fits_nowhere_says_the_smallest_change_and_asks_for_nothing(
    cluster: FakeNode,
) -> None:
    too_small = Refusal(
        node_id=a_node_id(2),
        error=ErrorBody(
            code="placement.no_fit", message="box-2 lacks 2.06 GiB", remediation="free memory"
        ),
    )
    cluster.on("GET", MOVE, a_look_at_a_move(refusals=(too_small,)))
    for more in ((), ("--dry-run",)):
        ran = skulk("move", OLD, *more, node=cluster.url)
        assert ran.code != 0
        assert "box-2 lacks 2.06 GiB" in ran.err
    assert cluster.asked("POST", MOVE) == []


def test_a_new_one_that_fails_is_told_with_the_way_back(cluster: FakeNode) -> None:
    ending = an_ending(7)
    error = ending.error.model_copy(update={"remediation": "It goes on on box-1."})
    ending = ending.model_copy(update={"error": error})
    cluster.on("GET", f"/instance/{NEW}", a_view("failed", 7, failure=ending))
    ran = skulk("move", OLD, node=cluster.url)
    assert ran.code == 1
    assert ran.err.splitlines()[-1] == "  remedy: It goes on on box-1."
    assert cluster.asked("GET", f"/instance/{OLD}") == []


def test_ps_shows_a_move_at_both_ends(cluster: FakeNode) -> None:
    members = {a_node_id(number): a_member(number) for number in (1, 2)}
    for stop_first, old, new in (
        (False, "ready (moves to box-2)", "load 25 % (from box-1)"),
        (True, "stopping (moves to box-2)", "pending 25 % (waits for box-1)"),
    ):
        replaces = Replacement(instance_id=OLD, stop_first=stop_first, drain_ms=60_000)
        views = (
            a_view("stopping" if stop_first else "ready"),
            a_view(
                "pending" if stop_first else "load",
                7,
                plan=PLAN,
                replaces=replaces,
                moved_from=(a_node_id(),),
            ),
        )
        cluster.on("GET", "/state", a_state_document(*views, members=members))
        ran = skulk("ps", node=cluster.url)
        assert old in ran.out
        assert new in ran.out


def test_an_old_one_whose_new_one_failed_does_not_move(cluster: FakeNode) -> None:
    replaces = Replacement(instance_id=OLD, drain_ms=60_000)
    failed = a_view("failed", 7, replaces=replaces, failure=an_ending(7))
    cluster.on("GET", "/state", a_state_document(a_view(), failed))
    items = json.loads(skulk("ps", "--json", node=cluster.url).out)["items"]
    assert [item["replaced_by"] for item in items] == [None, None]
