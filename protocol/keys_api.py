"""Bodies of the control API about API keys; as in protocol/control_api.py, snake_case."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from protocol.control_api import ControlModel, Durability
from protocol.ids import KeyIdField
from protocol.state import MAX_OVERLAP_MS, KeyLimits, Scope

LifeSeconds = Annotated[int, Field(ge=60, le=10 * 366 * 86400)]

KeyBound = Literal["expires", "requests_per_minute", "concurrent_requests"]


class CreateKeyBody(ControlModel):
    """`POST /v1/keys`."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=100)]
    scope: Scope = "infer"
    expires_in_s: LifeSeconds | None = None
    limits: KeyLimits = KeyLimits()


class ChangeKeyBody(ControlModel):
    """`PUT /v1/keys/{key_id}`: what is left out stays as it is."""

    expires_in_s: LifeSeconds | None = None
    """From now on."""
    limits: KeyLimits = KeyLimits()
    unset: Annotated[tuple[KeyBound, ...], Field(max_length=3)] = ()
    """What shall not bound it any more."""


class RotateKeyBody(ControlModel):
    """`POST /v1/keys/{key_id}/rotate`."""

    overlap_s: Annotated[int, Field(ge=0, le=MAX_OVERLAP_MS // 1000)] = 3600
    """So long the present secret is accepted beside the new one."""


class KeyView(ControlModel):
    """An API key without its secret."""

    key_id: KeyIdField
    name: str
    scope: Scope
    created_at_ms: int
    expires_at_ms: int | None = None
    is_expired: bool = False
    """By the clock of the node that answers."""
    limits: KeyLimits = KeyLimits()
    previous_until_ms: int | None = None
    """So long the secret before the last rotation is accepted too."""
    open_requests: int = 0
    """On the node that answers."""


class KeyList(ControlModel):
    """`GET /v1/keys`."""

    items: tuple[KeyView, ...] = ()


class CreatedKey(ControlModel):
    """`POST /v1/keys` and its `/rotate`: the only time that the key itself is shown."""

    key_id: KeyIdField
    name: str
    scope: Scope
    expires_at_ms: int | None = None
    limits: KeyLimits = KeyLimits()
    previous_until_ms: int | None = None
    key: str
    durable: Durability
