"""Three machines on a bridge: found by mDNS, joined by words, cut off and back, all off and on."""

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest

from tests.support.daemon import wait_until
from tests.support.network_namespaces import Machine, NodeOnMachine
from tests.support.scripted_models import add_scripted_model

MakeNode = Callable[..., NodeOnMachine]
FORMED_S: Final = 30.0
pytestmark = pytest.mark.timeout(240)


def status(node: NodeOnMachine) -> dict[str, Any]:
    """Give the cluster as a node sees it."""
    (document,) = node.skulk_json("cluster", "status")["items"]
    seen: dict[str, Any] = document
    return seen


def members(node: NodeOnMachine) -> dict[str, dict[str, Any]]:
    """Give the members as a node sees them, by name."""
    return {item["name"]: item for item in status(node)["members"]}


def is_formed(nodes: Sequence[NodeOnMachine]) -> bool:
    """Whether all of these hear each other and follow one master."""
    masters: set[str | None] = set()
    with contextlib.suppress(AssertionError):
        for node in nodes:
            seen = status(node)
            masters.add(seen["master"])
            alive = {item["name"] for item in seen["members"] if item["liveness"] == "alive"}
            if not {other.machine.name for other in nodes} <= alive:
                return False
        return len(masters) == 1 and None not in masters
    return False


def wait_formed(nodes: Sequence[NodeOnMachine], *, timeout_s: float = FORMED_S) -> None:
    wait_until(lambda: is_formed(nodes), timeout_s=timeout_s, what=f"{len(nodes)} nodes agree")


def join_by_code(host: NodeOnMachine, guest: NodeOnMachine) -> None:
    """Have a node join by six words that its host shows, found by mDNS alone."""
    (made,) = host.skulk_json("cluster", "invite", "--code")["items"]
    assert len(made["code"].split("-")) == 6
    ended = guest.skulk("cluster", "join", "--code", made["code"], "--yes")
    assert ended.returncode == 0, f"{ended.stderr}\n{guest.log_tail()}"


def form(make_node: MakeNode, machines: Sequence[Machine]) -> list[NodeOnMachine]:
    """Start a node on each machine and join them by words."""
    nodes = [make_node(machine) for machine in machines]
    for guest in nodes[1:]:
        join_by_code(nodes[0], guest)
    wait_formed(nodes)
    return nodes


def test_three_machines_find_each_other_by_mdns_and_join_by_six_words(
    machines: tuple[Machine, ...], make_node: MakeNode
) -> None:
    nodes = form(make_node, machines)
    for node in nodes:
        seen = status(node)
        assert seen["advertised"] == [f"{node.machine.address}:12416"]
        assert seen["mdns"] == "running"
        assert {item["addresses"][0] for item in seen["members"]} == {
            f"{machine.address}:12416" for machine in machines
        }


def test_what_a_slow_line_carries_is_measured_in_each_direction(
    machines: tuple[Machine, ...], make_node: MakeNode
) -> None:
    first, second = form(make_node, machines[:2])
    second.machine.throttle(80)
    items = first.skulk_json("probe", "links")["items"]
    rates = {item["target_name"]: item["rate_bytes_s"] for item in items}
    # Ten million bytes a second, less what encryption and TCP take of them.
    assert rates[second.machine.name] == pytest.approx(9.5e6, rel=0.15)
    assert rates[first.machine.name] > 2 * rates[second.machine.name]
    assert {(item["state"], item["kind"], item["interface"]) for item in items} == {
        ("up", "virtual", "eth0")
    }
    assert is_formed([first, second]), "nobody was missed meanwhile"


def test_a_machine_that_is_cut_off_is_lost_and_returns_by_itself(
    machines: tuple[Machine, ...], make_node: MakeNode
) -> None:
    nodes = form(make_node, machines)
    cut = nodes[2]
    cut.machine.unplug()
    wait_until(
        lambda: members(nodes[0])[cut.machine.name]["liveness"] == "lost",
        timeout_s=30,
        what="the machine that was cut off is lost",
    )
    assert is_formed(nodes[:2])
    cut.machine.plug_in()
    wait_formed(nodes)
    assert members(nodes[0])[cut.machine.name]["presence"] == "present"


def test_the_others_keep_what_they_decided_while_one_was_cut_off(
    machines: tuple[Machine, ...], make_node: MakeNode
) -> None:
    nodes = form(make_node, machines)
    first, second, cut = nodes
    cut.machine.unplug()
    wait_until(
        lambda: members(first)[cut.machine.name]["liveness"] == "lost", timeout_s=30, what="lost"
    )
    made = first.skulk_json("keys", "create", "laptop")
    # Long enough for the loner to elect itself: what it decides alone must not win.
    time.sleep(15)
    cut.machine.plug_in()
    wait_formed(nodes)
    for node in (first, second, cut):
        names = {item["name"] for item in node.skulk_json("keys", "list")["items"]}
        assert "laptop" in names, f"{node.machine.name} lost {made}"


def test_a_cluster_that_was_off_forms_again_without_mdns(
    machines: tuple[Machine, ...], make_node: MakeNode
) -> None:
    nodes = form(make_node, machines)
    for node in nodes:
        node.stop()
    for node in nodes:
        node.arguments = ("--no-mdns",)
        node.start()
    wait_formed(nodes)


def test_b04_nodes_without_multicast_join_by_token_and_stay_online(
    machines: tuple[Machine, ...], make_node: MakeNode
) -> None:
    for machine in machines[:2]:
        machine.allow_multicast(is_allowed=False)
    first, second = (make_node(machine) for machine in machines[:2])
    (made,) = first.skulk_json("cluster", "invite")["items"]
    ended = second.skulk("cluster", "join", "-", "--yes", stdin=made["token"])
    assert ended.returncode == 0, f"{ended.stderr}\n{second.log_tail()}"
    wait_formed((first, second))
    before_s = members(first)["m2"]["silent_s"]
    time.sleep(3)
    assert members(first)["m2"]["silent_s"] < 2.0, before_s
    assert status(first)["mdns"] in {"running", "failed"}, "never fatal"


def test_a_model_placed_anywhere_answers_everywhere(
    machines: tuple[Machine, ...], make_node: MakeNode
) -> None:
    nodes = form(make_node, machines)
    model = add_scripted_model(nodes[1].root / "models")
    ended = nodes[1].skulk("place", model, "--nodes", "m2", "--wait", "--timeout", "60s")
    assert ended.returncode == 0, ended.stderr
    for node in nodes:
        answer = node.skulk("chat", model, "hello")
        assert answer.returncode == 0, f"{node.machine.name}: {answer.stderr}"
        assert answer.stdout.strip()
