"""`skulk wait`: what is waited for, and every way in which it ends."""

import json

import pytest

from tests.support.builders import MODEL, an_instance_id
from tests.support.command_line import skulk
from tests.support.fake_node import (
    FakeNode,
    a_state_document,
    a_transfer,
    a_view,
    an_ending,
    refusal,
)

pytestmark = pytest.mark.usefixtures("no_real_waiting")

INSTANCE = f"/instance/{an_instance_id()}"
STATUS = f"/store/models/{MODEL}/download/status"


def test_it_ends_well_when_the_instance_serves(node: FakeNode) -> None:
    node.on("GET", INSTANCE, a_view("load"), a_view())
    ran = skulk("wait", MODEL, "--json", node=node.url)
    (outcome,) = json.loads(ran.out)["items"]
    assert ran.code == 0
    assert (outcome["instance_id"], outcome["outcome"]) == (an_instance_id(), "ready")
    assert "load" in ran.err


def test_it_ends_early_with_the_cause_when_the_instance_has_failed(node: FakeNode) -> None:
    node.on("GET", INSTANCE, a_view("load"), a_view("failed", failure=an_ending()))
    ran = skulk("wait", an_instance_id(), node=node.url)
    assert (ran.code, ran.out) == (1, "")
    assert "the engine ended while it loaded (signal SIGKILL)" in ran.err


def test_when_the_time_runs_out_it_ends_with_124_and_says_how_to_follow(node: FakeNode) -> None:
    node.on("GET", INSTANCE, a_view("load"))
    ran = skulk("wait", MODEL, "--timeout", "200ms", node=node.url)
    assert (ran.code, ran.out) == (124, "")
    assert "skulk instance show" in ran.err


def test_gone_waits_for_every_instance_of_the_model(node: FakeNode) -> None:
    node.on("GET", "/state", a_state_document(a_view(), a_view(number=2)))
    gone = refusal("request.not_found", status=404)
    node.on("GET", INSTANCE, a_view("stopping"), gone)
    node.on("GET", f"/instance/{an_instance_id(2)}", gone)
    ran = skulk("wait", MODEL, "--for", "gone", node=node.url)
    assert ran.code == 0
    assert ran.out.count("gone") == 2


def test_what_has_failed_and_is_no_more_is_gone_already(node: FakeNode) -> None:
    node.on("GET", "/state", a_state_document(failures=(an_ending(),)))
    ran = skulk("wait", an_instance_id(), "--for", "gone", "--json", node=node.url)
    assert ran.code == 0
    assert json.loads(ran.out)["items"][0]["outcome"] == "gone"


@pytest.mark.parametrize("target", [an_instance_id(7), MODEL])
def test_what_ended_before_the_wait_began_is_gone(node: FakeNode, target: str) -> None:
    node.on("GET", "/state", a_state_document())
    ran = skulk("wait", target, "--for", "gone", node=node.url)
    assert (ran.code, ran.out.splitlines()[-1].split()) == (0, [target, "gone"])


def test_a_mistyped_name_is_not_gone(node: FakeNode) -> None:
    ran = skulk("wait", f"{MODEL}x", "--for", "gone", node=node.url)
    assert ran.code == 2
    assert f"Did you mean '{MODEL}'?" in ran.err


def test_downloaded_waits_for_the_files_of_the_node_that_is_named(node: FakeNode) -> None:
    node.on("GET", STATUS, a_transfer(), a_transfer("complete"))
    ran = skulk("wait", MODEL, "--for", "downloaded", "--on", "box-1", node=node.url)
    assert ran.code == 0
    assert "downloaded" in ran.out
    assert node.asked("GET", STATUS)[0].query["node"] == ["box-1"]


def test_files_that_nobody_fetches_are_not_waited_for(node: FakeNode) -> None:
    node.on("GET", STATUS, a_transfer("absent", 0))
    ran = skulk("wait", MODEL, "--for", "downloaded", node=node.url)
    assert ran.code == 1
    assert "skulk models pull" in ran.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--for", "redy"), "Did you mean 'ready'?"),
        (("--on", "box-1"), "wait `--for downloaded`"),
    ],
)
def test_what_makes_no_sense_is_refused(
    node: FakeNode, arguments: tuple[str, ...], said: str
) -> None:
    ran = skulk("wait", MODEL, *arguments, node=node.url)
    assert ran.code == 2
    assert said in ran.err
