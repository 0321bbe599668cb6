"""`skulk doctor`: what is wrong with the nodes, and what to do about it."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import typer

from protocol.cluster_api import NodesDocument
from protocol.errors import ClientError
from skulk_tui.cli import exit_codes
from skulk_tui.cli.answers import check_record, view_record
from skulk_tui.cli.output import Column, Listing, Table
from skulk_tui.cli.records import CheckRecord
from skulk_tui.cli.session import Session
from skulk_tui.cli.tables import reasons_table
from skulk_tui.cli.verb import WatchOption, verb

_ASK_PROGRAM_S: Final = 10.0
_EXIT_CODES: Final = {"well": exit_codes.OK, "degraded": exit_codes.PARTIAL}
_ORDER: Final = ("well", "degraded", "fails")


def add_doctor(app: typer.Typer) -> None:
    """Register the verb."""
    verb(
        app,
        "doctor",
        examples=("skulk doctor --watch", "skulk doctor --json | jq .items[].reasons"),
    )(doctor)


def doctor(session: Session, *, watch: WatchOption = False) -> int | None:
    """Check the health of all nodes, and say what to do about what is wrong.

    Exit code: 0 all is well, 6 something is only degraded, 1 something fails. With no node
    running on this machine, `skulkd doctor` checks the machine itself.
    """
    if watch:
        from skulk_tui.cli.watches import watch_checks

        return watch_checks(session)
    try:
        nodes = session.client.get("/v1/nodes", NodesDocument)
    except ClientError as error:
        program = _machine_check(session) if error.code == "client.unreachable" else None
        if program is None:
            raise
        session.narrate(f"{error.message}; checking this machine instead")
        return subprocess.run(program, check=False).returncode
    records = [view_record(node) for node in nodes.items]
    checks = [check_record(record) for record in records]
    session.output.show(
        Listing(
            kind="checks",
            seq=nodes.seq,
            items=checks,
            tables=(checks_table(checks), reasons_table(records, has_notes=session.form == "wide")),
            names=[check.name for check in checks if check.verdict != "well"],
        )
    )
    worst = max((check.verdict for check in checks), key=_ORDER.index, default="well")
    return _EXIT_CODES.get(worst, exit_codes.FAILED)


def checks_table(checks: Sequence[CheckRecord]) -> Table:
    """One row per node."""
    return Table(
        (Column("NODE", least=8), Column("VERDICT"), Column("LIVENESS"), Column("HEALTH")),
        tuple((one.name, one.verdict, one.liveness, one.health) for one in checks),
    )


def _machine_check(session: Session) -> list[str] | None:
    """Find `skulkd doctor`, for a node that would run on this machine; None where there is none.

    Its output is its own: it is no listing of a node, so programs are given the error instead.
    """
    if not session.target.is_loopback or session.output.is_for_programs:
        return None
    beside = Path(sys.argv[0]).resolve().parent if Path(sys.argv[0]).name == "skulk" else None
    paths = [session.environ.get("PATH", ""), str(beside or "")]
    for path in filter(None, paths):
        found = shutil.which("skulkd", path=path)
        if found is not None and _can_check(found):
            return [found, "doctor"]
    return None


def _can_check(program: str) -> bool:
    """Whether this build of the daemon has the verb: its help says so."""
    try:
        told = subprocess.run(
            [program, "doctor", "--help"],
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_ASK_PROGRAM_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return told.returncode == exit_codes.OK and b"doctor" in told.stdout
