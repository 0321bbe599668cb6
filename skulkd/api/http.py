"""Requests and replies as handlers see them, over ASGI; knows no route and no dialect.

Nothing here builds an object per streamed frame.
"""

from asyncio import BaseTransport
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, final
from urllib.parse import parse_qsl, urlencode

from protocol.base import FrozenModel
from protocol.errors import RequestError
from protocol.ids import CommandId, NodeId
from protocol.state import Scope as KeyScope
from skulkd.api.body_budget import BodyShare

AsgiScope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]

MAX_BODY_BYTES: Final = 8 << 20
"""S17; routes that take media will have caps of their own."""
CONNECTION: Final = "skulk.connection"
"""Key of the connection among the scope's extensions."""
_MAX_QUERY_FIELDS: Final = 64
_JSON: Final = (b"content-type", b"application/json")


class Connection(Protocol):
    """The connection a request came by."""

    @property
    def is_choked(self) -> bool:
        """The client reads more slowly than we write; sending waits for it."""
        ...

    def on_lost(self, callback: Callable[[], None] | None) -> None:
        """Call back once when the client goes, at once if it has gone; None takes that back."""
        ...

    def write(self, piece: bytes) -> None:
        """Send a piece of a stream that has begun and not ended, without waiting.

        What a choked client has not taken gathers, so that its streams `send` instead.
        """
        ...

    def abort(self) -> None:
        """Drop the connection without sending what is still buffered."""
        ...

    def close_after_response(self) -> None:
        """Close once the present response has been sent."""
        ...

    def upgrade(self, head: bytes, protocol: "UpgradedProtocol") -> None:
        """Answer with `head`, and leave the transport to another protocol: HTTP ends here.

        Nothing happens where the client has gone.
        """
        ...


class UpgradedProtocol(Protocol):
    """What a connection becomes by an upgrade; the listener closes it as it closes the others."""

    client: tuple[str, int] | None
    """The peer's address and port; set before the transport is handed over."""
    on_gone: Callable[[], None]
    """Called once when the connection is closed; set like `client`."""

    def connection_made(self, transport: BaseTransport) -> None:
        """Take the transport over."""
        ...

    def shutdown(self) -> None:
        """Close in order."""
        ...

    def abort(self) -> None:
        """Drop the connection."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who asks, as far as the API knows."""

    name: str
    """`loopback`, a key's id, or `anonymous`."""
    scope: KeyScope | None
    """The highest scope held; None for none."""


ANONYMOUS: Final = Principal(name="anonymous", scope=None)


@final
class Headers:
    """The request headers that anything here looks at, read in one pass.

    A header that is given twice with different values is kept as `None` where a second value
    could be used to smuggle (Host, Content-Length, Authorization, Origin): see `conflicting`.
    """

    __slots__ = ("_values", "conflicting", "is_forwarded")

    _SINGLE: Final = frozenset({
        b"host", b"origin", b"content-length", b"authorization", b"x-api-key",
    })  # fmt: skip
    _FORWARDED: Final = frozenset({
        b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-port",
        b"x-forwarded-proto", b"x-forwarded-server", b"x-real-ip", b"x-client-ip",
        b"true-client-ip", b"cf-connecting-ip",
    })  # fmt: skip

    def __init__(self, raw: list[Header]) -> None:
        values: dict[bytes, bytes] = {}
        self.conflicting: bytes | None = None
        self.is_forwarded = False
        for name, value in raw:
            if name in values and name in self._SINGLE and values[name] != value:
                self.conflicting = name
            values[name] = value
            if name in self._FORWARDED:
                self.is_forwarded = True
        self._values = values

    def get(self, name: bytes) -> bytes | None:
        """Give a header's last value; names are lower-case."""
        return self._values.get(name)


