"""One WebSocket, from the upgrade on: whole text messages in both directions, bounded.

Bytes and frames are the business of `websockets`, without its I/O; what is added here is what this
node needs: one message at a time of at most so many bytes, no binary ones, no compression, and a
peer that takes nothing is not read from either, so that it cannot make us gather answers.
"""

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, Protocol, cast, final

from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.utils import accept_key

from protocol.errors import ErrorBody

CLOSE_WITHIN_S: Final = 2.0
"""For the other end to answer the closing handshake and take what is buffered."""
WRITE_BUFFER_BYTES: Final = 256 << 10
"""Beyond what the kernel holds; above it, nothing more is written."""
_log = logging.getLogger(__name__)
_library_log = logging.getLogger("skulkd.api.web_socket.frames")
_library_log.setLevel(logging.WARNING)  # it tells of every connection that ends


class SocketListener(Protocol):
    """Who speaks over the socket."""

    def on_opened(self) -> None:
        """The upgrade has been answered."""
        ...

    def on_message(self, data: bytes) -> None:
        """A whole text message has come; whether it is UTF-8 has not been checked."""
        ...

    def on_writable(self) -> None:
        """The other end reads again after it was too slow."""
        ...

    def on_refused(self, error: ErrorBody) -> bytes | None:
        """The other end broke the protocol; gives what it is told before the socket closes."""
        ...

    def on_lost(self) -> None:
        """The socket is closed, by whomever."""
        ...


@final
class WebSocketConnection(asyncio.Protocol):
    """The server's end of one WebSocket.

    Args:
        listener: Gets what arrives.
        max_bytes: Of one message that arrives.
    """

    def __init__(self, listener: SocketListener, *, max_bytes: int) -> None:
        self.client: tuple[str, int] | None = None
        self.on_gone: Callable[[], None] = _nobody
        self._listener = listener
        self._frames = ServerProtocol(state=State.OPEN, max_size=max_bytes, logger=_library_log)
        self._message = bytearray()
        self._transport: asyncio.Transport | None = None
        self._is_choked = False
        self._is_closing = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_writable(self) -> bool:
        """What is sent now leaves soon: the other end takes what it gets."""
        return self._transport is not None and not (self._is_choked or self._is_closing)

    def send(self, message: bytes) -> None:
        """Send a text message, whole; nothing happens once the socket is closing."""
        if not self._is_closing and self._frames.state is State.OPEN:
            self._frames.send_text(message)
            self._flush()

    def close(self, code: int = CloseCode.NORMAL_CLOSURE, reason: str = "") -> None:
        """Say goodbye, and close once what is buffered has been taken, within 2 s. Idempotent."""
        if self._is_closing or self._frames.state is not State.OPEN:
            return
        self._frames.send_close(code, reason)
        self._flush()
        self._end_soon()

    def shutdown(self) -> None:
        """Close, as the listener of HTTP asks its connections to when it stops."""
        self.close(CloseCode.GOING_AWAY)

    def abort(self) -> None:
        """Drop the connection with what is still buffered. Idempotent."""
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio.Protocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over a transport whose upgrade has been answered."""
        self._transport = cast("asyncio.Transport", transport)  # a stream's; uvloop has its own
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._listener.on_opened()

    def data_received(self, data: bytes) -> None:
        """Take bytes: none, one or several messages, and frames of the protocol's own."""
        self._frames.receive_data(data)
        for frame in self._frames.events_received():
            if isinstance(frame, Frame) and not self._is_closing:
                self._take(frame)
        failure = self._frames.parser_exc
        if failure is not None and not self._is_closing:
            self._refuse(_too_large() if self._is_too_big else _bad(str(failure)))
        self._flush()

    def eof_received(self) -> bool:
        """The other end sends nothing more: that is the end."""
        self._frames.receive_eof()
        return False

    def pause_writing(self) -> None:
        """The other end does not take what it gets. It is not read from until it does."""
        self._is_choked = True
        if self._transport is not None and not self._is_closing:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The other end reads on."""
        self._is_choked = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            if not self._is_closing:
                self._listener.on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the listener, once."""
        del exc
        self._is_closing = True
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self.on_gone()
        self._listener.on_lost()

    # ---- Frames ----

    @property
    def _is_too_big(self) -> bool:
        sent = self._frames.close_sent
        return sent is not None and sent.code == CloseCode.MESSAGE_TOO_BIG

    def _take(self, frame: Frame) -> None:
        if frame.opcode is Opcode.BINARY:
            self._refuse(_bad("binary frames mean nothing here; messages are JSON text"))
            self.close(CloseCode.UNSUPPORTED_DATA)
        elif frame.opcode in {Opcode.TEXT, Opcode.CONT}:
            self._message += frame.data
            if frame.fin:
                message, self._message = bytes(self._message), bytearray()
                self._listener.on_message(message)

    def _refuse(self, error: ErrorBody) -> None:
        """Tell why, before the goodbye that the frames' own protocol has written already."""
        told = self._listener.on_refused(error)
        if told is not None and self._transport is not None:
            self._transport.write(Frame(Opcode.TEXT, told).serialize(mask=False))

    def _flush(self) -> None:
        if self._transport is None:
            return
        for data in self._frames.data_to_send():
            if data:
                self._transport.write(data)
            else:
                # Half a close: closing over unread bytes would take back what was said last.
                self._transport.write_eof()
                self._end_soon()

    def _end_soon(self) -> None:
        if self._is_closing or self._transport is None:
            return
        self._is_closing = True
        self._transport.resume_reading()
        self._timer = asyncio.get_running_loop().call_later(CLOSE_WITHIN_S, self.abort)


def is_upgrade(connection: bytes | None, upgrade: bytes | None) -> bool:
    """Say whether a request's headers ask for a WebSocket."""
    tokens = {token.strip().lower() for token in (connection or b"").split(b",")}
    return b"upgrade" in tokens and (upgrade or b"").strip().lower() == b"websocket"


def accepting_head(key: bytes) -> bytes:
    """Write the answer to an upgrade.

    Raises:
        ValueError: The key is none.
    """
    text = key.decode("ascii")
    if len(text) != _KEY_CHARS:
        message = "a key has 16 bytes, in base64"
        raise ValueError(message)
    return (
        f"HTTP/1.1 {HTTPStatus.SWITCHING_PROTOCOLS} Switching Protocols\r\n"
        "upgrade: websocket\r\nconnection: Upgrade\r\n"
        f"sec-websocket-accept: {accept_key(text)}\r\n\r\n"
    ).encode()


_KEY_CHARS: Final = 24


def _nobody() -> None:
    """Nobody counts this connection."""


def _bad(why: str) -> ErrorBody:
    return ErrorBody(
        code="protocol.bad_frame",
        message=f"the session ends: {why[:200]}",
        remediation="See docs/session-protocol.md; run the same build on both ends.",
    )


def _too_large() -> ErrorBody:
    return ErrorBody(
        code="protocol.too_large",
        message="the session ends: a message was larger than a session takes",
        remediation="Send large bodies over HTTP.",
    )
