"""Real daemons that join: every way in, every refusal, and whoever is killed meanwhile."""

import contextlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import pytest

from tests.support.chat_client import answer_text, ask
from tests.support.cluster import FORM_TIMEOUT_S, agreed_master, cluster_of, describe, invite, join
from tests.support.daemon import Daemon, free_port, wait_until
from tests.support.scripted_models import MODEL, add_scripted_model

pytestmark = pytest.mark.timeout(180)

MakeDaemon = Callable[..., Daemon]
MakeNode = Callable[..., Daemon]
RETRIED_S: Final = 40.0
"""A join by file is tried again after ten seconds; thrice that, for a loaded machine."""


@pytest.fixture
def make_node(make_daemon: MakeDaemon) -> MakeNode:
    """Give a factory of nodes that listen on loopback once they are open."""

    def make(name: str, *arguments: str) -> Daemon:
        return make_daemon(
            name,
            arguments=("--cluster", "127.0.0.1:0", "--no-mdns", "--name", name, *arguments),
        )

    return make


@pytest.fixture
def inviter(make_node: MakeNode) -> Daemon:
    node = make_node("attic")
    node.start()
    return node


@pytest.fixture
def guest(make_node: MakeNode) -> Daemon:
    node = make_node("kitchen")
    node.start()
    return node


def refusal(answer: httpx.Response, code: str) -> dict[str, Any]:
    """Give the error of a refused request, which must have this code."""
    assert not answer.is_success, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["skulk_code"] == code, error
    assert error["remediation"], "every refusal says what to do"
    return error


def try_join(node: Daemon, token: str, **fields: object) -> httpx.Response:
    return node.http.post("/v1/cluster/join", json={"token": token, **fields})


def wait_together(*nodes: Daemon, timeout_s: float = FORM_TIMEOUT_S) -> None:
    """Wait until these are one cluster that agrees on its master."""
    wait_until(
        lambda: agreed_master(nodes) is not None,
        timeout_s=timeout_s,
        what=f"they are one cluster; they say\n{describe(nodes)}",
    )
    assert len({cluster_of(node)["cluster_id"] for node in nodes}) == 1


def is_alone(node: Daemon) -> bool:
    """Say whether a node is a cluster of one that works."""
    document = cluster_of(node)
    return len(document["members"]) == 1 and document["role"] == "master"


def member_names(node: Daemon) -> set[str]:
    return {member["name"] for member in cluster_of(node)["members"]}


def listening(node: Daemon) -> set[tuple[str, int]]:
    """List where a daemon listens, by TCP and by UDP."""
    found = psutil.Process(node.pid).net_connections(kind="inet")
    return {
        (one.laddr.ip, one.laddr.port)
        for one in found
        if one.laddr and (one.status == psutil.CONN_LISTEN or not one.raddr)
    }


# ---- Closed until opened -----------------------------------------------------------------------


def test_a_fresh_node_listens_for_http_on_loopback_and_for_nothing_else(
    make_daemon: MakeDaemon,
) -> None:
    node = make_daemon("fresh")
    node.start()
    assert {port for _, port in listening(node)} == {node.port}
    assert {host for host, _ in listening(node)} <= {"127.0.0.1", "::1"}
    document = cluster_of(node)
    assert not document["is_open"]
    assert document["bound"] == []
    assert document["mdns"]["status"] == "off"
    node.restart()  # its key was made by the wire library
    mapped = {Path(region.path).name for region in psutil.Process(node.pid).memory_maps()}
    assert not any("zmq" in name for name in mapped), "what nobody needs is not loaded"


def test_an_invitation_opens_three_ports_on_the_chosen_address_for_good(inviter: Daemon) -> None:
    before = listening(inviter)
    invite(inviter)
    base = cluster_of(inviter)["base_port"]
    ports = {("127.0.0.1", base + offset) for offset in range(3)}
    assert listening(inviter) - before == ports
    invite(inviter)
    assert listening(inviter) - before == ports, "a second invitation opens nothing more"
    for end in (inviter.stop, inviter.kill):
        end()
        inviter.start()
        assert cluster_of(inviter)["base_port"] == base
        assert ports <= listening(inviter), "it stays open over a restart, on the same ports"


# ---- Ways in -----------------------------------------------------------------------------------


def test_a_node_joins_by_the_token_in_a_file_and_once_only(
    make_node: MakeNode, inviter: Daemon, tmp_path: Path
) -> None:
    file = tmp_path / "invitation"
    file.write_text(invite(inviter, uses=5) + "\n")
    node = make_node("kitchen", "--join-file", str(file))
    node.start()
    wait_together(inviter, node)
    (token,) = inviter.http.get("/v1/cluster/tokens").json()["items"]
    assert token["uses_left"] == 4
    for end in (node.stop, node.kill):
        end()
        node.start()
        wait_together(inviter, node)
        wait_until(lambda: "a member already" in node.log_text(), timeout_s=10, what="it says so")
    (token,) = inviter.http.get("/v1/cluster/tokens").json()["items"]
    assert token["uses_left"] == 4, "a member that starts again uses nothing up"
    assert member_names(inviter) == {"attic", "kitchen"}


def test_a_node_joins_by_the_token_on_its_standard_input(
    make_node: MakeNode, inviter: Daemon
) -> None:
    node = make_node("kitchen", "--join-file", "-")
    node.spawn(stdin=invite(inviter) + "\n")
    node.wait_healthy()
    wait_together(inviter, node)


def test_a_token_on_the_command_line_joins_and_is_warned_about(
    make_node: MakeNode, inviter: Daemon, guest: Daemon
) -> None:
    node = make_node("study", "--join", invite(inviter))
    node.start()
    wait_together(inviter, node)
    (line,) = [line for line in node.log_text().splitlines() if "--join-file" in line]
    assert "warning" in line.lower()
    token = invite(inviter)
    ran = guest.skulk("cluster", "join", token)
    assert ran.returncode == 0, ran.stderr
    assert "`skulk cluster join -`" in ran.stderr, ran.stderr
    wait_together(inviter, node, guest)
    for daemon in (inviter, node, guest):
        assert token not in daemon.log_text(), "an invitation is a secret, and no log has it"


def test_a_node_joins_by_six_words_and_the_named_peer(inviter: Daemon, guest: Daemon) -> None:
    made = inviter.http.post("/v1/cluster/invite", json={"kind": "code"}).json()
    assert len(re.split(r"[ -]", made["code"])) == 6
    (own,) = cluster_of(inviter)["members"]
    peer = f"{own['public_key']}@{made['addresses'][0]}"
    answer = guest.http.post("/v1/cluster/join", json={"code": made["code"], "peers": [peer]})
    assert answer.is_success, answer.text
    wait_together(inviter, guest)


def test_wrong_codes_cost_no_try_and_the_right_one_serves_one_guest(
    make_node: MakeNode, inviter: Daemon, guest: Daemon
) -> None:
    """A guest with a wrong code is no guest at all: its key is unknown, and costs no try."""
    made = inviter.http.post("/v1/cluster/invite", json={"kind": "code"}).json()
    (own,) = cluster_of(inviter)["members"]
    peer = f"{own['public_key']}@{made['addresses'][0]}"
    words = re.split(r"[ -]", made["code"])
    wrong = " ".join((*words[1:], words[0]))
    for _ in range(6):
        answer = guest.http.post("/v1/cluster/join", json={"code": wrong, "peers": [peer]})
        error = refusal(answer, "cluster.join_failed")
        assert "code" in error["message"]
    answer = guest.http.post("/v1/cluster/join", json={"code": made["code"], "peers": [peer]})
    assert answer.is_success, answer.text
    wait_together(inviter, guest)
    late = make_node("study")
    late.start()
    used = late.http.post("/v1/cluster/join", json={"code": made["code"], "peers": [peer]})
    assert not used.is_success, "a code serves one guest"
    assert is_alone(late)


# ---- Invitations that open nothing -------------------------------------------------------------


def test_a_token_that_has_expired_is_refused_and_said_to_have(
    inviter: Daemon, guest: Daemon
) -> None:
    token = invite(inviter, ttl_s=10)
    time.sleep(10.5)
    refusal(try_join(guest, token), "cluster.token_expired")
    assert is_alone(guest)
    assert is_alone(inviter)


def test_tokens_that_are_used_up_revoked_or_garbled_are_refused_and_leave_the_node_as_it_was(
    make_node: MakeNode, inviter: Daemon, guest: Daemon
) -> None:
    used = invite(inviter)
    join(guest, used)
    late = make_node("study")
    late.start()
    cluster_id = cluster_of(late)["cluster_id"]
    refusal(try_join(late, used), "cluster.token_used")
    made = inviter.http.post("/v1/cluster/invite").json()
    assert guest.http.delete(f"/v1/cluster/tokens/{made['token_id']}").is_success
    refusal(try_join(late, made["token"]), "cluster.join_failed")
    whole = invite(inviter)
    for garbled in (
        "skulk1-",
        "skulk1",
        "x",
        whole[:-1],
        whole[:40],
        whole + "a",
        whole[:60] + ("b" if whole[60] != "b" else "c") + whole[61:],
        whole.replace("skulk1", "skulk9"),
        "\x00" * 40,
        "skulk1-" + "z" * 4000,
    ):
        refusal(try_join(late, garbled), "cluster.token_invalid")
    assert cluster_of(late)["cluster_id"] == cluster_id
    assert is_alone(late)
    assert member_names(inviter) == {"attic", "kitchen"}
    join(late, whole)
    wait_together(inviter, guest, late)


