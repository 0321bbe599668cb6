"""`skulk version | info`: this program itself, and whom it would ask."""

import platform
from importlib import metadata
from typing import Final

import typer

from protocol.errors import SkulkError
from skulk_tui.cli.output import Listing, key_values
from skulk_tui.cli.records import InfoRecord, VersionRecord
from skulk_tui.cli.session import Session
from skulk_tui.cli.socket_owner import Owner, owner_of
from skulk_tui.cli.verb import verb
from skulk_tui.formatting import UNKNOWN, format_duration
from skulk_tui.own_files import state_dir

DISTRIBUTION: Final = "skulkd"


def add_program_verbs(app: typer.Typer) -> None:
    """Register the verbs."""
    verb(app, "version", examples=("skulk version", "skulk version --json"))(show_version)
    verb(app, "info", examples=("skulk info", "skulk info --node studio.local --json"))(show_info)


def whose(owner: Owner) -> str:
    """Say whose daemon it is."""
    return f"{owner.name} (you)" if owner.is_me else f"{owner.name}, another user of this machine"


def own_version() -> str:
    """Give the installed version; a tree that was never installed has none."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"


def show_version(session: Session) -> int | None:
    """Show the version of this program; no node is asked."""
    record = VersionRecord(
        version=own_version(), python=platform.python_version(), platform=platform.platform()
    )
    if session.form == "table":
        session.output.write(f"skulk {record.version}\n")
        return None
    table = key_values(
        [
            ("skulk", record.version),
            ("python", record.python),
            ("platform", record.platform),
        ]
    )
    session.output.show(
        Listing(kind="version", items=(record,), tables=(table,), names=(record.version,))
    )
    return None


def show_info(session: Session) -> int | None:
    """Show which node would be asked and by which rule, with which key, and where files lie.

    A node that does not answer is told, and is no failure.
    """
    from protocol.control_api import HealthDocument
    from skulk_tui.cli.plan_notes import cache_dir

    health: HealthDocument | None = None
    problem: str | None = None
    try:
        health = session.client.get("/health", HealthDocument)
    except SkulkError as error:
        problem = error.message
    target = session.client.target
    owner = owner_of(target)
    record = InfoRecord(
        version=own_version(),
        node=target.url,
        node_rule=target.url_rule,
        reachable=health is not None,
        node_version=health.version if health else None,
        node_name=health.name if health else None,
        api_key=target.key_rule,
        config_dir=str(session.config_dir),
        output=session.form,
        color=session.colors(session.stdout),
        timeout_s=session.timeout_s,
        problem=problem,
        state_dir=str(state_dir(session.environ)),
        cache_dir=str(cache_dir(session.environ)),
        cluster=target.profile or None,
        readonly=target.readonly,
        protect=target.protect,
        ascii=session.output.is_ascii,
        daemon_user=owner.name if owner else None,
        is_own_daemon=owner.is_me if owner else None,
    )
    table = key_values(
        [
            ("skulk", record.version),
            ("node", f"{record.node} (by {record.node_rule})"),
            ("answers", f"yes: {record.node_name}" if health else f"no: {problem}"),
            ("node's version", record.node_version or UNKNOWN),
            ("daemon of", "unknown" if owner is None else whose(owner)),
            ("API key from", record.api_key),
            ("changes", _changes_text(record)),
            ("config", record.config_dir),
            ("state", record.state_dir),
            ("cache", record.cache_dir),
            ("colour", "yes" if record.color else "no"),
            ("characters", "ASCII" if record.ascii else "UTF-8"),
            ("budget", format_duration(record.timeout_s)),
        ]
    )
    session.output.show(
        Listing(kind="info", items=(record,), tables=(table,), names=(record.node,))
    )
    return None


def _changes_text(record: InfoRecord) -> str:
    if record.readonly:
        return "refused: read-only"
    return "asked about: protected" if record.protect else "allowed, as far as the API key goes"
