"""`skulk store verify`: a model's files hashed again, wherever they lie, each with its result."""

from dataclasses import dataclass
from itertools import starmap
from typing import Annotated, Final

import typer

from protocol.cluster_api import ClusterStorage
from protocol.errors import ClientError
from protocol.ids import ModelId, NodeId, parse_model_id
from protocol.verify_api import VerifyStatus
from skulk_tui.cli import exit_codes
from skulk_tui.cli.answers import name_of, names_of
from skulk_tui.cli.completing import complete_model, complete_node
from skulk_tui.cli.operation_records import CheckedFileRecord, VerifiedRecord
from skulk_tui.cli.output import Column, Listing, Table
from skulk_tui.cli.progress import bytes_text
from skulk_tui.cli.session import Session
from skulk_tui.cli.suggestions import naming_the_nearest_model, node_of
from skulk_tui.cli.waiting import pause, progress_line, says_that_it_goes_on, state_of
from skulk_tui.client import Query, path_of
from skulk_tui.formatting import UNKNOWN, format_bytes

_ENDED: Final = frozenset({"complete", "damaged", "failed", "cancelled", "absent"})


@dataclass(frozen=True, slots=True)
class _Target:
    node_id: NodeId
    name: str
    query: Query


def verify_files(
    session: Session,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A model's id; see `skulk models files`.",
            autocompletion=complete_model,
        ),
    ],
    *,
    on: Annotated[
        list[str] | None,
        typer.Option(
            "--on",
            metavar="NODE",
            help="Only on this node, by name or id; may be repeated [default: all that have it].",
            autocompletion=complete_node,
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for what is found.")] = True,
    cancel: Annotated[bool, typer.Option("--cancel", help="End what is under way.")] = False,
) -> int | None:
    """Hash a model's files again, and say of each whether it is what it was.

    Nothing is deleted or fetched. A model with damaged files is not placed on that node any more,
    until `skulk models pull` there has fetched them anew. Reading is slowed, so that what runs
    there is not.

    Exit code: 1 when files are damaged or could not be read; 124 when `--timeout` ran out, and the
    work goes on.
    """
    model_id = parse_model_id(model)
    targets = _targets(session, model_id, on)
    path = path_of("/store/models/{}/verify", model_id)
    ask = session.client.delete if cancel else session.client.post
    with naming_the_nearest_model(session, model_id):
        for target in targets:
            ask(path, VerifyStatus, query=target.query)
    found = _wait(session, path, targets, is_patient=wait and not cancel)
    records = list(starmap(_record, found))
    _show(session, records)
    bad = {"damaged", "failed"} if not wait or cancel else {"damaged", "failed", "cancelled"}
    return exit_codes.FAILED if any(one.state in bad for one in records) else None


def _targets(session: Session, model_id: ModelId, on: list[str] | None) -> list[_Target]:
    state = state_of(session)
    names = names_of(state)
    if on:
        node_ids = list(dict.fromkeys(node_of(names, word) for word in on))
    else:
        storage = session.client.get("/store/storage", ClusterStorage)
        node_ids = [
            disk.node_id
            for disk in (storage, *storage.others)
            if any(item.model_id == model_id and not item.linked for item in disk.items)
        ]
        for silent in storage.unanswered:
            session.narrate(f"{silent.name or silent.node_id} did not answer")
    if not node_ids:
        raise ClientError(
            "store.not_found",
            f"no node that answers holds files of {model_id} that could be verified",
            remediation="`skulk models files` shows what lies where.",
        )
    return [
        _Target(one, name_of(names, one), {} if one == state.node_id else {"node": one})
        for one in node_ids
    ]


def _wait(
    session: Session, path: str, targets: list[_Target], *, is_patient: bool
) -> list[tuple[_Target, VerifyStatus]]:
    line = progress_line(session)
    try:
        with says_that_it_goes_on(session, "Follow: the same command again; it joins."):
            while True:
                found = [
                    (target, session.client.get(path, VerifyStatus, query=target.query))
                    for target in targets
                ]
                if not is_patient or all(status.state in _ENDED for _, status in found):
                    return found
                done = sum(status.done_bytes for _, status in found)
                totals = [status.total_bytes for _, status in found]
                total = None if None in totals else sum(one or 0 for one in totals)
                line.show(
                    f"verify  {bytes_text(done, total, None, None)}",
                    topic="verify",
                    record={"done_bytes": done, "total_bytes": total},
                )
                pause(session)
    finally:
        line.clear()


def _record(target: _Target, status: VerifyStatus) -> VerifiedRecord:
    return VerifiedRecord(
        model_id=status.model_id,
        node_id=target.node_id,
        node_name=target.name,
        state=status.state,
        done_bytes=status.done_bytes,
        total_bytes=status.total_bytes,
        files=tuple(
            CheckedFileRecord(path=one.path, state=one.state, size_bytes=one.size_bytes)
            for one in status.files
        ),
        error_code=None if status.error is None else status.error.code,
        error=None if status.error is None else status.error.message,
    )


def _show(session: Session, records: list[VerifiedRecord]) -> None:
    columns = (
        Column("NODE", least=8),
        Column("STATE"),
        Column("SIZE", right=True),
        Column("FILE", least=20, wraps=True),
    )
    rows: list[tuple[str, ...]] = []
    for one in records:
        if not one.files:
            rows.append(
                (one.node_name, one.state, format_bytes(one.total_bytes), one.error or UNKNOWN)
            )
        rows += [
            (one.node_name, file.state.replace("_", " "), format_bytes(file.size_bytes), file.path)
            for file in one.files
        ]
    session.output.show(
        Listing(
            kind="verified",
            items=records,
            tables=(Table(columns, tuple(rows)),),
            names=[one.node_id for one in records],
        )
    )
    for one in records:
        if one.state == "damaged":
            session.narrate(
                f"{one.model_id} is not placed on {one.node_name} until it is mended: "
                f"`skulk models pull {one.model_id} --on {one.node_name}`."
            )
