"""Certificates over real sockets: pinned at first use, checked in the handshake ever after."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.control_api import HealthDocument
from protocol.errors import ClientError
from skulk_tui.client import NodeClient
from skulk_tui.clock import SystemClock
from skulk_tui.session_link import SessionLink
from skulk_tui.session_socket import WebSocketConnector
from skulk_tui.target import Target
from skulk_tui.tls_pins import TlsTrust, fingerprint_of, spelt_out
from skulk_tui.view_state import ViewState
from tests.support.certificates import SECOND
from tests.support.den_cluster import fill
from tests.support.fake_node import FakeNode
from tests.support.linked import Impatience, Seen, live, until
from tests.support.scripted_session import ScriptedSession
from tests.support.tls_proxy import TlsProxy


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode() as running:
        yield running


@pytest.fixture
def pins(tmp_path: Path) -> Path:
    return tmp_path / "config" / "known_certificates"


def content(path: Path) -> str:
    return path.read_text(encoding="ascii")


def port_of(node: FakeNode) -> int:
    return int(node.url.rpartition(":")[2])


def health(url: str, trust: TlsTrust | None) -> HealthDocument:
    target = Target(url=url, url_rule="--node", api_key="secret", key_rule="test")
    client = NodeClient(target, clock=SystemClock(), trust=trust)
    try:
        return client.get("/health", HealthDocument)
    finally:
        client.close()


def test_a_certificate_that_nobody_vouches_for_is_pinned_at_first_use_and_told(
    node: FakeNode, pins: Path, tmp_path: Path
) -> None:
    told: list[tuple[str, str]] = []
    with TlsProxy(port_of(node), tmp_path) as proxy:
        trust = TlsTrust(pins, on_pinned=lambda url, fingerprint: told.append((url, fingerprint)))
        assert health(proxy.url, trust).status == "ok"
        assert node.seen[-1].headers["authorization"] == "Bearer secret"
        assert health(proxy.url, TlsTrust(pins)).status == "ok"
    address, fingerprint = content(pins).split()
    assert address == f"127.0.0.1:{proxy.port}"
    assert told == [(proxy.url, spelt_out(fingerprint))]
    assert pins.stat().st_mode & 0o777 == 0o600
    assert pins.parent.stat().st_mode & 0o777 == 0o700


def test_a_certificate_that_has_changed_is_refused_and_nothing_is_sent(
    node: FakeNode, pins: Path, tmp_path: Path
) -> None:
    with TlsProxy(port_of(node), tmp_path) as proxy:
        health(proxy.url, TlsTrust(pins))
    before, n_seen = content(pins), len(node.seen)
    with TlsProxy(port_of(node), tmp_path, pem=SECOND, own_port=proxy.port) as other:
        trust = TlsTrust(pins)
        with pytest.raises(ClientError) as caught:
            health(other.url, trust)
        assert other.n_bytes == 0
        error = caught.value
        assert error.code == "client.certificate_changed"
        seen, pinned = str(error.details["seen"]), str(error.details["pinned"])
        assert before.split()[1] == pinned != seen
        assert spelt_out(seen) in error.message
        assert spelt_out(pinned) in error.message
        assert f"`skulk cluster trust {other.url}`" in error.remediation
        assert (content(pins), len(node.seen)) == (before, n_seen)

        assert trust.accept(other.url) == seen
        assert health(other.url, trust).status == "ok"


def test_a_certificate_that_an_authority_vouches_for_needs_no_pin(
    node: FakeNode, pins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TlsProxy(port_of(node), tmp_path) as proxy:
        monkeypatch.setenv("SSL_CERT_FILE", str(proxy.certificate))
        assert health(proxy.url, TlsTrust(pins)).status == "ok"
        assert not pins.exists()
        monkeypatch.delenv("SSL_CERT_FILE")
        trust = TlsTrust(pins)
        assert trust.accept(proxy.url) == content(pins).split()[1]
        monkeypatch.setenv("SSL_CERT_FILE", str(proxy.certificate))
        assert not trust.accept(proxy.url)
        assert not content(pins)


def test_without_pins_only_authorities_are_believed(node: FakeNode, tmp_path: Path) -> None:
    with TlsProxy(port_of(node), tmp_path) as proxy:
        with pytest.raises(ClientError) as caught:
            health(proxy.url, None)
        assert caught.value.code == "client.unreachable"
        assert proxy.n_bytes == 0


def test_a_session_pins_and_refuses_likewise(pins: Path, tmp_path: Path) -> None:
    async def story(node: ScriptedSession, proxy: TlsProxy) -> None:
        link = a_link(proxy.url, pins)
        link.start()
        await live(link)
        await link.close()
        assert content(pins).startswith(f"127.0.0.1:{proxy.port} ")

    async def changed(proxy: TlsProxy) -> None:
        link = a_link(proxy.url, pins)
        link.start()
        await until(lambda: link.view.word == "denied")
        assert "is pinned" in link.view.reason
        assert "skulk cluster trust" in link.view.remedy
        assert proxy.n_bytes == 0
        await link.close()

    with ScriptedSession() as node:
        fill(node)
        with TlsProxy(node.port, tmp_path) as proxy:
            asyncio.run(story(node, proxy))
        with TlsProxy(node.port, tmp_path, pem=SECOND, own_port=proxy.port) as other:
            asyncio.run(changed(other))


def a_link(url: str, pins: Path) -> SessionLink:
    return SessionLink(
        Target(url=url, url_rule="--node", api_key="secret", key_rule="test"),
        ViewState(),
        clock=SystemClock(),
        randomness=Impatience(),
        on_change=Seen().take,
        connect=WebSocketConnector(TlsTrust(pins)),
    )


def test_a_host_that_speaks_no_tls_is_unreachable_and_pins_nothing(
    node: FakeNode, pins: Path
) -> None:
    with pytest.raises(ClientError) as caught:
        health(node.url.replace("http:", "https:"), TlsTrust(pins))
    assert caught.value.code == "client.unreachable"
    assert not pins.exists()


@pytest.mark.parametrize("line", ["127.0.0.1:1 abc", "nonsense", "127.0.0.1 " + "0" * 64])
def test_a_file_of_pins_that_cannot_be_read_is_refused_by_line(pins: Path, line: str) -> None:
    pins.parent.mkdir()
    pins.write_text(f"# pinned\n\n{line}\n", encoding="ascii")
    with pytest.raises(ClientError, match="line 3") as caught:
        TlsTrust(pins).context("https://127.0.0.1:1")
    assert caught.value.code == "client.usage"


def test_a_fingerprint_is_written_as_openssl_writes_it() -> None:
    assert spelt_out(fingerprint_of(b"")).startswith("E3:B0:C4:42:98:FC:1C:14")
    assert TlsTrust(Path("/nonexistent/pins")).context("http://127.0.0.1:1") is None
