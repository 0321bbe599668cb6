"""`skulk store`: transfers paused and resumed, wherever they are."""

import json

import pytest

from protocol.control_api import InstanceView, PauseView, RunnerView, StateDocument, TransferStatus
from protocol.verify_api import VerifiedFile, VerifyStatus
from skulk_tui.transfer_rate import read_rate
from tests.support.builders import MODEL, a_member, a_node_id
from tests.support.cluster_documents import some_storage
from tests.support.command_line import skulk
from tests.support.fake_node import (
    FakeNode,
    a_state_document,
    a_transfer,
    a_view,
    document,
    refusal,
)

PAUSE = f"/store/models/{MODEL}/download/pause"
RESUME = f"/store/models/{MODEL}/download/resume"
PAUSED = PauseView(by="loopback", at_ms=1_767_323_045_000)
HERE, THERE = a_node_id(1), a_node_id(2)


def _two_nodes(*transfers: TransferStatus, waits: bool = False) -> StateDocument:
    views: tuple[InstanceView, ...] = ()
    if waits:
        runner = RunnerView(rank=0, node_id=THERE, attempt=1, phase="download", since_ms=0)
        views = (a_view("download", runners=(runner,)),)
    return a_state_document(
        *views, members={HERE: a_member(1), THERE: a_member(2)}, transfers=transfers
    )


def test_a_transfer_is_paused_where_it_is_and_placements_that_wait_are_named(
    node: FakeNode,
) -> None:
    node.on("GET", "/state", _two_nodes(a_transfer(node_id=THERE), waits=True))
    node.on("POST", PAUSE, document(a_transfer("paused", paused=PAUSED)))
    ran = skulk("store", "pause", MODEL, "--json", node=node.url)
    (item,) = json.loads(ran.out)["items"]
    assert item["target"] == "box-2"
    assert item["outcome"].startswith("paused at 50.0 MiB of 100 MiB; placed and waiting for it: ")
    assert node.asked("POST", PAUSE)[0].query == {"node": [THERE]}


def test_a_dry_run_says_what_would_wait_and_changes_nothing(node: FakeNode) -> None:
    node.on("GET", "/state", _two_nodes(a_transfer(node_id=THERE), waits=True))
    ran = skulk("store", "pause", MODEL, "--dry-run", node=node.url)
    assert "would be paused at 50.0 MiB of 100 MiB; placed and waiting for it" in ran.out
    assert node.asked("POST", PAUSE) == []


def test_nothing_to_pause_is_said_by_the_node_with_its_code(node: FakeNode) -> None:
    node.on("POST", PAUSE, refusal("store.no_transfer", status=409))
    ran = skulk("store", "pause", MODEL, node=node.url)
    assert (ran.code, ran.out) == (5, "")
    assert len(node.asked("POST", PAUSE)) == 1


def test_what_is_paused_on_one_of_two_named_nodes_is_partial(node: FakeNode) -> None:
    node.on("GET", "/state", _two_nodes(a_transfer(node_id=THERE)))
    node.on(
        "POST",
        PAUSE,
        refusal("store.no_transfer", status=409),
        document(a_transfer("paused", paused=PAUSED)),
    )
    words = ("store", "pause", MODEL, "--on", "box-1", "--on", "BOX-2")
    ran = skulk(*words, "--json", node=node.url)
    assert ran.code == 6
    codes = [(one["target"], one["error_code"]) for one in json.loads(ran.out)["items"]]
    assert codes == [("box-1", "store.no_transfer"), ("box-2", None)]


def test_resume_finds_what_is_paused(node: FakeNode) -> None:
    paused = a_transfer("paused", node_id=THERE, paused=PAUSED)
    node.on("GET", "/state", _two_nodes(a_transfer(), paused))
    node.on("POST", RESUME, document(a_transfer()))
    ran = skulk("store", "resume", MODEL, node=node.url)
    assert "box-2" in ran.out
    assert "resumed at 50.0 MiB of 100 MiB" in ran.out
    assert [one.query for one in node.asked("POST", RESUME)] == [{"node": [THERE]}]


def test_resume_of_what_has_come_meanwhile_is_no_failure(node: FakeNode) -> None:
    node.on("POST", RESUME, document(a_transfer("complete")))
    ran = skulk("store", "resume", MODEL, node=node.url)
    assert (ran.code, "is complete already" in ran.out) == (0, True)


def test_a_pull_of_what_is_paused_ends_and_says_who_and_how_to_go_on(node: FakeNode) -> None:
    paused = a_transfer("paused", paused=PAUSED)
    node.on("POST", f"/store/models/{MODEL}/download", document(paused, status=202))
    node.on("GET", f"/store/models/{MODEL}/download/status", paused)
    ran = skulk("models", "pull", MODEL, node=node.url)
    assert (ran.code, ran.out) == (8, "")
    assert "paused, by loopback" in ran.err
    assert f"skulk store resume {MODEL}" in ran.err


