"""The logs that lie in this node's home, read a page at a time behind the API's `NodeLogs` port.

A log is a row of files, oldest first: the daemon's own rotates by renaming, an engine writes one
file an attempt. A position is a file's inode and an offset in it, so that it outlives the renaming;
where the file is gone, or was cut to less, reading goes on at the oldest line there is, and says
that something is missing.
"""

import json
import os
import re
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, cast, final

from protocol.cluster_api import LogLineView, LogsDocument
from protocol.errors import DetailValue, RequestError
from protocol.ids import InstanceId, NodeId
from skulkd.api.ports import LogMark, LogQuery
from skulkd.runtime.logs import LOG_FILE_NAME, N_FILES
from skulkd.runtime.tasks import run_blocking

PAGE_BYTES: Final = 512 << 10
SEARCHED_BYTES: Final = 64 << 20
"""More than a log may have."""
MAX_LINES: Final = 1000
SHOWN_MAX_CHARS: Final = 16 << 10
"""Of a message, or of one further field."""
MAX_EXTRAS: Final = 32
ENGINES: Final = "engines"
"""Where the worker has engines write, below the directory of logs."""

_POSITION: Final = re.compile(r"([0-9a-f]{1,16})\.([0-9]{1,15})")
_ENGINE_LOG: Final = re.compile(r"(?P<instance>.+)-(?P<rank>\d{1,3})\.(?P<attempt>\d{1,9})\.log")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_KNOWN: Final = frozenset({"ts", "level", "logger", "msg", "command_id"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    stream: BinaryIO
    inode: int
    size_bytes: int

    def piece(self, start: int, n_bytes: int) -> bytes:
        return os.pread(self.stream.fileno(), max(0, min(n_bytes, self.size_bytes - start)), start)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Position:
    inode: int
    offset: int

    def __str__(self) -> str:
        return f"{self.inode:x}.{self.offset}"


@final
class NodeLogFiles:
    """Implements `NodeLogs`.

    Args:
        node_id: This node.
        name: What people call it.
        directory: The home's directory of logs.
    """

    def __init__(self, *, node_id: NodeId, name: str, directory: Path) -> None:
        self._node_id = node_id
        self._name = name
        self._directory = directory

    async def mark(self, query: LogQuery) -> LogMark:
        """Say how far a log has come, without reading it.

        Raises:
            RequestError: `request.not_found`, the instance has no log here.
        """
        return await run_blocking(self._mark, query)

    async def read(self, query: LogQuery) -> LogsDocument:
        """Read lines, oldest first, at most `limit` and half a mebibyte.

        Raises:
            RequestError: `request.not_found`, the instance has no log here; `request.invalid`,
                `after` is no position.
        """
        return await run_blocking(self._read, query)

    def _read(self, query: LogQuery) -> LogsDocument:
        after = None if query.after is None else _parse(query.after)
        limit = max(1, min(query.limit, MAX_LINES))
        wanted = None if query.command_id is None else query.command_id.encode()
        with ExitStack() as stack:
            files = _opened(stack, self._paths(query.instance_id))
            if after is not None:
                start = _found(files, after)
            elif wanted is not None:
                start = _first(files)
            else:
                start = _before_last(files, limit)
            lines, end, has_more = _page(files, start or _first(files), limit, wanted)
        return LogsDocument(
            node_id=self._node_id,
            name=self._name,
            instance_id=query.instance_id,
            lines=tuple(_view(line, is_own=query.instance_id is None) for line in lines),
            next_after=str(end),
            has_more=has_more,
            was_cut=start is None and bool(files),
        )

    def _mark(self, query: LogQuery) -> LogMark:
        marks: list[tuple[int, int]] = []
        for path in self._paths(query.instance_id):
            with suppress(FileNotFoundError):
                status = path.stat()
                marks.append((status.st_ino, status.st_size))
        return tuple(marks)

    def _paths(self, instance_id: InstanceId | None) -> list[Path]:
        if instance_id is None:
            names = [LOG_FILE_NAME, *(f"{LOG_FILE_NAME}.{number}" for number in range(1, N_FILES))]
            return [self._directory / name for name in reversed(names)]
        found: list[tuple[int, int, Path]] = []
        for path in (self._directory / ENGINES).glob(f"{instance_id}-*.log"):
            match = _ENGINE_LOG.fullmatch(path.name)
            if match is not None and match["instance"] == instance_id:
                found.append((int(match["attempt"]), int(match["rank"]), path))
        if not found:
            raise RequestError(
                "request.not_found",
                f"node {self._name} has no log of instance {instance_id}",
                remediation="`skulk ps` shows where it runs; the oldest logs are removed.",
                details={"instance_id": instance_id, "node_id": self._node_id},
            )
        return [path for _, _, path in sorted(found)]


def _opened(stack: ExitStack, paths: Sequence[Path]) -> list[_File]:
    files: list[_File] = []
    for path in paths:
        try:
            stream = stack.enter_context(path.open("rb", buffering=0))
        except FileNotFoundError:
            continue  # there are fewer so far, or it has just been renamed
        status = os.fstat(stream.fileno())
        if files and files[-1].inode == status.st_ino:
            continue  # renamed between two looks: it would be read twice
        files.append(_File(stream=stream, inode=status.st_ino, size_bytes=status.st_size))
    return files


# ---- Positions ----


def _parse(text: str) -> _Position:
    match = _POSITION.fullmatch(text)
    if match is None:
        raise RequestError(
            "request.invalid",
            f"`after` is no position of a log: {text[:40]!r}",
            remediation="Send `next_after` of an earlier answer, or leave it out.",
            details={"param": "after"},
        )
    return _Position(inode=int(match[1], 16), offset=int(match[2]))


def _first(files: Sequence[_File]) -> _Position:
    return _Position(inode=files[0].inode if files else 0, offset=0)


def _found(files: Sequence[_File], after: _Position) -> _Position | None:
    """Give the position if it is there still; one from before there was a file is the start."""
    if after.inode == 0:
        return _first(files)
    is_there = any(one.inode == after.inode and after.offset <= one.size_bytes for one in files)
    return after if is_there else None


def _before_last(files: Sequence[_File], n_lines: int) -> _Position:
    """Find where the last lines begin, looking back over at most one page of bytes."""
    position, left_bytes, wanted = _first(files), PAGE_BYTES, n_lines
    for file in reversed(files):
        start = max(0, file.size_bytes - left_bytes)
        data = file.piece(start, left_bytes)
        left_bytes -= len(data)
        end = len(data)
        while wanted and (before := data.rfind(b"\n", 0, max(0, end - 1))) >= 0:
            end, wanted = before + 1, wanted - 1
        if wanted and start == 0 and data:
            end, wanted = 0, wanted - 1
        position = _Position(inode=file.inode, offset=start + end)
        if not wanted or not left_bytes:
            break
    return position


def _page(
    files: Sequence[_File], position: _Position, limit: int, wanted: bytes | None
) -> tuple[list[bytes], _Position, bool]:
    """Take whole lines from a position on; the last file's last piece of a line is left to come.

    Args:
        files: The log.
        position: Where to begin.
        limit: At most so many lines.
        wanted: Only lines that contain this; the search goes on through the whole log.
    """
    lines: list[bytes] = []
    page_bytes = PAGE_BYTES if wanted is None else SEARCHED_BYTES
    left_bytes, room_bytes = page_bytes, PAGE_BYTES
    at = next((index for index, one in enumerate(files) if one.inode == position.inode), 0)
    for index, file in enumerate(files[at:], at):
        offset = position.offset if file.inode == position.inode else 0
        data = file.piece(offset, left_bytes)
        is_whole = offset + len(data) >= file.size_bytes
        is_finished = is_whole and index < len(files) - 1
        used = 0
        while len(lines) < limit and room_bytes > 0 and used < len(data):
            end = data.find(b"\n", used)
            if end < 0:
                # The rest of a file that grows no more, or of a line that fills a page.
                if not is_finished and len(data) - used < page_bytes:
                    break
                end = len(data)
            line = data[used:end]
            if wanted is None or wanted in line:
                lines.append(line)
                room_bytes -= len(line) + 1
            used = min(end + 1, len(data))
        left_bytes -= used
        position = _Position(inode=file.inode, offset=offset + used)
        if used < len(data) or not is_whole:
            has_more = b"\n" in data[used:] or not is_whole
            return lines, position, has_more
    return lines, position, False


# ---- Lines ----


def _view(line: bytes, *, is_own: bool) -> LogLineView:
    text = line.decode("utf-8", "replace").rstrip("\r")
    fields = _fields(text) if is_own else None
    if fields is None:
        return LogLineView(message=_shown(text))
    extras = [(key, value) for key, value in fields.items() if key not in _KNOWN][:MAX_EXTRAS]
    return LogLineView(
        at=_text(fields.get("ts")),
        level=_text(fields.get("level")),
        logger=_text(fields.get("logger")),
        message=_text(fields.get("msg")) or "",
        command_id=_text(fields.get("command_id")),
        extra={key[:100]: _detail(value) for key, value in extras},
    )


def _fields(text: str) -> dict[str, object] | None:
    try:
        fields: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, object]", fields) if isinstance(fields, dict) else None


def _text(value: object) -> str | None:
    return None if value is None else _shown(value if isinstance(value, str) else repr(value))


def _detail(value: object) -> DetailValue:
    if value is None or isinstance(value, bool | int | float):
        return value
    return _shown(value if isinstance(value, str) else json.dumps(value))


def _shown(text: str) -> str:
    return _CONTROL.sub("", text)[:SHOWN_MAX_CHARS]
