"""`skulk diag bundle`: what the nodes know, redacted, in one archive to send to somebody."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from protocol.errors import ClientError
from skulk_tui.cli import exit_codes
from skulk_tui.cli.bundle_archive import bundle_name, write_bundle
from skulk_tui.cli.bundle_documents import Collected
from skulk_tui.cli.bundle_wish import PARTS, BundleWish, Sampling, level_of, parts_of, sampling_of
from skulk_tui.cli.operation_records import BundleRecord
from skulk_tui.cli.output import Listing, key_values
from skulk_tui.cli.session import Session, parse_duration
from skulk_tui.cli.suggestions import node_ids_of
from skulk_tui.cli.verb import group, verb
from skulk_tui.cli.waiting import state_of
from skulk_tui.formatting import format_bytes

_EXAMPLES: Final = (
    "skulk diag bundle --nodes studio,attic --since 1h",
    "skulk diag bundle --duration 2m --interval 10s --log-level warning",
)


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
    duration: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Go on looking for 2m, 1h [default: look once]."),
    ] = None,
    interval: Annotated[
        str, typer.Option(metavar="DURATION", help="How long from one look to the next.")
    ] = "30s",
    max_nodes: Annotated[int, typer.Option(min=1, max=256, help="At most so many nodes.")] = 10,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="Lines of logs from this level on.")
    ] = None,
    include: Annotated[
        str | None, typer.Option(metavar="A,B", help=f"Only these of: {', '.join(PARTS)}.")
    ] = None,
    exclude: Annotated[
        str | None, typer.Option(metavar="A,B", help="Without these of them.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("-O", metavar="FILE", help="Where to [default: here, by time].")
    ] = None,
) -> int:
    """Collect state, events, logs, versions and settings of the nodes in one redacted archive.

    API keys, invitations, prompts and the names of home folders are taken out; the manifest in the
    archive counts what was. With --duration, state, health and readings are looked at again and
    again, and events and logs are read at the end. Ctrl-C keeps what has been collected so far.
    """
    state = state_of(session)
    chosen = node_ids_of(state, (nodes,)) if nodes else tuple(state.members)
    left_out, chosen = chosen[max_nodes:], chosen[:max_nodes]
    now_ms = session.clock.wall_ms()
    since_ms = None if since is None else now_ms - int(parse_duration(since, "--since") * 1000)
    path = file or Path(bundle_name(now_ms))
    wish = BundleWish(
        nodes=chosen,
        left_out=left_out,
        since_ms=since_ms,
        parts=parts_of(include, exclude),
        min_level=level_of(log_level),
        sampling=_sampling(session, duration, interval),
    )
    session.narrate(
        f"collecting from {len(chosen)} of {len(state.members)} nodes, at most "
        f"{format_bytes(wish.at_most_bytes)} before compression, into {path}"
    )
    collected = Collected(session.client, wish, session.clock, tell=session.narrate)
    record, ended = write_bundle(path, collected, wish, state, now_ms=now_ms)
    _show(session, record, collected.failed)
    session.narrate(f"Review it before you share it: `tar --zstd -xf {path}`.")
    if ended is not None:
        raise ended
    return exit_codes.PARTIAL if collected.failed or left_out else exit_codes.OK


def _sampling(session: Session, duration: str | None, interval: str) -> Sampling | None:
    duration_s = None if duration is None else parse_duration(duration, "--duration")
    interval_s = parse_duration(interval, "--interval")
    if duration_s is not None and session.timeout_s is not None and duration_s > session.timeout_s:
        raise ClientError(
            "client.usage",
            f"--duration {duration} is longer than the {session.timeout_s:g} s of --timeout",
            remediation="Leave out --timeout (and SKULK_TIMEOUT), or shorten --duration.",
        )
    return sampling_of(duration_s, interval_s)


def _show(session: Session, record: BundleRecord, failed: Mapping[str, str]) -> None:
    shown = key_values(
        [
            ("file", record.path),
            ("size", format_bytes(record.size_bytes)),
            ("documents", str(record.files)),
            ("removed", f"{record.removed} secrets, prompts and names of home folders"),
            *(("not there", f"{name}: {why}") for name, why in failed.items()),
            *([("partial", "yes: it was interrupted")] if record.partial else []),
        ]
    )
    session.output.show(
        Listing(kind="bundle", items=(record,), tables=(shown,), names=(record.path,))
    )
