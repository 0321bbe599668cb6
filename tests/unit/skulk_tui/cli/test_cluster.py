"""`skulk nodes` and `skulk cluster …`."""

import json

import pytest

from protocol.cluster_api import DivergenceView, DuplicateView, MdnsView, QuorumView
from protocol.control_api import HealthReasonView, NodeHealthView
from tests.support.builders import NOW_MS, a_node_id
from tests.support.cluster_documents import (
    SECRET_TOKEN,
    SIX_WORDS,
    TOKEN_ID,
    a_cluster,
    a_member_view,
    an_invitation,
    some_nodes,
)
from tests.support.command_line import skulk
from tests.support.fake_node import FakeNode, document, refusal

TERMINALS = frozenset({"stdin", "stderr"})


# ---- Looking -----------------------------------------------------------------------------------


def test_a_lost_node_is_shown_as_lost_and_its_old_readings_are_not(node: FakeNode) -> None:
    ran = skulk("nodes", node=node.url)
    here, lost = ran.out.splitlines()[1:3]
    assert "alive" in here
    assert "12.0 GiB" in here
    assert "lost" in lost
    assert "12.0 GiB" not in lost
    assert "unknown" in lost


def test_why_a_node_is_lost_is_said_and_what_was_measured_there_is_not(node: FakeNode) -> None:
    document = some_nodes()
    reasons = tuple(
        HealthReasonView(code=code, level="error", message=f"message of {code}", remediation="do")
        for code in ("member.lost", "node.reading_stale")
    )
    lost = document.items[1].model_copy(
        update={"health": NodeHealthView(level="error", reasons=reasons)}
    )
    node.on("GET", "/v1/nodes", document.model_copy(update={"items": (document.items[0], lost)}))
    out = skulk("nodes", node=node.url).out
    assert "message of member.lost" in out
    assert "message of node.reading_stale" not in out


def test_what_is_no_more_than_a_note_is_shown_when_asked_for_all(node: FakeNode) -> None:
    document = some_nodes()
    note = HealthReasonView(code="mdns.off", level="ok", message="no mDNS", remediation="do")
    here = document.items[0].model_copy(
        update={"health": NodeHealthView(level="ok", reasons=(note,))}
    )
    node.on("GET", "/v1/nodes", document.model_copy(update={"items": (here,)}))
    assert "mdns.off" not in skulk("nodes", node=node.url).out
    assert "mdns.off" in skulk("nodes", "-o", "wide", node=node.url).out
    assert "mdns.off" in skulk("nodes", "--json", node=node.url).out


def test_a_closed_node_says_how_it_is_opened(node: FakeNode) -> None:
    closed = a_cluster(
        a_member_view(), is_open=False, base_port=None, bound=(), advertised=(), strangers=()
    )
    node.on("GET", "/v1/cluster", closed)
    ran = skulk("cluster", "status", node=node.url)
    assert "closed; `skulk cluster invite` opens them" in ran.out
    assert "mdns" not in ran.out


def test_what_an_operator_should_look_at_is_in_the_status(node: FakeNode) -> None:
    twin = DuplicateView(
        node_id=a_node_id(2), name="node-2", addresses=("10.0.0.2", "10.0.0.9"), last_ago_s=3.0
    )
    troubled = a_cluster(
        master=None,
        role="none",
        last_master=a_node_id(2),
        quorum=QuorumView(voters=2, alive=1, is_majority=False),
        duplicates=(twin,),
        divergence=DivergenceView(at_ms=NOW_MS, term=2, seq=40, discarded=3),
        mdns=MdnsView(status="failed", reason="no socket"),
        missing=("the interface eth9 is not there",),
    )
    node.on("GET", "/v1/cluster", troubled)
    out = skulk("cluster", "status", node=node.url).out
    for text in (
        "none; the last one was node-2",
        "1 of 2 voters alive: no majority",
        "10.0.0.2, 10.0.0.9",
        "3 events after seq 40 were discarded",
        "failed: no socket",
        "the interface eth9 is not there",
        "192.168.1.99",
    ):
        assert text in out


