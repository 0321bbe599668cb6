"""Who may ask an API: strangers, and holders of keys of each kind."""

from typing import Final

from protocol.state import ApiKey
from skulkd.api.auth import make_key
from tests.support.fake_ports import FakeDaemon

LAN: Final = {"x-forwarded-for": "192.0.2.7"}
"""Makes a loopback peer count as a stranger."""


def key_of(daemon: FakeDaemon, scope: str, **changes: object) -> str:
    """Make a key and have the state hold it; `changes` override its fields."""
    fresh = make_key()
    key = ApiKey(
        key_id=fresh.key_id,
        name="test",
        secret_sha256=fresh.secret_sha256,
        scope="infer",
        created_at_ms=1,
    ).model_copy(update={"scope": scope, **changes})
    state = daemon.state.state
    keys = {**state.api_keys, key.key_id: key}
    daemon.state.state = state.model_copy(update={"api_keys": keys})
    return fresh.text


def bearer(key: str) -> dict[str, str]:
    """Show a key."""
    return {"authorization": f"Bearer {key}"}
