"""Requests as real clients send them, and what chance makes of them; one seed, one request.

Half of what changes a request knows its structure: fields go, come twice, change their kind, are
put inside one another, grow huge. The other half does not: bytes of the body, of the headers, the
method, the path. A few callers leave in the middle.
"""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final, cast, final

from tests.support.junk import places

CORPUS: Final = Path(__file__).parents[1] / "conformance" / "requests"
DIALECTS: Final = ("chat", "completions", "responses", "vectors", "anthropic", "ollama")
Place = tuple[str | int, ...]
Json = Any


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A request as it goes over the wire."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    has_length: bool = True
    """It says how long its body is."""
    raw: bytes | None = None
    """All of it, where it is written in no way of HTTP."""
    leaves_after: int | None = None
    """The caller goes after so many bytes of the answer."""

    def written(self) -> bytes:
        """Write it."""
        if self.raw is not None:
            return self.raw
        lines = [f"{self.method} {self.path} HTTP/1.1", "host: localhost"]
        lines += (f"{name}: {value}" for name, value in self.headers)
        if self.has_length:
            lines.append(f"content-length: {len(self.body)}")
        return "\r\n".join(lines).encode("utf-8", "replace") + b"\r\n\r\n" + self.body


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A request of the corpus."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any] | None


def corpus(dialect: str) -> tuple[Known, ...]:
    """Read the requests of a dialect."""
    listed = json.loads((CORPUS / f"{dialect}.json").read_text(encoding="utf-8"))
    return tuple(
        Known(
            method=item["method"],
            path=item["path"],
            headers=listed["clients"][item["client"]],
            body=item.get("body"),
        )
        for item in listed["requests"]
    )


def unchanged(known: Known) -> Sent:
    """Give a request as its client sent it."""
    body = b"" if known.body is None else json.dumps(known.body, ensure_ascii=False).encode()
    return Sent(
        method=known.method, path=known.path, headers=tuple(known.headers.items()), body=body
    )


def mutant(known: tuple[Known, ...], dialect: str, seed: int) -> Sent:
    """Make the request of a seed."""
    # ruff: ignore[suspicious-non-cryptographic-random-usage]  it is to be made again
    draw = Random(f"{dialect} {seed}")
    one = draw.choice(known)
    sent = unchanged(one)
    if one.body is not None and draw.random() < 0.75:
        sent = replace(sent, body=_written(_changed(one.body, known, draw), draw))
    if draw.random() < 0.12:
        sent = replace(sent, body=_broken(sent.body, draw))
    if draw.random() < 0.15:
        sent = draw.choice(_ENVELOPES)(sent, draw)
    if draw.random() < 0.06:
        sent = replace(sent, raw=_broken(sent.written(), draw))
    if draw.random() < 0.05:
        sent = replace(sent, leaves_after=draw.choice((0, 1, 300, 900)))
    return sent


# ---- Structure -----------------------------------------------------------------------------

_TEXTS: Final = (
    "", " ", "\x00", "\u202e", "e\u0301" * 40, "🦊" * 30, "\u2028\u2029", "\ufeffx", "null",
    "data: [DONE]\n\n", '"}', "\r\n\r\nHTTP/1.1 200 OK", "<tool_call>", "../../etc/passwd",
    "auto", "required", "none", "function", "text", "user", "system", "assistant", "tool", "json",
    "scripted/speaker", "scripted/caller", "scripted/embedder", "scripted/reranker", "a/b:c",
)  # fmt: skip
_NUMBERS: Final = (
    0, 1, -1, 2, 16, 17, 128, 129, 255, 256, 2**31 - 1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63),
    10**400, 0.0, -0.0, 1.0, 0.5, 1e-320, 1e308, 5e-324, 1 << 24, (1 << 24) + 1, 4096, 2048,
)  # fmt: skip
_KINDS: Final[tuple[Any, ...]] = (
    None, True, False, [], {}, [[]], [{}], [None], {"": None}, {"type": "text"}, {"type": []},
    {"type": "function", "function": {}}, {"text": 1}, [1, 2], "x",
)  # fmt: skip


def _changed(body: dict[str, Any], known: tuple[Known, ...], draw: Random) -> dict[str, Any]:
    """Change a body at one to three places."""
    changed = copy.deepcopy(body)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        all_places = list(places(changed))
        if not all_places:
            break
        place = draw.choice(all_places)
        parent, key = _at(changed, place[:-1]), place[-1]
        draw.choice(_CHANGES)(parent, key, known, draw)
    return changed


