"""One connection of a session, from dialling to its end: frames in, frames out, credit, pongs.

It answers what the protocol wants answered and refuses what makes no sense; what a frame means to
the cluster is not its business.
"""

import asyncio
import json
from collections import deque
from typing import Final, Protocol, cast, final

from pydantic import ValidationError

from protocol.base import FrozenModel
from protocol.errors import ClientError, ProtocolError, SessionError, SkulkError, error_of
from protocol.session import (
    CLIENT_FRAME_MAX_BYTES,
    NODE_FRAME_MAX_BYTES,
    SESSION_VERSION,
    ClientHello,
    Closing,
    Credit,
    NodeFrame,
    NodeHello,
    Ping,
    Pong,
    read_node_frame,
)
from skulk_tui.session_calls import bad_frame
from skulk_tui.session_socket import Connector, Socket, SocketClosedError
from skulk_tui.target import Target
from skulk_tui.tasks import Tasks

CREDIT_BYTES: Final = 1 << 20
CREDIT_BACK_BYTES: Final = CREDIT_BYTES // 8
"""How much is taken before the node is told; the rest is told with every pong."""
OUTBOX_MAX: Final = 1024
"""Frames that wait for a socket that does not take them."""


class LinkEnds(Protocol):
    """What a connection tells; each call is about the connection that makes it."""

    def on_frame(self, connection: "Connection", frame: NodeFrame) -> None:
        """A frame has come: the node's hello first, and once; pings are answered already.

        Raises:
            ProtocolError: It makes no sense here; the connection ends.
        """
        ...

    def on_end(self, connection: "Connection", error: SkulkError) -> None:
        """It is over, and was not stopped from this side."""
        ...


@final
class Connection:
    """One socket and its two tasks.

    Args:
        target: The node.
        ends: Is told what comes, and the end.
        connect: Opens the socket.
        client: Name and version of the program.
    """

    def __init__(self, target: Target, ends: LinkEnds, *, connect: Connector, client: str) -> None:
        self.target = target
        self._ends = ends
        self._connect = connect
        self._client = client
        self._outbox: deque[str] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        self._has_hello = False
        self._owed_bytes = 0
        self.n_taken_bytes = 0

    def start(self, tasks: Tasks) -> None:
        """Dial."""
        self._task = tasks.start(self._run(tasks), name=f"connection to {self.target.url}")

    def stop(self) -> None:
        """End it without a word; nothing is told any more."""
        self._is_over = True
        self._wake.set()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    def put(self, frame: FrozenModel) -> None:
        """Send a frame after those put before it; after the end it goes nowhere.

        Raises:
            ProtocolError: `protocol.too_large`: the node would end the session over it.
        """
        text = frame.model_dump_json(exclude_none=True)
        # A character is a byte or more, so that most frames need no second look.
        if len(text) * 4 > CLIENT_FRAME_MAX_BYTES and len(text.encode()) > CLIENT_FRAME_MAX_BYTES:
            raise ProtocolError(
                "protocol.too_large",
                f"a request of {len(text)} characters does not fit into a session's frame",
                remediation="Send it over HTTP: `skulk` does.",
            )
        if not self._is_over:
            self._outbox.append(text)
            self._wake.set()

    async def _run(self, tasks: Tasks) -> None:
        socket: Socket | None = None
        try:
            socket = await self._connect(self.target)
            self.put(ClientHello(client=self._client, credit_bytes=CREDIT_BYTES))
            tasks.start(self._write(socket), name=f"writer to {self.target.url}")
            while not self._is_over:
                self._take(await socket.receive())
        except SocketClosedError as closed:
            self._end(ClientError("client.unreachable", str(closed)))
        except SkulkError as wrong:
            self._end(wrong)
        finally:
            self._is_over = True
            self._wake.set()
            if socket is not None:
                await socket.close()

    async def _write(self, socket: Socket) -> None:
        while not self._is_over:
            while self._outbox:
                try:
                    await socket.send(self._outbox.popleft())
                except SocketClosedError:
                    return  # the reader learns of it too, and tells
            self._wake.clear()
            await self._wake.wait()

    def _end(self, error: SkulkError) -> None:
        if not self._is_over:
            self._is_over = True
            self._ends.on_end(self, error)

    def _take(self, raw: bytes) -> None:
        frame = _read(raw)
        if isinstance(frame, Closing):
            raise error_of(frame.error)
        if isinstance(frame, NodeHello) is self._has_hello:
            said = "a second hello" if self._has_hello else f"{frame.type!r} before its hello"
            fault = f"it sent {said}"
            raise bad_frame(fault)
        if isinstance(frame, NodeHello):
            self._has_hello = True
            if frame.version != SESSION_VERSION:
                raise _other_version(frame)
        self._ends.on_frame(self, frame)
        self._pay(len(raw), is_ping=isinstance(frame, Ping))
        if isinstance(frame, Ping):
            self.put(Pong(n=frame.n))

    def _pay(self, n_bytes: int, *, is_ping: bool) -> None:
        self.n_taken_bytes += n_bytes
        self._owed_bytes += n_bytes
        if self._owed_bytes >= CREDIT_BACK_BYTES or is_ping:
            self.put(Credit(bytes=self._owed_bytes))
            self._owed_bytes = 0
        if len(self._outbox) > OUTBOX_MAX:
            raise ClientError("client.unreachable", "it takes nothing that is sent to it")


def _read(raw: bytes) -> NodeFrame:
    if len(raw) > NODE_FRAME_MAX_BYTES:
        fault = f"it sent a message of {len(raw)} bytes"
        raise bad_frame(fault)
    try:
        return read_node_frame(raw)
    except ValidationError as wrong:
        if (told := _closing_of_a_newer_node(raw)) is not None:
            raise bad_frame(told) from wrong
        first = wrong.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        fault = f"it sent what is no frame: {where}: {first['msg']}"
        raise bad_frame(fault) from wrong


def _closing_of_a_newer_node(raw: bytes) -> str | None:
    """Give the words of a `closing` whose code this build does not know."""
    try:
        frame: object = json.loads(raw)
    except (ValueError, RecursionError):  # no JSON, or nested without end
        return None
    if not isinstance(frame, dict):
        return None
    fields = cast("dict[str, object]", frame)
    error = fields.get("error")
    if fields.get("type") != "closing" or not isinstance(error, dict):
        return None
    message = cast("dict[str, object]", error).get("message")
    return message if isinstance(message, str) else None


def _other_version(hello: NodeHello) -> SessionError:
    return SessionError(
        "session.incompatible",
        f"{hello.name} ({hello.build}) speaks version {hello.version} of the session,"
        f" this program {SESSION_VERSION}",
        remediation="Bring both to one version, or attach to another node.",
    )
