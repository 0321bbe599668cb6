"""Who may ask what: loopback peers, API keys, scopes.

Keys are looked up by their public id and compared by hash in constant time; an unknown id costs
the same comparison as a wrong secret.
"""

import hashlib
import hmac
import ipaddress
import re
import secrets
from dataclasses import dataclass
from typing import Final, Literal, final

from protocol.clock import Clock
from protocol.control_api import API_KEY_PATTERN, API_KEY_PREFIX
from protocol.errors import RequestError
from protocol.ids import KeyId, key_id_of
from protocol.state import SCOPES, ApiKey, ClusterState, Scope
from skulkd.api.http import ANONYMOUS, Principal, Request
from skulkd.eventlog.gateway import StateView

RouteScope = Literal["open", "infer", "read", "operate", "admin"]

LOOPBACK: Final = Principal(name="loopback", scope="admin")
_KEY: Final = re.compile(API_KEY_PATTERN)
_NO_HASH: Final = "0" * 64
_MAX_KEY_CHARS: Final = 100
_BASE32: Final = "abcdefghijklmnopqrstuvwxyz234567"


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshKey:
    """A new key, or a new secret of one: `text` goes to the operator once, the rest into State."""

    key_id: KeyId
    text: str
    secret_sha256: str


def make_key() -> FreshKey:
    """Make a key of 160 random bits."""
    return make_secret(key_id_of(secrets.token_bytes(8)))


def make_secret(key_id: KeyId) -> FreshKey:
    """Make another secret for a key."""
    secret = "".join(secrets.choice(_BASE32) for _ in range(32))
    return FreshKey(
        key_id=key_id,
        text=f"{API_KEY_PREFIX}{key_id.removeprefix('key-')}-{secret}",
        secret_sha256=_hash(secret),
    )


def find_key(state: ClusterState, text: str, *, now_ms: int) -> ApiKey | None:
    """Find the key whose secret a client sent, or None; it may have expired.

    Of a key that was rotated the secret before is accepted for its time, too.
    """
    match = _KEY.fullmatch(text) if len(text) <= _MAX_KEY_CHARS else None
    key_id, secret = (match[1], match[2]) if match else ("", text[:_MAX_KEY_CHARS])
    key = state.api_keys.get(KeyId(f"key-{key_id}"))
    previous = None if key is None else key.previous
    sent = _hash(secret)
    is_same = hmac.compare_digest(sent, key.secret_sha256 if key else _NO_HASH)
    was_same = hmac.compare_digest(sent, previous.secret_sha256 if previous else _NO_HASH)
    is_kept = previous is not None and previous.until_ms > now_ms
    return key if is_same or (was_same and is_kept) else None


def is_expired(key: ApiKey, now_ms: int) -> bool:
    """Say whether a key's time is over."""
    return key.expires_at_ms is not None and key.expires_at_ms <= now_ms


def includes(held: Scope | None, wanted: RouteScope) -> bool:
    """Say whether a scope suffices; each includes the ones before it."""
    if wanted == "open":
        return True
    return held is not None and SCOPES.index(held) >= SCOPES.index(wanted)


@final
class Authenticator:
    """Finds out who asks, and whether they may.

    Args:
        view: Holds the keys and the setting `loopback`.
        clock: For keys that expire.
    """

    def __init__(self, view: StateView, clock: Clock) -> None:
        self._view = view
        self._clock = clock

    def identify(self, request: Request) -> Principal:
        """Find out who asks. A key that is not valid counts as none: SDKs send dummies."""
        state = self._view.state
        if state.settings.loopback == "open" and is_local(request):
            return LOOPBACK
        text = _sent_key(request)
        if text is None:
            return ANONYMOUS
        now_ms = max(self._clock.wall_ms(), state.at_ms)
        key = find_key(state, text, now_ms=now_ms)
        if key is None or is_expired(key, now_ms):
            return ANONYMOUS
        return Principal(name=key.key_id, scope=key.scope)

    def require(self, request: Request, wanted: RouteScope) -> None:
        """Refuse a request whose principal lacks a scope.

        Raises:
            RequestError: `request.unauthenticated`, `request.forbidden`.
        """
        if includes(request.principal.scope, wanted):
            return
        if request.principal.scope is None:
            raise RequestError(
                "request.unauthenticated",
                f"{self._what_was_sent(request)}; the scope needed is {wanted}",
                remediation=f"Make one on the node, `skulk keys create --scope {wanted}`, and send "
                "it as `Authorization: Bearer …`.",
                details={"scope": wanted},
            )
        raise RequestError(
            "request.forbidden",
            f"the key {request.principal.name} has the scope {request.principal.scope}, "
            f"this needs {wanted}",
            remediation=f"Use a key with the scope {wanted}.",
            details={"scope": wanted},
        )

    def _what_was_sent(self, request: Request) -> str:
        """Say why a request has no scope; that a key has expired is told to who has its secret."""
        text = _sent_key(request)
        if not text:
            return "this needs an API key"
        now_ms = self._clock.wall_ms()
        key = find_key(self._view.state, text, now_ms=now_ms)
        if key is None or key.expires_at_ms is None:
            return "the API key is not valid"
        ago_s = max(0, now_ms - key.expires_at_ms) // 1000
        return f"the API key {key.key_id} ({key.name}) expired {ago_s} s ago"


def is_local(request: Request) -> bool:
    """Say whether a request comes from this machine itself, and not through a proxy on it."""
    return not request.headers.is_forwarded and is_loopback(request.peer)


def is_loopback(address: str) -> bool:
    """Say whether an address is a loopback one; an IPv4 one may be mapped into IPv6."""
    if address in {"127.0.0.1", "::1"}:
        return True
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def _sent_key(request: Request) -> str | None:
    bearer = request.headers.get(b"authorization")
    if bearer is not None and bearer[:7].lower() == b"bearer ":
        return bearer[7:].strip().decode("latin-1")
    plain = request.headers.get(b"x-api-key")
    return plain.strip().decode("latin-1") if plain else None


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