def _at(value: Json, place: Place) -> Json:
    for key in place:
        value = value[key]
    return value


Change = Callable[[Json, Json, tuple[Known, ...], Random], None]


def _remove(parent: Json, key: Json, known: tuple[Known, ...], draw: Random) -> None:
    del parent[key]


def _retype(parent: Json, key: Json, known: tuple[Known, ...], draw: Random) -> None:
    parent[key] = copy.deepcopy(draw.choice(_KINDS))


def _renumber(parent: Json, key: Json, known: tuple[Known, ...], draw: Random) -> None:
    parent[key] = draw.choice(_NUMBERS)


def _retext(parent: Json, key: Json, known: tuple[Known, ...], draw: Random) -> None:
    parent[key] = draw.choice(_TEXTS)


def _nest(parent: Json, key: Json, known: tuple[Known, ...], draw: Random) -> None:
    for _ in range(draw.choice((1, 1, 2, 60, 150))):
        inner = parent[key]
        parent[key] = [inner] if draw.random() < 0.5 else {str(key): inner}


def _unnest(parent: Json, key: Json, known: tuple[Known, ...], draw: Random) -> None:
    inner = parent[key]
    if isinstance(inner, dict):
        inner = list(cast("dict[str, Json]", inner).values())
    if isinstance(inner, list) and inner:
        parent[key] = draw.choice(cast("list[Json]", inner))


def _repeat(parent: Json, key: Json, known: tuple[Known, ...], draw: Random) -> None:
    inner = parent[key]
    n = draw.choice((2, 3, 20, 300))
    if isinstance(inner, str):
        parent[key] = f"{inner or 'x'} " * (n * 5)
    elif isinstance(inner, list):
        parent[key] = [copy.deepcopy(item) for item in cast("list[Any]", inner)] * n
    elif isinstance(parent, list):
        cast("list[Any]", parent).extend(copy.deepcopy(inner) for _ in range(n))
    else:
        parent.update({f"{key}{number}": inner for number in range(n)})


def _rename(parent: Json, key: Json, known: tuple[Known, ...], draw: Random) -> None:
    if isinstance(key, str):
        name = draw.choice((key.upper(), f" {key}", f"{key}\u0000", f"{key}s", "é", "", "type"))
        parent[name] = parent.pop(key)


def _splice(parent: Json, key: Json, known: tuple[Known, ...], draw: Random) -> None:
    """Put a piece of another request there."""
    other = draw.choice([one.body for one in known if one.body])
    piece = copy.deepcopy(_at(other, draw.choice(list(places(other)))))
    if isinstance(parent, dict) and draw.random() < 0.5:
        parent[draw.choice(list(other))] = piece
    else:
        parent[key] = piece


_CHANGES: Final[tuple[Change, ...]] = (
    _remove, _retype, _retype, _renumber, _retext, _retext, _nest, _unnest, _repeat, _rename,
    _splice, _splice,
)  # fmt: skip


def _written(body: dict[str, Any], draw: Random) -> bytes:
    text = json.dumps(body, ensure_ascii=draw.random() < 0.5)
    if draw.random() < 0.03 and len(text) > 2:  # a member that is there twice
        text = text[:-1] + f', "{draw.choice(list(body) or ["x"])}": {draw.choice(_NUMBERS)}}}'
    return text.encode("utf-8", "surrogatepass")


# ---- Bytes ---------------------------------------------------------------------------------

_BYTES: Final = (
    b"", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b'"', b"{", b"}", b"[", b"\\", b"\\ud800", b"\r\n",
    b"\r\n\r\n", b"NaN", b"Infinity", b"\xef\xbb\xbf", b":", b",", b" " * 5000, b"\t",
    b"GET / HTTP/1.1\r\n", b"0\r\n\r\n", b"1e999",
)  # fmt: skip


def _broken(data: bytes, draw: Random) -> bytes:
    """Change bytes without a look at what they mean."""
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randint(0, len(data))
        match draw.randrange(5):
            case 0:
                data = data[:at] + draw.choice(_BYTES) + data[at:]
            case 1:
                data = data[:at] + data[at + draw.choice((1, 2, 10, 100)) :]
            case 2 if data:
                flipped = data[at - 1] ^ (1 << draw.randrange(8))
                data = data[: at - 1] + bytes([flipped]) + data[at:] if at else data
            case 3:
                data = data[:at]
            case _:
                data = data[:at] + data[draw.randint(0, len(data)) :][:200] + data[at:]
    return data


