"""Puts our entries into a list of somebody's YAML file and leaves every other byte alone. Pure.

Lines are edited, and the result is read again: what does not mean exactly what was wanted is not
given out. yaml is loaded when it is needed, not before.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

Entry = Mapping[str, object]
_IDLE: Final = re.compile(r"\s*(#|$)")


def yaml_entries(entries: Sequence[Entry], indent: str = "  ") -> str:
    """Write entries of a list, a line for each field; what stands in them is written as JSON."""
    lines: list[str] = []
    for entry in entries:
        for n, (name, value) in enumerate(entry.items()):
            lead = "- " if n == 0 else "  "
            lines.append(f"{indent}{lead}{name}: {json.dumps(value, ensure_ascii=False)}\n")
    return "".join(lines)


def merge_yaml(before: str, *, key: str, entries: Sequence[Entry], suffix: str) -> str | None:
    """Replace those entries of a list whose `name` ends so, or add to it.

    Args:
        before: The file.
        key: Of the root; the list.
        entries: Ours, from now on.
        suffix: By which ours are known.

    Returns:
        The new text, or None where the file's form does not allow it safely.
    """
    import yaml

    try:
        document = _mapping(yaml.safe_load(before))
        root = cast("Any", yaml.compose(before, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]  stubs leave it open
        after = _edited(before, root, key, entries, suffix) if document is not None else None
        found = _mapping(yaml.safe_load(after)) if after is not None else None
    except (yaml.YAMLError, RecursionError, ValueError):
        return None
    if document is None or found is None or {**document, key: found.get(key)} != found:
        return None
    now = _list(found.get(key))
    ours = [one for one in now if _is_ours(one, suffix)]
    rest = [one for one in now if not _is_ours(one, suffix)]
    others = [one for one in _list(document.get(key)) if not _is_ours(one, suffix)]
    return after if ours == [dict(entry) for entry in entries] and rest == others else None


def _mapping(value: object) -> dict[str, object] | None:
    return cast("dict[str, object]", value) if isinstance(value, dict) else None


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _is_ours(entry: object, suffix: str) -> bool:
    found = _mapping(entry)
    return found is not None and str(found.get("name", "")).endswith(suffix)


def _edited(
    before: str,
    root: Any,  # ruff: ignore[any-type]  nodes of yaml have no stubs
    key: str,
    entries: Sequence[Entry],
    suffix: str,
) -> str | None:
    lines = before.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    node = next((value for name, value in root.value if name.value == key), None)
    if node is None:
        return "".join(lines) + f"{key}:\n" + yaml_entries(entries)
    if node.flow_style:
        if node.value:
            return None
        start, end = node.start_mark.index, node.end_mark.index
        tail = before[end:].lstrip(" ")
        gap = "" if tail.startswith("\n") else "\n"
        return f"{before[:start].rstrip(' ')}\n{yaml_entries(entries)[:-1]}{gap}{tail}"
    return _among(lines, before, node.value, entries, suffix)


def _among(
    lines: list[str],
    before: str,
    items: list[Any],
    entries: Sequence[Entry],
    suffix: str,
) -> str:
    """Put ours where they were, or at the end of the list."""
    spans = _spans(lines, items)
    ours = [
        span
        for span, item in zip(spans, items, strict=True)
        if any(n.value == "name" and str(v.value).endswith(suffix) for n, v in item.value)
    ]
    at = ours[0][0] if ours else spans[-1][1]
    first = lines[spans[0][0]]
    block = yaml_entries(entries, first[: len(first) - len(first.lstrip())])
    gone = {n for start, end in ours for n in range(start, end)}
    head = [line for n, line in enumerate(lines[:at]) if n not in gone]
    rest = [line for n, line in enumerate(lines[at:], at) if n not in gone]
    after = "".join([*head, block, *rest])
    is_cut = not before.endswith("\n") and bool(rest)
    return after[:-1] if is_cut else after


def _spans(lines: list[str], items: list[Any]) -> list[tuple[int, int]]:
    """Give the first line of each entry and the one after its last, without what is idle."""
    starts = [int(item.start_mark.line) for item in items]
    last = items[-1].end_mark
    ends = [*starts[1:], int(last.line) + (1 if last.column > 0 else 0)]
    spans: list[tuple[int, int]] = []
    for start, end in zip(starts, ends, strict=True):
        used = [n for n in range(start, max(end, start + 1)) if not _IDLE.match(lines[n])]
        spans.append((start, used[-1] + 1 if used else start + 1))
    return spans
