"""Answers the control requests that other nodes hand on for clients of theirs.

They are answered in this process, without HTTP, by the same handlers: only the routes that are a
node's own, whole, and never handed on again.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, final
from urllib.parse import unquote

from protocol.errors import RequestError, SkulkError
from protocol.ids import NodeId
from protocol.peer_messages import ApiAnswer, CallApi
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
    UpgradedProtocol,
)
from skulkd.api.interrupt import stopping
from skulkd.api.routes import RouteSpec, RouteTable, dialect_of
from skulkd.eventlog.gateway import StateView

_log = logging.getLogger(__name__)

_MAX_ANSWER_BYTES: Final = 3 << 20
_JSON: Final = (b"content-type", b"application/json")
Run = Callable[[RouteSpec, Request], Awaitable[Answer]]
"""Runs a handler within the bounds that requests over HTTP have too, and writes the audit line."""


@final
class NoConnection:
    """Stands for the connection of a request that came by none."""

    is_choked: Final = False

    def on_lost(self, callback: Callable[[], None] | None) -> None:
        """The asking node's client may be gone, which changes nothing here."""

    def write(self, piece: bytes) -> None:
        """No stream is answered to another node."""

    def abort(self) -> None:
        """There is nothing to drop."""

    def close_after_response(self) -> None:
        """There is nothing to close."""

    def upgrade(self, head: bytes, protocol: UpgradedProtocol) -> None:
        """Nothing becomes of it: no request that comes here asks for one."""


@final
class PeerApiServer:
    """Answers the control requests that other nodes hand on.

    Args:
        table: The routes.
        run: Runs a handler.
        bodies: Counts what is held.
        state: Names who was removed.
    """

    def __init__(self, table: RouteTable, run: Run, bodies: BodyBudget, state: StateView) -> None:
        self._state = state
        self._table = table
        self._run = run
        self._bodies = bodies
        self.is_stopping = False

    async def handle(self, asker: NodeId, call: CallApi) -> ApiAnswer:
        """Answer one request; nothing is raised but `CancelledError`.

        The asking node has checked its client's scope, so that here the node counts: it is a
        member, which the connection's key has proved.
        """
        share = self._bodies.share()
        request = Request(_asgi_scope(call), _body_of(call), share)
        request.asker = asker
        request.is_for_this_node = True
        request.command_id = call.command_id
        request.principal = Principal(name=f"node {asker}", scope="admin")
        try:
            self._refuse_removed(asker)
            reply = await self._reply(request)
        except SkulkError as error:
            dialect = dialect_of(request.path, "control")
            reply = error_reply(error, dialect=dialect, command_id=request.command_id)
        except Exception:  # ruff: ignore[blind-except]  a bug is logged, and fails this request alone
            _log.exception("handling %s %.200s for %s failed", call.method, call.path, asker)
            reply = error_reply(bug(), dialect="control", command_id=request.command_id)
        finally:
            share.release()
        return _answer(reply, request)

    def _refuse_removed(self, asker: NodeId) -> None:
        """Refuse who is out: it stays connected for the moment that it takes to hear so."""
        if asker in self._state.state.removed:
            raise RequestError(
                "request.forbidden",
                f"{asker} was removed from this cluster",
                remediation="To have it back, make a new invitation on a member (`skulk cluster "
                "invite`) and join by it.",
            )

    async def _reply(self, request: Request) -> Reply:
        if self.is_stopping:
            raise stopping()
        found, request.params = self._table.find(request.path)
        route = found.route_for(request.method)
        if route.reach == "local":
            raise RequestError(
                "request.forbidden",
                f"{request.method} {request.path[:200]} is not answered to another node",
                remediation="Ask this node's own HTTP API.",
            )
        if request.query("node") is not None:
            raise RequestError(
                "request.invalid",
                "a request that was handed on names a node again",
                remediation="Run the same build on both nodes: `skulk nodes -o wide`.",
                details={"param": "node"},
            )
        answer = await self._run(route, request)
        if not isinstance(answer, Reply):
            raise RequestError(
                "request.forbidden",
                "a stream is not answered to another node",
                remediation="Ask this node's own HTTP API.",
            )
        return answer


def _answer(reply: Reply, request: Request) -> ApiAnswer:
    if len(reply.body) > _MAX_ANSWER_BYTES:
        too_long = RequestError(
            "request.too_large",
            f"the answer has {len(reply.body)} bytes; between nodes it may have "
            f"{_MAX_ANSWER_BYTES}",
            remediation="Ask for less at a time, or ask the node's own HTTP API.",
        )
        reply = error_reply(too_long, dialect="control", command_id=request.command_id)
    types = [value for name, value in reply.headers if name == b"content-type"]
    return ApiAnswer(
        status=reply.status,
        content_type=(types or [_JSON[1]])[0].decode("latin-1"),
        body=reply.body,
    )


def _asgi_scope(call: CallApi) -> AsgiScope:
    return {
        "type": "http",
        "method": call.method,
        "path": unquote(call.path),
        "query_string": call.query.encode("ascii", "replace"),
        "headers": [_JSON],
        "client": None,
        "server": None,
        "extensions": {CONNECTION: NoConnection()},
    }


def _body_of(call: CallApi) -> Receive:
    async def receive() -> Message:
        return {"type": "http.request", "body": call.body, "more_body": False}

    return receive
