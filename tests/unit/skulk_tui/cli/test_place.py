import json
from pathlib import Path

import pytest

from skulk_tui.clock import SystemClock
from tests.support.builders import GIB, MODEL, a_node_id, a_plan, an_instance_id, some_arithmetic
from tests.support.command_line import skulk
from tests.support.fake_node import (
    FakeNode,
    a_refusal_of_memory,
    a_state_document,
    a_view,
    accepted,
    an_ending,
    document,
    previews,
    refusal,
)

INSTANCE = f"/instance/{an_instance_id()}"


pytestmark = pytest.mark.usefixtures("no_real_waiting")


def test_the_phases_are_told_on_stderr_and_the_instance_on_stdout(node: FakeNode) -> None:
    node.on("GET", INSTANCE, *(a_view(phase) for phase in ("download", "load", "load", "ready")))
    ran = skulk("place", MODEL, node=node.url)
    assert ran.code == 0
    words = [line.split()[0] for line in ran.err.splitlines()]
    assert words == ["accepted", "download", "load", "ready"]
    assert ran.out.splitlines()[1].startswith(an_instance_id())


def test_quiet_tells_nothing(node: FakeNode) -> None:
    node.on("GET", INSTANCE, a_view("load"), a_view("ready"))
    assert not skulk("place", MODEL, "-q", node=node.url).err


def test_a_terminal_gets_one_live_line_that_is_taken_away(node: FakeNode) -> None:
    node.on("GET", INSTANCE, a_view("load"), a_view("ready"))
    ran = skulk("place", MODEL, node=node.url, terminals=frozenset({"stderr"}))
    assert "\r\x1b[Kload      test/tiny  25.0 MiB / 100 MiB" in ran.err
    assert "\r\x1b[Kready after" in ran.err


def test_the_wait_ends_with_the_failure_its_signal_and_the_last_lines(node: FakeNode) -> None:
    node.on("GET", INSTANCE, a_view("load"), a_view("failed", failure=an_ending()))
    ran = skulk("place", MODEL, node=node.url)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.splitlines()[-6:] == [
        f"last lines of the log of {MODEL}:",
        "  | loading tensors",
        "  | killed",
        "error: the engine ended while it loaded (signal SIGKILL)",
        f"  at: {a_node_id()}, load",
        "  remedy: see its log",
    ]


def test_machines_get_the_failure_as_details(node: FakeNode) -> None:
    ending = an_ending(signal=None, exit_code=3)
    node.on("GET", INSTANCE, a_view("failed", failure=ending))
    ran = skulk("place", MODEL, "--json", node=node.url)
    *told, last = [json.loads(line) for line in ran.err.splitlines()]
    assert [list(line) for line in told] == [["note"]]
    error = last["error"]
    assert (ran.code, error["code"], error["exit"]) == (1, "runner.exited", 1)
    assert error["details"]["exit_code"] == 3
    assert error["details"]["log_tail"] == "loading tensors\nkilled"


def test_a_failed_attempt_that_is_followed_by_another_is_told_once(node: FakeNode) -> None:
    again = a_view("load", attempt=2, failure=an_ending(final=False))
    node.on("GET", INSTANCE, again, again, a_view("ready", attempt=2))
    ran = skulk("place", MODEL, node=node.url)
    assert ran.code == 0
    assert ran.err.count("attempt 1 failed: the engine ended while it loaded") == 1


def test_an_instance_that_another_command_stops_ends_the_wait(node: FakeNode) -> None:
    node.on("GET", INSTANCE, a_view("stopping", desired="stopped"))
    ran = skulk("place", MODEL, node=node.url)
    assert ran.code != 0
    assert "being stopped by another command" in ran.err


