"""`skulk config get | set` and `skulk node restart`: settings of a node, and taking them up."""

from typing import Annotated, Final

import typer

from protocol.admin_api import (
    ClusterSettingsBody,
    ConfigBody,
    ConfigDocument,
    RestartBody,
    RestartDocument,
    SettingValue,
)
from protocol.control_api import NodeIdentity
from protocol.errors import ClientError, SkulkError
from protocol.state import ClusterSettings
from skulk_tui.cli.completing import complete_node
from skulk_tui.cli.nearest import unknown_value
from skulk_tui.cli.operation_records import RestartRecord, SettingRecord
from skulk_tui.cli.output import Column, Listing, Table
from skulk_tui.cli.session import Session
from skulk_tui.cli.verb import group, verb
from skulk_tui.cli.waiting import says_that_it_goes_on
from skulk_tui.formatting import UNKNOWN

CLUSTER_PREFIX: Final = "cluster."
RESTART_WITHIN_S: Final = 120.0
_POLL_S: Final = 0.3

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
    node = group(app, "node", "One node of the cluster.")
    verb(
        node,
        "restart",
        examples=("skulk node restart studio", "skulk node restart studio --dry-run"),
    )(restart_node)


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


def restart_node(
    session: Session,
    target: Annotated[
        str,
        typer.Argument(metavar="NODE", help="By name or id.", autocompletion=complete_node),
    ],
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what it would interrupt.")
    ] = False,
) -> int | None:
    """Start a node anew, with its settings as they are now, and wait until it is back.

    Its engines stop and come back with it; requests that they answer end with an error.
    """
    query = {"node": target}
    plan = session.client.post(
        "/admin/restart", RestartDocument, RestartBody(dry_run=True), query=query
    )
    if dry_run:
        _show_restart(session, plan, "would be restarted")
        return None
    session.confirm(f"Restart {plan.name}, which interrupts {_interrupted(plan)}?", yes=yes)
    begun = session.client.post("/admin/restart", RestartDocument, RestartBody(), query=query)
    session.narrate(f"{begun.name} is restarting; it interrupts {_interrupted(begun)}")
    with says_that_it_goes_on(session, "Follow: `skulk nodes`."):
        _wait_until_back(session, begun)
    _show_restart(session, begun, "restarted")
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


def _requests(document: RestartDocument) -> int | None:
    counts = [one.requests for one in document.interrupted if one.requests is not None]
    return sum(counts) if counts else None


def _interrupted(document: RestartDocument) -> str:
    if not document.interrupted:
        return "no instance"
    models = ", ".join(sorted({one.model_id for one in document.interrupted}))
    n_requests = _requests(document)
    return f"{models} ({n_requests} requests)" if n_requests else models


def _show_restart(session: Session, document: RestartDocument, outcome: str) -> None:
    record = RestartRecord(
        node_id=document.node_id,
        name=document.name,
        outcome=outcome,
        instances=tuple(one.instance_id for one in document.interrupted),
        requests=_requests(document),
    )
    columns = (Column("NODE"), Column("OUTCOME"), Column("INTERRUPTS", least=12, wraps=True))
    row = (record.name, record.outcome, _interrupted(document))
    session.output.show(
        Listing(
            kind="restarts",
            items=(record,),
            tables=(Table(columns, (row,)),),
            names=(record.node_id,),
        )
    )


def _wait_until_back(session: Session, document: RestartDocument) -> None:
    """Wait until the node answers in another life.

    Raises:
        ClientError: `client.timeout`.
    """
    until_s = session.deadline_s or session.clock.monotonic_s() + RESTART_WITHIN_S
    while session.clock.monotonic_s() < until_s:
        session.clock.wait_s(_POLL_S)
        try:
            identity = session.client.get(
                "/node/identity", NodeIdentity, query={"node": document.node_id}
            )
        except SkulkError as error:
            if error.code == "client.timeout":
                raise
            continue  # it, or the way to it, is not back yet
        if identity.boot_id != document.boot_id:
            return
    raise ClientError("client.timeout", f"{document.name} did not come back in time")