def test_a_divergence_is_told_in_the_words_of_the_node(node: FakeNode) -> None:
    split = DivergenceView(at_ms=NOW_MS, term=2, seq=40, discarded=0, message="states differ")
    node.on("GET", "/v1/cluster", a_cluster(divergence=split))
    out = skulk("cluster", "status", node=node.url).out
    assert "states differ" in out
    assert "discarded" not in out


def test_no_strangers_is_no_failure(node: FakeNode) -> None:
    node.on("GET", "/v1/cluster", a_cluster(strangers=()))
    ran = skulk("cluster", "strangers", node=node.url)
    assert (ran.code, ran.out) == (0, "")
    assert "Nobody was refused" in ran.err


# ---- Invitations -------------------------------------------------------------------------------


def test_a_token_stands_alone_on_stdout(node: FakeNode) -> None:
    ran = skulk("cluster", "invite", "--uses", "3", "--ttl", "2h", node=node.url)
    assert (ran.code, ran.out) == (0, f"{SECRET_TOKEN}\n")
    assert SECRET_TOKEN not in ran.err
    assert "listens to other nodes now" in ran.err
    (asked,) = node.asked("POST", "/v1/cluster/invite")
    assert asked.body == {"kind": "token", "uses": 3, "ttl_s": 7200}


def test_a_code_is_six_words_and_says_how_to_use_them(node: FakeNode) -> None:
    node.on("POST", "/v1/cluster/invite", document(an_invitation("code"), status=201))
    ran = skulk("cluster", "invite", "--code", node=node.url)
    assert ran.out == f"{SIX_WORDS}\n"
    assert f"`--peer {a_member_view().public_key}@192.168.1.1:12416`" in ran.err
    assert node.asked("POST", "/v1/cluster/invite")[0].body == {"kind": "code", "uses": 1}


def test_an_invitation_as_json_has_its_secret_once(node: FakeNode) -> None:
    ran = skulk("cluster", "invite", "--json", node=node.url)
    (item,) = json.loads(ran.out)["items"]
    assert (item["token_id"], item["token"], item["code"]) == (TOKEN_ID, SECRET_TOKEN, None)
    listed = skulk("cluster", "tokens", "--json", node=node.url)
    assert SECRET_TOKEN not in listed.out


@pytest.mark.parametrize(
    "arguments", [("--code", "--uses", "2"), ("--ttl", "5s"), ("--ttl", "soon"), ("--uses", "0")]
)
def test_senseless_invitations_are_refused_before_a_node_is_asked(
    node: FakeNode, arguments: tuple[str, ...]
) -> None:
    assert skulk("cluster", "invite", *arguments, node=node.url).code == 2
    assert node.seen == []


def test_a_token_is_revoked_by_its_id(node: FakeNode) -> None:
    assert skulk("cluster", "revoke", TOKEN_ID, node=node.url).code == 0
    assert len(node.asked("DELETE", f"/v1/cluster/tokens/{TOKEN_ID}")) == 1
    wrong = skulk("cluster", "revoke", "join-abcdefgx", node=node.url)
    assert wrong.code == 2
    assert TOKEN_ID in wrong.err


def test_a_dry_run_revokes_nothing(node: FakeNode) -> None:
    ran = skulk("cluster", "revoke", TOKEN_ID, "--dry-run", node=node.url)
    assert "would be revoked" in ran.out
    assert node.asked("DELETE", f"/v1/cluster/tokens/{TOKEN_ID}") == []


# ---- Members and master ------------------------------------------------------------------------


