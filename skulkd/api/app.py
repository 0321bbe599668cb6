"""The ASGI application: guards, routing, errors and the audit line, around every handler.

The order is fixed and short. Who is addressed (Host), from where (Origin), which route, who asks
(key and scope), whether there is room; only then is a byte of the body read.
"""

import asyncio
import logging
from functools import partial
from typing import Final, final

from protocol.control_api import COMMAND_ID_HEADER
from protocol.errors import RequestError, SkulkError
from protocol.ids import KeyId
from skulkd.api.auth import Authenticator
from skulkd.api.body_budget import BodyBudget, BodyShare
from skulkd.api.dependencies import ApiDependencies
from skulkd.api.errors import CLIENT_CLOSED_REQUEST, bug, error_reply, status_of
from skulkd.api.http import Answer, AsgiScope, Header, Receive, Request, Send
from skulkd.api.interrupt import stopping
from skulkd.api.openapi import ApiDescription
from skulkd.api.origin import HostPolicy, OriginPolicy, preflight
from skulkd.api.other_nodes import OtherNodes
from skulkd.api.peer_api import PeerApiServer
from skulkd.api.places import Place, Places
from skulkd.api.request_meters import HttpKey
from skulkd.api.routes import (
    INFERENCE_PATHS,
    Kind,
    RouteSpec,
    RouteTable,
    Services,
    build_routes,
    dialect_of,
)
from skulkd.api.session_door import SessionDoor
from skulkd.api.streams import KeptStream

_log = logging.getLogger(__name__)
_audit = logging.getLogger("skulkd.audit")

_COMMAND_ID: Final = COMMAND_ID_HEADER.encode()
_NOSNIFF: Final[Header] = (b"x-content-type-options", b"nosniff")


@final
class _Handling:
    """What is known of one request so far."""

    __slots__ = ("cors", "held", "is_answering", "kind", "request", "route")

    def __init__(self, scope: AsgiScope, receive: Receive, held: BodyShare) -> None:
        self.held = held
        request = self.request = Request(scope, receive, held)
        self.kind: Kind = "inference" if request.path.startswith(INFERENCE_PATHS) else "control"
        self.route: RouteSpec | None = None
        self.cors: tuple[Header, ...] = ()
        self.is_answering = False


