"""A real node as other machines reach it: over TLS, and by its name in a tailnet."""

import json
import os
import ssl
import time
from pathlib import Path

import httpx
import pytest

from tests.support.certificates import EXPIRED, SECOND, written
from tests.support.daemon import Daemon, own_address, wait_until

pytestmark = pytest.mark.e2e

EX_CONFIG = 78


def test_a_node_with_a_certificate_is_used_over_tls_and_takes_a_renewed_one_up(
    tmp_path: Path,
) -> None:
    address = own_address()
    assert address is not None, "this test needs a network interface beside loopback"
    files = written(tmp_path, EXPIRED)
    flags = ("--tls-cert", str(files.certificate), "--tls-key", str(files.key), "--no-mdns")
    with_expired = Daemon(tmp_path / "expired", arguments=flags)
    with_expired.spawn()
    try:
        assert with_expired.wait_exit() == EX_CONFIG
        assert "has expired [config.tls_unusable]" in with_expired.log_text()
    finally:
        with_expired.destroy()

    written(tmp_path)
    with Daemon(tmp_path / "node", arguments=flags) as node:
        outside = f"https://{address}:{node.port}"
        assert node.http.get("/health").is_success, "this machine speaks plainly"
        key = node.http.post("/v1/keys", json={"name": "laptop", "scope": "admin"}).json()["key"]
        opened = node.skulk("api", "open", "-o", "name")
        assert f"https://0.0.0.0:{node.port}" in opened.stdout.split(), opened.stderr

        (member,) = node.http.get("/v1/cluster").json()["members"]
        assert (member["api_port"], member["api_tls"]) == (node.port, True)

        plain = httpx.get(f"http://{address}:{node.port}/health", trust_env=False)
        assert plain.status_code == 400
        assert plain.json()["error"]["skulk_code"] == "request.tls_required"

        with_key = {"SKULK_NODE": outside, "SKULK_API_KEY": key}
        first = node.skulk("status", environment=with_key)
        assert first.returncode == 0, first.stderr
        assert "certificate" in first.stderr, "it tells that it was pinned"
        told = node.skulk(
            "status", environment={"SKULK_NODE": outside.replace("https", "http")}
        ).stderr
        assert f"Use {outside}" in told

        before = ssl.get_server_certificate((address, node.port))
        written(tmp_path, SECOND)

        def is_renewed() -> bool:
            return ssl.get_server_certificate((address, node.port)) != before

        wait_until(is_renewed, timeout_s=5, what="the renewed certificate")
        refused = node.skulk("status", environment=with_key)
        assert "skulk cluster trust" in refused.stderr
        assert node.skulk("cluster", "trust", outside).returncode == 0
        assert node.stop() == 0


def test_opening_the_api_tells_what_works_from_another_machine_and_hangs_on_nothing(
    tmp_path: Path,
) -> None:
    address = own_address()
    assert address is not None, "this test needs a network interface beside loopback"
    name = "studio.tail1234.ts.net"
    says = {"BackendState": "Running", "Self": {"DNSName": f"{name}.", "TailscaleIPs": [address]}}
    program = tmp_path / "bin" / "tailscale"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{json.dumps(says)}'\n")
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    with Daemon(tmp_path / "node", arguments=["--no-mdns"], environment={"PATH": path}) as node:

        def by_name() -> httpx.Response:
            url = f"http://{address}:{node.port}/health"
            return httpx.get(url, headers={"host": f"{name}:{node.port}"}, trust_env=False)

        node.http.post("/v1/keys", json={"name": "laptop"})
        opened = node.skulk("api", "open")
        assert opened.returncode == 0, opened.stderr
        assert f"http://{name}:{node.port}/v1" in opened.stdout
        assert f"http://{address}:{node.port}/v1" in opened.stdout
        assert by_name().status_code == 200
        node.http.post("/v1/api/close")

        program.write_text("#!/bin/sh\nsleep 600 &\nwait\n")
        began = time.monotonic()
        served = node.http.post("/v1/api/open").json()
        assert time.monotonic() - began < 20
        assert f"http://{address}:{node.port}" in served["base_urls"]
        assert name not in str(served)
        assert by_name().status_code == 421
        assert node.stop() == 0
