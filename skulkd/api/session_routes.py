"""`GET /v1/session`: from a request to a session, and all of them together."""

from typing import Final, final

from protocol.errors import RequestError
from protocol.session import CLIENT_FRAME_MAX_BYTES
from skulkd.api.auth import includes
from skulkd.api.dependencies import ApiDependencies
from skulkd.api.http import Answer, Request, UpgradeReply
from skulkd.api.interrupt import stopping
from skulkd.api.session import Session, SessionParts
from skulkd.api.session_logs import LogReaders
from skulkd.api.session_ports import Door
from skulkd.api.session_topics import RowTopics

MAX_SESSIONS: Final = 64
MAX_WITHOUT_READ: Final = 32
"""Of these, so that clients of models cannot keep an operator out."""
_VERSION: Final = b"13"


@final
class SessionRoutes:
    """The route that sessions come by.

    Args:
        deps: The rest of the daemon.
    """

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps
        self._topics = RowTopics(deps)
        self._log_readers = LogReaders()
        self._sessions: set[Session] = set()
        self.door: Door | None = None
        """The API behind the sessions; set by the app, which is made of routes."""

    @property
    def n_open(self) -> int:
        """How many sessions there are."""
        return len(self._sessions)

    def stop(self) -> None:
        """Say to every session that this node stops, and end it."""
        for session in list(self._sessions):
            session.close(stopping())
        self._topics.stop()

    async def open(self, request: Request) -> Answer:
        """`GET /v1/session`: a WebSocket from here on."""
        # Loaded by the first session: it takes 6 ms of every start of a daemon that has none.
        from skulkd.api.web_socket import WebSocketConnection, accepting_head, is_upgrade

        headers = request.headers
        is_asked = is_upgrade(headers.get(b"connection"), headers.get(b"upgrade"))
        if request.method != "GET" or not is_asked:
            raise _upgrade_required("this route is a WebSocket")
        if headers.get(b"sec-websocket-version") != _VERSION:
            raise _upgrade_required("the version of the WebSocket protocol must be 13")
        try:
            head = accepting_head(headers.get(b"sec-websocket-key") or b"")
        except ValueError as error:
            raise RequestError(
                "request.invalid",
                f"Sec-WebSocket-Key is not valid: {error}",
                remediation="Use a WebSocket client.",
            ) from error
        self._check_room(request)
        session = Session(request, self._parts())
        socket = WebSocketConnection(session, max_bytes=CLIENT_FRAME_MAX_BYTES)
        session.attach(socket)
        return UpgradeReply(connection=request.connection, head=head, protocol=socket)

    def _check_room(self, request: Request) -> None:
        can_read = includes(request.principal.scope, "read")
        limit = MAX_SESSIONS if can_read else MAX_WITHOUT_READ
        if len(self._sessions) >= limit:
            raise RequestError(
                "request.overloaded",
                f"{len(self._sessions)} sessions are open, no more are taken",
                remediation="End some of them, or attach to another node.",
                retry_after_s=5,
            )

    def _parts(self) -> SessionParts:
        assert self.door is not None  # ruff: ignore[assert]  the app sets it before it serves
        return SessionParts(
            deps=self._deps,
            door=self.door,
            topics=self._topics,
            log_readers=self._log_readers,
            on_opened=self._sessions.add,
            on_over=self._sessions.discard,
        )


def _upgrade_required(why: str) -> RequestError:
    return RequestError(
        "request.upgrade_required",
        why,
        remediation="Use `skulk`, or a WebSocket client; see docs/session-protocol.md.",
    )
