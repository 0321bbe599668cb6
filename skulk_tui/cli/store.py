"""`skulk store pause | resume | limit | verify`: transfers stopped, gone on with, slowed; files."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, final

import typer

from protocol.admin_api import ConfigDocument
from protocol.control_api import StateDocument, TransferStatus
from protocol.errors import SkulkError
from protocol.ids import ModelId, NodeId, parse_model_id
from skulk_tui.cli.answers import name_of, names_of
from skulk_tui.cli.completing import complete_model, complete_node
from skulk_tui.cli.instances import several_exit_code
from skulk_tui.cli.outcomes import outcomes_listing
from skulk_tui.cli.records import OutcomeRecord
from skulk_tui.cli.session import Session
from skulk_tui.cli.suggestions import naming_the_nearest_model, node_of
from skulk_tui.cli.verb import DryRunOption, group, verb
from skulk_tui.cli.verify import verify_files
from skulk_tui.cli.waiting import state_of
from skulk_tui.client import path_of
from skulk_tui.formatting import format_bytes
from skulk_tui.transfer_rate import RATE_KEY, rate_body, read_rate
from skulk_tui.transfer_waiters import waiting_for

TransferArgument = Annotated[
    str,
    typer.Argument(metavar="ID", help="The model that is fetched.", autocompletion=complete_model),
]
OnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--on",
        metavar="NODE",
        help="Only on this node, by name or id; may be repeated [default: wherever there is one].",
        autocompletion=complete_node,
    ),
]


def add_store_verbs(app: typer.Typer) -> None:
    """Register the verbs."""
    store = group(app, "store", "Model files: pause, resume or limit their transfers, verify them.")
    verb(
        store,
        "pause",
        examples=("skulk store pause my/model", "skulk store pause my/model --on studio"),
    )(pause_transfer)
    verb(
        store,
        "resume",
        examples=("skulk store resume my/model", "skulk store resume my/model --dry-run"),
    )(resume_transfer)
    verb(
        store,
        "limit",
        examples=("skulk store limit 50MB/s", "skulk store limit off --on studio --dry-run"),
    )(limit_rate)
    verb(
        store,
        "verify",
        examples=("skulk store verify my/model", "skulk store verify my/model --on studio --json"),
    )(verify_files)


def pause_transfer(
    session: Session,
    transfer: TransferArgument,
    *,
    on: OnOption = None,
    dry_run: DryRunOption = False,
) -> int | None:
    """Stop fetching a model until it is resumed; what has come is kept.

    It stays paused over restarts of the node. A placement that waits for the files waits on, and
    says so. Pausing again changes nothing.

    Exit code: 5 when nothing is under way, or it ended just now; 6 when that is so on some nodes.
    """
    model_id = parse_model_id(transfer)
    return _change(session, _Deed("pause", "running", "paused"), model_id, on, dry_run=dry_run)


def resume_transfer(
    session: Session,
    transfer: TransferArgument,
    *,
    on: OnOption = None,
    dry_run: DryRunOption = False,
) -> int | None:
    """Go on with a paused transfer where it was; all files are verified before they count.

    Resuming what runs, or is complete, changes nothing.

    Exit code: 5 when there is no transfer; 6 when that is so on some nodes.
    """
    model_id = parse_model_id(transfer)
    return _change(session, _Deed("resume", "paused", "resumed"), model_id, on, dry_run=dry_run)


def limit_rate(
    session: Session,
    rate: Annotated[
        str,
        typer.Argument(
            metavar="RATE", help="Such as 50MB/s, in whole megabytes (10^6 bytes); or `off`."
        ),
    ],
    *,
    on: OnOption = None,
    dry_run: DryRunOption = False,
) -> int | None:
    """Limit how fast nodes send model files, and fetch them from outside the cluster.

    It holds at once, for transfers under way too, and is kept as the setting `transfer_rate_mb_s`;
    each way has the limit for itself. Without `--on` it is set on all nodes that are there.

    Exit code: 6 when it could not be set on some nodes.
    """
    rate_mb_s = read_rate(rate)
    state = state_of(session)
    names = names_of(state)
    there = [node_id for node_id, word in state.liveness.items() if word == "alive"]
    targets = [node_of(names, word) for word in on] if on else there or [state.node_id]
    outcomes: list[OutcomeRecord] = []
    errors: list[SkulkError] = []
    for node_id in dict.fromkeys(targets):
        name = name_of(names, node_id)
        try:
            said = _limited(
                session, rate_mb_s, node_id, is_own=node_id == state.node_id, dry_run=dry_run
            )
        except SkulkError as error:
            if len(targets) == 1:
                raise
            errors.append(error)
            outcomes.append(_failed(name, None, error))
        else:
            outcomes.append(OutcomeRecord(target=name, outcome=said))
    session.output.show(outcomes_listing(*outcomes))
    return several_exit_code(errors, len(outcomes))


def _limited(
    session: Session, rate_mb_s: int | None, node_id: NodeId, *, is_own: bool, dry_run: bool
) -> str:
    body = rate_body(rate_mb_s, dry_run=dry_run)
    query = {} if is_own else {"node": node_id}
    document = session.client.put("/config", ConfigDocument, body, query=query)
    wanted = "not limited" if rate_mb_s is None else f"limited to {rate_mb_s} MB/s"
    if dry_run:
        return f"would be {wanted}"
    holds = document.node.effective.get(RATE_KEY)
    if holds is not None and holds.value != rate_mb_s:
        return (
            f"{wanted} in its file, but {holds.value} MB/s by the {holds.source}, which goes before"
        )
    return wanted


def _failed(name: str, model_id: ModelId | None, error: SkulkError) -> OutcomeRecord:
    return OutcomeRecord(
        target=name,
        model_id=model_id,
        outcome="failed",
        error_code=error.code,
        error=error.message,
    )


@final
@dataclass(frozen=True, slots=True)
class _Deed:
    word: str
    state: str
    """Of the transfers that it is for."""
    done: str

    def path(self, model_id: ModelId) -> str:
        return path_of(f"/store/models/{{}}/download/{self.word}", model_id)


def _change(
    session: Session, deed: _Deed, model_id: ModelId, on: list[str] | None, *, dry_run: bool
) -> int:
    state = state_of(session)
    targets = _targets(state, deed, model_id, on)
    outcomes: list[OutcomeRecord] = []
    errors: list[SkulkError] = []
    for node_id in targets:
        name = name_of(names_of(state), node_id)
        try:
            outcome = _would(state, deed, model_id, node_id) if dry_run else None
            outcome = outcome or _done(session, state, deed, model_id, node_id)
        except SkulkError as error:
            if len(targets) == 1 or error.code == "client.unreachable":
                raise
            errors.append(error)
            outcomes.append(_failed(name, model_id, error))
        else:
            outcomes.append(OutcomeRecord(target=name, model_id=model_id, outcome=outcome))
    session.output.show(outcomes_listing(*outcomes))
    return several_exit_code(errors, len(targets))


def _targets(
    state: StateDocument, deed: _Deed, model_id: ModelId, on: list[str] | None
) -> Sequence[NodeId]:
    """Give the nodes that are named, or those that have such a transfer, or the one asked."""
    if on:
        names = names_of(state)
        return tuple(dict.fromkeys(node_of(names, word) for word in on))
    found = [
        one.node_id
        for one in state.transfers
        if one.model_id == model_id and one.state == deed.state
    ]
    # None has one: the answer of a node says best what became of it.
    return (
        found
        or [one.node_id for one in state.transfers if one.model_id == model_id]
        or [state.node_id]
    )


def _done(
    session: Session, state: StateDocument, deed: _Deed, model_id: ModelId, node_id: NodeId
) -> str:
    query = {"node": node_id} if node_id != state.node_id else {}
    with naming_the_nearest_model(session, model_id):
        status = session.client.post(deed.path(model_id), TransferStatus, query=query)
    if status.state == "complete":
        return "is complete already"
    return f"{deed.done} at {_amount(status)}{_waiting(state, model_id, node_id)}"


def _would(state: StateDocument, deed: _Deed, model_id: ModelId, node_id: NodeId) -> str:
    status = next(
        (one for one in state.transfers if (one.node_id, one.model_id) == (node_id, model_id)), None
    )
    if status is None:
        return f"fetches no {model_id}; would be refused"
    if status.state != deed.state:
        return f"is {status.state} already, at {_amount(status)}"
    return f"would be {deed.done} at {_amount(status)}{_waiting(state, model_id, node_id)}"


def _amount(status: TransferStatus) -> str:
    return f"{format_bytes(status.done_bytes)} of {format_bytes(status.total_bytes)}"


def _waiting(state: StateDocument, model_id: ModelId, node_id: NodeId) -> str:
    """Name the placements that cannot go on before the files are there."""
    waiting = waiting_for(state.instances.values(), model_id, node_id)
    return f"; placed and waiting for it: {', '.join(waiting)}" if waiting else ""