def test_ctrl_c_ends_the_wait_and_says_that_the_work_goes_on(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_self: SystemClock, _duration_s: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SystemClock, "wait_s", interrupted)
    node.on("GET", INSTANCE, a_view("load"))
    ran = skulk("place", MODEL, node=node.url)
    assert (ran.code, ran.out) == (130, "")
    assert "the work goes on" in ran.err
    assert f"stop: `skulk stop {an_instance_id()}`" in ran.err
    assert node.asked("DELETE", INSTANCE) == []


def test_a_spent_budget_is_124_and_says_how_to_follow(node: FakeNode) -> None:
    node.on("GET", INSTANCE, a_view("load"))
    ran = skulk("place", MODEL, "--timeout", "300ms", node=node.url)
    assert ran.code == 124
    assert f"remedy: Follow: `skulk instance show {an_instance_id()}`" in ran.err


def test_detached_it_prints_the_id_and_asks_no_further(node: FakeNode) -> None:
    ran = skulk("place", MODEL, "--detach", node=node.url)
    assert (ran.code, ran.out) == (0, f"{an_instance_id()}\n")
    assert node.asked("GET", INSTANCE) == []


def test_without_waiting_it_shows_how_far_it_is(node: FakeNode) -> None:
    node.on("GET", INSTANCE, a_view("download"))
    ran = skulk("place", MODEL, "--no-wait", "--json", node=node.url)
    document_ = json.loads(ran.out)
    assert (ran.code, document_["seq"]) == (0, 43)
    assert document_["items"][0]["phase"] == "download"


def test_options_become_the_request_and_node_names_become_ids(node: FakeNode) -> None:
    wanted = ("--context", "4096", "--slots", "2", "--backend", "llama_server-cpu")
    skulk("place", MODEL, *wanted, "--nodes", "box-1", "--exclude", a_node_id(), node=node.url)
    (asked,) = node.asked("POST", "/place_instance")
    assert asked.body == {
        "model_id": MODEL,
        "min_nodes": 1,
        "nodes": [a_node_id()],
        "excluded_nodes": [a_node_id()],
        "backend": "llama_server-cpu",
        "context_tokens": 4096,
        "slots": 2,
        "on_demand": False,
        "priority": 0,
        "lost_after_s": 30,
        "replace": True,
    }
    skulk("place", MODEL, *wanted, "--nodes", "box-1", "--dry-run", node=node.url)
    (asked,) = node.asked("GET", "/instance/previews")
    assert asked.query == {
        "model_id": [MODEL],
        "node_ids": [a_node_id()],
        "backend": ["llama_server-cpu"],
        "context_tokens": ["4096"],
        "slots": ["2"],
    }


def test_what_becomes_of_it_when_it_cannot_go_on_is_said_with_it(node: FakeNode) -> None:
    skulk("place", MODEL, "--lost-after", "2m", "--stop-after", "90s", node=node.url)
    body = node.asked("POST", "/place_instance")[0].body
    assert (body["lost_after_s"], body["replace"], body["stop_after_s"]) == (120, True, 90)
    skulk("place", MODEL, "--no-replace", node=node.url)
    assert node.asked("POST", "/place_instance")[1].body["replace"] is False


@pytest.mark.parametrize(
    "options",
    [
        ("--lost-after", "soon"),
        ("--lost-after", "8d"),
        ("--stop-after", "0s"),
        ("--no-replace", "--lost-after", "1m"),
    ],
)
def test_times_that_mean_nothing_are_refused_before_anything_is_asked(
    node: FakeNode, options: tuple[str, ...]
) -> None:
    ran = skulk("place", MODEL, *options, node=node.url)
    assert ran.code == 2
    assert node.asked("POST", "/place_instance") == []


def test_several_nodes_are_asked_for_in_the_preview_and_in_the_placement(node: FakeNode) -> None:
    skulk("place", MODEL, "--min-nodes", "2", "--dry-run", node=node.url)
    assert node.asked("GET", "/instance/previews")[0].query["min_nodes"] == ["2"]
    skulk("place", MODEL, "--min-nodes", "2", "--nodes", "BOX-1", node=node.url)
    body = node.asked("POST", "/place_instance")[0].body
    assert (body["min_nodes"], body["nodes"]) == (2, [a_node_id()])
    assert skulk("place", MODEL, "--min-nodes", "0", node=node.url).code == 2