@final
class ApiApp:
    """Serves HTTP.

    Args:
        deps: The rest of the daemon.
    """

    def __init__(self, deps: ApiDependencies) -> None:
        self._own_id = deps.face.node_id
        self._meters = deps.meters
        self._mint = deps.gateway.mint_command_id
        self._others = OtherNodes(deps)
        self._services = Services.build(deps, self._others)
        self.routes = build_routes(self._services)
        self._services.reference.describe = partial(
            ApiDescription, self.routes, version=deps.face.version
        )
        self._table = RouteTable(self.routes)
        self._hosts = HostPolicy(
            deps.face.hostname, deps.allowed_hosts, further=deps.listeners.names
        )
        self._origins = OriginPolicy(deps.allowed_origins)
        self._authenticator = Authenticator(deps.state, deps.clock)
        self._bodies = BodyBudget(deps.max_held_body_bytes)
        self._places = Places(
            deps.max_concurrent_requests,
            self._services.limiter,
            deps.state,
            deps.clock,
            self._services.interrupt,
        )
        self._is_stopping = False
        self.peers = PeerApiServer(self._table, self._answer_peer, self._bodies, deps.state)
        """Answers what other nodes hand on for clients of theirs."""
        self._services.sessions.door = SessionDoor(
            self._table,
            self._authenticator,
            self._bodies,
            self._services.chat,
            run=self._answer_session,
            open_chat=self._open_chat,
        )

    @property
    def n_open(self) -> int:
        """How many requests are being handled."""
        return self._places.n_open

    def stop(self) -> None:
        """Refuse what comes and end what is open, each with an error that says so."""
        self._is_stopping = True
        self.peers.is_stopping = True
        self._services.stop()

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return
        handling = _Handling(scope, receive, self._bodies.share())
        try:
            await self._handle(handling, send)
        except SkulkError as error:
            if handling.is_answering:
                raise
            await self._refuse(handling, error, send)
        except Exception:
            if handling.is_answering:
                raise
            request = handling.request
            _log.exception("handling %s %.200s failed", request.method, request.path)
            await self._refuse(handling, bug(), send)

    async def _handle(self, handling: _Handling, send: Send) -> None:
        request = handling.request
        _refuse_smuggling(request)
        self._hosts.check_host(request)
        if handling.kind == "inference":
            handling.cors = self._origins.cors_headers(request)  # also where nothing is found
        found, request.params = self._table.find(request.path)
        handling.kind = found.kind
        if found.kind == "control":
            handling.cors = ()
            self._origins.check_control(request)
        else:
            handling.cors = self._origins.cors_headers(request)
            self._origins.check_inference(request)
            if request.method == "OPTIONS":
                await preflight(request).send_to(send, handling.cors)
                return
        route = handling.route = found.route_for(request.method)
        if route.kind == "inference":
            # Before anything of the request can be refused, so that every answer has one.
            request.command_id = self._mint()
        request.principal = self._authenticator.identify(request)
        place = self._admit(route, request)
        try:
            answer = await self._answer(route, request)
            place.check()
            self._tell(request, route, answer.status)
            handling.is_answering = True
            headers = (_NOSNIFF, *handling.cors, *_id_header(request), *place.headers())
            await answer.send_to(send, headers)
        finally:
            handling.held.release()
            place.free()

    async def _answer(self, route: RouteSpec, request: Request) -> Answer:
        """Run the handler, or have the node answer that the request names."""
        if route.reach == "handed_on":
            node_id = self._others.named(request)
            if node_id is not None and node_id != self._own_id:
                # There everything is told: what is open here is open to who may read.
                wanted = "read" if route.scope == "open" else route.scope
                self._authenticator.require(request, wanted)
                return await self._others.answer(
                    node_id, request, changes_state=route.changes_state
                )
            request.is_for_this_node = node_id is not None
        return await route.handler(request)

    async def _answer_peer(self, route: RouteSpec, request: Request) -> Answer:
        """Run a handler for another node, which has asked for a client of its own."""
        place = self._places.take(route, request)
        try:
            answer = await route.handler(request)
        except SkulkError as error:
            self._tell(request, route, status_of(error.code), error)
            raise
        finally:
            place.free()
        self._tell(request, route, answer.status)
        return answer

    async def _answer_session(self, route: RouteSpec, request: Request) -> Answer:
        """Run a handler, or hand the request on, for a session."""
        try:
            answer = await self._answer_in_place(route, request)
        except SkulkError as error:
            self._tell(request, route, status_of(error.code), error)
            raise
        except asyncio.CancelledError:
            self._tell(request, route, CLIENT_CLOSED_REQUEST)
            raise
        self._tell(request, route, answer.status)
        return answer

    async def _answer_in_place(self, route: RouteSpec, request: Request) -> Answer:
        place = self._admit(route, request)
        try:
            answer = await self._answer(route, request)
            place.check()
            return answer
        finally:
            place.free()

    async def _open_chat(self, request: Request) -> KeptStream:
        """Begin a chat for a session, which holds its place until the stream ends."""
        found, _ = self._table.find(request.path)
        route = found.route_for(request.method)
        place = self._admit(route, request)
        try:
            kept = await self._services.chat.open(request, place.free)
        except BaseException:
            place.free()
            raise
        if place.refusal is not None:
            self._services.interrupt(kept.command_id, place.refusal)
        return kept

    def _admit(self, route: RouteSpec, request: Request) -> Place:
        """Check the scope and take a place, which the caller gives back."""
        self._authenticator.require(request, route.scope)
        if self._is_stopping:
            raise stopping()
        return self._places.take(route, request)

    async def _refuse(self, handling: _Handling, error: SkulkError, send: Send) -> None:
        self._tell(handling.request, handling.route, status_of(error.code), error)
        headers = [_NOSNIFF, *handling.cors]
        allowed = error.details.get("allow")
        if error.code == "request.method_not_allowed" and isinstance(allowed, str):
            headers.append((b"allow", allowed.encode()))
        if error.code == "request.upgrade_required":
            headers.append((b"upgrade", b"websocket"))
        if error.code == "request.rate_limited":
            headers.extend(self._places.standing_of(KeyId(handling.request.principal.name)))
        if self._is_stopping:
            handling.request.connection.close_after_response()
        reply = error_reply(
            error,
            dialect=dialect_of(handling.request.path, handling.kind),
            command_id=handling.request.command_id,
        )
        await reply.send_to(send, tuple(headers))

    def _tell(
        self,
        request: Request,
        route: RouteSpec | None,
        status: int,
        error: SkulkError | None = None,
    ) -> None:
        """Count the answer; write who asked for which change, from where, and what came of it."""
        if request.asker is None:  # else the node that asks counts it, for its client
            self._meters.count_http(_http_key(request, route, status))
        if route is None or not route.changes_state:
            return
        _audit.info(
            "%s %.200s: %d",
            request.method,
            request.path,
            status,
            extra={
                "who": request.principal.name,
                "peer": request.peer,
                "status": status,
                "error_code": error.code if error else None,
                "command_id": request.command_id,
            },
        )


def create_app(deps: ApiDependencies) -> ApiApp:
    """Make the application; every route of it declares a scope."""
    return ApiApp(deps)


def _http_key(request: Request, route: RouteSpec | None, status: int) -> HttpKey:
    """Say what an answer is counted as; nothing that a client can make up is in it."""
    if route is None:
        return "(none)", "(any)", dialect_of(request.path, "control"), status
    return route.path, route.method, dialect_of(route.path, route.kind), status


def _id_header(request: Request) -> tuple[Header, ...]:
    command_id = request.command_id
    return () if command_id is None else ((_COMMAND_ID, command_id.encode()),)


def _refuse_smuggling(request: Request) -> None:
    """Refuse a header that is there twice: two readers would each believe their own."""
    conflicting = request.headers.conflicting
    if conflicting is not None:
        raise RequestError(
            "request.invalid",
            f"the header {conflicting.decode()} is there twice, with different values",
            remediation="Send it once.",
        )
