"""What a session stands on: its socket, and the API behind it."""

from typing import Protocol

from protocol.ids import CommandId
from protocol.session import SessionRequest
from skulkd.api.auth import RouteScope
from skulkd.api.http import Principal, Reply, Request
from skulkd.api.streams import KeptStream


class Socket(Protocol):
    """The server's end of one WebSocket; `skulkd.api.web_socket` has it."""

    @property
    def is_writable(self) -> bool:
        """What is sent now leaves soon: the other end takes what it gets."""
        ...

    def send(self, message: bytes) -> None:
        """Send a text message, whole; nothing happens once the socket is closing."""
        ...

    def close(self, code: int = 1000, reason: str = "") -> None:
        """Say goodbye, and close once what is buffered has been taken, within 2 s. Idempotent."""
        ...


class Door(Protocol):
    """The API as a session may use it; `skulkd.api.session_door` has it."""

    def identify(self, opening: Request) -> Principal:
        """Say who a session belongs to by what counts now: a key may have been revoked."""
        ...

    def require(self, opening: Request, scope: RouteScope) -> None:
        """Refuse what a session's key does not allow.

        Raises:
            RequestError: `request.unauthenticated`, `request.forbidden`.
        """
        ...

    async def answer(self, opening: Request, wish: SessionRequest) -> Reply:
        """Answer a request as HTTP would; nothing is raised but `CancelledError`."""
        ...

    async def open_chat(self, opening: Request, body: dict[str, object]) -> KeptStream:
        """Begin a chat.

        Raises:
            SkulkError: Why it cannot be.
        """
        ...

    def kept_stream(self, opening: Request, command_id: CommandId) -> KeptStream:
        """Find a stream to go on with.

        Raises:
            RequestError: `request.not_found`, `request.unauthenticated`, `request.forbidden`.
        """
        ...

    def cancel_chat(self, command_id: CommandId) -> None:
        """End a chat that was opened or resumed here."""
        ...
