"""Where bytes come from: an HTTP origin, or a file that the package index keeps on this machine.

An origin is never believed: a range answer must be the range that was asked for, a changed version
starts over, more bytes than promised are refused, and redirects are not followed.
"""

import asyncio
import os
import re
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, ParamSpec, Protocol, TypeVar, final
from urllib.parse import SplitResult, unquote, urlsplit

from protocol.errors import StoreError
from protocol.ids import Digest
from store.layout import disk_error
from store.partial import Partial
from store.rate_limit import RateLimit
from store.threads import in_thread

if TYPE_CHECKING:
    import httpx

P = ParamSpec("P")
T = TypeVar("T")

_FLUSH_BYTES: Final = 1 << 20
_TELL_EVERY_S: Final = 1.0
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
_LENGTH: Final = re.compile(r"\d{1,18}")
_OK: Final = 200
_PARTIAL_CONTENT: Final = 206
_RANGE_NOT_SATISFIABLE: Final = 416
_RETRIED_STATUSES: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """What to fetch, and what proves it."""

    url: str
    """`https:`, `http:` or `file:`."""
    sha256: Digest
    max_bytes: int
    """More is refused, whatever the origin says."""

    @property
    def origin(self) -> str:
        """The host, for people and logs; never the whole address, which may hold a secret."""
        return self.parts.hostname or "this machine"

    @property
    def parts(self) -> SplitResult:
        """The address in parts; empty ones when it is none."""
        try:
            return urlsplit(self.url)
        except ValueError:
            return urlsplit("")


class FetchObserver(Protocol):
    """Who is told how a fetch goes; called on the event loop, and quick."""

    def on_size(self, total_bytes: int, staged_bytes: int) -> None:
        """Refuse a file for which there is no room, by raising, before its first byte."""
        ...

    def on_resumed(self, staged_bytes: int, total_bytes: int | None) -> None:
        """Count from here: bytes of an earlier try are kept."""
        ...

    def on_bytes(self, done_bytes: int) -> None:
        """Note that so many bytes of the file are here."""
        ...


class Origin(Protocol):
    """One place that bytes come from."""

    async def read_into(
        self, request: FetchRequest, partial: Partial, observer: FetchObserver
    ) -> None:
        """Append what is missing; return when the origin says that it is all.

        Raises:
            AttemptError: Another try may succeed.
            StoreError: None will.
        """
        ...


class AttemptError(Exception):
    """One attempt failed in a way that another may not.

    Args:
        error: What to say when no attempt is left.
    """

    def __init__(self, error: StoreError) -> None:
        super().__init__(str(error))
        self.error = error


