"""What each verb with `--watch` follows. Imported when one of them runs, never before."""

from collections.abc import Sequence

from skulk_tui.cli.answers import (
    check_record,
    instance_record,
    model_record,
    transfer_record,
    view_record,
)
from skulk_tui.cli.cluster_answers import member_record
from skulk_tui.cli.cluster_tables import members_tables
from skulk_tui.cli.doctor import checks_table
from skulk_tui.cli.instance_tables import failures_tables, instances_table
from skulk_tui.cli.output import Table
from skulk_tui.cli.queue_tables import queue_tables
from skulk_tui.cli.records import InstanceRecord, NodeRecord, StatusRecord
from skulk_tui.cli.session import Session
from skulk_tui.cli.tables import models_table, nodes_table, reasons_table, status_tables
from skulk_tui.cli.watched import (
    Picture,
    checks_of,
    head_of,
    instances_of,
    members_of,
    models_of,
    names_in,
    nodes_of,
    transfers_of,
)
from skulk_tui.cli.watching import Watch, watch
from skulk_tui.view_state import ViewState


def watch_status(session: Session) -> None:
    """Follow the cluster, its nodes, what is placed, and downloads."""

    def picture(view: ViewState) -> Picture:
        return {**head_of(view), **nodes_of(view), **instances_of(view), **transfers_of(view)}

    def tables(view: ViewState) -> Sequence[Table]:
        status = status_in(view)
        if status is None:
            return ()
        now_ms = session.clock.wall_ms()
        return status_tables(status, now_ms=now_ms, has_notes=session.form == "wide")

    topics = ("cluster", "placements", "transfers")
    watch(session, Watch(topics=topics, picture=picture, tables=tables))


def watch_nodes(session: Session) -> None:
    """Follow the nodes."""

    def tables(view: ViewState) -> Sequence[Table]:
        records = node_records_in(view)
        has_notes = session.form == "wide"
        return (nodes_table(records), reasons_table(records, has_notes=has_notes))

    watch(session, Watch(topics=("cluster",), picture=nodes_of, tables=tables))


def watch_members(session: Session) -> None:
    """Follow the members and the links to them."""

    def tables(view: ViewState) -> Sequence[Table]:
        return members_tables([member_record(node.member) for node in view.nodes])

    watch(session, Watch(topics=("cluster",), picture=members_of, tables=tables))


def watch_checks(session: Session) -> None:
    """Follow what is wrong with the nodes."""

    def tables(view: ViewState) -> Sequence[Table]:
        records = node_records_in(view)
        checks = [check_record(record) for record in records]
        has_notes = session.form == "wide"
        return (checks_table(checks), reasons_table(records, has_notes=has_notes))

    watch(session, Watch(topics=("cluster",), picture=checks_of, tables=tables))


def watch_instances(session: Session) -> None:
    """Follow what is placed."""

    def tables(view: ViewState) -> Sequence[Table]:
        records = instance_records_in(view)
        now_ms = session.clock.wall_ms()
        return (
            instances_table(records, now_ms=now_ms),
            *queue_tables(records),
            *failures_tables(records),
        )

    watch(session, Watch(topics=("cluster", "placements"), picture=instances_of, tables=tables))


def watch_models(session: Session) -> None:
    """Follow the catalogue."""

    def tables(view: ViewState) -> Sequence[Table]:
        return (models_table([model_record(entry) for entry in view.models]),)

    watch(session, Watch(topics=("cluster", "models"), picture=models_of, tables=tables))


def node_records_in(view: ViewState) -> tuple[NodeRecord, ...]:
    """List the nodes by name."""
    return tuple(view_record(node) for node in view.nodes)


def instance_records_in(view: ViewState) -> tuple[InstanceRecord, ...]:
    """List what is placed, oldest first."""
    names = names_in(view)
    return tuple(instance_record(one, names) for one in view.instances)


def status_in(view: ViewState) -> StatusRecord | None:
    """Give the whole picture as `skulk status` shows it; None before the cluster is known."""
    head, hello = view.head, view.hello
    if head is None or hello is None:
        return None
    return StatusRecord(
        cluster_id=head.cluster_id,
        node_id=hello.node_id,
        boot_id=hello.boot_id,
        master=head.master,
        term=head.term,
        seq=head.seq,
        policy=head.policy,
        nodes=node_records_in(view),
        instances=instance_records_in(view),
        transfers=tuple(
            transfer_record(one) for one in view.transfers if one.state in {"running", "paused"}
        ),
    )
