"""`skulk doctor`: verdicts, exit codes, remedies, and the machine's own check."""

import json
import socket
from pathlib import Path

import pytest

from protocol.cluster_api import NodesDocument
from protocol.control_api import HealthReasonView, NodeHealthView
from tests.support.cluster_documents import some_nodes
from tests.support.command_line import skulk
from tests.support.fake_node import FakeNode

NODES = "/v1/nodes"


def nodes(level: str = "ok", *, with_lost: bool = False) -> NodesDocument:
    reason = HealthReasonView.model_validate(
        {
            "code": "disk_low",
            "level": level,
            "message": "2.0 GiB are free for models",
            "remediation": "remove a model",
        }
    )
    known = some_nodes()
    first, lost = known.items
    reasons = () if level == "ok" else (reason,)
    health = NodeHealthView.model_validate({"level": level, "reasons": reasons})
    items = (first.model_copy(update={"health": health}), *((lost,) if with_lost else ()))
    return NodesDocument(seq=42, items=items)


@pytest.mark.parametrize(
    ("document", "code", "verdicts"),
    [
        (nodes(), 0, ["well"]),
        (nodes("warn"), 6, ["degraded"]),
        (nodes(with_lost=True), 6, ["well", "degraded"]),
        (nodes("error"), 1, ["fails"]),
        (nodes("error", with_lost=True), 1, ["fails", "degraded"]),
    ],
)
def test_the_worst_verdict_is_the_exit_code(
    node: FakeNode, document: NodesDocument, code: int, verdicts: list[str]
) -> None:
    node.on("GET", NODES, document)
    ran = skulk("doctor", "--json", node=node.url)
    assert ran.code == code
    assert [one["verdict"] for one in json.loads(ran.out)["items"]] == verdicts


def test_what_is_wrong_is_shown_with_its_remedy(node: FakeNode) -> None:
    node.on("GET", NODES, nodes("warn"))
    ran = skulk("doctor", node=node.url)
    assert "disk_low" in ran.out
    assert "remove a model" in ran.out


def test_names_are_those_of_nodes_that_are_not_well(node: FakeNode) -> None:
    node.on("GET", NODES, nodes(with_lost=True))
    assert skulk("doctor", "-o", "name", node=node.url).out == "node-2\n"


# ---- Without a daemon ----------------------------------------------------------------------------


@pytest.fixture
def dead_url() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def a_daemon(folder: Path, *, has_doctor: bool) -> str:
    """Make a program `skulkd` and give a PATH with it."""
    program = folder / "skulkd"
    helped = 'echo "usage: skulkd doctor"' if has_doctor else 'echo "usage: skulkd"'
    program.write_text(f'#!/bin/sh\nif [ "$2" = --help ]; then {helped}; exit 0; fi\nexit 6\n')
    program.chmod(0o755)
    return str(folder)


def test_the_machine_is_checked_by_the_daemons_own_program(tmp_path: Path, dead_url: str) -> None:
    path = a_daemon(tmp_path, has_doctor=True)
    ran = skulk("doctor", node=dead_url, environment={"PATH": path})
    assert ran.code == 6
    assert "checking this machine instead" in ran.err


def test_a_daemon_that_has_no_such_check_leaves_the_error_and_its_remedy(
    tmp_path: Path, dead_url: str
) -> None:
    path = a_daemon(tmp_path, has_doctor=False)
    ran = skulk("doctor", node=dead_url, environment={"PATH": path})
    assert (ran.code, ran.out) == (3, "")
    assert "Start `skulkd`" in ran.err


def test_programs_get_the_error_and_no_foreign_output(tmp_path: Path, dead_url: str) -> None:
    path = a_daemon(tmp_path, has_doctor=True)
    ran = skulk("doctor", "--json", node=dead_url, environment={"PATH": path})
    assert ran.code == 3
    assert json.loads(ran.err)["error"]["code"] == "client.unreachable"


def test_another_machine_is_not_checked_from_here(tmp_path: Path) -> None:
    path = a_daemon(tmp_path, has_doctor=True)
    ran = skulk("doctor", "--timeout", "300ms", node="192.0.2.1", environment={"PATH": path})
    assert ran.code in {3, 124}
    assert "checking this machine" not in ran.err