# ---- Around the body -----------------------------------------------------------------------

_HEADERS: Final = (
    ("content-type", "text/plain"), ("content-type", "multipart/form-data; boundary=x"),
    ("content-type", ""), ("content-encoding", "gzip"), ("expect", "100-continue"),
    ("authorization", "Bearer é"), ("authorization", "Basic eA=="), ("x-api-key", "x" * 3000),
    ("x-api-key", ""), ("origin", "https://evil.example"), ("origin", "null"),
    ("host", "evil.example"), ("accept", "text/html"), ("connection", "close"),
    ("connection", "upgrade"), ("upgrade", "websocket"), ("x-forwarded-for", "1.2.3.4"),
    ("last-event-id", "9" * 400), ("cookie", "a=b; " * 700), ("anthropic-version", ""),
    ("anthropic-beta", "x," * 900), ("content-length", "5"), ("content-length", "-1"),
    ("content-length", "99999999999999999999"), ("content-length", "9000000"),
    ("transfer-encoding", "gzip"), ("x" * 500, "y"), ("x-pad", "z" * 40_000),
)  # fmt: skip
_METHODS: Final = ("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "post", "TRACE", "QUERY")
_PATHS: Final = (
    "/", "/v1", "/v1/", "/v1/models", "/v1/models/", "/v1/models/scripted/speaker", "/v1/unknown",
    "/v1/chat", "/v1/messages/", "/v1/messages/batches", "/ollama", "/ollama/", "/ollama/api/tags",
    "/ollama/api/ps", "/ollama/api/show", "/ollama/api/version", "/ollama/api/pull",
    "/ollama/v1/chat/completions", "/ollama/v1/messages", "/v1/cancel/x", "/v1/streams/x",
    "/bench/chat/completions", "/openapi.json", "/metrics", "/state", "/place_instance",
)  # fmt: skip


def _with_header(sent: Sent, draw: Random) -> Sent:
    header = draw.choice(_HEADERS)
    kept = tuple(pair for pair in sent.headers if pair[0] != header[0] or draw.random() < 0.3)
    has_length = header[0] != "content-length" or draw.random() < 0.3
    return replace(sent, headers=(*kept, header), has_length=has_length)


def _without_header(sent: Sent, draw: Random) -> Sent:
    if not sent.headers:
        return sent
    left = list(sent.headers)
    del left[draw.randrange(len(left))]
    return replace(sent, headers=tuple(left), has_length=draw.random() < 0.7)


def _with_method(sent: Sent, draw: Random) -> Sent:
    return replace(sent, method=draw.choice(_METHODS))


def _with_path(sent: Sent, draw: Random) -> Sent:
    path = draw.choice(_PATHS) if draw.random() < 0.6 else sent.path
    match draw.randrange(5):
        case 0:
            path = path.replace("/", "//", 1)
        case 1:
            path += draw.choice(("?", "?beta=true", "?a=%ff", "?node=x", "?" + "a&" * 90))
        case 2:
            path += draw.choice(("%2F", "%00", "%", "/..", ";x", "#y", "x" * 500))
        case 3:
            path = path.upper()
        case _:
            pass
    return replace(sent, path=path)


def _chunked(sent: Sent, draw: Random) -> Sent:
    """Send the body in chunks, which may be wrong in one place."""
    parts: list[bytes] = []
    left = sent.body
    while left:
        n = draw.choice((1, 7, 100, 4000))
        parts.append(b"%x\r\n%b\r\n" % (len(left[:n]), left[:n]))
        left = left[n:]
    parts.append(draw.choice((b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\nx-t: y\r\n\r\n", b"zz\r\n", b"")))
    headers = (*sent.headers, ("transfer-encoding", "chunked"))
    return replace(sent, headers=headers, body=b"".join(parts), has_length=draw.random() < 0.1)


_ENVELOPES: Final[tuple[Callable[[Sent, Random], Sent], ...]] = (
    _with_header, _with_header, _without_header, _with_method, _with_path, _with_path, _chunked,
)  # fmt: skip