async def on_disk(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking call on the staging directory in a thread.

    Raises:
        StoreError: `store.no_space`, `store.disk_failed`: never mistaken for the network's.
    """
    try:
        return await in_thread(function, *args, **kwargs)
    except OSError as error:
        raise disk_error(error, "keeping what was fetched") from error


@final
class FileOrigin:
    """A wheel that the package index keeps on this machine.

    Args:
        limit: How fast it may be read; None is as fast as it comes.
    """

    def __init__(self, limit: RateLimit | None = None) -> None:
        self._limit = limit

    async def read_into(
        self, request: FetchRequest, partial: Partial, observer: FetchObserver
    ) -> None:
        """As `Origin`; a file is resumed while it is the same inode, unchanged."""
        path = unquote(request.parts.path)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            raise unavailable(request, f"{path[:200]!r} cannot be read ({error})") from error
        try:
            await self._copy(descriptor, request, partial, observer)
        finally:
            os.close(descriptor)

    async def _copy(
        self, descriptor: int, request: FetchRequest, partial: Partial, observer: FetchObserver
    ) -> None:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise unavailable(request, "the wheel's address is not a regular file")
        _check_size(request, found.st_size)
        etag = f"{found.st_ino}-{found.st_mtime_ns}"
        if partial.length and partial.etag != etag:
            await on_disk(partial.restart)
        observer.on_size(found.st_size, partial.length)
        await on_disk(partial.describe, total_bytes=found.st_size, etag=etag)
        while partial.length < found.st_size:
            chunk = await on_disk(os.pread, descriptor, _FLUSH_BYTES, partial.length)
            if not chunk:
                raise unavailable(request, "the wheel became shorter while it was read")
            if self._limit is not None:
                await self._limit.take(len(chunk))
            await on_disk(partial.append, chunk)
            observer.on_bytes(partial.length)


@final
class HttpOrigin:
    """An origin on the network.

    Args:
        client: Follows no redirects.
        stall_s: Without one byte for so long, an answer is given up.
        limit: How fast bytes may come; None is as fast as they do.
    """

    def __init__(
        self, client: "httpx.AsyncClient", *, stall_s: float, limit: RateLimit | None = None
    ) -> None:
        self._client = client
        self._limit = limit
        self._stall_s = stall_s

    async def read_into(
        self, request: FetchRequest, partial: Partial, observer: FetchObserver
    ) -> None:
        """As `Origin`; asks for the bytes from the partial's end on."""
        import httpx

        try:
            total = await self._read_answer(request, partial, observer)
        except TimeoutError as error:
            raise AttemptError(self._stalled(request, partial)) from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            problem = f"{type(error).__name__}: {error}".rstrip(": ")
            raise AttemptError(unavailable(request, problem)) from error
        if total is not None and partial.length < total:
            problem = f"ended after {partial.length} of {total} bytes"
            raise AttemptError(unavailable(request, problem))

    async def _read_answer(
        self, request: FetchRequest, partial: Partial, observer: FetchObserver
    ) -> int | None:
        async with self._answered(request, partial) as response:
            await self._check_status(request, response, partial)
            total = await self._agree(request, response, partial)
            if total is not None:
                _check_size(request, total)
                observer.on_size(total, partial.length)
            etag = response.headers.get("etag", partial.etag)
            await on_disk(partial.describe, total_bytes=total, etag=etag)
            await self._read_body(request, response, partial, observer)
            return total

    @asynccontextmanager
    async def _answered(
        self, request: FetchRequest, partial: Partial
    ) -> AsyncGenerator["httpx.Response"]:
        # The bytes are compressed already, and their digest is that of the file as it is.
        headers = {"accept-encoding": "identity"}
        if partial.length:
            headers["range"] = f"bytes={partial.length}-"
            if partial.etag is not None and not partial.etag.startswith("W/"):
                headers["if-range"] = partial.etag
        asked = self._client.build_request("GET", request.url, headers=headers)
        async with asyncio.timeout(self._stall_s):
            response = await self._client.send(asked, stream=True)
        try:
            yield response
        finally:
            await response.aclose()

    async def _check_status(
        self, request: FetchRequest, response: "httpx.Response", partial: Partial
    ) -> None:
        status = response.status_code
        if status == _RANGE_NOT_SATISFIABLE and partial.length:
            # What the origin has now is shorter than what is here.
            await on_disk(partial.restart)
            raise AttemptError(_changed(request))
        if status in _RETRIED_STATUSES:
            raise AttemptError(unavailable(request, f"answered {status}"))
        if response.is_redirect:
            # Where to is not told: signed addresses are secrets, and this text is kept in State.
            raise unavailable(request, f"redirects ({status}), which is not followed")
        if status not in {_OK, _PARTIAL_CONTENT}:
            raise unavailable(request, f"answered {status}")
        encoding = str(response.headers.get("content-encoding", "identity")).lower()
        if encoding != "identity":
            raise unavailable(request, f"sends the file as {encoding[:40]!r}, unasked")

    async def _agree(
        self, request: FetchRequest, response: "httpx.Response", partial: Partial
    ) -> int | None:
        """Bring partial and answer to the same offset; give the size of the whole file."""
        if response.status_code == _OK:
            if partial.length:
                # The origin ignores ranges, or has another version: this is the whole file.
                await on_disk(partial.restart)
            length = str(response.headers.get("content-length", ""))
            return int(length) if _LENGTH.fullmatch(length) else None
        range_text = str(response.headers.get("content-range", "")).strip()
        etag = response.headers.get("etag", partial.etag)
        match = _CONTENT_RANGE.fullmatch(range_text)
        total = None if match is None or match[3] == "*" else int(match[3])
        same = match is not None and int(match[1]) == partial.length and etag == partial.etag
        if not same or partial.total_bytes not in {None, total or partial.total_bytes}:
            # Not the range asked for, or of another version: none of it can be used.
            await on_disk(partial.restart)
            raise AttemptError(_changed(request))
        return total or partial.total_bytes

    async def _read_body(
        self,
        request: FetchRequest,
        response: "httpx.Response",
        partial: Partial,
        observer: FetchObserver,
    ) -> None:
        waiting = bytearray()
        try:
            await self._take_chunks(request, response, partial, observer, waiting)
        except BaseException:
            # A cut, a stall, a cancel: what has arrived is not asked for again. The first error
            # is the one to tell; one of the disk will show again on the next try.
            with suppress(StoreError):
                await _flush(waiting, partial)
            raise
        await _flush(waiting, partial)

    async def _take_chunks(
        self,
        request: FetchRequest,
        response: "httpx.Response",
        partial: Partial,
        observer: FetchObserver,
        waiting: bytearray,
    ) -> None:
        total = partial.total_bytes
        limit = request.max_bytes if total is None else total
        body = response.aiter_raw()
        here = partial.length
        # Told again while nothing comes, so that what is shown of a stall is a stall.
        with _repeated(lambda: observer.on_bytes(here)):
            while chunk := await self._next(body):
                waiting += chunk
                here = partial.length + len(waiting)
                if here > limit:
                    waiting.clear()
                    raise unavailable(request, f"sends more than the {limit} bytes promised")
                observer.on_bytes(here)
                if len(waiting) >= _FLUSH_BYTES:
                    await _flush(waiting, partial)
                if self._limit is not None:
                    await self._limit.take(len(chunk))

    async def _next(self, body: AsyncIterator[bytes]) -> bytes:
        async with asyncio.timeout(self._stall_s):
            return await anext(body, b"")

    def _stalled(self, request: FetchRequest, partial: Partial) -> StoreError:
        total = partial.total_bytes
        return StoreError(
            "store.stalled",
            f"{request.origin} sent nothing for {self._stall_s:g} s; "
            f"{partial.length} of {'?' if total is None else total} bytes are here",
            remediation="Check the network of this node, then pull again: what is here is kept.",
            details={"done_bytes": partial.length, "total_bytes": total},
            retry_after_s=60,
        )


@contextmanager
def _repeated(call: Callable[[], None]) -> Generator[None]:
    """Call once a second on the event loop, until the block ends."""
    loop = asyncio.get_running_loop()

    def tick() -> None:
        nonlocal timer
        call()
        timer = loop.call_later(_TELL_EVERY_S, tick)

    timer = loop.call_later(_TELL_EVERY_S, tick)
    try:
        yield
    finally:
        timer.cancel()


async def _flush(waiting: bytearray, partial: Partial) -> None:
    content = bytes(waiting)
    waiting.clear()
    if content:
        await on_disk(partial.append, content)


def unavailable(request: FetchRequest, problem: str) -> StoreError:
    """Say that an origin cannot or does not give the file."""
    return StoreError(
        "store.source_unavailable",
        f"{request.origin}: {problem}",
        remediation="Check that this node reaches the origin (proxy, certificates, name), "
        "then pull again: what is here is kept.",
        details={"origin": request.origin},
        retry_after_s=60,
    )


def _changed(request: FetchRequest) -> StoreError:
    return StoreError(
        "store.source_changed",
        f"{request.origin} serves another version of the file than before",
        remediation="Pull again; if it stays so, the card's version is no longer served there.",
        details={"origin": request.origin},
        retry_after_s=60,
    )


def _check_size(request: FetchRequest, total_bytes: int) -> None:
    if total_bytes > request.max_bytes:
        raise unavailable(
            request, f"has {total_bytes} bytes, at most {request.max_bytes} are expected"
        )
