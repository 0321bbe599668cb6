"""JSON from strangers: bounded in depth, values, numbers and loop time.

The parser itself refuses NaN and Infinity, lone surrogates, integers of more than 4,300 digits and
nesting beyond 200, each in under 0.1 ms. What it would accept and we do not is checked here first.
Duplicate keys are accepted and the last one wins, as in every client library; nothing before us
reads the body, so there is no second opinion to disagree.

Measured on a 2-core x86_64 virtual machine, no body of 8 MiB holds the interpreter, and with it the
loop, for 50 ms at a stretch: the worst are 1,900 integers of 4,299 digits (42 ms), a string of
nothing but escapes (22 ms) and a long plain one that must be stepped over (17 ms).
"""

import re
from typing import Any, Final, cast

from pydantic_core import from_json

from protocol.errors import RequestError
from skulkd.runtime.tasks import run_blocking

MAX_DEPTH: Final = 64
MAX_VALUES: Final = 100_000
"""Array items and object members in all; a body of 8 MiB could hold 4 million, whose parsing holds
the interpreter for 90 ms, in a thread or not."""
OFF_LOOP_BYTES: Final = 64 * 1024
"""From here on a thread decodes: a hop costs some 0.1 ms, the worst body of this size 12 ms."""

# A string, also an unterminated one, or one structural character. Possessive throughout: a hostile
# body must not make it go back. A match holds the interpreter, so a string of many escapes comes in
# pieces: outside of strings JSON has no backslash, so what begins with one goes on with a string.
TOKEN: Final = re.compile(
    rb'(?:"|\\.)[^"\\]*+(?:\\.[^"\\]*+){0,4096}+(?:"|\\?\Z)?|[\[{\]},]', re.DOTALL
)


async def decode_object(body: bytes) -> dict[str, Any]:
    """Decode a body that must be a JSON object.

    Raises:
        RequestError: `request.invalid`, with the place in the text where the parser stopped.
    """
    document = decode(body) if len(body) <= OFF_LOOP_BYTES else await run_blocking(decode, body)
    if not isinstance(document, dict):
        raise RequestError(
            "request.invalid",
            f"the body is a JSON {_kind(document)}, not an object",
            remediation='Send one JSON object: {"model": …}.',
        )
    return cast("dict[str, Any]", document)


def decode(body: bytes) -> object:
    """Decode JSON within the bounds.

    Raises:
        RequestError: `request.invalid`.
    """
    check_size(body)
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(
            "request.invalid",
            f"the body is not valid JSON: {error}",
            remediation="Send UTF-8 JSON without NaN, Infinity or comments.",
        ) from error


def check_size(body: bytes) -> None:
    """Refuse JSON that is too deep or has too many values, before anything parses it.

    Raises:
        RequestError: `request.invalid`.
    """
    n_opening = body.count(b"[") + body.count(b"{")
    # Both counts are upper bounds, since strings are counted too: most bodies need no scan.
    if n_opening > MAX_DEPTH or n_opening + body.count(b",") > MAX_VALUES:
        _scan(body)


def _scan(body: bytes) -> None:
    depth = 0
    n_values = 0
    for match in TOKEN.finditer(body):
        first = body[match.start()]
        if first in b"[{":
            depth += 1
            n_values += 1
            if depth > MAX_DEPTH:
                raise RequestError(
                    "request.invalid",
                    f"the JSON is nested more than {MAX_DEPTH} deep",
                    remediation="Flatten the request.",
                    details={"max_depth": MAX_DEPTH},
                )
        elif first in b"]}":
            depth -= 1
        elif first in b",":
            n_values += 1
        if n_values > MAX_VALUES:
            raise RequestError(
                "request.invalid",
                f"the JSON holds more than {MAX_VALUES} values",
                remediation="Send less in one request.",
                details={"max_values": MAX_VALUES},
            )


def _kind(document: object) -> str:
    if document is None:
        return "null"
    if isinstance(document, bool):
        return "boolean"
    if isinstance(document, str):
        return "string"
    return "array" if isinstance(document, list) else "number"
