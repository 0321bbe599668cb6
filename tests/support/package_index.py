"""A package index on loopback with one wheel; who is not pip gets it as slowly as told."""

import hashlib
import re
import threading
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.local_origin import QuietHandler, serving_by
from tests.support.wheel_builder import PACKAGE

_PIECE_BYTES: Final = 64 * 1024
_STALL_LIMIT_S: Final = 60


@dataclass
class PackageIndex:
    """What is served, how slowly, and what was asked."""

    wheel: Path
    stall_after: int | None = None
    """Send so many bytes of an answer, then keep the socket open and say nothing."""
    ranges: list[str | None] = field(default_factory=list[str | None])
    """The Range header of each request that was not pip's, in order."""
    released: threading.Event = field(default_factory=threading.Event)
    """Set, it lets every stalled answer end."""
    url: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """What makes pip ask here and nowhere else."""
        return {
            "PIP_INDEX_URL": self.url,
            "PIP_EXTRA_INDEX_URL": "",
            "PIP_CONFIG_FILE": "/dev/null",
        }


class _Handler(QuietHandler):
    index: PackageIndex

    def respond(self) -> None:
        if self.path.startswith("/simple/"):
            self._answer(_page(self.index.wheel), "text/html")
        elif self.path.endswith(".metadata"):
            self._answer(_metadata(self.index.wheel), "text/plain")
        else:
            self._send_wheel()

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _send_wheel(self) -> None:
        index = self.index
        content = index.wheel.read_bytes()
        asked = self.headers.get("Range")
        is_pip = self.headers.get("User-Agent", "").startswith("pip/")
        if not is_pip:
            index.ranges.append(asked)
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", asked or "")
        start = int(match[1]) if match else 0
        end = int(match[2]) + 1 if match and match[2] else len(content)
        body = content[start:end]
        self.send_response(206 if match else 200)
        if match:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"one"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            if not is_pip and index.stall_after is not None and not index.released.is_set():
                self.wfile.write(body[: index.stall_after])
                self.wfile.flush()
                index.released.wait(_STALL_LIMIT_S)
                return
            for at in range(0, len(body), _PIECE_BYTES):
                self.wfile.write(body[at : at + _PIECE_BYTES])
        except OSError:
            return  # The client has left, as killed clients do.


@contextmanager
def serving_index(index: PackageIndex) -> Generator[PackageIndex]:
    """Serve until the block ends; then every connection is let go."""

    class Handler(_Handler):
        pass

    Handler.index = index
    with serving_by(Handler, index.released) as url:
        index.url = f"{url}/simple/"
        yield index


def _page(wheel: Path) -> bytes:
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    metadata = hashlib.sha256(_metadata(wheel)).hexdigest()
    return (
        f'<!DOCTYPE html><html><body><a href="/files/{wheel.name}#sha256={digest}" '
        f'data-core-metadata="sha256={metadata}">{wheel.name}</a></body></html>'
    ).encode()


def _metadata(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as file:
        name = next(name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        assert name.startswith(PACKAGE.replace("-", "_"))
        return file.read(name)
