"""Images at http(s) addresses, from origins that the operator has listed and nowhere else.

An address in a request is chosen by a stranger, and fetched from inside the operator's network. So
its origin must be listed; its name is resolved once, every address that it has is checked, and that
very address is connected to, so that a second answer of a name server means nothing. No redirect is
followed, no proxy asked, and size and time are bounded.
"""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, final
from urllib.parse import SplitResult, urlsplit

from protocol.errors import ConfigError, RequestError
from protocol.images import MAX_IMAGE_BYTES
from skulkd.runtime.tasks import run_blocking, timeout

if TYPE_CHECKING:
    import httpx

FETCH_S: Final = 15.0
"""For all images of one request together."""
MAX_FETCHING: Final = 8
"""Requests whose images are fetched at a time; others wait, within their time."""
MAX_ADDRESSES: Final = 3
"""Of one name that are tried."""
PRIVATE: Final = "private+"
"""Before an origin that may lie on a private network, or on this machine."""

_PLAIN: Final = re.compile(r"[!#-;=?-\[\]_a-z~]+")
"""What an address is made of; above all no blank, no backslash and no control character."""
_PORTS: Final = {"http": 80, "https": 443}
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_OK: Final = 200

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Gives the IP addresses of a host."""


class Origin(NamedTuple):
    """Scheme, host and port, in the one form in which they are compared."""

    scheme: str
    host: str
    port: int


def parse_origins(listed: tuple[str, ...]) -> dict[Origin, bool]:
    """Read the setting: each origin, and whether it may be private.

    Raises:
        ConfigError: `config.invalid`.
    """
    origins: dict[Origin, bool] = {}
    for text in listed:
        url = text.removeprefix(PRIVATE)
        parts = _parts(url)
        origin = None if parts is None else _origin(parts)
        if parts is None or origin is None or parts.path not in {"", "/"} or parts.query:
            raise ConfigError(
                "config.invalid",
                f"image_url_origins: {text[:100]!r} is no origin",
                remediation="Write scheme, host and port alone: https://images.example.org, or "
                f"{PRIVATE}http://nas.local:8080 for one on a private network.",
            )
        origins[origin] = text.startswith(PRIVATE)
    return origins


async def resolve_host(host: str, port: int) -> list[str]:
    """Ask the system for the addresses of a host.

    Raises:
        OSError: It has none.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(item[4][0]) for item in found))


