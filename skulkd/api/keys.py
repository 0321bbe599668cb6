"""API keys: making, listing, limiting, rotating and revoking them."""

from typing import final

from protocol.commands import ChangeApiKey, CreateApiKey, RevokeApiKey, RotateApiKey
from protocol.control_api import CommandAccepted
from protocol.errors import RequestError
from protocol.ids import KeyId
from protocol.keys_api import (
    ChangeKeyBody,
    CreatedKey,
    CreateKeyBody,
    KeyList,
    KeyView,
    RotateKeyBody,
)
from protocol.state import ApiKey, KeyLimits
from skulkd.api.auth import is_expired, make_key, make_secret
from skulkd.api.control import mint, read_body
from skulkd.api.dependencies import ApiDependencies
from skulkd.api.http import Answer, Header, Request, json_reply
from skulkd.core.key_limits import KeyLimiter

_NO_STORE: tuple[Header, ...] = ((b"cache-control", b"no-store"),)


@final
class KeyRoutes:
    """The routes about API keys.

    Args:
        deps: The rest of the daemon.
        limiter: Knows what each key has open on this node.
    """

    def __init__(self, deps: ApiDependencies, limiter: KeyLimiter) -> None:
        self._deps = deps
        self._limiter = limiter

    async def list_all(self, request: Request) -> Answer:
        """`GET /v1/keys`: names, scopes and limits, no secrets."""
        del request
        keys = sorted(self._deps.state.state.api_keys.values(), key=lambda key: key.created_at_ms)
        return json_reply(KeyList(items=tuple(map(self._view, keys))))

    async def create(self, request: Request) -> Answer:
        """`POST /v1/keys`: made here, valid on all nodes, shown once."""
        body = await read_body(request, CreateKeyBody)
        fresh = make_key()
        expires_at_ms = self._end(body.expires_in_s)
        reply = await self._deps.gateway.submit(
            CreateApiKey(
                command_id=mint(self._deps, request),
                key_id=fresh.key_id,
                name=body.name,
                secret_sha256=fresh.secret_sha256,
                scope=body.scope,
                expires_at_ms=expires_at_ms,
                limits=body.limits,
            )
        )
        created = CreatedKey(
            key_id=fresh.key_id,
            name=body.name,
            scope=body.scope,
            expires_at_ms=expires_at_ms,
            limits=body.limits,
            key=fresh.text,
            durable=reply.durable,
        )
        return json_reply(created, status=201, headers=_NO_STORE)

    async def change(self, request: Request) -> Answer:
        """`PUT /v1/keys/{key_id}`: other limits, or another end."""
        body, key = await read_body(request, ChangeKeyBody), self._named(request)
        limits = key.limits.model_dump() | body.limits.model_dump(exclude_none=True)
        limits |= {name: None for name in limits if name in body.unset}
        expires_at_ms = key.expires_at_ms
        if body.expires_in_s is not None or "expires" in body.unset:
            expires_at_ms = self._end(body.expires_in_s)
        command = ChangeApiKey(
            command_id=mint(self._deps, request),
            key_id=key.key_id,
            limits=KeyLimits.model_validate(limits),
            expires_at_ms=expires_at_ms,
        )
        reply = await self._deps.gateway.submit(command)
        return json_reply(
            CommandAccepted(
                message=f"The key {key.key_id} is changed.",
                command_id=command.command_id,
                durable=reply.durable,
                term=reply.term,
                seq=reply.seq,
            )
        )

    async def rotate(self, request: Request) -> Answer:
        """`POST /v1/keys/{key_id}/rotate`: another secret, shown once."""
        body = await read_body(request, RotateKeyBody, is_optional=True)
        key = self._named(request)
        fresh = make_secret(key.key_id)
        reply = await self._deps.gateway.submit(
            RotateApiKey(
                command_id=mint(self._deps, request),
                key_id=key.key_id,
                secret_sha256=fresh.secret_sha256,
                overlap_ms=body.overlap_s * 1000,
            )
        )
        now_ms = self._deps.clock.wall_ms()
        rotated = CreatedKey(
            key_id=key.key_id,
            name=key.name,
            scope=key.scope,
            expires_at_ms=key.expires_at_ms,
            limits=key.limits,
            previous_until_ms=now_ms + body.overlap_s * 1000 if body.overlap_s else None,
            key=fresh.text,
            durable=reply.durable,
        )
        return json_reply(rotated, headers=_NO_STORE)

    async def revoke(self, request: Request) -> Answer:
        """`DELETE /v1/keys/{key_id}`."""
        key_id = self._named(request).key_id
        command_id = mint(self._deps, request)
        reply = await self._deps.gateway.submit(RevokeApiKey(command_id=command_id, key_id=key_id))
        accepted = CommandAccepted(
            message=f"The key {key_id} is valid no more.",
            command_id=command_id,
            durable=reply.durable,
            term=reply.term,
            seq=reply.seq,
        )
        return json_reply(accepted)

    def _end(self, life_s: int | None) -> int | None:
        return None if life_s is None else self._deps.clock.wall_ms() + life_s * 1000

    def _named(self, request: Request) -> ApiKey:
        key = self._deps.state.state.api_keys.get(KeyId(request.params["key_id"]))
        if key is None:
            raise RequestError(
                "request.not_found",
                f"there is no API key {request.params['key_id'][:20]!r}",
                remediation="See `skulk keys list`.",
            )
        return key

    def _view(self, key: ApiKey) -> KeyView:
        state, now_ms = self._deps.state.state, self._deps.clock.wall_ms()
        until_ms = None if key.previous is None else key.previous.until_ms
        return KeyView(
            key_id=key.key_id,
            name=key.name,
            scope=key.scope,
            created_at_ms=key.created_at_ms,
            expires_at_ms=key.expires_at_ms,
            is_expired=is_expired(key, max(now_ms, state.at_ms)),
            limits=key.limits,
            previous_until_ms=until_ms if until_ms is not None and until_ms > now_ms else None,
            open_requests=self._limiter.n_open(key.key_id),
        )
