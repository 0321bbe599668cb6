"""What follows from a command about API keys: an event, or a refusal; pure.

Only hashes of secrets come here. What a key opens is settled where it is shown, by the API.
"""

from typing import Final

from protocol.commands import ChangeApiKey, CreateApiKey, RevokeApiKey, RotateApiKey
from protocol.errors import RequestError
from protocol.events import ApiKeyChanged, ApiKeyCreated, ApiKeyRevoked, Event
from protocol.ids import KeyId
from protocol.state import ApiKey, ClusterState, PreviousSecret

MAX_API_KEYS: Final = 1000


def create(state: ClusterState, command: CreateApiKey, now_ms: int) -> tuple[Event, ...]:
    """Make a key valid.

    Raises:
        RequestError: `request.invalid`.
    """
    key = ApiKey(
        key_id=command.key_id,
        name=command.name,
        secret_sha256=command.secret_sha256,
        scope=command.scope,
        created_at_ms=now_ms,
        expires_at_ms=command.expires_at_ms,
        limits=command.limits,
    )
    if command.key_id in state.api_keys:
        raise RequestError(
            "request.invalid",
            f"there is a key {command.key_id} already",
            remediation="Make the key again; a new id is drawn each time.",
        )
    _check_end(command.expires_at_ms, now_ms)
    if len(state.api_keys) >= MAX_API_KEYS:
        raise RequestError(
            "request.invalid",
            f"the cluster keeps {MAX_API_KEYS} API keys and has {len(state.api_keys)}",
            remediation="Revoke keys that are not used (`skulk keys revoke`).",
        )
    return (ApiKeyCreated(key=key),)


def change(state: ClusterState, command: ChangeApiKey, now_ms: int) -> tuple[Event, ...]:
    """Give a key other limits, or another end.

    Raises:
        RequestError: `request.not_found`; `request.invalid` for an end in the past.
    """
    key = _key(state, command.key_id)
    if command.expires_at_ms != key.expires_at_ms:
        _check_end(command.expires_at_ms, now_ms)
    wanted = {"limits": command.limits, "expires_at_ms": command.expires_at_ms}
    changed = key.model_copy(update=wanted)
    return () if changed == key else (ApiKeyChanged(key=changed),)


def rotate(state: ClusterState, command: RotateApiKey, now_ms: int) -> tuple[Event, ...]:
    """Give a key another secret. One that an earlier rotation left is accepted no more.

    Raises:
        RequestError: `request.not_found`; `request.invalid` for a key that has expired.
    """
    key = _key(state, command.key_id)
    _check_end(key.expires_at_ms, now_ms)
    previous = PreviousSecret(secret_sha256=key.secret_sha256, until_ms=now_ms + command.overlap_ms)
    changes = {
        "secret_sha256": command.secret_sha256,
        "previous": previous if command.overlap_ms else None,
    }
    return (ApiKeyChanged(key=key.model_copy(update=changes)),)


def revoke(state: ClusterState, command: RevokeApiKey) -> tuple[Event, ...]:
    """Make a key invalid.

    Raises:
        RequestError: `request.not_found`.
    """
    return (ApiKeyRevoked(key_id=_key(state, command.key_id).key_id),)


def _key(state: ClusterState, key_id: KeyId) -> ApiKey:
    key = state.api_keys.get(key_id)
    if key is None:
        raise RequestError(
            "request.not_found",
            f"there is no key {key_id}",
            remediation="`skulk keys list` shows the keys.",
        )
    return key


def _check_end(expires_at_ms: int | None, now_ms: int) -> None:
    if expires_at_ms is not None and expires_at_ms <= now_ms:
        raise RequestError(
            "request.invalid",
            f"the key would have expired {(now_ms - expires_at_ms) // 1000} s ago",
            remediation="Give a time in the future, or none.",
        )