def is_public(address: str) -> bool:
    """Say whether an address is of the public internet, also by what it stands for."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo or (None, None))[1]
        if inner is None and found in _NAT64:
            inner = ipaddress.IPv4Address(found.packed[-4:])
        if inner is not None:
            found = inner
    return found.is_global and not found.is_multicast


@final
class RemoteImages:
    """Fetches images for requests.

    Args:
        origins: The setting `image_url_origins`.
        is_offline: No call leaves the cluster.
        resolve: Of host names.

    Raises:
        ConfigError: `config.invalid`.
    """

    def __init__(
        self,
        origins: tuple[str, ...] = (),
        *,
        is_offline: bool = False,
        resolve: Resolve = resolve_host,
    ) -> None:
        self._origins = parse_origins(origins)
        self._is_offline = is_offline
        self._resolve = resolve
        self._places = asyncio.Semaphore(MAX_FETCHING)

    def refusal_of(self, url: str) -> str | None:
        """Say why an address is not fetched, in words that follow "fetches images"; None if it may.

        Nothing is asked of any network.
        """
        if self._is_offline:
            return "from nowhere, because it is set to be offline"
        if not self._origins:
            return "only from origins that its operator has listed, of which there is none"
        parts = _parts(url)
        if parts is None or _origin(parts) not in self._origins:
            return f"only from the {len(self._origins)} origins that its operator has listed"
        return None

    async def fetch_all(
        self, wanted: Mapping[str, str], hold: Callable[[int], None]
    ) -> dict[str, bytes]:
        """Fetch images whose addresses may be.

        Args:
            wanted: Addresses, each with the place in the request that names it.
            hold: Told of bytes before they are kept; raises where there is no room for them.

        Raises:
            RequestError: `request.image_unavailable`; what `hold` raises.
        """
        fetched: dict[str, bytes] = {}
        place = ""
        try:
            async with timeout(FETCH_S), self._places:
                for url, place in wanted.items():
                    fetched[url] = await self._fetch(url, place, hold)
        except TimeoutError:
            raise _unavailable(place, f"was not there within {FETCH_S:g} s") from None
        return fetched

    async def _fetch(self, url: str, place: str, hold: Callable[[int], None]) -> bytes:
        import httpx

        parts = _parts(url)
        origin = None if parts is None else _origin(parts)
        if parts is None or origin is None:
            raise AssertionError("only what `refusal_of` allows is fetched")
        addresses = await self._addresses(origin, place)
        context = await run_blocking(httpx.create_ssl_context)
        problem = ""
        # A connection is never used twice: it belongs to a name, and the pool knows addresses.
        limits = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(
            verify=context, trust_env=False, follow_redirects=False, limits=limits, timeout=FETCH_S
        ) as client:
            for address in addresses:
                request = client.build_request(
                    "GET",
                    httpx.URL(
                        scheme=origin.scheme,
                        host=address,
                        port=origin.port,
                        raw_path=(parts.path or "/").encode() + _query(parts),
                    ),
                    headers={
                        "host": parts.netloc,
                        "accept": "image/*",
                        "accept-encoding": "identity",
                        "user-agent": "skulk",
                    },
                    extensions={"sni_hostname": origin.host},
                )
                try:
                    return await _read(client, request, place, hold)
                except httpx.TransportError as error:
                    problem = type(error).__name__
        raise _unavailable(place, f"cannot be fetched from {origin.host}: {problem}")

    async def _addresses(self, origin: Origin, place: str) -> list[str]:
        try:
            found = await self._resolve(origin.host, origin.port)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise _unavailable(place, f"has a host that is not found: {reason}") from error
        if not self._origins[origin] and not all(map(is_public, found)):
            raise _unavailable(
                place,
                f"is on {origin.host}, which is an address of a private network",
                f"The operator lists it as {PRIVATE}{origin.scheme}://… where that is meant.",
            )
        return found[:MAX_ADDRESSES]


async def _read(
    client: "httpx.AsyncClient",
    request: "httpx.Request",
    place: str,
    hold: Callable[[int], None],
) -> bytes:
    response = await client.send(request, stream=True)
    try:
        if response.status_code != _OK:
            what = "redirects, which is not followed" if response.is_redirect else "answers"
            raise _unavailable(place, f"{what} with {response.status_code}")
        data = bytearray()
        async for chunk in response.aiter_raw():
            if len(data) + len(chunk) > MAX_IMAGE_BYTES:
                raise _unavailable(place, f"has more than {MAX_IMAGE_BYTES} bytes")
            hold(len(chunk))
            data += chunk
        return bytes(data)
    finally:
        await response.aclose()


def _parts(url: str) -> SplitResult | None:
    """Take an address apart; None for what is none, or has a password in it."""
    if _PLAIN.fullmatch(url.lower()) is None:
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    return None if "@" in parts.netloc else parts


def _origin(parts: SplitResult) -> Origin | None:
    scheme = parts.scheme.lower()
    try:
        port = parts.port or _PORTS[scheme]
    except (ValueError, KeyError):
        return None
    return Origin(scheme, parts.hostname.rstrip("."), port) if parts.hostname else None


def _query(parts: SplitResult) -> bytes:
    return b"?" + parts.query.encode() if parts.query else b""


def _unavailable(place: str, problem: str, remedy: str = "") -> RequestError:
    return RequestError(
        "request.image_unavailable",
        f"`{place}`: the image {problem}",
        remediation=remedy or 'Send it as a data URL: "data:image/png;base64,…".',
        details={"param": place},
    )
