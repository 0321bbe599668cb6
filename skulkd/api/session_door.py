"""What a session asks of the API: any route's answer, a chat, and whether its key still counts.

Requests of a session take the way that those over HTTP take: the same routes, scopes, places,
handlers, errors and audit lines. What they lack is a connection of their own.
"""

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Final, final
from urllib.parse import unquote

from protocol.errors import RequestError, SkulkError
from protocol.ids import CommandId
from protocol.session import SessionRequest
from skulkd.api.auth import Authenticator, RouteScope
from skulkd.api.body_budget import BodyBudget
from skulkd.api.errors import bug, error_reply
from skulkd.api.http import (
    CONNECTION,
    Answer,
    AsgiScope,
    Message,
    Principal,
    Receive,
    Reply,
    Request,
)
from skulkd.api.inference import ChatService
from skulkd.api.peer_api import NoConnection
from skulkd.api.routes import Kind, RouteSpec, RouteTable, dialect_of
from skulkd.api.streams import KeptStream

_log = logging.getLogger(__name__)
_JSON: Final = (b"content-type", b"application/json")
_CHAT: Final = "/v1/chat/completions"

Run = Callable[[RouteSpec, Request], Awaitable[Answer]]
"""Checks scope and room, runs a handler or hands the request on, and writes the audit line."""
OpenChat = Callable[[Request], Awaitable[KeptStream]]
"""The same for a chat whose stream lasts; its place is held until the stream ends."""


@final
class SessionDoor:
    """See the module.

    Args:
        table: The routes.
        authenticator: Finds out who asks.
        bodies: Counts what is held.
        chat: Has the streams.
        run: See `Run`.
        open_chat: See `OpenChat`.
    """

    def __init__(
        self,
        table: RouteTable,
        authenticator: Authenticator,
        bodies: BodyBudget,
        chat: ChatService,
        *,
        run: Run,
        open_chat: OpenChat,
    ) -> None:
        self._table = table
        self._authenticator = authenticator
        self._bodies = bodies
        self._chat = chat
        self._run = run
        self._open_chat = open_chat

    def identify(self, opening: Request) -> Principal:
        """Say who a session belongs to by what counts now: a key may have been revoked."""
        return self._authenticator.identify(opening)

    def require(self, opening: Request, scope: RouteScope) -> None:
        """Refuse what a session's key does not allow.

        Raises:
            RequestError: `request.unauthenticated`, `request.forbidden`.
        """
        opening.principal = self.identify(opening)
        self._authenticator.require(opening, scope)

    async def answer(self, opening: Request, wish: SessionRequest) -> Reply:
        """Answer a request as HTTP would; nothing is raised but `CancelledError`.

        Args:
            opening: The request that the session was opened by.
            wish: What is asked.
        """
        share = self._bodies.share()
        body = b"" if wish.body is None else json.dumps(wish.body).encode()
        scope = _scope(opening, wish.method, unquote(wish.path), wish.query)
        request = Request(scope, _receive(body), share)
        kind: Kind = "inference" if request.path.startswith("/v1/") else "control"
        try:
            found, request.params = self._table.find(request.path)
            kind = found.kind
            route = found.route_for(request.method)
            request.principal = self.identify(opening)
            return _whole(await self._run(route, request))
        except SkulkError as error:
            dialect = dialect_of(request.path, kind)
            return error_reply(error, dialect=dialect, command_id=request.command_id)
        except Exception:  # ruff: ignore[blind-except]  a bug is logged, and fails this request alone
            _log.exception("handling %s %.200s of a session failed", wish.method, wish.path)
            dialect = dialect_of(request.path, kind)
            return error_reply(bug(), dialect=dialect, command_id=request.command_id)
        finally:
            share.release()

    async def open_chat(self, opening: Request, body: dict[str, object]) -> KeptStream:
        """Begin a chat.

        Raises:
            SkulkError: Why it cannot be.
        """
        share = self._bodies.share()
        encoded = json.dumps({**body, "stream": True}).encode()
        request = Request(_scope(opening, "POST", _CHAT, ""), _receive(encoded), share)
        request.principal = self.identify(opening)
        try:
            return await self._open_chat(request)
        finally:
            share.release()

    def kept_stream(self, opening: Request, command_id: CommandId) -> KeptStream:
        """Find a stream to go on with.

        Raises:
            RequestError: `request.not_found`, `request.unauthenticated`, `request.forbidden`.
        """
        self.require(opening, "infer")
        return self._chat.kept(command_id, opening.principal)

    def cancel_chat(self, command_id: CommandId) -> None:
        """End a chat that was opened or resumed here."""
        self._chat.cancel_here(command_id)


def _whole(answer: Answer) -> Reply:
    if isinstance(answer, Reply):
        return answer
    raise RequestError(
        "request.invalid",
        "this answer is a stream, and a request of a session is answered once",
        remediation="`open` a chat, `resume` it, or `subscribe` to events and logs.",
    )


def _scope(opening: Request, method: str, path: str, query: str) -> AsgiScope:
    client, server = opening.ends
    return {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode("ascii", "replace"),
        "headers": [_JSON],
        "client": client,
        "server": server,
        "extensions": {CONNECTION: NoConnection()},
    }


def _receive(body: bytes) -> Receive:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive
