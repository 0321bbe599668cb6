"""`skulk node restart | drain | undrain`: one node, and what is stopped so that it may rest."""

from typing import Annotated, Final

import typer

from protocol.admin_api import RestartBody, RestartDocument
from protocol.cluster_api import ClusterDocument
from protocol.control_api import CommandAccepted, NodeIdentity
from protocol.drain_api import (
    DEFAULT_DRAIN_S,
    DrainBody,
    DrainDocument,
    DrainedInstance,
)
from protocol.errors import ClientError, SkulkError
from skulk_tui.cli.completing import complete_node
from skulk_tui.cli.drain_time import parse_drain
from skulk_tui.cli.operation_records import DrainedRecord, DrainRecord, RestartRecord
from skulk_tui.cli.outcomes import show_outcome
from skulk_tui.cli.output import Column, Listing, Table
from skulk_tui.cli.session import Session
from skulk_tui.cli.suggestions import member_of
from skulk_tui.cli.verb import DryRunOption, group, verb
from skulk_tui.cli.waiting import pause, says_that_it_goes_on
from skulk_tui.client import path_of
from skulk_tui.formatting import UNKNOWN, format_duration

RESTART_WITHIN_S: Final = 120.0
DRAIN_SLACK_S: Final = 60.0
"""Beyond its deadline: engines end, and the master hears of it."""
_POLL_S: Final = 0.3