@pytest.mark.parametrize(
    ("kind", "code"), [("used up", "cluster.token_used"), ("garbled", "cluster.token_invalid")]
)
def test_a_node_started_with_an_invitation_that_cannot_work_ends_with_the_reason(
    kind: str, code: str, make_node: MakeNode, inviter: Daemon, guest: Daemon, tmp_path: Path
) -> None:
    token = invite(inviter)
    join(guest, token)
    file = tmp_path / "invitation"
    file.write_text("skulk1-nonsense" if kind == "garbled" else token)
    node = make_node("study", "--join-file", str(file))
    node.spawn()
    assert node.wait_exit(timeout_s=30) != 0
    (line,) = [line for line in node.log_text().splitlines() if "joining failed" in line]
    assert code in line
    assert "Traceback" not in node.log_text()


def test_a_join_by_file_outlasts_a_cluster_that_cannot_decide(
    make_node: MakeNode, inviter: Daemon, guest: Daemon, tmp_path: Path
) -> None:
    join(guest, invite(inviter))
    wait_together(inviter, guest)
    file = tmp_path / "invitation"
    file.write_text(invite(inviter))
    assert inviter.http.put("/v1/cluster/policy", json={"policy": "quorum"}).is_success
    guest.kill()
    wait_until(lambda: cluster_of(inviter)["role"] == "none", timeout_s=30, what="no master")
    node = make_node("study", "--join-file", str(file))
    node.start()
    wait_until(lambda: "joining failed" in node.log_text(), timeout_s=60, what="it was refused")
    guest.start()
    wait_together(inviter, guest, node, timeout_s=RETRIED_S + FORM_TIMEOUT_S)


def test_a_guest_killed_once_it_was_admitted_comes_in_by_the_same_file(
    make_node: MakeNode, inviter: Daemon, tmp_path: Path
) -> None:
    file = tmp_path / "invitation"
    file.write_text(invite(inviter))
    node = make_node("kitchen", "--join-file", str(file))
    node.spawn()
    wait_until(lambda: "kitchen" in member_names(inviter), timeout_s=30, what="it was admitted")
    node.kill()
    node.start()
    wait_together(inviter, node)
    (token,) = inviter.http.get("/v1/cluster/tokens").json()["items"]
    assert token["uses_left"] == 0


def test_a_node_removed_while_it_was_away_comes_in_by_a_new_invitation_in_its_file(
    make_node: MakeNode, inviter: Daemon, tmp_path: Path
) -> None:
    file = tmp_path / "invitation"
    file.write_text(invite(inviter))
    node = make_node("kitchen", "--join-file", str(file), "--discard")
    node.start()
    wait_together(inviter, node)
    node.kill()
    ran = inviter.skulk("cluster", "remove", "kitchen", "--yes")
    assert ran.returncode == 0, ran.stderr
    file.write_text(invite(inviter))
    node.start()
    wait_together(inviter, node, timeout_s=RETRIED_S)
    assert member_names(inviter) == {"attic", "kitchen"}


# ---- Nodes with a past -------------------------------------------------------------------------


def test_a_node_with_a_past_is_told_what_it_would_lose_and_keeps_it(
    inviter: Daemon, guest: Daemon
) -> None:
    add_scripted_model(guest.models_dir)
    guest.wait_phase(guest.place(MODEL))
    token = invite(inviter)
    error = refusal(try_join(guest, token), "cluster.has_past")
    assert "1 placed model" in error["message"]
    assert "--discard" in error["remediation"]
    assert not cluster_of(guest)["is_open"], "a refused join opens nothing"
    assert answer_text(ask(guest, MODEL))
    assert is_alone(inviter)


