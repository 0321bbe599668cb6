"""`skulk diag bundle`: what the nodes know, redacted, in one archive to send to somebody."""

import io
import json
import tarfile
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, final

import typer

from protocol.errors import ClientError
from skulk_tui.cli import exit_codes
from skulk_tui.cli.bundle_documents import MAX_DOCUMENT_BYTES, MAX_LOG_BYTES, Collected
from skulk_tui.cli.interruptions import Interrupted
from skulk_tui.cli.operation_records import BundleRecord
from skulk_tui.cli.output import Listing, key_values
from skulk_tui.cli.program import own_version
from skulk_tui.cli.session import Session, parse_duration
from skulk_tui.cli.suggestions import node_ids_of
from skulk_tui.cli.verb import group, verb
from skulk_tui.cli.waiting import state_of
from skulk_tui.formatting import format_bytes, rfc3339

_LEVEL: Final = 10
_EXAMPLES: Final = ("skulk diag bundle", "skulk diag bundle --nodes studio,attic --since 1h")


def add_bundle_verbs(app: typer.Typer) -> None:
    """Register the verb under both its names."""
    diag = group(app, "diag", "Finding out what is wrong.")
    verb(diag, "bundle", examples=_EXAMPLES)(make_bundle)
    verb(app, "bundle", examples=tuple(one.replace("diag ", "") for one in _EXAMPLES))(make_bundle)


def make_bundle(
    session: Session,
    *,
    nodes: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these nodes [default: all].")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Logs and events of the last 10m, 2h, 1d."),
    ] = None,
    max_nodes: Annotated[int, typer.Option(min=1, max=256, help="At most so many nodes.")] = 10,
    file: Annotated[
        Path | None, typer.Option("-O", metavar="FILE", help="Where to [default: here, by time].")
    ] = None,
) -> int:
    """Collect state, events, logs, versions and settings of the nodes in one redacted archive.

    API keys, invitations, prompts and the names of home folders are taken out; the manifest in the
    archive counts what was. Ctrl-C keeps what has been collected so far.
    """
    state = state_of(session)
    chosen = node_ids_of(state, (nodes,)) if nodes else tuple(state.members)
    left_out, chosen = chosen[max_nodes:], chosen[:max_nodes]
    now_ms = session.clock.wall_ms()
    since_ms = None if since is None else now_ms - int(parse_duration(since, "--since") * 1000)
    stamp = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    path = file or Path(f"skulk-bundle-{stamp}.tar.zst")
    at_most = len(chosen) * (MAX_LOG_BYTES + 2 * MAX_DOCUMENT_BYTES) + 2 * MAX_DOCUMENT_BYTES
    session.narrate(
        f"collecting from {len(chosen)} of {len(state.members)} nodes, at most "
        f"{format_bytes(at_most)} before compression, into {path}"
    )
    collected = Collected(session, since_ms)
    ended: BaseException | None = None
    with _archive(path) as add:
        try:
            for name, content in collected.documents(state, chosen):
                add(name, content)
        except (KeyboardInterrupt, Interrupted) as interrupt:
            ended = interrupt
        manifest = {
            "made_at": rfc3339(now_ms),
            "made_by": own_version(),
            "partial": ended is not None,
            "since": rfc3339(since_ms),
            "nodes": list(chosen),
            "nodes_left_out": list(left_out),
            "files": collected.files,
            "failed": collected.failed,
            "removed": dict(collected.removed),
        }
        add("manifest.json", json.dumps(manifest, indent=2).encode())
    _show(session, path, collected, is_partial=ended is not None)
    session.narrate(f"Review it before you share it: `tar --zstd -xf {path}`.")
    if ended is not None:
        raise ended
    return exit_codes.PARTIAL if collected.failed or left_out else exit_codes.OK


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


def _show(session: Session, path: Path, collected: Collected, *, is_partial: bool) -> None:
    record = BundleRecord(
        path=str(path),
        size_bytes=path.stat().st_size,
        files=len(collected.files),
        removed=sum(collected.removed.values()),
        failed=tuple(collected.failed),
        partial=is_partial,
    )
    shown = key_values(
        [
            ("file", record.path),
            ("size", format_bytes(record.size_bytes)),
            ("documents", str(record.files)),
            ("removed", f"{record.removed} secrets, prompts and names of home folders"),
            *(("not there", f"{name}: {why}") for name, why in collected.failed.items()),
            *([("partial", "yes: it was interrupted")] if is_partial else []),
        ]
    )
    session.output.show(
        Listing(kind="bundle", items=(record,), tables=(shown,), names=(record.path,))
    )
