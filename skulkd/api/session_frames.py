"""Writes the frames of a session whose content is JSON already. Pure.

Rows, lines, answers and chunks of a stream were encoded once for all who get them; taking them
apart to put them into a model of the frame would cost more than all else.
"""

import json
from http import HTTPStatus
from typing import Final

from protocol.errors import RequestError, SkulkError
from protocol.session import NODE_FRAME_MAX_BYTES
from skulkd.api.errors import envelope, error_reply
from skulkd.api.http import Reply
from skulkd.api.session_lines import LineBatch
from skulkd.api.streams import KeptStream
from skulkd.core.row_table import members_of

_ANSWER_MAX_BYTES: Final = NODE_FRAME_MAX_BYTES - 1024


def rows_frame(
    frame_id: int,
    cursor: str,
    rows: tuple[tuple[str, bytes], ...],
    *,
    is_snapshot: bool,
    at_ms: int,
) -> bytes:
    """Write a `rows` frame."""
    return b'{"type":"rows","id":%d,"cursor":%b,"is_snapshot":%b,"rows":{%b},"at_ms":%d}' % (
        frame_id,
        _text(cursor),
        b"true" if is_snapshot else b"false",
        members_of(rows),
        at_ms,
    )


def lines_frame(frame_id: int, batch: LineBatch, *, at_ms: int) -> bytes:
    """Write a `lines` frame."""
    return b'{"type":"lines","id":%d,"cursor":%b,"items":[%b],"was_cut":%b,"gap":%b,"at_ms":%d}' % (
        frame_id,
        _text(batch.cursor),
        b",".join(batch.items),
        b"true" if batch.gap else b"false",
        _text(batch.gap),
        at_ms,
    )


def answer_frame(frame_id: int, reply: Reply) -> bytes:
    """Write an `answer` frame; one that is too large for a message becomes an error."""
    if len(reply.body) > _ANSWER_MAX_BYTES:
        error = RequestError(
            "request.too_large",
            f"the answer has {len(reply.body)} bytes; in a session it may have {_ANSWER_MAX_BYTES}",
            remediation="Ask for less at a time, or over HTTP.",
        )
        reply = error_reply(error, dialect="control")
    is_json = any(
        name == b"content-type" and value.startswith(b"application/json")
        for name, value in reply.headers
    )
    body = reply.body if is_json else _text(reply.body.decode("utf-8", "replace"))
    return b'{"type":"answer","id":%d,"status":%d,"body":%b}' % (
        frame_id,
        reply.status,
        body or b"null",
    )


def stream_frame(
    frame_id: int, stream: KeptStream, offset: int, events: list[bytes], *, is_end: bool
) -> bytes:
    """Write a `stream` frame from events as HTTP has them."""
    return b'{"type":"stream","id":%d,"command_id":"%b","offset":%d,"events":[%b],"is_end":%b}' % (
        frame_id,
        stream.command_id.encode(),
        offset,
        b",".join(map(stream.framing.json_of, events)),
        b"true" if is_end else b"false",
    )


def refused_frame(frame_id: int, error: SkulkError) -> bytes:
    """Write a `refused` frame."""
    body = envelope(error, dialect="openai", command_id=None)
    return json.dumps({"type": "refused", "id": frame_id, "error": body}).encode()


def is_error(reply: Reply) -> bool:
    """Say whether a reply's body is an error document."""
    return reply.status >= HTTPStatus.BAD_REQUEST


def _text(text: str) -> bytes:
    return json.dumps(text).encode()