def test_discard_stops_the_instances_and_puts_the_journal_aside(
    inviter: Daemon, guest: Daemon
) -> None:
    add_scripted_model(guest.models_dir)
    instance_id = guest.place(MODEL)
    guest.wait_phase(instance_id)
    engines = guest.children()
    assert engines
    join(guest, invite(inviter), discard=True)
    wait_together(inviter, guest)
    assert psutil.wait_procs(engines, timeout=10)[1] == [], "no engine is left"
    assert guest.http.get(f"/instance/{instance_id}").status_code == 404
    archives = list(guest.home.glob("*.archive-*"))
    assert len(archives) == 1, archives
    assert any(archives[0].rglob("*")), "the journal lies there"
    state = guest.http.get("/state").json()
    assert state["instances"] == {}


def test_a_member_goes_over_to_another_cluster_only_with_discard(
    make_node: MakeNode, inviter: Daemon, guest: Daemon
) -> None:
    join(guest, invite(inviter))
    wait_together(inviter, guest)
    other = make_node("study")
    other.start()
    token = invite(other)
    error = refusal(try_join(guest, token), "cluster.has_past")
    assert "1 other member" in error["message"]
    wait_together(inviter, guest)
    join(guest, token, discard=True)
    wait_together(other, guest)
    wait_until(
        lambda: (
            not any(
                member["liveness"] == "alive" and not member["is_self"]
                for member in cluster_of(inviter)["members"]
            )
        ),
        timeout_s=30,
        what="the cluster that it left hears it no more",
    )
    wait_until(lambda: cluster_of(inviter)["role"] == "master", timeout_s=30, what="it goes on")
    assert inviter.http.post("/v1/keys", json={"name": "after"}).is_success
    own = invite(other)
    error = refusal(try_join(guest, own), "cluster.join_refused")
    assert "already" in error["message"]


# ---- Inviters that are not there ---------------------------------------------------------------


def test_a_join_that_reaches_nobody_says_direction_port_and_remedy(
    inviter: Daemon, guest: Daemon
) -> None:
    token = invite(inviter)
    port = cluster_of(inviter)["base_port"]
    inviter.kill()
    error = refusal(try_join(guest, token), "cluster.join_failed")
    assert "outgoing" in error["message"]
    assert f"127.0.0.1 port {port}" in error["message"]
    assert is_alone(guest)


def test_a_guest_that_cannot_be_dialled_back_is_told_direction_port_and_firewall_line(
    make_node: MakeNode, inviter: Daemon
) -> None:
    closed = free_port()
    node = make_node("kitchen", "--advertise", f"127.0.0.1:{closed}")
    node.start()
    token = invite(inviter)
    answer = try_join(node, token)
    assert not answer.is_success, answer.text
    error = answer.json()["error"]
    assert str(closed) in error["message"], error
    assert "incoming" in error["message"] or "back" in error["message"], error
    assert "ufw allow" in error["remediation"], error
    assert is_alone(node)
    assert is_alone(inviter), "a guest that nobody could reach is not admitted"
    (kept,) = inviter.http.get("/v1/cluster/tokens").json()["items"]
    assert kept["uses_left"] == 1, "and its invitation is not used up"


def test_a_join_by_file_is_tried_until_the_inviter_is_there(
    make_node: MakeNode, inviter: Daemon, tmp_path: Path
) -> None:
    file = tmp_path / "invitation"
    file.write_text(invite(inviter))
    inviter.stop()
    node = make_node("kitchen", "--join-file", str(file))
    node.start()
    wait_until(lambda: "joining failed" in node.log_text(), timeout_s=20, what="it failed once")
    assert is_alone(node), "it serves alone meanwhile"
    inviter.start()
    wait_together(inviter, node, timeout_s=RETRIED_S)


def test_an_inviter_that_dies_during_the_join_leaves_the_guest_as_it_was(
    inviter: Daemon, guest: Daemon
) -> None:
    token = invite(inviter)
    answers: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: answers.append(try_join(guest, token)))
    os.kill(inviter.pid, signal.SIGSTOP)
    began_s = time.monotonic()
    asking.start()
    time.sleep(1)
    inviter.kill()
    asking.join(timeout=60)
    (answer,) = answers
    refusal(answer, "cluster.join_failed")
    assert time.monotonic() - began_s < 35, "as long as an answer is waited for, at most"
    assert is_alone(guest)
    inviter.start()
    join(guest, invite(inviter))
    wait_together(inviter, guest)


# ---- Races and crashes -------------------------------------------------------------------------