@final
class Request:
    """One request on its way to a handler.

    Args:
        scope: As ASGI has it.
        receive: Gives the body.
        held: Grows with the body; released by whoever made it.
    """

    __slots__ = (
        "_held",
        "_query",
        "_receive",
        "_scope",
        "asker",
        "command_id",
        "connection",
        "headers",
        "is_for_this_node",
        "method",
        "params",
        "path",
        "principal",
    )

    def __init__(self, scope: AsgiScope, receive: Receive, held: BodyShare) -> None:
        self._scope = scope
        self._receive = receive
        self._held = held
        self._query: dict[str, list[str]] | None = None
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers = Headers(scope["headers"])
        self.params: Mapping[str, str] = {}
        self.principal = ANONYMOUS
        self.command_id: CommandId | None = None
        """Set by a handler that mints one; errors and log lines then carry it."""
        self.asker: NodeId | None = None
        """The node that asks for a client of its own; it has checked that client's scope."""
        self.is_for_this_node = False
        """It asks for this node's own part, not for the whole cluster's."""
        self.connection: Connection = scope["extensions"][CONNECTION]

    @property
    def peer(self) -> str:
        """The peer's address, without port."""
        client: tuple[str, int] | None = self._scope["client"]
        return client[0] if client else ""

    @property
    def ends(self) -> tuple[tuple[str, int] | None, tuple[str, int | None] | None]:
        """The peer's address and ours, with their ports."""
        return self._scope["client"], self._scope["server"]

    @property
    def own_address(self) -> str:
        """The address on which the peer reached us."""
        server: tuple[str, int | None] | None = self._scope["server"]
        return server[0] if server else ""

    def query_all(self, name: str) -> list[str]:
        """Give all values of a query field, in order.

        Raises:
            RequestError: `request.invalid` on more than 64 fields.
        """
        if self._query is None:
            try:
                pairs = parse_qsl(
                    self._scope["query_string"].decode("ascii"),
                    keep_blank_values=True,
                    max_num_fields=_MAX_QUERY_FIELDS,
                    errors="strict",
                )
            except ValueError as error:
                raise RequestError(
                    "request.invalid",
                    f"the query string cannot be read: {error}",
                    remediation=f"Send at most {_MAX_QUERY_FIELDS} percent-encoded fields.",
                ) from error
            self._query = {}
            for key, value in pairs:
                self._query.setdefault(key, []).append(value)
        return self._query.get(name, [])

    def query_names(self) -> frozenset[str]:
        """Name the query fields that were sent."""
        self.query_all("")
        return frozenset(self._query or ())

    def query_without(self, name: str) -> str:
        """Write the query string again, percent-encoded, leaving a field out."""
        return urlencode([
            (key, value)
            for key in sorted(self.query_names() - {name})
            for value in self.query_all(key)
        ])  # fmt: skip

    def query(self, name: str) -> str | None:
        """Give a query field's last value."""
        values = self.query_all(name)
        return values[-1] if values else None

    def hold_more(self, n_bytes: int) -> None:
        """Hold further bytes for as long as the body.

        Raises:
            RequestError: `request.overloaded`.
        """
        self._held.add(n_bytes)

    async def body(self, max_bytes: int = MAX_BODY_BYTES) -> bytes:
        """Read the whole body; a declared length is checked before a byte of it is read.

        Raises:
            RequestError: `request.too_large`; `request.overloaded` when all bodies together are
                too large; `request.content_type` when it is compressed, since what it grows to is
                bounded by nobody; `request.cancelled` when the client went away.
        """
        encoding = self.headers.get(b"content-encoding")
        if encoding is not None and encoding.strip().lower() not in {b"", b"identity"}:
            raise RequestError(
                "request.content_type",
                f"the body is compressed ({encoding[:40].decode('latin-1')!r}), and is taken plain"
                " only",
                remediation="Send it without Content-Encoding.",
            )
        declared = self.headers.get(b"content-length")
        if declared is not None:
            if int(declared) > max_bytes:
                raise body_too_large(int(declared), max_bytes)
            self._held.grow_to(int(declared))
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            first: bytes = message.get("body", b"")
            if len(first) > max_bytes:
                raise body_too_large(None, max_bytes)
            self._held.grow_to(len(first))
            return first
        parts: list[bytes] = []
        n_bytes = 0
        while True:
            if message["type"] != "http.request":
                raise RequestError("request.cancelled", "the client went away before its request")
            part: bytes = message.get("body", b"")
            n_bytes += len(part)
            if n_bytes > max_bytes:
                raise body_too_large(None, max_bytes)
            self._held.grow_to(n_bytes)
            parts.append(part)
            if not message.get("more_body"):
                return b"".join(parts)
            message = await self._receive()


def body_too_large(n_bytes: int | None, max_bytes: int) -> RequestError:
    """Give the error for a body of so many bytes; None for one that only grows."""
    size = "more" if n_bytes is None else f"{n_bytes} bytes"
    return RequestError(
        "request.too_large",
        f"the request body has {size}, at most {max_bytes} bytes are allowed",
        remediation="Send less: drop old turns or shorten what is quoted.",
        details={"max_bytes": max_bytes},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A whole response."""

    status: int = 200
    body: bytes = b""
    headers: tuple[Header, ...] = (_JSON,)

    async def send_to(self, send: Send, extra: tuple[Header, ...] = ()) -> None:
        """Send it; `extra` goes in front of its own headers."""
        length = (b"content-length", str(len(self.body)).encode())
        await send(
            {
                "type": "http.response.start",
                "status": self.status,
                "headers": [*extra, *self.headers, length],
            }
        )
        await send({"type": "http.response.body", "body": self.body})


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReply:
    """A response whose bytes come as they are made; `run` sends them until the end."""

    run: Callable[[Send], Awaitable[None]]
    headers: tuple[Header, ...] = field(default_factory=tuple[Header, ...])
    status: int = 200

    async def send_to(self, send: Send, extra: tuple[Header, ...] = ()) -> None:
        """Send headers and body; the headers leave at once."""
        await send(
            {
                "type": "http.response.start",
                "status": self.status,
                "headers": [*extra, *self.headers],
            }
        )
        await self.run(send)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeReply:
    """A response after which the connection speaks something else."""

    connection: Connection
    head: bytes
    """The whole response."""
    protocol: UpgradedProtocol
    status: int = 101

    async def send_to(self, send: Send, extra: tuple[Header, ...] = ()) -> None:
        """Hand the connection over; what would be further headers means nothing any more."""
        del send, extra
        self.connection.upgrade(self.head, self.protocol)


Answer = Reply | StreamReply | UpgradeReply
Handler = Callable[[Request], Awaitable[Answer]]


def json_reply(
    document: FrozenModel,
    *,
    status: int = 200,
    camel: bool = False,
    headers: tuple[Header, ...] = (),
) -> Reply:
    """Answer with a document; `camel` for those that are derived from State."""
    return Reply(
        status=status,
        body=document.model_dump_json(by_alias=camel).encode(),
        headers=(_JSON, *headers),
    )