NodeArgument = Annotated[
    str,
    typer.Argument(metavar="NODE", help="By name or id.", autocompletion=complete_node),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def add_node_verbs(app: typer.Typer) -> None:
    """Register the verbs."""
    node = group(app, "node", "One node of the cluster.")
    verb(
        node,
        "restart",
        examples=("skulk node restart studio", "skulk node restart studio --dry-run"),
    )(restart_node)
    verb(
        node,
        "drain",
        examples=("skulk node drain studio --dry-run", "skulk node drain studio --deadline 5m"),
    )(drain_node)
    verb(
        node,
        "undrain",
        examples=("skulk node undrain studio", "skulk node undrain studio --dry-run"),
    )(undrain_node)


def restart_node(
    session: Session,
    target: NodeArgument,
    *,
    yes: YesOption = False,
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


def drain_node(
    session: Session,
    target: NodeArgument,
    *,
    deadline: Annotated[
        str | None,
        typer.Option(
            "--deadline",
            metavar="DURATION",
            help=f"What running requests may take to end [default: {DEFAULT_DRAIN_S}s].",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Cut running requests off: a deadline of nothing.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until nothing is left on the node.")
    ] = True,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
) -> int | None:
    """Place nothing on a node any more, and stop what runs there once it has answered.

    Its instances take no further request; those that they have may end until the deadline. Nothing
    is moved by itself: the plan says where each could be placed. The node stays a member, and keeps
    its files. `skulk node undrain` ends it.
    """
    deadline_s = _deadline_s(deadline, force=force)
    path = path_of("/v1/nodes/{}/drain", target)
    plan = session.client.post(path, DrainDocument, DrainBody(deadline_s=deadline_s, dry_run=True))
    for one in plan.stops:
        if one.elsewhere and not one.copies:
            session.narrate(
                f"To keep {one.model_id} served, move it first: `skulk move {one.instance_id} "
                f"--nodes {one.elsewhere}`."
            )
    if dry_run:
        _show_drain(session, plan, "would be drained")
        return None
    session.confirm(f"Drain {plan.name}, which stops {_stopped(plan)}?", yes=yes)
    seen = tuple(one.instance_id for one in plan.stops)
    begun = session.client.post(
        path, DrainDocument, DrainBody(deadline_s=deadline_s, instances=seen)
    )
    session.narrate(f"{begun.name} takes no models any more; it stops {_stopped(begun)}")
    if wait:
        hint = f"Follow: `skulk nodes`; end it: `skulk node undrain {begun.name}`."
        with says_that_it_goes_on(session, hint):
            _wait_until_drained(session, begun)
    _show_drain(session, begun, "drained" if wait else "draining")
    return None


def undrain_node(
    session: Session, target: NodeArgument, *, dry_run: DryRunOption = False
) -> int | None:
    """Let a node that was drained take models again.

    What the drain has stopped does not come back by itself: place it again.
    """
    member = member_of(_cluster(session), target)
    if member.eligibility == "eligible":
        return show_outcome(session, member.name, "is not drained")
    if not dry_run:
        session.client.delete(path_of("/v1/nodes/{}/drain", member.node_id), CommandAccepted)
    return show_outcome(session, member.name, "would be undrained" if dry_run else "undrained")


def _requests(document: RestartDocument) -> int | None:
    counts = [one.requests for one in document.interrupted if one.requests is not None]
    return sum(counts) if counts else None


def _interrupted(document: RestartDocument) -> str:
    if not document.interrupted:
        return "no instance"
    models = ", ".join(sorted({one.model_id for one in document.interrupted}))
    n_requests = _requests(document)
    return f"{models} ({n_requests} requests)" if n_requests else models


def _deadline_s(deadline: str | None, *, force: bool) -> int:
    """Give the deadline in whole seconds.

    Raises:
        ClientError: `client.usage`.
    """
    if force and deadline is not None:
        raise ClientError(
            "client.usage",
            "--force gives running requests no time, and --deadline gives them some",
            remediation="Leave one of them out.",
        )
    if force:
        return 0
    if deadline is None:
        return DEFAULT_DRAIN_S
    return parse_drain(deadline, "--deadline")


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


def _stopped(document: DrainDocument) -> str:
    if not document.stops:
        return "no instance"
    models = ", ".join(sorted({one.model_id for one in document.stops}))
    n_requests = sum(one.requests or 0 for one in document.stops)
    if not n_requests:
        return models
    given = f"{document.deadline_s} s to end" if document.deadline_s else "no time to end"
    return f"{models} ({n_requests} requests, with {given})"


def _show_drain(session: Session, document: DrainDocument, outcome: str) -> None:
    record = DrainRecord(
        node_id=document.node_id,
        name=document.name,
        outcome=outcome,
        deadline_s=document.deadline_s,
        stops=tuple(_drained_record(one) for one in document.stops),
    )
    tables = [
        Table(
            (Column("NODE"), Column("OUTCOME"), Column("DEADLINE", right=True)),
            ((record.name, record.outcome, format_duration(record.deadline_s)),),
        )
    ]
    if record.stops:
        tables.append(_stops_table(record.stops))
    session.output.show(
        Listing(kind="drains", items=(record,), tables=tuple(tables), names=(record.node_id,))
    )


def _drained_record(one: DrainedInstance) -> DrainedRecord:
    return DrainedRecord(
        instance_id=one.instance_id,
        model_id=one.model_id,
        phase=one.phase,
        pinned=one.pinned,
        requests=one.requests,
        copies=one.copies,
        elsewhere=one.elsewhere or None,
        why_not=None if one.why_not is None else one.why_not.message,
    )


def _stops_table(stops: tuple[DrainedRecord, ...]) -> Table:
    return Table(
        (
            Column("STOPS", least=12),
            Column("REQUESTS", right=True),
            Column("COPIES LEFT", right=True),
            Column("COULD RUN ON", least=12, wraps=True),
            Column("INSTANCE", wide_only=True),
        ),
        tuple(
            (
                f"{one.model_id} (pinned)" if one.pinned else one.model_id,
                UNKNOWN if one.requests is None else str(one.requests),
                str(one.copies),
                one.elsewhere or f"no other node{f': {one.why_not}' if one.why_not else ''}",
                one.instance_id,
            )
            for one in stops
        ),
    )


def _cluster(session: Session) -> ClusterDocument:
    return session.client.get("/v1/cluster", ClusterDocument)


def _wait_until_drained(session: Session, document: DrainDocument) -> None:
    """Wait until nothing is left on the node.

    Raises:
        ClientError: `client.timeout`; `client.usage` where another command has undrained it.
    """
    usual_s = document.deadline_s + DRAIN_SLACK_S
    until_s = session.deadline_s or session.clock.monotonic_s() + usual_s
    while session.clock.monotonic_s() < until_s:
        member = member_of(_cluster(session), document.node_id)
        if member.eligibility == "drained":
            return
        if member.eligibility == "eligible":
            raise ClientError("client.usage", f"{document.name} was undrained by another command")
        pause(session)
    raise ClientError("client.timeout", f"{document.name} was not drained in time")


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