def test_of_two_guests_with_one_use_exactly_one_gets_in(
    make_node: MakeNode, inviter: Daemon, guest: Daemon
) -> None:
    second = make_node("study")
    second.start()
    for node in (guest, second):
        assert is_alone(node)
    token = invite(inviter)
    answers: dict[str, httpx.Response] = {}
    start = threading.Barrier(2)

    def go(node: Daemon) -> None:
        start.wait()
        answers[node.root.name] = try_join(node, token)

    going = [threading.Thread(target=go, args=(node,)) for node in (guest, second)]
    for thread in going:
        thread.start()
    for thread in going:
        thread.join(timeout=60)
    outcomes = sorted(answer.is_success for answer in answers.values())
    assert outcomes == [False, True], {name: one.text for name, one in answers.items()}
    winner, loser = (guest, second) if answers["kitchen"].is_success else (second, guest)
    wait_together(inviter, winner)
    assert is_alone(loser)
    assert len(cluster_of(inviter)["members"]) == 2
    join(loser, invite(winner))
    wait_together(inviter, winner, loser)


@pytest.mark.parametrize("delay_s", [0.0, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0])
def test_a_guest_killed_once_it_was_admitted_is_a_member_or_alone_never_half(
    delay_s: float, inviter: Daemon, guest: Daemon
) -> None:
    old_id = cluster_of(guest)["cluster_id"]
    token = invite(inviter)

    def go() -> None:
        with contextlib.suppress(httpx.TransportError):  # killed before its answer was out
            try_join(guest, token)

    asking = threading.Thread(target=go)
    asking.start()
    wait_until(lambda: "kitchen" in member_names(inviter), timeout_s=30, what="it was admitted")
    time.sleep(delay_s)
    guest.kill()
    asking.join(timeout=30)
    guest.start()
    if cluster_of(guest)["cluster_id"] == old_id:
        wait_until(lambda: is_alone(guest), timeout_s=20, what="it goes on alone")
        join(guest, invite(inviter))
    wait_together(inviter, guest)
    assert member_names(inviter) == {"attic", "kitchen"}
    made = guest.http.post("/v1/keys", json={"name": "after"})
    assert made.is_success, made.text


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.3, 0.6])
def test_a_guest_removed_on_its_way_goes_on_alone_and_may_come_again(
    delay_s: float, inviter: Daemon, guest: Daemon
) -> None:
    answer = try_join(guest, invite(inviter))
    assert answer.is_success, answer.text
    time.sleep(delay_s)
    removed = inviter.http.delete("/v1/cluster/members/kitchen")
    assert removed.is_success, removed.text

    def is_alone_and_closed() -> bool:
        # Between two lives it answers nothing, or that it is stopping.
        with contextlib.suppress(httpx.TransportError):
            answer = guest.http.get("/v1/cluster")
            document = answer.json()
            return bool(
                answer.is_success
                and len(document["members"]) == 1
                and document["role"] == "master"
                and not document["is_open"]
            )
        return False

    wait_until(is_alone_and_closed, timeout_s=30, what="it goes on alone")
    assert member_names(inviter) == {"attic"}
    join(guest, invite(inviter))
    wait_together(inviter, guest)


def test_a_master_killed_once_it_has_admitted_a_guest_leaves_a_cluster_that_forms(
    inviter: Daemon, guest: Daemon
) -> None:
    token = invite(inviter)

    def go() -> None:
        try_join(guest, token)

    asking = threading.Thread(target=go)
    asking.start()
    wait_until(lambda: "kitchen" in member_names(inviter), timeout_s=30, what="it was admitted")
    inviter.kill()
    asking.join(timeout=60)
    inviter.start()
    if not is_in(guest, cluster_of(inviter)["cluster_id"]):
        join(guest, invite(inviter))
    wait_together(inviter, guest)


def is_in(node: Daemon, cluster_id: str) -> bool:
    wait_until(lambda: answers(node), timeout_s=30, what="it answers")
    time.sleep(1)  # an admitted guest answers with its old rooms for a fifth of a second
    wait_until(lambda: answers(node), timeout_s=30, what="it answers again")
    return bool(cluster_of(node)["cluster_id"] == cluster_id)


def answers(node: Daemon) -> bool:
    try:
        return node.http.get("/health").is_success
    except httpx.TransportError:
        return False


def test_the_invitations_of_a_cluster_are_shown_by_each_of_its_nodes(
    inviter: Daemon, guest: Daemon
) -> None:
    join(guest, invite(inviter))
    made = json.loads(guest.skulk("cluster", "invite", "--uses", "3", "--json").stdout)["items"][0]
    for node in (inviter, guest):
        ran = node.skulk("cluster", "tokens", "--json")
        assert ran.returncode == 0, ran.stderr
        shown = {one["token_id"]: one for one in json.loads(ran.stdout)["items"]}
        assert shown[made["token_id"]]["uses_left"] == 3
        assert made["token"] not in ran.stdout