def test_status_shows_what_is_paused_and_by_whom(node: FakeNode) -> None:
    paused = a_transfer("paused", phase="paused", paused=PAUSED)
    node.on("GET", "/state", _two_nodes(paused))
    assert "paused" in skulk("status", node=node.url).out
    (item,) = json.loads(skulk("status", "--json", node=node.url).out)["items"]
    (transfer,) = item["transfers"]
    assert (transfer["state"], transfer["paused_by"]) == ("paused", "loopback")
    assert transfer["paused_at"] == "2026-01-02T03:04:05.000Z"


def test_a_limit_is_set_on_all_nodes_that_are_there(node: FakeNode) -> None:
    state = _two_nodes().model_copy(update={"liveness": {HERE: "alive", THERE: "alive"}})
    node.on("GET", "/state", state)
    ran = skulk("store", "limit", "50MB/s", "--json", node=node.url)
    assert ran.code == 0, ran.err
    first, second = node.asked("PUT", "/config")
    assert (first.query, second.query) == ({}, {"node": [THERE]})
    assert json.loads(json.dumps(first.body))["settings"] == {"transfer_rate_mb_s": "50"}


def test_no_limit_takes_the_setting_out_of_one_nodes_file(node: FakeNode) -> None:
    node.on("GET", "/state", _two_nodes())
    assert skulk("store", "limit", "off", "--on", "box-2", node=node.url).code == 0
    (seen,) = node.asked("PUT", "/config")
    assert seen.query == {"node": [THERE]}
    assert json.loads(json.dumps(seen.body))["unset"] == ["transfer_rate_mb_s"]


@pytest.mark.parametrize("rate", ["0", "500KB/s", "1.5MB", "100001", "fast", "9" * 30, "50MiB/s"])
def test_what_is_no_rate_is_refused_before_anything_is_asked(node: FakeNode, rate: str) -> None:
    ran = skulk("store", "limit", rate, node=node.url)
    assert (ran.code, node.seen) == (2, [])
    assert "like 50MB/s" in ran.err


def test_rates_are_read_as_people_write_them() -> None:
    read = [read_rate(text) for text in ("50MB/s", "50", "50mb", "2 GB/s", "off")]
    assert read == [50, 50, 50, 2000, None]


VERIFY = f"/store/models/{MODEL}/verify"


def _verified(state: str, *files: VerifiedFile) -> VerifyStatus:
    return VerifyStatus.model_validate(
        {
            "model_id": MODEL,
            "node_id": HERE,
            "state": state,
            "done_bytes": 5,
            "total_bytes": 9,
            "files": files,
        }
    )


@pytest.mark.usefixtures("no_real_waiting")
def test_verify_waits_and_fails_with_each_files_result(node: FakeNode) -> None:
    files = (
        VerifiedFile(path="a.gguf", state="ok", size_bytes=5),
        VerifiedFile(path="b.gguf", state="wrong_hash", size_bytes=4),
    )
    node.on("POST", VERIFY, document(_verified("waiting"), status=202))
    node.on("GET", VERIFY, _verified("running"), _verified("damaged", *files))
    ran = skulk("store", "verify", MODEL, "--on", "box-1", "--json", node=node.url)
    assert ran.code == 1
    (item,) = json.loads(ran.out)["items"]
    assert [(one["path"], one["state"]) for one in item["files"]] == [
        ("a.gguf", "ok"),
        ("b.gguf", "wrong_hash"),
    ]
    assert "wrong hash" in skulk("store", "verify", MODEL, "--on", "box-1", node=node.url).out


def test_verify_without_the_wait_says_that_it_is_under_way(node: FakeNode) -> None:
    node.on("POST", VERIFY, document(_verified("running"), status=202))
    node.on("GET", VERIFY, _verified("running"))
    ran = skulk("store", "verify", MODEL, "--on", "box-1", "--no-wait", node=node.url)
    assert (ran.code, "running" in ran.out) == (0, True)
    node.on("DELETE", VERIFY, _verified("cancelled"))
    ran = skulk("store", "verify", MODEL, "--on", "box-1", "--cancel", node=node.url)
    assert (ran.code, len(node.asked("DELETE", VERIFY))) == (0, 1)


def test_verify_asks_the_nodes_that_hold_files_and_nobody_else(node: FakeNode) -> None:
    node.on("GET", "/store/storage", some_storage(is_answered=False))
    ran = skulk("store", "verify", "no/such", node=node.url)
    assert (ran.code, "did not answer" in ran.err) == (1, True)
    assert [one for one in node.seen if one.method == "POST"] == []
