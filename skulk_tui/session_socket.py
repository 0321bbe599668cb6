"""The WebSocket under a session, and what each way of failing to open it means.

`websockets` is loaded when the first connection is made. Nothing is compressed, no proxy of the
environment is used and no redirect followed: each would show the API key to somebody else.
"""

from typing import TYPE_CHECKING, Final, Protocol, final

from pydantic import ValidationError

from protocol.control_api import ErrorDocument, read_answer
from protocol.errors import ClientError, SessionError, SkulkError
from protocol.session import NODE_FRAME_MAX_BYTES, SESSION_PATH
from skulk_tui.client import error_answered, insecure_key
from skulk_tui.target import Target
from skulk_tui.tasks import run_blocking
from skulk_tui.tls_pins import TlsTrust

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection
    from websockets.http11 import Response

CLOSE_TIMEOUT_S: Final = 1.0
OPEN_TIMEOUT_S: Final = 10.0
"""A last resort: whoever dials gives up before."""
QUEUED_FRAMES: Final = 16
_NOT_FOUND: Final = 404


class SocketClosedError(Exception):
    """The other side is gone; the message says how."""


class Socket(Protocol):
    """Whole text messages, in order."""

    async def send(self, text: str) -> None:
        """Send one; raises SocketClosedError."""
        ...

    async def receive(self) -> bytes:
        """Wait for one, in UTF-8; raises SocketClosedError."""
        ...

    async def close(self) -> None:
        """End it; bounded, and never raises."""
        ...


class Connector(Protocol):
    """Opens the socket to a node."""

    async def __call__(self, target: Target) -> Socket:
        """Connect.

        Raises:
            SkulkError: What the node answered the upgrade with.
            ClientError: `client.unreachable`, `client.insecure_key`, `client.bad_answer`,
                `client.certificate_changed`; `session.incompatible` where there are no sessions.
        """
        ...


@final
class WebSocketConnector:
    """Connects over the network.

    Args:
        trust: Which certificates are believed.
        user_agent: Name and version of the program.
    """

    def __init__(self, trust: TlsTrust, *, user_agent: str = "skulk") -> None:
        self._trust = trust
        self._user_agent = user_agent

    async def __call__(self, target: Target) -> Socket:
        """Connect; see `Connector`."""
        from websockets.exceptions import InvalidHandshake, InvalidStatus

        headers: dict[str, str] = {}
        if target.api_key is not None:
            if not target.key_may_travel:
                raise insecure_key(target)
            headers["authorization"] = f"Bearer {target.api_key}"
        try:
            return _WebSocket(await self._open(target, headers))
        except InvalidStatus as refused:
            raise _refusal(target, refused.response) from refused
        except InvalidHandshake as wrong:
            raise _bad_answer(target, str(wrong)) from wrong
        except TimeoutError as late:
            raise _unreachable(target, "it did not answer in time") from late
        except (OSError, EOFError) as wrong:
            changed = self._trust.change_in(wrong)
            raise changed or _unreachable(target, str(wrong) or type(wrong).__name__) from wrong

    async def _open(self, target: Target, headers: dict[str, str]) -> "ClientConnection":
        from websockets.asyncio.client import connect

        class ConnectHere(connect):
            """Follows no redirect."""

            def process_redirect(self, exc: Exception) -> Exception:
                return exc

        tls = None
        if target.url.startswith("https://"):
            tls = await run_blocking(self._trust.context, target.url)
        url = target.url.replace("http", "ws", 1) + SESSION_PATH
        return await ConnectHere(
            url,
            compression=None,
            proxy=None,
            additional_headers=headers,
            user_agent_header=self._user_agent,
            open_timeout=OPEN_TIMEOUT_S,
            close_timeout=CLOSE_TIMEOUT_S,
            ping_interval=None,
            max_size=NODE_FRAME_MAX_BYTES,
            max_queue=QUEUED_FRAMES,
            ssl=tls,
        )


@final
class _WebSocket:
    def __init__(self, connection: "ClientConnection") -> None:
        self._connection = connection

    async def send(self, text: str) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            await self._connection.send(text)
        except ConnectionClosed as closed:
            raise SocketClosedError(_how_it_closed(closed)) from closed

    async def receive(self) -> bytes:
        from websockets.exceptions import ConnectionClosed

        try:
            return await self._connection.recv(decode=False)
        except ConnectionClosed as closed:
            raise SocketClosedError(_how_it_closed(closed)) from closed

    async def close(self) -> None:
        # The node needs no goodbye: a session that breaks and one that ends are the same to it.
        self._connection.transport.abort()
        await self._connection.wait_closed()


def _how_it_closed(closed: Exception) -> str:
    from websockets.exceptions import ConnectionClosed
    from websockets.frames import CloseCode

    if not isinstance(closed, ConnectionClosed):
        return str(closed)
    ours, theirs = closed.sent, closed.rcvd
    if ours is not None and ours.code == CloseCode.MESSAGE_TOO_BIG:
        return f"it sent a message of more than {NODE_FRAME_MAX_BYTES >> 20} MiB"
    if ours is not None and not closed.rcvd_then_sent:
        return f"it broke the WebSocket protocol: {ours.reason or ours.code}"
    if theirs is not None:
        return f"it closed the connection{': ' + theirs.reason if theirs.reason else ''}"
    return "the connection broke off"


def _refusal(target: Target, response: "Response") -> SkulkError:
    try:
        envelope = read_answer(ErrorDocument, bytes(response.body or b"")).error
    except ValidationError:
        envelope = None
    if response.status_code == _NOT_FOUND:
        return SessionError(
            "session.incompatible",
            f"the node at {target.url} has no {SESSION_PATH}: its build is too old",
            remediation="Bring it to this program's version, or attach to another node.",
        )
    if envelope is not None:
        return error_answered(response.status_code, envelope)
    return _bad_answer(target, f"HTTP {response.status_code} {response.reason_phrase}")


def _bad_answer(target: Target, fault: str) -> ClientError:
    return ClientError(
        "client.bad_answer",
        f"{target.url} gives no answer of a skulk node: {fault}",
        remediation="Check the address; something else may listen there.",
    )


def _unreachable(target: Target, fault: str) -> ClientError:
    remedy = f"Check that skulkd runs there and listens beyond loopback ({target.url})."
    if target.is_loopback:
        remedy = "Is skulkd running? Start `skulkd`, or see `systemctl --user status skulkd`."
    return ClientError(
        "client.unreachable", f"no node answers at {target.url}: {fault}", remediation=remedy
    )
