"""Reading HTTP answers as a strict client does: every byte is accounted for."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.1 ([1-5]\d\d) [ -~]+")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9a-z-]+): ([ -~]*)")
_HEX: Final = re.compile(rb"[0-9a-f]+")
_CONTINUE: Final = 100
_BODILESS: Final = frozenset({204, 304})


class MalformedError(AssertionError):
    """What came is no HTTP."""

    def __init__(self, what: str, data: bytes = b"") -> None:
        super().__init__(f"{what}: {data[:80]!r}" if data else what)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """One answer, or the beginning of one."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_whole: bool


def read_answers(data: bytes, methods: Sequence[str] = ("POST",)) -> list[HttpAnswer]:
    """Read answers one after the other; only the last one may be incomplete.

    Args:
        data: All that came on a connection.
        methods: Of the requests, in their order; the last counts for all further ones.

    Raises:
        MalformedError: It is no HTTP; says what is wrong.
    """
    answers: list[HttpAnswer] = []
    while data:
        method = methods[min(len(answers), len(methods) - 1)]
        answer, data = _read(data, is_head=method == "HEAD")
        if answer is None:
            break
        if answer.status != _CONTINUE:
            answers.append(answer)
    return answers


def _read(data: bytes, *, is_head: bool) -> tuple[HttpAnswer | None, bytes]:
    head, end, rest = data.partition(b"\r\n\r\n")
    if not end:
        return None, b""
    first, *lines = head.split(b"\r\n")
    match = _STATUS_LINE.fullmatch(first)
    if match is None:
        raise MalformedError("no status line", first)
    status = int(match[1])
    headers: dict[str, str] = {}
    for line in lines:
        header = _HEADER.fullmatch(line)
        if header is None:
            raise MalformedError("no header", line)
        name = header[1].decode()
        if name in headers:
            raise MalformedError("a header that is there twice", line)
        headers[name] = header[2].decode()
    if is_head or status == _CONTINUE or status in _BODILESS:
        body, is_whole = b"", True
    elif headers.get("transfer-encoding") == "chunked":
        if "content-length" in headers:
            raise MalformedError("both chunked and of a told length")
        body, is_whole, rest = _chunks(rest)
    else:
        n_bytes = int(headers.get("content-length", "-1"))
        if n_bytes < 0:
            raise MalformedError("neither chunked nor of a told length")
        body, rest = rest[:n_bytes], rest[n_bytes:]
        is_whole = len(body) == n_bytes
    return HttpAnswer(status=status, headers=headers, body=body, is_whole=is_whole), rest


def _chunks(data: bytes) -> tuple[bytes, bool, bytes]:
    """Read a chunked body: what is there of it, whether it is whole, and what follows it."""
    parts: list[bytes] = []
    while True:
        size, end, rest = data.partition(b"\r\n")
        if not end:
            return b"".join(parts), False, b""
        if _HEX.fullmatch(size) is None:
            raise MalformedError("no size of a chunk", size)
        n_bytes = int(size, 16)
        if len(rest) < n_bytes + 2:
            parts.append(rest[:n_bytes])
            return b"".join(parts), False, b""
        if rest[n_bytes : n_bytes + 2] != b"\r\n":
            raise MalformedError("a chunk does not end where it should")
        if n_bytes == 0:
            return b"".join(parts), True, rest[2:]
        parts.append(rest[:n_bytes])
        data = rest[n_bytes + 2 :]
