"""One file from a URL into staging: resumed, retried within bounds, verified before it has a name.

An origin that falls silent is left after a minute and asked again from the offset; slow and steady
is left alone. Bytes that do not give the expected digest are deleted.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from protocol.errors import StoreError
from store.origins import (
    AttemptError,
    FetchObserver,
    FetchRequest,
    FileOrigin,
    HttpOrigin,
    Origin,
    on_disk,
    unavailable,
)
from store.partial import Partial
from store.rate_limit import RateLimit
from store.threads import Sleep, in_thread

if TYPE_CHECKING:
    import httpx


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPolicy:
    """How patient a transfer is."""

    stall_s: float = 60.0
    """Without one byte for so long, the connection is given up."""
    connect_s: float = 15.0
    fruitless_attempts: int = 5
    """In a row without one new byte; then the transfer fails."""
    attempts: int = 100
    """In all, so that an origin that drips and cuts cannot keep a transfer alive for ever."""
    mismatches: int = 3
    """Whole files with a wrong digest; then the transfer fails."""
    backoff_s: float = 1.0
    """Doubled with each fruitless attempt."""
    backoff_max_s: float = 30.0


@final
class Fetcher:
    """Fetches files over HTTP and from this machine.

    Args:
        policy: How patient to be.
        sleep: Waits between attempts.
        limit: How fast bytes may come, over all files; None is as fast as they do.
    """

    def __init__(
        self,
        *,
        policy: FetchPolicy | None = None,
        sleep: Sleep = asyncio.sleep,
        limit: RateLimit | None = None,
    ) -> None:
        self._policy = policy or FetchPolicy()
        self._sleep = sleep
        self._limit = limit

    async def fetch(
        self, request: FetchRequest, directory: int, name: str, observer: FetchObserver
    ) -> None:
        """Have a verified file under its name in a staging directory.

        Cancelled at any point, it keeps what it has for the next call. A full disk keeps it too.

        Args:
            request: What to fetch.
            directory: Descriptor of the staging directory; open until this returns.
            name: Of the file; one component.
            observer: Told about sizes and bytes.

        Raises:
            StoreError: `store.source_unavailable`, `store.stalled`, `store.source_changed`,
                `store.digest_mismatch`, `store.no_space`, `store.disk_failed`.
        """
        partial = Partial(directory, name, request.sha256)
        try:
            await on_disk(partial.open)
            await self._take_up(partial, observer)
            async with self._origin(request) as origin:
                await self._until_verified(request, origin, partial, observer)
        finally:
            partial.close()

    async def _take_up(self, partial: Partial, observer: FetchObserver) -> None:
        """Hash what an earlier try left: outside any network timer, and seen as progress."""
        while await on_disk(partial.hash_slice):
            observer.on_bytes(partial.hashed_bytes)
        if partial.length:
            observer.on_resumed(partial.length, partial.total_bytes)

    async def _until_verified(
        self, request: FetchRequest, origin: Origin, partial: Partial, observer: FetchObserver
    ) -> None:
        policy = self._policy
        fruitless = mismatches = 0
        for _ in range(policy.attempts):
            before = partial.length
            try:
                if partial.total_bytes is None or partial.length < partial.total_bytes:
                    await origin.read_into(request, partial, observer)
                await on_disk(partial.publish)
            except AttemptError as failed:
                fruitless = 0 if partial.length > before else fruitless + 1
                if fruitless >= policy.fruitless_attempts:
                    raise failed.error from failed
            except StoreError as error:
                mismatches += error.code == "store.digest_mismatch"
                if error.code != "store.digest_mismatch" or mismatches >= policy.mismatches:
                    raise
            else:
                return
            await self._sleep(min(policy.backoff_max_s, policy.backoff_s * 2.0**fruitless))
        raise unavailable(request, f"gave up after {policy.attempts} attempts")

    @asynccontextmanager
    async def _origin(self, request: FetchRequest) -> AsyncGenerator[Origin]:
        scheme = request.parts.scheme
        if scheme == "file":
            yield FileOrigin(self._limit)
            return
        if scheme not in {"http", "https"}:
            raise unavailable(request, f"its address has the scheme {scheme[:40]!r}")
        client = await in_thread(_http_client, self._policy.connect_s)
        async with client:
            yield HttpOrigin(client, stall_s=self._policy.stall_s, limit=self._limit)


def _http_client(connect_s: float) -> "httpx.AsyncClient":
    """Make a client; blocks for 0.1 to 0.3 s, most of it the import and the certificates."""
    # Imported here: a node that fetches nothing, and every test of a core, does without it.
    import httpx

    timeout = httpx.Timeout(None, connect=connect_s)
    return httpx.AsyncClient(timeout=timeout, follow_redirects=False)
