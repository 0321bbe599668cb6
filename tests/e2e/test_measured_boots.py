"""What the real demo model takes: measured, kept, and predicted the next time."""

import json
from pathlib import Path
from typing import Any

from tests.support.daemon import Daemon, wait_until
from tests.support.demo_model import DEMO_MODEL_ID, demo_model_path, demo_models_dir
from tests.support.shared_daemon import shared_daemon

READY_S = 90


def measured(node: Daemon, instance_id: str) -> dict[str, Any]:
    """Wait until an instance was measured, and give the figures of its only rank."""

    def memory() -> dict[str, Any] | None:
        runners = node.instance(instance_id)["runners"]
        return runners[0].get("memory") if runners else None

    wait_until(lambda: memory() is not None, timeout_s=20, what="a measured boot")
    found = memory()
    assert found is not None
    return found


def test_the_second_prediction_is_within_3_percent_of_what_was_measured(tmp_path: Path) -> None:
    demo_model_path()
    with shared_daemon(tmp_path, models_dir=demo_models_dir()) as node:
        first_id = node.place(DEMO_MODEL_ID, context_tokens=2048, slots=2)
        node.wait_phase(first_id, timeout_s=READY_S)
        first = measured(node, first_id)
        assert first["source"] == "process"
        # The weights are mapped from the file, all but its header.
        assert 0 <= 98_362_432 - first["mappedBytes"] < 2 << 20
        assert first["measuredBytes"] > first["mappedBytes"] + 2048 * 23_040
        node.http.delete(f"/instance/{first_id}").raise_for_status()
        wait_until(
            lambda: not node.http.get("/state").json()["instances"], timeout_s=20, what="gone"
        )
        second_id = node.place(DEMO_MODEL_ID, context_tokens=2048, slots=2)
        node.wait_phase(second_id, timeout_s=READY_S)
        second = measured(node, second_id)
        assert second["predictedBytes"] == first["measuredBytes"]
        assert abs(second["errorPercent"]) <= 3
        (row,) = json.loads(node.skulk("ps", "-o", "json").stdout)["items"]
        assert row["measured_bytes"] == second["measuredBytes"]
        assert row["memory_error_percent"] == second["errorPercent"]
        shown = node.skulk("models", "show", DEMO_MODEL_ID).stdout
        assert "2,048 tokens and 2 slots" in shown
