"""`skulk cluster join`: where the invitation comes from, what is given up, and the wait."""

import json
from pathlib import Path

import pytest

from protocol.control_api import StateDocument
from protocol.ids import ClusterId
from tests.support.builders import a_cluster_id
from tests.support.cluster_documents import (
    SECRET_TOKEN,
    SIX_WORDS,
    a_cluster,
    a_member_view,
)
from tests.support.command_line import Ran, skulk
from tests.support.fake_node import FakeNode, a_state_document, a_view, refusal

JOIN = "/v1/cluster/join"
ALONE = ClusterId("k" + "b" * 16)
TERMINALS = frozenset({"stdin", "stderr"})


def join(node: FakeNode, *arguments: str, stdin: str = "", at_terminal: bool = False) -> Ran:
    terminals = TERMINALS if at_terminal else frozenset[str]()
    return skulk("cluster", "join", *arguments, node=node.url, stdin=stdin, terminals=terminals)


# ---- Where the invitation comes from -----------------------------------------------------------


def test_a_token_from_standard_input_is_never_shown(node: FakeNode) -> None:
    ran = join(node, "-", stdin=f"{SECRET_TOKEN}\n")
    assert ran.code == 0
    assert SECRET_TOKEN not in ran.out + ran.err
    assert node.asked("POST", JOIN)[0].body == {
        "token": SECRET_TOKEN, "peers": [], "discard": False,
    }  # fmt: skip


def test_a_token_from_a_file(node: FakeNode, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{SECRET_TOKEN}\n")
    assert join(node, "--file", str(path)).code == 0
    assert node.asked("POST", JOIN)[0].body["token"] == SECRET_TOKEN
    gone = join(node, "--file", str(tmp_path / "gone"))
    assert gone.code == 2
    assert "cannot be read" in gone.err


def test_a_token_as_argument_is_taken_with_a_warning_that_does_not_repeat_it(
    node: FakeNode,
) -> None:
    ran = join(node, SECRET_TOKEN)
    assert ran.code == 0
    assert "shell's history" in ran.err
    assert SECRET_TOKEN not in ran.err


def test_a_code_goes_with_peers(node: FakeNode) -> None:
    assert join(node, "--code", SIX_WORDS, "--peer", "a:1", "--peer", "b:1").code == 0
    body = node.asked("POST", JOIN)[0].body
    assert body == {"code": SIX_WORDS, "peers": ["a:1", "b:1"], "discard": False}


def test_without_any_a_person_is_asked_and_nobody_else(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def getpass(prompt: str, stream: object) -> str:
        del prompt, stream
        return SECRET_TOKEN

    monkeypatch.setattr("getpass.getpass", getpass)
    assert join(node, at_terminal=True).code == 0
    assert node.asked("POST", JOIN)[0].body["token"] == SECRET_TOKEN
    ran = join(node)
    assert ran.code == 2
    assert "no terminal to ask at" in ran.err


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [
        (("-", "--code", SIX_WORDS), SECRET_TOKEN),
        (("-",), ""),
        (("-",), "two words"),
        (("-",), "x" * 5000),
        (("--code", "x" * 300), ""),
        (("--code", SIX_WORDS, "--peer", "x" * 300), ""),
    ],
)
def test_what_is_no_invitation_is_refused_before_a_node_is_asked(
    node: FakeNode, arguments: tuple[str, ...], stdin: str
) -> None:
    ran = join(node, *arguments, stdin=stdin)
    assert ran.code == 2
    assert SECRET_TOKEN not in ran.err
    assert node.seen == []


# ---- What is given up --------------------------------------------------------------------------


def a_node_with_a_past() -> StateDocument:
    return a_state_document(a_view(), api_keys=2)


def test_giving_up_a_past_is_asked_for_with_what_goes(node: FakeNode) -> None:
    node.on("GET", "/state", a_node_with_a_past())
    no = join(node, "--code", SIX_WORDS, "--discard", stdin="n\n", at_terminal=True)
    assert no.code == 2
    assert "give up 1 instance, 2 API keys?" in no.err
    assert node.asked("POST", JOIN) == []
    nobody = join(node, "--code", SIX_WORDS, "--discard")
    assert "--yes" in nobody.err
    yes = join(node, "--code", SIX_WORDS, "--discard", "--yes")
    assert yes.code == 0
    assert node.asked("POST", JOIN)[0].body["discard"] is True


def test_a_dry_run_says_what_would_go_and_joins_nobody(node: FakeNode) -> None:
    node.on("GET", "/state", a_node_with_a_past())
    ran = join(node, "--code", SIX_WORDS, "--discard", "--dry-run", "--json")
    (item,) = json.loads(ran.out)["items"]
    assert item["outcome"] == "would give up 1 instance, 2 API keys"
    assert node.asked("POST", JOIN) == []


# ---- The wait ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_real_waiting")
def test_the_wait_goes_on_while_the_rooms_start_anew_until_the_node_is_a_member(
    node: FakeNode,
) -> None:
    joining = a_member_view(presence="joining", liveness="joining")
    node.on(
        "GET",
        "/v1/cluster",
        a_cluster(cluster_id=ALONE),
        refusal("cluster.stopping", status=503),
        a_cluster(a_member_view(2), master=None),
        a_cluster(a_member_view(2)),
        a_cluster(joining, a_member_view(2)),
        a_cluster(),
    )
    ran = join(node, "--code", SIX_WORDS)
    assert ran.code == 0
    for seen in ("starts anew", "hears no master", "fetches the state", "it is joining"):
        assert seen in ran.err
    assert "node-1, node-2" in ran.out
    assert len(node.asked("GET", "/v1/cluster")) == 6


def test_without_waiting_nothing_more_is_asked(node: FakeNode) -> None:
    ran = join(node, "--code", SIX_WORDS, "--no-wait", "--json")
    (item,) = json.loads(ran.out)["items"]
    assert (item["cluster_id"], item["is_member"], item["master"]) == (a_cluster_id(), False, None)
    assert node.asked("GET", "/v1/cluster") == []


@pytest.mark.usefixtures("no_real_waiting")
def test_a_node_that_never_arrives_is_an_error_that_says_what_is_missing(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skulk_tui.cli.join.WAIT_S", 0.2)
    node.on("GET", "/v1/cluster", a_cluster(a_member_view(2), master=None))
    ran = join(node, "--code", SIX_WORDS)
    assert (ran.code, ran.out) == (1, "")
    assert "it hears no master" in ran.err
    assert "skulk cluster members" in ran.err


def test_a_failed_join_tells_direction_port_and_the_firewalls_line(node: FakeNode) -> None:
    node.on(
        "POST",
        JOIN,
        refusal(
            "cluster.join_failed",
            "outgoing: no connection to 10.0.0.7 port 12416",
            status=502,
            remediation="for example there: sudo ufw allow 12416:12418/tcp",
        ),
    )
    ran = join(node, "--code", SIX_WORDS)
    error, _, remedy = ran.err.splitlines()
    assert ran.code == 1
    assert "outgoing" in error
    assert "12416" in error
    assert "ufw allow 12416:12418/tcp" in remedy


def test_a_budget_that_ends_during_the_wait_is_124_and_says_how_to_follow(node: FakeNode) -> None:
    node.on("GET", "/v1/cluster", a_cluster(cluster_id=ALONE))
    ran = join(node, "--code", SIX_WORDS, "--timeout", "300ms")
    assert ran.code == 124
    assert "skulk cluster status" in ran.err