def test_each_copy_is_asked_for_on_nodes_of_its_own(node: FakeNode) -> None:
    node.on("GET", "/state", a_state_document().model_copy(update={"instances": {}}))
    assert skulk("place", MODEL, "--copies", "2", "--detach", node=node.url).code == 0
    bodies = [asked.body for asked in node.asked("POST", "/place_instance")]
    assert [body.get("excluded_nodes", []) for body in bodies] == [[], [a_node_id()]]


def test_a_further_copy_is_not_asked_for_where_the_model_is_already(node: FakeNode) -> None:
    skulk("place", MODEL, "--copies", "2", "--detach", node=node.url)
    bodies = [asked.body for asked in node.asked("POST", "/place_instance")]
    assert [body["excluded_nodes"] for body in bodies] == [[a_node_id()], [a_node_id()]]


def test_copies_are_not_placed_by_one_plan(node: FakeNode) -> None:
    ran = skulk("place", MODEL, "--copies", "2", "--plan", "a" * 64, node=node.url)
    assert ran.code == 2
    assert "exclude each other" in ran.err
    assert node.asked("POST", "/place_instance") == []


def test_an_explanation_places_nothing(node: FakeNode) -> None:
    assert skulk("place", MODEL, "--explain", node=node.url).code == 0
    assert len(node.asked("GET", "/instance/previews")) == 1
    assert node.asked("POST", "/place_instance") == []


def test_a_shape_is_asked_for_and_an_unknown_one_is_refused_here(node: FakeNode) -> None:
    skulk("place", MODEL, "--shape", "rpc", node=node.url)
    assert node.asked("POST", "/place_instance")[0].body["shape"] == "rpc"
    ran = skulk("place", MODEL, "--shape", "ring", node=node.url)
    assert ran.code == 2
    assert "'single', 'pipeline', 'tensor', 'rpc'" in ran.err


def test_an_unknown_node_names_the_nearest_and_places_nothing(node: FakeNode) -> None:
    ran = skulk("place", MODEL, "--nodes", "box1", node=node.url)
    assert (ran.code, ran.err.splitlines()[-1]) == (2, "  remedy: Did you mean 'box-1'?")
    assert node.asked("POST", "/place_instance") == []


def test_an_unknown_model_names_the_nearest(node: FakeNode) -> None:
    node.on("POST", "/place_instance", refusal("placement.unknown_model", status=404))
    ran = skulk("place", "test/tinny", node=node.url)
    assert (ran.code, ran.err.splitlines()[-1]) == (2, f"  remedy: Did you mean '{MODEL}'?")


def test_a_dry_run_that_fits_places_nothing(node: FakeNode) -> None:
    ran = skulk("place", MODEL, "--dry-run", node=node.url)
    assert ran.code == 0
    assert "+ KV CACHE" in ran.out
    assert node.asked("POST", "/place_instance") == []


def test_a_refused_dry_run_shows_its_arithmetic_and_ends_with_4(node: FakeNode) -> None:
    node.on("GET", "/instance/previews", previews(refusals=(a_refusal_of_memory(),)))
    ran = skulk("place", MODEL, "--dry-run", node=node.url)
    assert ran.code == 4
    assert "no (weights)" in ran.out
    assert "free 2.07 GiB on node-1" in ran.out
    assert ran.err.splitlines()[-1] == "  remedy: free 2.07 GiB on node-1"


def test_missing_facts_are_named_and_retryable(node: FakeNode) -> None:
    node.on("GET", "/instance/previews", previews(missing_facts=("memory of box-1",)))
    ran = skulk("place", MODEL, "--dry-run", "--json", node=node.url)
    error = json.loads(ran.err)["error"]
    assert (ran.code, error["code"], error["retryable"]) == (1, "placement.facts_missing", True)
    assert "memory of box-1" in error["message"]