def test_a_node_is_removed_only_after_a_yes(node: FakeNode) -> None:
    path = f"/v1/cluster/members/{a_node_id(2)}"
    no = skulk("cluster", "remove", "NODE-2", node=node.url, stdin="n\n", terminals=TERMINALS)
    assert no.code == 2
    assert f"Remove node-2 ({a_node_id(2)})" in no.err
    assert node.asked("DELETE", path) == []
    nobody = skulk("cluster", "remove", "node-2", node=node.url)
    assert nobody.code == 2
    assert "--yes" in nobody.err
    yes = skulk("cluster", "remove", "node-2", node=node.url, stdin="y\n", terminals=TERMINALS)
    assert yes.code == 0
    assert len(node.asked("DELETE", path)) == 1


def test_a_dry_run_removes_nothing_and_asks_nothing(node: FakeNode) -> None:
    ran = skulk("cluster", "remove", "node-2", "--dry-run", node=node.url)
    assert (ran.code, ran.err) == (0, "")
    assert "would be removed" in ran.out
    assert node.asked("DELETE", f"/v1/cluster/members/{a_node_id(2)}") == []


def test_an_unknown_node_names_the_nearest_and_removes_nothing(node: FakeNode) -> None:
    ran = skulk("cluster", "remove", "node-22", "--yes", node=node.url)
    assert ran.code == 2
    assert "'node-2'" in ran.err


def test_a_name_that_two_nodes_share_is_refused_with_both_ids(node: FakeNode) -> None:
    node.on("GET", "/v1/cluster", a_cluster(a_member_view(), a_member_view(2, name="Node-1")))
    ran = skulk("cluster", "remove", "node-1", "--yes", node=node.url)
    assert ran.code == 2
    assert a_node_id(1) in ran.err
    assert a_node_id(2) in ran.err
    assert skulk("cluster", "remove", a_node_id(2), "--yes", node=node.url).code == 0


def test_the_policy_is_shown_and_changed(node: FakeNode) -> None:
    assert skulk("cluster", "policy", "-o", "name", node=node.url).out == "availability\n"
    same = skulk("cluster", "policy", "availability", node=node.url)
    assert same.code == 0
    assert node.asked("PUT", "/v1/cluster/policy") == []
    dry = skulk("cluster", "policy", "quorum", "--dry-run", node=node.url)
    assert "would become quorum" in dry.err
    assert "availability" in dry.out
    assert node.asked("PUT", "/v1/cluster/policy") == []
    changed = skulk("cluster", "policy", "quorum", "-o", "name", node=node.url)
    assert changed.out == "quorum\n"
    assert node.asked("PUT", "/v1/cluster/policy")[0].body == {"policy": "quorum"}


def test_a_mistyped_policy_names_the_nearest(node: FakeNode) -> None:
    ran = skulk("cluster", "policy", "quorm", node=node.url)
    assert ran.code == 2
    assert "'quorum'" in ran.err


def test_a_handover_names_who_is_master_now(node: FakeNode) -> None:
    ran = skulk("cluster", "handover", "node-2", node=node.url)
    assert "node-2 (term 4)" in ran.out
    assert node.asked("POST", "/v1/cluster/handover")[0].body == {"node": a_node_id(2)}
    skulk("cluster", "handover", node=node.url)
    assert node.asked("POST", "/v1/cluster/handover")[1].body == {}
    dry = skulk("cluster", "handover", "--dry-run", node=node.url)
    assert "would be asked to campaign" in dry.out
    assert len(node.asked("POST", "/v1/cluster/handover")) == 2


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("cluster.no_master", 1),
        ("cluster.no_quorum", 4),
        ("cluster.is_master", 4),
        ("cluster.peer_unreachable", 3),
        ("request.node_not_found", 2),
    ],
)
def test_what_the_cluster_refuses_ends_with_its_exit_code(
    node: FakeNode, code: str, exit_code: int
) -> None:
    path = f"/v1/cluster/members/{a_node_id(2)}"
    node.on("DELETE", path, refusal(code, status=503))  # pyright: ignore[reportArgumentType] - parametrized
    ran = skulk("cluster", "remove", "node-2", "--yes", node=node.url)
    assert (ran.code, ran.out) == (exit_code, "")
