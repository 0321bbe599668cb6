"""Puts our settings into somebody's JSON file and leaves every other byte alone. Pure.

The text is edited, and the result is read again: what does not mean exactly what was wanted is not
given out. A file with comments is no JSON, and is left to its owner.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

_SPACES: Final = " \t\r\n"
_INDENT: Final = 2


def json_text(changes: Mapping[tuple[str, ...], object]) -> str:
    """Write a document that holds these values at these paths."""
    document: dict[str, Any] = {}
    for path, value in changes.items():
        _set(document, path, value)
    return json.dumps(document, indent=_INDENT, ensure_ascii=False) + "\n"


def merge_json(before: str, changes: Mapping[tuple[str, ...], object]) -> str | None:
    """Set values at paths of names.

    Returns:
        The new text, or None where the file is no JSON object, or has something else on the way.
    """
    try:
        wanted: Any = copy.deepcopy(json.loads(before))
        after = before
        for path, value in changes.items():
            _set(wanted, path, value)
            after = _put(after, path, value)
        return after if json.loads(after) == wanted else None
    except (ValueError, IndexError, TypeError, RecursionError):
        return None


def restore_json(text: str, before: str, paths: Sequence[tuple[str, ...]]) -> str | None:
    """Set what is at paths to what it was, or take it out where it was not there.

    Returns:
        The new text, or None where one of both is no JSON object, or has something else on the way.
    """
    try:
        return _restored(text, json.loads(before) if before.strip() else {}, paths)
    except (ValueError, IndexError, TypeError, KeyError, RecursionError):
        return None


def _restored(text: str, old: object, paths: Sequence[tuple[str, ...]]) -> str | None:
    wanted: object = json.loads(text)
    for path in paths:
        if not _has(wanted, path):
            continue
        if _has(old, path):
            _set(wanted, path, _at(old, path))
            text = _put(text, path, _at(old, path))
        else:
            del cast("dict[str, object]", _at(wanted, path[:-1]))[path[-1]]
            text = _cut(text, path)
    return text if json.loads(text) == wanted else None


def _at(document: object, path: tuple[str, ...]) -> object:
    for name in path:
        document = cast("dict[str, object]", document)[name]
    return document


def _has(document: object, path: tuple[str, ...]) -> bool:
    for name in path:
        if not isinstance(document, dict) or name not in document:
            return False
        document = cast("dict[str, object]", document)[name]
    return True


def _set(document: object, path: tuple[str, ...], value: object) -> None:
    name, *rest = path
    if not isinstance(document, dict):
        message = "something else is on the way"
        raise TypeError(message)
    members = cast("dict[str, object]", document)
    if rest:
        _set(members.setdefault(name, {}), tuple(rest), value)
    else:
        members[name] = value


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    start: int
    """Of its name."""
    value_start: int
    value_end: int


def _skip(text: str, at: int) -> int:
    while text[at] in _SPACES:
        at += 1
    return at


def _members(text: str, at: int) -> tuple[list[_Member], int]:
    """Read the object that begins here: its members, and where it is closed."""
    if text[at] != "{":
        message = "no object"
        raise ValueError(message)
    decoder, members = json.JSONDecoder(), list[_Member]()
    at = _skip(text, at + 1)
    while text[at] != "}":
        if members:
            at = _skip(text, at + 1)  # the comma; whether it is one was seen by the whole reader
        name, end = decoder.raw_decode(text, at)
        value_start = _skip(text, _skip(text, end) + 1)
        _, value_end = decoder.raw_decode(text, value_start)
        members.append(_Member(str(name), at, value_start, value_end))
        at = _skip(text, value_end)
    return members, at


def _put(text: str, path: tuple[str, ...], value: object) -> str:
    at = _skip(text, 0)
    for depth, name in enumerate(path):
        members, close = _members(text, at)
        found = next((one for one in reversed(members) if one.name == name), None)
        if found is None:
            inner = value
            for outer in reversed(path[depth + 1 :]):
                inner = {outer: inner}
            return _insert(text, at, members, close, name, inner)
        at = found.value_start
        if depth == len(path) - 1:
            indent = _indent_at(text, found.start) or ""
            return text[:at] + _dumped(value, indent) + text[found.value_end :]
    return text


def _cut(text: str, path: tuple[str, ...]) -> str:
    """Take out the one member that is there, with the comma that parts it from its neighbour."""
    at, members, close, index = _skip(text, 0), list[_Member](), 0, 0
    opened = at
    for name in path:
        opened = at
        members, close = _members(text, at)
        index = max(n for n, one in enumerate(members) if one.name == name)
        at = members[index].value_start
    if index > 0:
        return text[: members[index - 1].value_end] + text[members[index].value_end :]
    if len(members) > 1:
        return text[: members[0].start] + text[members[1].start :]
    return text[: opened + 1] + text[close:]


def _insert(
    text: str, opened: int, members: list[_Member], close: int, name: str, value: object
) -> str:
    key = json.dumps(name, ensure_ascii=False)
    if not members:
        outer = _indent_at(text, opened, strictly=False) or ""
        inner = outer + " " * _INDENT
        return f"{text[: opened + 1]}\n{inner}{key}: {_dumped(value, inner)}\n{outer}{text[close:]}"
    end = members[-1].value_end
    indent = _indent_at(text, members[-1].start)
    between = ", " if indent is None else f",\n{indent}"
    return f"{text[:end]}{between}{key}: {_dumped(value, indent or '')}{text[end:]}"


def _indent_at(text: str, at: int, *, strictly: bool = True) -> str | None:
    """Give the indentation of the line; None, if strict, where more than that is before."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    indent = line[: len(line) - len(line.lstrip())]
    return indent if indent == line or not strictly else None


def _dumped(value: object, indent: str) -> str:
    text = json.dumps(value, indent=_INDENT, ensure_ascii=False)
    return text.replace("\n", f"\n{indent}")
