import json

import pytest

from protocol.errors import ErrorBody
from protocol.instances import Phase
from protocol.state import PlacementFailure
from tests.support.builders import MODEL, NOW_MS, a_node_id, an_instance_id
from tests.support.command_line import skulk
from tests.support.fake_node import (
    FakeNode,
    a_state_document,
    a_view,
    accepted,
    an_ending,
    refusal,
)

GONE = refusal("request.not_found", "no such instance", status=404)


pytestmark = pytest.mark.usefixtures("no_real_waiting")


def path(number: int = 1) -> str:
    return f"/instance/{an_instance_id(number)}"


def test_an_empty_cluster_is_an_empty_list_and_a_hint(node: FakeNode) -> None:
    node.on("GET", "/state", a_state_document())
    ran = skulk("ps", node=node.url)
    assert (ran.code, ran.out) == (0, "")
    assert "skulk place MODEL" in ran.err
    ran = skulk("ps", "--json", node=node.url)
    assert (json.loads(ran.out)["items"], ran.err) == ([], "")


def test_ps_shows_why_an_instance_failed(node: FakeNode) -> None:
    node.on("GET", "/state", a_state_document(a_view("failed", failure=an_ending())))
    ran = skulk("ps", node=node.url)
    assert ran.code == 0
    assert "SIGKILL" in ran.out
    assert "loading tensors" in ran.out


@pytest.mark.parametrize("target", [MODEL, an_instance_id(), an_instance_id()[:10]])
def test_stop_takes_an_id_its_start_or_a_model_and_waits_until_it_is_gone(
    node: FakeNode, target: str
) -> None:
    node.on("GET", path(), a_view("stopping"), a_view("stopping"), GONE)
    ran = skulk("stop", target, node=node.url)
    assert ran.code == 0
    assert len(node.asked("GET", path())) == 3
    assert "stopped" in ran.out


def test_a_stop_gives_the_time_that_is_asked_for_to_what_is_being_answered(node: FakeNode) -> None:
    node.on("GET", path(), GONE)
    assert skulk("stop", MODEL, "--drain", "1m", node=node.url).code == 0
    assert skulk("stop", MODEL, "--no-wait", node=node.url).code == 0
    assert [seen.query for seen in node.asked("DELETE", path())] == [{"drain_s": ["60"]}, {}]
    for wrong in ("0s", "25h", "soon"):
        assert skulk("stop", MODEL, "--drain", wrong, node=node.url).code == 2
    assert len(node.asked("DELETE", path())) == 2
    busy = a_view().model_copy(update={"in_flight": 2, "queued": 1})
    node.on("GET", "/state", a_state_document(busy))
    would = skulk("stop", MODEL, "--drain", "60s", "--dry-run", node=node.url).out
    assert "once 3 requests have ended, in 60s at the latest" in would


def test_stop_without_waiting_does_not_look(node: FakeNode) -> None:
    ran = skulk("stop", MODEL, "--no-wait", node=node.url)
    assert (ran.code, node.asked("GET", path())) == (0, [])
    assert "stopping" in ran.out


def test_a_model_with_several_instances_is_stopped_only_with_all(node: FakeNode) -> None:
    node.on("GET", "/state", a_state_document(a_view(), a_view("ready", 2)))
    ran = skulk("stop", MODEL, node=node.url)
    assert ran.code == 2
    assert an_instance_id(1) in ran.err
    assert an_instance_id(2) in ran.err
    for number in (1, 2):
        node.on("GET", path(number), GONE)
        node.on("DELETE", path(number), accepted(9))
    assert skulk("stop", MODEL, "--all", node=node.url).code == 0
    assert len(node.asked("DELETE", path(2))) == 1


def test_some_stopped_and_some_not_is_6_and_all_failed_is_their_code(node: FakeNode) -> None:
    node.on("GET", "/state", a_state_document(a_view(), a_view("ready", 2)))
    busy = refusal("placement.busy", "it changes", status=409)
    node.on("GET", path(1), GONE)
    node.on("DELETE", path(2), busy)
    ran = skulk("stop", an_instance_id(1), an_instance_id(2), "--json", node=node.url)
    assert ran.code == 6
    outcomes = [item["outcome"] for item in json.loads(ran.out)["items"]]
    assert outcomes == ["stopped", "failed"]
    node.on("DELETE", path(1), busy)
    assert skulk("stop", an_instance_id(1), an_instance_id(2), node=node.url).code == 5


def test_a_single_failed_stop_is_its_error(node: FakeNode) -> None:
    node.on("DELETE", path(), refusal("request.forbidden", "the key may not", status=403))
    ran = skulk("stop", MODEL, node=node.url)
    assert (ran.code, ran.out) == (4, "")
    assert ran.err.startswith("error: the key may not\n")


def test_what_is_not_placed_names_the_nearest(node: FakeNode) -> None:
    ran = skulk("stop", "test/tinny", node=node.url)
    assert (ran.code, ran.err.splitlines()[-1]) == (2, f"  remedy: Did you mean '{MODEL}'?")


@pytest.mark.parametrize("target", ["", an_instance_id()[:7]])
def test_a_word_that_could_mean_anything_stops_nothing(node: FakeNode, target: str) -> None:
    assert skulk("stop", target, node=node.url).code == 2
    assert node.asked("DELETE", path()) == []


def test_a_placement_that_failed_later_is_told_by_its_id(node: FakeNode) -> None:
    failure = PlacementFailure(
        instance_id=an_instance_id(7),
        model_id=MODEL,
        at_ms=NOW_MS,
        error=ErrorBody(code="placement.no_fit", message="it did not fit any more"),
    )
    node.on("GET", "/state", a_state_document(placement_failures=(failure,)))
    ran = skulk("instance", "show", an_instance_id(7), node=node.url)
    assert ran.code == 4
    assert "it did not fit any more" in ran.err


@pytest.mark.parametrize(
    ("phase", "code"), [("ready", 0), ("pending", 8), ("load", 8), ("failed", 1)]
)
def test_showing_an_instance_answers_by_exit_code_too(
    node: FakeNode, phase: str, code: int
) -> None:
    view = a_view().model_copy(update={"phase": phase})
    node.on("GET", "/state", a_state_document(view))
    assert skulk("instance", "show", MODEL, node=node.url).code == code
    assert skulk("instance", "show", MODEL, "--json", node=node.url).code == code


def test_retry_waits_until_it_serves(node: FakeNode) -> None:
    node.on("GET", "/state", a_state_document(a_view("failed", failure=an_ending())))
    node.on("GET", path(), a_view("load"), a_view("ready"))
    ran = skulk("retry", MODEL, node=node.url)
    assert ran.code == 0
    assert len(node.asked("POST", f"{path()}/retry")) == 1
    assert "load" in ran.err


def test_a_node_that_comes_back_during_a_wait_is_waited_for(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    from protocol.errors import ClientError
    from skulk_tui.client import NodeClient

    whole = NodeClient.get
    fails = [True, True]

    def get(self: NodeClient, asked: str, *rest: object, **more: object) -> object:
        if asked == path() and fails:
            fails.pop()
            raise ClientError("client.unreachable", "away")
        return whole(self, asked, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(NodeClient, "get", get)
    ran = skulk("place", MODEL, node=node.url)
    assert ran.code == 0
    assert ran.err.count("the node does not answer; asking again") == 1


def test_an_instance_on_a_node_out_of_reach_says_so_and_ends_with_3(node: FakeNode) -> None:
    node.on("GET", "/state", a_state_document(a_view(unreachable_nodes=(a_node_id(),))))
    ran = skulk("instance", "show", MODEL, node=node.url)
    assert ran.code == 3
    assert "ready (box-1 out of reach)" in ran.out
    assert "out of reach" in skulk("ps", node=node.url).out


@pytest.mark.parametrize(("phase", "outcome"), [("ready", "cleared"), ("failed", "tried again")])
def test_clearing_the_breaker_says_what_became_of_the_instance(
    node: FakeNode, phase: Phase, outcome: str
) -> None:
    failure = an_ending() if phase == "failed" else None
    node.on("GET", "/state", a_state_document(a_view(phase, failure=failure)))
    ran = skulk("instance", "clear-breaker", MODEL, "--json", node=node.url)
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["items"][0]["outcome"] == outcome
    assert len(node.asked("POST", f"{path()}/clear-breaker")) == 1


@pytest.mark.parametrize(("verb", "method"), [("pin", "POST"), ("unpin", "DELETE")])
def test_a_pin_is_set_and_taken_back_and_what_is_so_already_is_said(
    node: FakeNode, verb: str, method: str
) -> None:
    view = a_view().model_copy(update={"pinned": verb == "unpin"})
    node.on("GET", "/state", a_state_document(view))
    would = skulk(verb, MODEL, "--dry-run", node=node.url)
    assert f"would be {verb}ned" in would.out
    assert node.asked(method, f"{path()}/pin") == []
    assert f"{verb}ned" in skulk(verb, MODEL, node=node.url).out
    assert len(node.asked(method, f"{path()}/pin")) == 1
    node.on("GET", "/state", a_state_document(view.model_copy(update={"pinned": verb == "pin"})))
    assert " already" in (out := skulk(verb, MODEL, node=node.url).out) or "is not pinned" in out


def test_ps_shows_what_sleeps_what_is_about_to_and_what_is_pinned(node: FakeNode) -> None:
    on_demand = a_view().model_copy(update={"ttl_ms": 600_000, "sleeps_in_s": 480})
    asleep = a_view(number=2).model_copy(update={"phase": "asleep", "ttl_ms": 600_000})
    pinned = a_view(number=3).model_copy(update={"pinned": True})
    node.on("GET", "/state", a_state_document(on_demand, asleep, pinned))
    out = skulk("ps", node=node.url).out
    assert "ready (sleeps in 8 m 00 s)" in out
    assert "asleep" in out
    assert "ready (pinned)" in out
    ran = skulk("instance", "show", an_instance_id(2), node=node.url)
    assert ran.code == 0
    assert "unloaded 10 m 00 s after a request" in ran.out
