"""Puts our settings into somebody's TOML file and leaves every other byte alone. Pure.

Lines are edited, and the result is read again: what does not mean exactly what was wanted is not
given out.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

Scalar = str | int
_TABLE_START: Final = re.compile(r"\s*\[")
_IDLE: Final = re.compile(r"\s*(#|$)")


def toml_text(
    top: Mapping[str, Scalar], table: tuple[str, str], entry: Mapping[str, Scalar]
) -> str:
    """Write keys of the root, then one table."""
    return "\n".join([*_lines(top), "", *_block(table, entry), ""])


def merge_toml(
    before: str,
    *,
    top: Mapping[str, Scalar],
    table: tuple[str, str],
    entry: Mapping[str, Scalar],
) -> str | None:
    """Set keys of the root and replace one table of the second level.

    Args:
        before: The file.
        top: Keys of the root, set to these values.
        table: Its name, in two parts.
        entry: All that the table holds from now on, beside tables of its own.

    Returns:
        The new text, or None where the file's form does not allow it safely.
    """
    try:
        wanted = _wanted(tomllib.loads(before), top, table, entry)
        carriage = "\r" if "\r\n" in before else ""
        lines = _with_top([line.removesuffix("\r") for line in before.split("\n")], top)
        lines = _with_table(lines, table, entry)
        after = f"{carriage}\n".join(lines)
        return after if wanted is not None and tomllib.loads(after) == wanted else None
    except (tomllib.TOMLDecodeError, RecursionError):
        return None


def take_out_toml(
    text: str, *, top: Mapping[str, Scalar | None], table: tuple[str, str]
) -> str | None:
    """Set keys of the root to what they were, or take them out, and one table with all it holds.

    Args:
        text: The file.
        top: Keys of the root; None takes one out.
        table: Its name, in two parts.

    Returns:
        The new text, or None where the file's form does not allow it safely.
    """
    try:
        wanted = _left(tomllib.loads(text), top, table)
        carriage = "\r" if "\r\n" in text else ""
        lines = [line.removesuffix("\r") for line in text.split("\n")]
        after = f"{carriage}\n".join(_without(lines, top, table))
        return after if wanted is not None and tomllib.loads(after) == wanted else None
    except (tomllib.TOMLDecodeError, RecursionError):
        return None


def _left(
    document: dict[str, object], top: Mapping[str, Scalar | None], table: tuple[str, str]
) -> dict[str, object] | None:
    outer, inner = table
    tables = _table(document.get(outer, {}))
    if tables is None:
        return None
    others = {key: value for key, value in document.items() if key not in {*top, outer}}
    kept = {key: value for key, value in top.items() if value is not None}
    left = {name: value for name, value in tables.items() if name != inner}
    return others | kept | ({outer: left} if left else {})


def _without(
    lines: list[str], top: Mapping[str, Scalar | None], table: tuple[str, str]
) -> list[str]:
    kept = {key: value for key, value in top.items() if value is not None}
    gone = [key for key, value in top.items() if value is None]
    return _without_top(_without_table(_with_top(lines, kept), table), gone)


def _wanted(
    document: dict[str, Any],
    top: Mapping[str, Scalar],
    table: tuple[str, str],
    entry: Mapping[str, Scalar],
) -> dict[str, Any] | None:
    outer, inner = table
    tables = _table(document.get(outer, {}))
    old = _table(tables.get(inner, {})) if tables is not None else None
    if tables is None or old is None:
        return None
    kept = {key: value for key, value in old.items() if _table(value) is not None}
    return {**document, **top, outer: {**tables, inner: {**entry, **kept}}}


def _table(value: object) -> dict[str, object] | None:
    return cast("dict[str, object]", value) if isinstance(value, dict) else None


def _lines(values: Mapping[str, Scalar]) -> list[str]:
    # A string of JSON is one of TOML, as long as nothing is escaped that need not be.
    return [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]


def _block(table: tuple[str, str], entry: Mapping[str, Scalar]) -> list[str]:
    return [f"[{'.'.join(table)}]", *_lines(entry)]


def _with_top(lines: list[str], top: Mapping[str, Scalar]) -> list[str]:
    end = next((n for n, line in enumerate(lines) if _TABLE_START.match(line)), len(lines))
    head, rest = lines[:end], lines[end:]
    missing: list[str] = []
    for key, line in zip(top, _lines(top), strict=True):
        at = [n for n, old in enumerate(head) if re.match(rf"\s*{key}\s*=", old)]
        if at:
            head[at[0]] = line
        else:
            missing.append(line)
    used = [n for n, line in enumerate(head) if not _IDLE.match(line)]
    at_index = used[-1] + 1 if used else 0
    if missing and not used:
        missing.append("")
    return [*head[:at_index], *missing, *head[at_index:], *rest]


def _without_top(lines: list[str], keys: Sequence[str]) -> list[str]:
    end = next((n for n, line in enumerate(lines) if _TABLE_START.match(line)), len(lines))
    patterns = [re.compile(rf"\s*{key}\s*=") for key in keys]
    head = [line for line in lines[:end] if not any(one.match(line) for one in patterns)]
    return [*head, *lines[end:]]


def _with_table(lines: list[str], table: tuple[str, str], entry: Mapping[str, Scalar]) -> list[str]:
    block, span = _block(table, entry), _span(lines, table)
    if span is None:
        while lines and not lines[-1].strip():
            lines = lines[:-1]
        return [*lines, *([""] if lines else []), *block, ""]
    return [*lines[: span[0]], *block, *lines[span[1] :]]


def _without_table(lines: list[str], table: tuple[str, str]) -> list[str]:
    span = _span(lines, table)
    if span is None:
        return lines
    start, end = span
    # With the blank line that parts it from what is above.
    start -= 1 if start > 0 and not lines[start - 1].strip() else 0
    return [*lines[:start], *lines[end:]]


def _span(lines: list[str], table: tuple[str, str]) -> tuple[int, int] | None:
    """Give the line of a table's head and the one after its last, without what is idle."""
    names = r"\s*\.\s*".join(rf"\"?{name}\"?" for name in table)
    header = re.compile(rf"\s*\[\s*{names}\s*\]\s*(#.*)?$")
    start = next((n for n, line in enumerate(lines) if header.match(line)), None)
    if start is None:
        return None
    end = start + 1
    while end < len(lines) and not _TABLE_START.match(lines[end]):
        end += 1
    while _IDLE.match(lines[end - 1]):
        end -= 1
    return start, end
