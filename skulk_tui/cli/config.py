"""`skulk config get | set`: the settings of a node, and those of the whole cluster."""

from typing import Annotated, Final

import typer

from protocol.admin_api import (
    ClusterSettingsBody,
    ConfigBody,
    ConfigDocument,
    SettingValue,
)
from protocol.errors import ClientError
from protocol.state import ClusterSettings
from skulk_tui.cli.completing import complete_node
from skulk_tui.cli.nearest import unknown_value
from skulk_tui.cli.operation_records import SettingRecord
from skulk_tui.cli.output import Column, Listing, Table
from skulk_tui.cli.session import Session
from skulk_tui.cli.verb import group, verb
from skulk_tui.formatting import UNKNOWN

CLUSTER_PREFIX: Final = "cluster."

OnOption = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="NODE",
        help="Whose settings [default: the node that is asked].",
        autocompletion=complete_node,
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Check, and change nothing.")]


def add_config_verbs(app: typer.Typer) -> None:
    """Register the verbs."""
    config = group(app, "config", "Settings of a node, and of the whole cluster.")
    verb(config, "get", examples=("skulk config get", "skulk config get api --on studio --json"))(
        get_settings
    )
    verb(
        config,
        "set",
        examples=("skulk config set priority=90 --on studio", "skulk config set --unset bind"),
    )(set_settings)


def get_settings(
    session: Session,
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY]...", help="Only these; all, if left out.")
    ] = None,
    *,
    on: OnOption = None,
) -> int | None:
    """Show the settings that hold, where each comes from, and which wait for a restart."""
    document = session.client.get("/config", ConfigDocument, query=_query(on))
    records = setting_records(document)
    known = {record.key for record in records}
    for key in keys or ():
        if key not in known:
            raise unknown_value("a setting", key, known, see="skulk config get")
    _show(session, document, [one for one in records if not keys or one.key in keys])
    return None


def set_settings(
    session: Session,
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Lists have commas between their parts."),
    ] = None,
    *,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Take it out of the file.")
    ] = None,
    on: OnOption = None,
    dry_run: DryRunOption = False,
) -> int | None:
    """Change a node's settings file, or with `cluster.` before the key, what holds on all nodes."""
    body = body_of(changes or [], unset or [], dry_run=dry_run)
    document = session.client.put("/config", ConfigDocument, body, query=_query(on))
    named = {change.partition("=")[0] for change in changes or ()} | {*(unset or ())}
    _show(session, document, [one for one in setting_records(document) if one.key in named])
    return None


def body_of(changes: list[str], unset: list[str], *, dry_run: bool) -> ConfigBody:
    """Read what is to change.

    Raises:
        ClientError: `client.usage`; a change that is none, or nothing to change.
    """
    settings: dict[str, SettingValue] = {}
    cluster: dict[str, str] = {}
    for change in changes:
        key, sign, value = change.partition("=")
        if not sign or not key:
            raise ClientError(
                "client.usage",
                f"{change[:80]!r} is no KEY=VALUE",
                remediation="Write it like priority=90; `skulk config get` lists the keys.",
            )
        if key.startswith(CLUSTER_PREFIX):
            cluster[key.removeprefix(CLUSTER_PREFIX)] = value
        else:
            settings[key] = value
    if not changes and not unset:
        raise ClientError("client.usage", "there is nothing to change")
    try:
        return ConfigBody(
            settings=settings,
            unset=tuple(unset),
            cluster=ClusterSettingsBody.model_validate(cluster),
            dry_run=dry_run,
        )
    except ValueError as wrong:
        known = ", ".join(f"{CLUSTER_PREFIX}{key}" for key in ClusterSettings.model_fields)
        raise ClientError(
            "client.usage",
            "a key or a value cannot be one of a setting",
            remediation=f"See docs/configuration.md. Of the whole cluster there are {known}.",
        ) from wrong


def setting_records(document: ConfigDocument) -> list[SettingRecord]:
    """Give every setting of a node, then those of the cluster."""
    node = document.node
    own = [
        SettingRecord(
            node_id=document.node_id,
            key=key,
            value=view.value,
            source=view.source,
            in_file=node.file.get(key),
            pending=key in node.pending,
        )
        for key, view in node.effective.items()
    ]
    of_all = [
        SettingRecord(
            node_id=None,
            key=f"{CLUSTER_PREFIX}{key}",
            value=value,
            source="cluster",
            in_file=None,
            pending=False,
        )
        for key, value in document.cluster.model_dump().items()
    ]
    return [*own, *of_all]


def _show(session: Session, document: ConfigDocument, records: list[SettingRecord]) -> None:
    columns = (
        Column("KEY"),
        Column("VALUE", least=12, wraps=True),
        Column("FROM"),
        Column("IN FILE", least=12, wraps=True, drop=1),
        Column(""),
    )
    rows = tuple(
        (
            one.key,
            _text(one.value),
            one.source,
            _text(one.in_file),
            "after a restart" if one.pending else "",
        )
        for one in records
    )
    session.output.show(
        Listing(
            kind="settings",
            items=records,
            tables=(Table(columns, rows),),
            names=[one.key for one in records],
        )
    )
    if document.node.pending:
        session.narrate(
            f"{document.name} takes up {', '.join(document.node.pending)} when it starts: "
            f"`skulk node restart {document.name}`."
        )


def _text(value: object) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - of a setting


def _query(on: str | None) -> dict[str, str]:
    return {} if on is None else {"node": on}
