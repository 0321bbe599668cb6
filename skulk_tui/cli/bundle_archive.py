"""The archive of a bundle: one zstd tar with a manifest, there under its name once it is whole."""

import io
import json
import tarfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

from protocol.control_api import StateDocument
from protocol.errors import ClientError
from skulk_tui.cli.bundle_documents import Collected, stamp_of
from skulk_tui.cli.bundle_wish import PARTS, BundleWish
from skulk_tui.cli.operation_records import BundleRecord
from skulk_tui.cli.program import own_version
from skulk_tui.formatting import rfc3339

_LEVEL: Final = 10


class StoppedError(Exception):
    """The operator wants no more of it; what has been collected is kept."""


def bundle_name(now_ms: int) -> str:
    """Name an archive by its time."""
    return f"skulk-bundle-{stamp_of(now_ms)}.tar.zst"


def write_bundle(
    path: Path, collected: Collected, wish: BundleWish, state: StateDocument, *, now_ms: int
) -> tuple[BundleRecord, BaseException | None]:
    """Collect and write; blocking.

    Returns:
        What was made, and what stopped it early: Ctrl-C, a signal, or `StoppedError`.

    Raises:
        ClientError: `client.usage`: the file cannot be written.
    """
    from skulk_tui.cli.interruptions import Interrupted

    ended: BaseException | None = None
    with _archive(path) as add:
        try:
            for name, content in collected.documents(state):
                add(name, content)
        except (KeyboardInterrupt, Interrupted, StoppedError) as interrupt:
            ended = interrupt
        manifest = {
            "made_at": rfc3339(now_ms),
            "made_by": own_version(),
            "partial": ended is not None,
            "since": rfc3339(wish.since_ms),
            "level": wish.min_level,
            "parts": [part for part in PARTS if part in wish.parts],
            "nodes": list(wish.nodes),
            "nodes_left_out": list(wish.left_out),
            "files": collected.files,
            "failed": collected.failed,
            "removed": dict(collected.removed),
        }
        add("manifest.json", json.dumps(manifest, indent=2).encode())
    record = BundleRecord(
        path=str(path),
        size_bytes=path.stat().st_size,
        files=len(collected.files),
        removed=sum(collected.removed.values()),
        failed=tuple(collected.failed),
        partial=ended is not None,
    )
    return record, ended


@contextmanager
def _archive(path: Path) -> Generator["_Archive"]:
    """Write an archive that is there under its name once it is whole.

    Raises:
        ClientError: `client.usage`; the file cannot be written.
    """
    import zstandard

    written = path.with_name(f".{path.name}.part")
    try:
        with (
            written.open("xb") as raw,
            zstandard.ZstdCompressor(level=_LEVEL).stream_writer(raw) as stream,
            tarfile.open(fileobj=stream, mode="w|") as tar,
        ):
            written.chmod(0o600)
            yield _Archive(tar)
        written.replace(path)
    except OSError as wrong:
        raise ClientError(
            "client.usage",
            f"{path} cannot be written: {wrong.strerror or wrong}",
            remediation="Name another file with -O, or remove a leftover beside it.",
        ) from wrong
    finally:
        written.unlink(missing_ok=True)


@final
class _Archive:
    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar

    def __call__(self, name: str, content: bytes) -> None:
        member = tarfile.TarInfo(f"skulk-bundle/{name}")
        member.size, member.mode = len(content), 0o600
        self._tar.addfile(member, io.BytesIO(content))
