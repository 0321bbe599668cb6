"""Links between real daemons: measured by one command, and shown by every node."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import running_cluster
from tests.support.daemon import Daemon
from tests.support.scripted_models import MODEL, add_slow_talker

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


def links(node: Daemon) -> list[dict[str, Any]]:
    ran = node.skulk("cluster", "links", "--json")
    assert ran.returncode == 0, ran.stderr
    found: list[dict[str, Any]] = json.loads(ran.stdout)["items"]
    return found


def test_links_are_measured_on_demand_and_not_while_a_node_answers(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 2) as cluster:
        first, second = cluster
        ran = second.skulk("probe", "links", "--json")
        assert ran.returncode == 0, ran.stderr
        for node in cluster:
            shown = links(node)
            assert {(one["source_name"], one["target_name"]) for one in shown} == {
                ("attic", "kitchen"),
                ("kitchen", "attic"),
            }
            for link in shown:
                assert (link["state"], link["kind"]) == ("up", "loopback")
                assert link["rate_bytes_s"] > 1e6
                assert link["rate_age_s"] < 60
                assert link["nominal_bits_s"] is None
        add_slow_talker(first.models_dir)
        first.wait_phase(first.place(MODEL))
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "talk on"}],
            "stream": True,
        }
        with first.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()  # kept: to forget it ends the stream
            assert any("content" in line for line in lines)
            refused = second.skulk("probe", "links")
        assert refused.returncode == 1, refused.stdout
        assert "attic is answering requests" in refused.stdout
