"""A loopback HTTP origin that serves one file, and misbehaves as told."""

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.local_origin import QuietHandler, serving_by


@dataclass
class Origin:
    """What is served and how. Change it between requests, from the test's thread."""

    content: bytes
    etag: str | None = '"v1"'
    ignore_range: bool = False
    """Answer 200 with the whole file, whatever was asked."""
    wrong_range: bool = False
    """Answer 206 with another range than the one asked for."""
    cut_after: int | None = None
    """Close the connection after so many bytes of an answer."""
    stall_after: int | None = None
    """Send so many bytes of an answer, then keep the socket open and say nothing."""
    stall_before_headers: bool = False
    corrupt_answers: int = 0
    """So many answers have one byte wrong."""
    status: int | None = None
    """Answer with this status and nothing else."""
    location: str | None = None
    with_length: bool = True
    length: int | None = None
    """Claim this Content-Length."""
    encoding: str | None = None
    pause_s: float = 0.0
    """Between pieces of 16 KiB."""
    requests: list[str | None] = field(default_factory=list[str | None])
    """The Range header of each request, in order."""
    url: str = ""
    base: str = ""
    """The same without a path: `http://127.0.0.1:PORT`."""
    released: threading.Event = field(default_factory=threading.Event)


_PIECE_BYTES = 16 * 1024


class _Handler(QuietHandler):
    origin: Origin

    def respond(self) -> None:
        origin = self.origin
        asked = self.headers.get("Range")
        origin.requests.append(asked)
        if origin.stall_before_headers:
            origin.released.wait(30)
            return
        if origin.status is not None:
            self._head(origin.status, 0)
            return
        start = 0
        if asked is not None and not origin.ignore_range:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            matches = self.headers.get("If-Range") in {None, origin.etag}
            if not matches:
                start = 0
            elif start >= len(origin.content):
                self._head(416, 0)
                return
        body = bytearray(origin.content[start:])
        if origin.corrupt_answers > 0 and body:
            origin.corrupt_answers -= 1
            body[len(body) // 2] ^= 0xFF
        if start:
            shown = start + 1 if origin.wrong_range else start
            end, total = len(origin.content) - 1, len(origin.content)
            self._head(206, len(body), content_range=f"bytes {shown}-{end}/{total}")
        else:
            self._head(200, len(body))
        self._send(bytes(body))

    def _head(self, status: int, length: int, *, content_range: str | None = None) -> None:
        origin = self.origin
        self.send_response(status)
        if origin.with_length:
            self.send_header("Content-Length", str(origin.length or length))
        if origin.etag is not None:
            self.send_header("ETag", origin.etag)
        if content_range is not None:
            self.send_header("Content-Range", content_range)
        if origin.location is not None:
            self.send_header("Location", origin.location)
        if origin.encoding is not None:
            self.send_header("Content-Encoding", origin.encoding)
        self.send_header("Connection", "close")
        self.end_headers()

    def _send(self, body: bytes) -> None:
        origin = self.origin
        if origin.stall_after is not None:
            self._write(body[: origin.stall_after])
            origin.released.wait(30)
        elif origin.cut_after is not None:
            self._write(body[: origin.cut_after])
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            for at in range(0, len(body), _PIECE_BYTES):
                if not self._write(body[at : at + _PIECE_BYTES]):
                    return
                if origin.pause_s and origin.released.wait(origin.pause_s):
                    return

    def _write(self, piece: bytes) -> bool:
        try:
            self.wfile.write(piece)
            self.wfile.flush()
        except OSError:
            return False  # The client has left, as cancelled clients do.
        return True


@contextmanager
def serving(origin: Origin) -> Generator[Origin]:
    """Serve until the block ends; then every connection is let go."""

    class Handler(_Handler):
        pass

    Handler.origin = origin
    with serving_by(Handler, origin.released) as url:
        origin.base, origin.url = url, f"{url}/file.whl"
        yield origin
