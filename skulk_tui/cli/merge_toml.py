"""Puts our settings into somebody's TOML file and leaves every other byte alone. Pure.

Lines are edited, and the result is read again: what does not mean exactly what was wanted is not
given out.
"""

import json
import re
import tomllib
from collections.abc import Mapping
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


def _with_table(lines: list[str], table: tuple[str, str], entry: Mapping[str, Scalar]) -> list[str]:
    names = r"\s*\.\s*".join(rf"\"?{name}\"?" for name in table)
    header = re.compile(rf"\s*\[\s*{names}\s*\]\s*(#.*)?$")
    start = next((n for n, line in enumerate(lines) if header.match(line)), None)
    block = _block(table, entry)
    if start is None:
        while lines and not lines[-1].strip():
            lines = lines[:-1]
        return [*lines, *([""] if lines else []), *block, ""]
    end = start + 1
    while end < len(lines) and not _TABLE_START.match(lines[end]):
        end += 1
    while _IDLE.match(lines[end - 1]):
        end -= 1
    return [*lines[:start], *block, *lines[end:]]
