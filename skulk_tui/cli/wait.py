"""`skulk wait`: until an instance serves, is gone, or a model's files are there."""

from typing import Annotated, Final, Literal, get_args

import typer

from protocol.control_api import InstanceView, StateDocument
from protocol.errors import ClientError
from protocol.ids import is_command_id, parse_model_id
from protocol.models_api import ModelList
from skulk_tui.cli.completing import complete_instance_or_model, complete_node, complete_words
from skulk_tui.cli.instances import find_instances
from skulk_tui.cli.nearest import unknown_value
from skulk_tui.cli.outcomes import outcomes_listing
from skulk_tui.cli.records import OutcomeRecord
from skulk_tui.cli.session import Session
from skulk_tui.cli.suggestions import naming_the_nearest_model
from skulk_tui.cli.verb import verb
from skulk_tui.cli.waiting import (
    state_of,
    wait_until_downloaded,
    wait_until_gone,
    wait_until_ready,
)

WaitedFor = Literal["ready", "gone", "downloaded"]
_STATES: Final[tuple[WaitedFor, ...]] = get_args(WaitedFor)


def add_wait(app: typer.Typer) -> None:
    """Register the verb."""
    verb(
        app,
        "wait",
        examples=("skulk wait my/model --timeout 5m", "skulk wait abcdef-k3x9 --for gone"),
    )(wait)


def wait(
    session: Session,
    target: Annotated[
        str,
        typer.Argument(
            metavar="INSTANCE|MODEL",
            help="An instance id, the start of one, or a model id.",
            autocompletion=complete_instance_or_model,
        ),
    ],
    *,
    state: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="STATE",
            help="ready, gone or downloaded.",
            autocompletion=complete_words(*_STATES),
        ),
    ] = "ready",
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="NODE",
            help="Whose files, with `--for downloaded`.",
            autocompletion=complete_node,
        ),
    ] = None,
) -> int | None:
    """Wait until a model serves, its instances are gone, or its files are there.

    The wait ends early with the cause when what is waited for has failed for good. When
    `--timeout` runs out the exit code is 124, and the work goes on.
    """
    wanted = _state_of(state)
    if on is not None and wanted != "downloaded":
        raise ClientError(
            "client.usage",
            "--on is about files, and this waits for an instance",
            remediation="Leave it out, or wait `--for downloaded`.",
        )
    if wanted == "downloaded":
        outcomes = [_wait_for_files(session, target, on)]
    elif wanted == "gone":
        outcomes = _wait_for_end(session, target)
    else:
        (view,) = find_instances(state_of(session), target)
        outcomes = [_outcome(wait_until_ready(session, view.instance_id), target, "ready")]
    session.output.show(outcomes_listing(*outcomes))
    return None


def _state_of(word: str) -> WaitedFor:
    for state in _STATES:
        if word == state:
            return state
    raise unknown_value("a state of --for", word, _STATES)


def _wait_for_files(session: Session, target: str, on: str | None) -> OutcomeRecord:
    model_id = parse_model_id(target)
    with naming_the_nearest_model(session, model_id):
        wait_until_downloaded(session, model_id, {} if on is None else {"node": on})
    return OutcomeRecord(target=target, model_id=model_id, outcome="downloaded")


def _wait_for_end(session: Session, target: str) -> list[OutcomeRecord]:
    """Wait for all that is meant; what is no more is gone already."""
    state = state_of(session)
    if _is_over(session, state, target):
        return [OutcomeRecord(target=target, outcome="gone")]
    views = find_instances(state, target, several=True)
    for view in views:
        wait_until_gone(session, view.instance_id)
    return [_outcome(view, view.instance_id, "gone") for view in views]


def _is_over(session: Session, state: StateDocument, target: str) -> bool:
    """Say whether nothing that is meant is there: an instance may end before the wait begins.

    What is neither an id nor a known model is a slip of the hand, and no reason to go on.
    """
    if target in state.instances:
        return False
    if any(view.model_id == target for view in state.instances.values()):
        return False
    if is_command_id(target):
        return True
    if any(target == one.model_id for one in state.failures):
        return True
    return any(entry.id == target for entry in session.client.get("/v1/models", ModelList).data)


def _outcome(view: InstanceView, target: str, outcome: str) -> OutcomeRecord:
    return OutcomeRecord(
        target=target, instance_id=view.instance_id, model_id=view.model_id, outcome=outcome
    )
