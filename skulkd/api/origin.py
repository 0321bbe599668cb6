"""Host and Origin: what keeps a browser on some page from operating this node.

A page can make a browser send requests here, by a name of its own that resolves to us (rebinding)
or directly (cross-site). The first is refused by the Host header, on every bind, method and route;
the second by Origin, on everything but inference. Inference is open to pages on purpose: browser
clients need it, it changes nothing, and beyond loopback it takes a key; credentials are never
allowed across origins. An operator may name the origins that are let in.
"""

import ipaddress
from collections.abc import Callable, Iterable
from typing import Final, final

from protocol.errors import RequestError
from skulkd.api.http import Header, Reply, Request

_ALLOW_METHODS: Final = b"GET, POST, DELETE, HEAD, OPTIONS"
_DEFAULT_HEADERS: Final = b"authorization, content-type, x-api-key"
_EXPOSED: Final = (
    b"x-skulk-command-id, retry-after, x-ratelimit-limit-requests, "
    b"x-ratelimit-remaining-requests, x-ratelimit-reset-requests"
)
_MAX_SEEN: Final = 256
_MAX_ECHO_BYTES: Final = 2048
_VARY: Final[tuple[Header, ...]] = ((b"vary", b"origin"),)


@final
class HostPolicy:
    """The names by which clients may address this node.

    Args:
        hostname: The machine's name; it and `<name>.local` are accepted.
        allowed_hosts: The setting of that name.
        further: Gives names that come and go, in lower case.
    """

    def __init__(
        self,
        hostname: str,
        allowed_hosts: Iterable[str] = (),
        *,
        further: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        short = hostname.partition(".")[0].lower()
        self._names = {"localhost", hostname.lower(), short, f"{short}.local"}
        self._names |= {name.lower().strip("[]") for name in allowed_hosts}
        self._names.discard("")
        self._further = further
        self._seen: set[tuple[bytes, str]] = set()

    def check_host(self, request: Request) -> None:
        """Refuse a request that addresses somebody else.

        Raises:
            RequestError: `request.host_refused`.
        """
        host = request.headers.get(b"host")
        own = request.own_address
        if host is not None and (host, own) in self._seen:
            return
        name = host_name(host.decode("latin-1")) if host is not None else None
        if host is not None and name is not None and self._is_ours(name, own):
            if len(self._seen) < _MAX_SEEN:
                self._seen.add((host, own))
            return
        if name is None or name not in self._further():  # asked each time: it may be gone again
            shown = "none" if name is None else repr(name[:100])
            raise RequestError(
                "request.host_refused",
                f"the Host header names {shown}, which is not a name of this node",
                remediation="Use localhost or the node's own name or address, or add the name to "
                "the setting `allowed_hosts`.",
                details={"setting": "allowed_hosts"},
            )

    def _is_ours(self, name: str, own_address: str) -> bool:
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name.partition("%")[0])
        except ValueError:
            return False
        return address.is_loopback or _same_address(name, own_address)


@final
class OriginPolicy:
    """The web pages that may ask.

    Args:
        allowed: Origins that may use inference routes beside our own; None is all of them.
    """

    def __init__(self, allowed: Iterable[str] | None = None) -> None:
        self._allowed = None if allowed is None else frozenset(map(str.encode, allowed))

    def check_control(self, request: Request) -> None:
        """Refuse a request that a page of another origin made a browser send.

        Raises:
            RequestError: `request.origin_refused`.
        """
        origin = request.headers.get(b"origin")
        if origin is None or _is_own(origin, request):
            return
        raise RequestError(
            "request.origin_refused",
            "a web page of another origin may not use this route",
            remediation="Use the CLI, or a page that this node serves.",
        )

    def check_inference(self, request: Request) -> None:
        """Refuse a page of an origin that the operator has not named, where any is named.

        Raises:
            RequestError: `request.origin_refused`.
        """
        origin = request.headers.get(b"origin")
        if self._allowed is None or origin is None or self._is_let_in(origin, request):
            return
        raise RequestError(
            "request.origin_refused",
            f"web pages of {origin[:200].decode('latin-1')!r} may not ask this node",
            remediation="Add the origin to the setting `allowed_origins`.",
            details={"setting": "allowed_origins"},
        )

    def cors_headers(self, request: Request) -> tuple[Header, ...]:
        """Give what lets a page read an inference route's answer, errors included.

        An answer that a cache keeps is another one for another origin, also where none was named.
        """
        origin = request.headers.get(b"origin")
        if origin is None or len(origin) > _MAX_ECHO_BYTES:
            return _VARY
        if self._allowed is not None and not self._is_let_in(origin, request):
            return _VARY
        return (
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", _EXPOSED),
            *_VARY,
        )

    def _is_let_in(self, origin: bytes, request: Request) -> bool:
        return origin.lower() in (self._allowed or ()) or _is_own(origin, request)


def _is_own(origin: bytes, request: Request) -> bool:
    host = request.headers.get(b"host") or b""
    scheme, separator, authority = origin.partition(b"://")
    is_web = bool(separator) and scheme in {b"http", b"https"}
    return is_web and authority.lower() == host.lower()


def preflight(request: Request) -> Reply:
    """Answer a browser's question whether it may send what it wants to send."""
    asked = request.headers.get(b"access-control-request-headers")
    if asked is None or len(asked) > _MAX_ECHO_BYTES:
        asked = _DEFAULT_HEADERS
    return Reply(
        status=204,
        headers=(
            (b"access-control-allow-methods", _ALLOW_METHODS),
            (b"access-control-allow-headers", asked),
            (b"access-control-max-age", b"600"),
        ),
    )


def host_name(host: str) -> str | None:
    """Take the name out of a Host header, without port; None when it is not one."""
    host = host.strip().lower()
    if host.startswith("["):
        name, closing, port = host[1:].partition("]")
        is_whole = bool(closing) and (not port or (port[0] == ":" and port[1:].isdecimal()))
        return name if is_whole else None
    name, colon, port = host.partition(":")
    if not name or (colon and not port.isdecimal()):
        return None
    return name.rstrip(".")


def _same_address(first: str, second: str) -> bool:
    try:
        one = ipaddress.ip_address(first.partition("%")[0])
        other = ipaddress.ip_address(second.partition("%")[0])
    except ValueError:
        return False
    mapped = other.ipv4_mapped if isinstance(other, ipaddress.IPv6Address) else None
    return one in {other, mapped}
