"""A real node takes up what was written into its settings file when it is told to restart."""

from pathlib import Path

import httpx
import pytest

from tests.support.daemon import Daemon, wait_until

pytestmark = pytest.mark.e2e


def test_a_restart_takes_up_the_settings_in_the_same_process(tmp_path: Path) -> None:
    with Daemon(tmp_path / "node", arguments=["--no-mdns"]) as node:
        body = {"settings": {"max_output_tokens": "99", "log_level": "debug"}}
        changed = node.http.put("/config", json=body).json()
        assert changed["node"]["pending"] == ["log_level", "max_output_tokens"]
        before = node.http.post("/admin/restart").json()
        assert before["restarting"] is True

        def is_new() -> bool:
            try:
                return node.http.get("/health").json()["boot_id"] != before["boot_id"]
            except httpx.TransportError:  # between two lives nobody listens
                return False

        wait_until(is_new, timeout_s=30, what="the next life")
        shown = node.http.get("/config").json()["node"]
        assert shown["effective"]["max_output_tokens"] == {"value": 99, "source": "file"}
        assert shown["pending"] == []
        assert node.process.poll() is None