def test_a_refused_placement_names_the_smallest_change(node: FakeNode) -> None:
    no_fit = refusal("placement.no_fit", refusals=(a_refusal_of_memory(),))
    node.on("POST", "/place_instance", no_fit)
    ran = skulk("place", MODEL, node=node.url)
    assert ran.code == 4
    assert "smallest change: free 2.07 GiB on node-1" in ran.err


def test_a_plan_that_no_longer_holds_is_5_with_what_changed(node: FakeNode, tmp_path: Path) -> None:
    then = a_plan(context_tokens=8192)
    tight = some_arithmetic(available_bytes=GIB)
    now = a_plan(context_tokens=4096, memory=tight, plan_id="ab" * 32)
    node.on("GET", "/instance/previews", previews(then))
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    shown = skulk("place", MODEL, "--dry-run", "-o", "name", node=node.url, environment=cache)
    assert shown.out == f"{then.plan_id}\n"
    node.on("POST", "/place_instance", refusal("placement.plan_changed", status=409, plan=now))
    ran = skulk("place", MODEL, "--plan", then.plan_id[:8], node=node.url, environment=cache)
    assert ran.code == 5
    assert node.asked("POST", "/place_instance")[0].body["plan_id"] == then.plan_id
    assert "changed: context 8,192 -> 4,096" in ran.err
    assert ran.err.splitlines()[-1] == "  remedy: Take the plan of now: `--plan abababababab`."


def test_a_plan_is_taken_by_the_start_of_its_id(node: FakeNode) -> None:
    plan = a_plan()
    node.on("POST", "/place_instance", document(accepted(plan=plan), status=202))
    assert skulk("place", MODEL, "--plan", plan.plan_id[:10], node=node.url).code == 0
    assert node.asked("POST", "/place_instance")[0].body["plan_id"] == plan.plan_id


@pytest.mark.parametrize("text", ["abc", "xyz", "../../etc/passwd"])
def test_what_is_no_plan_id_is_refused(node: FakeNode, text: str) -> None:
    ran = skulk("place", MODEL, "--plan", text, node=node.url)
    assert ran.code == 2
    assert "--dry-run" in ran.err


def test_a_mistyped_backend_names_the_nearest(node: FakeNode) -> None:
    ran = skulk("place", MODEL, "--backend", "lama_server", node=node.url)
    assert (ran.code, ran.err.splitlines()[-1]) == (2, "  remedy: Did you mean 'llama_server'?")


def test_on_demand_it_sleeps_at_once_and_its_time_to_live_is_asked_for(node: FakeNode) -> None:
    asleep = a_view().model_copy(update={"phase": "asleep", "ttl_ms": 1_800_000, "runners": ()})
    node.on("GET", f"/instance/{an_instance_id()}", asleep)
    ran = skulk("place", MODEL, "--on-demand", "--ttl", "30m", "--priority", "7", node=node.url)
    assert ran.code == 0
    assert "asleep" in ran.out
    assert "skulk chat" in ran.err
    assert skulk("place", MODEL, "--on-demand", node=node.url).code == 0
    bodies = [seen.body for seen in node.asked("POST", "/place_instance")]
    asked = [(body["on_demand"], body.get("ttl_s"), body["priority"]) for body in bodies]
    assert asked == [(True, 1800, 7), (True, None, 0)]


@pytest.mark.parametrize("wrong", [("--ttl", "5m"), ("--on-demand", "--ttl", "8d")])
def test_a_time_to_live_of_nothing_and_one_beyond_a_week_are_refused_here(
    node: FakeNode, wrong: tuple[str, ...]
) -> None:
    ran = skulk("place", MODEL, *wrong, node=node.url)
    assert ran.code == 2
    assert "--ttl" in ran.err
    assert node.asked("POST", "/place_instance") == []
