"""Calls as models write them, to a name and arguments. Pure; nothing here raises.

What does not read as a call gives None: its text is an answer, whatever it looked like.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

from engines.output.markup import DSML
from protocol.tasks import ToolDefinition

Tools = Mapping[str, ToolDefinition]
"""What the request offers, by name."""


class ReadCall(NamedTuple):
    """One call of an offered tool."""

    name: str
    arguments: str
    """A JSON object."""


CALL_KEYS: Final = frozenset({"name", "arguments", "parameters", "type", "id", "function"})
"""All that a call without marks may have."""
_QWEN_PARAMETER: Final = re.compile(r"\s*<parameter=([^<>\n]+)>")
_GLM_ARGUMENT: Final = re.compile(r"\s*<arg_key>([^<>]*)</arg_key>\s*<arg_value>")
_DSML_PARAMETER: Final = re.compile(
    rf'\s*<{DSML}parameter name="([^"\n]+)"(?: string="(true|false)")?>'
)
_GEMMA_KEY: Final = re.compile(r"([{,]\s*)([A-Za-z_][\w.-]*)(?=\s*:)")
_GEMMA_CALL: Final = re.compile(r"\s*call:([\w.:/-]+)\s*(\{.*\})\s*", re.DOTALL)


def call_of_object(text: str, tools: Tools, *, is_bare: bool) -> ReadCall | None:
    """Read an object that holds name and arguments.

    Args:
        text: The object.
        tools: What is offered.
        is_bare: No marker said that this is a call. Then nothing but a call may be in it: models
            also answer in JSON, and repeat a tool's definition.
    """
    value = _loads(text)
    if not isinstance(value, dict):
        return None
    fields = cast("dict[str, Any]", value)
    if is_bare and (not fields.keys() <= CALL_KEYS or not _has_arguments(fields)):
        return None
    inner = fields.get("function")
    if isinstance(inner, dict):
        fields = {**fields, **cast("dict[str, Any]", inner)}
    name = fields.get("name", inner)
    arguments = fields.get("arguments", fields.get("parameters"))
    if isinstance(arguments, str):
        arguments = _loads(arguments)
    return _call(name, {} if arguments is None else arguments, tools)


def call_of_arguments(name: str, text: str, tools: Tools) -> ReadCall | None:
    """Read a call whose name stands before the object of its arguments."""
    return _call(name, _loads(text), tools)


def call_of_qwen(body: str, tools: Tools) -> ReadCall | None:
    """Read `NAME>`, then `<parameter=KEY>VALUE</parameter>` for each; or one JSON object."""
    name, _, rest = body.partition(">")
    name = name.strip()
    if rest.lstrip().startswith("{"):
        return call_of_arguments(name, rest, tools)
    pairs = _pairs(rest, _QWEN_PARAMETER, "</parameter>")
    if pairs is None:
        return None
    # One line break on each side sets a value apart from its tags.
    values = [(key[1], text.removeprefix("\n").removesuffix("\n")) for key, text in pairs]
    return _call(name, _typed(values, name, tools), tools)


def call_of_glm(body: str, tools: Tools) -> ReadCall | None:
    """Read `NAME`, then `<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>` for each."""
    name, mark, rest = body.partition("<arg_key>")
    name = name.strip()
    pairs = _pairs(mark + rest, _GLM_ARGUMENT, "</arg_value>")
    if pairs is None:
        return None
    values = [(key[1].strip(), text) for key, text in pairs]
    return _call(name, _typed(values, name, tools), tools)


def call_of_dsml(body: str, tools: Tools) -> ReadCall | None:
    """Read `NAME">`, then a parameter tag for each, which says whether its value is a string."""
    name, _, rest = body.partition('">')
    pairs = _pairs(rest, _DSML_PARAMETER, f"</{DSML}parameter>")
    if pairs is None:
        return None
    arguments: dict[str, Any] = {}
    for key, text in pairs:
        value = _INVALID if key[2] == "true" else _loads(text)
        arguments[key[1]] = text if value is _INVALID else value
    return _call(name, arguments, tools)


def call_of_gemma(body: str, tools: Tools, quote: str) -> ReadCall | None:
    """Read `call:NAME{key:VALUE,…}`: JSON with bare keys and strings between `quote` marks."""
    found = _GEMMA_CALL.fullmatch(body)
    if found is None:
        return None
    parts = found[2].split(quote)
    # Even parts are structure, odd ones are what stands between two marks.
    parts[::2] = [_GEMMA_KEY.sub(r'\1"\2"', part) for part in parts[::2]]
    parts[1::2] = [json.dumps(part) for part in parts[1::2]]
    return call_of_arguments(found[1], "".join(parts), tools)


_INVALID: Final = object()
_MAX_ALTERNATIVES_DEPTH: Final = 4


def _pairs(
    text: str, opening: re.Pattern[str], closing: str
) -> list[tuple[re.Match[str], str]] | None:
    """Give each opening tag with the value after it; None where there is anything else.

    A closing tag ends a value where another pair or the end follows; elsewhere it is part of it.
    """
    pairs: list[tuple[re.Match[str], str]] = []
    end = len(text.rstrip())
    at = 0
    while at < end:
        found = opening.match(text, at)
        if found is None:
            return None
        after = -1
        close = text.find(closing, found.end())
        while close >= 0:
            after = close + len(closing)
            if after == end or opening.match(text, after) is not None:
                break
            close = text.find(closing, after)
        if close < 0:
            return None
        pairs.append((found, text[found.end() : close]))
        at = after
    return pairs


def _loads(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _INVALID


def _refuse(constant: str) -> object:
    raise ValueError(constant)


def _has_arguments(fields: dict[str, Any]) -> bool:
    inner = fields.get("function")
    holders = [fields, cast("dict[str, Any]", inner)] if isinstance(inner, dict) else [fields]
    return any("arguments" in holder or "parameters" in holder for holder in holders)


def _call(name: object, arguments: object, tools: Tools) -> ReadCall | None:
    if not isinstance(name, str) or name not in tools or not isinstance(arguments, dict):
        return None
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        # An escaped half of a character is JSON, and can be sent only as the escape that it was.
        is_sendable = text.isascii() or text.encode("utf-8", "ignore").decode() == text
        text = text if is_sendable else json.dumps(arguments, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return ReadCall(name, text)


def _typed(pairs: list[tuple[str, str]], name: str, tools: Tools) -> dict[str, Any]:
    """Give values that came as text the types that the tool's schema says."""
    schema = tools[name].parameters if name in tools else {}
    properties = schema.get("properties")
    known = cast("dict[str, Any]", properties) if isinstance(properties, dict) else {}
    return {key: _value(text, known.get(key)) for key, text in pairs}


def _value(text: str, schema: object) -> object:
    """Give a value its type; where it may be text, text it is."""
    kinds = _kinds(schema, _MAX_ALTERNATIVES_DEPTH)
    if "null" in kinds and text.strip() == "null":
        return None
    if "string" in kinds:
        return text
    word = text.strip().lower()
    if "boolean" in kinds and word in {"true", "false"}:
        return word == "true"
    value = _loads(text)
    return text if value is _INVALID else value


def _kinds(schema: object, depth: int) -> frozenset[str]:
    """Name the types that a schema lets a value have, as far as it says so at its top."""
    if not isinstance(schema, dict) or depth == 0:
        return frozenset()
    fields = cast("dict[str, Any]", schema)
    said = fields.get("type")
    if isinstance(said, str):
        return frozenset({said})
    if isinstance(said, list):
        return frozenset(kind for kind in cast("list[Any]", said) if isinstance(kind, str))
    kinds: set[str] = set()
    if any(isinstance(choice, str) for choice in _list(fields.get("enum"))):
        kinds.add("string")
    for name in ("anyOf", "oneOf", "allOf"):
        for alternative in _list(fields.get(name)):
            kinds |= _kinds(alternative, depth - 1)
    return frozenset(kinds)


def _list(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []
