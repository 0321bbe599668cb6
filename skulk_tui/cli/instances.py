"""`skulk ps | stop | retry | instance show`: what is placed, and ending or renewing it."""

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from protocol.control_api import CommandAccepted, InstanceView, StateDocument
from protocol.errors import ClientError, SkulkError, error_of
from protocol.instances import LOADING_PHASES
from skulk_tui.cli import exit_codes
from skulk_tui.cli.answers import (
    instance_record,
    instance_records,
    names_of,
    no_place_of,
)
from skulk_tui.cli.completing import complete_instance_or_model
from skulk_tui.cli.drain_time import parse_drain
from skulk_tui.cli.failures import failure_of
from skulk_tui.cli.instance_tables import failures_tables, instance_tables, instances_table
from skulk_tui.cli.nearest import unknown_value
from skulk_tui.cli.outcomes import outcomes_listing
from skulk_tui.cli.output import Listing
from skulk_tui.cli.queue_tables import queue_tables
from skulk_tui.cli.records import InstanceRecord, OutcomeRecord
from skulk_tui.cli.session import Session
from skulk_tui.cli.verb import DryRunOption, WatchOption, group, verb
from skulk_tui.cli.waiting import instance_hint, state_of, wait_until_gone, wait_until_ready
from skulk_tui.client import path_of

TargetsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="INSTANCE|MODEL",
        help="Instance ids, or model ids.",
        autocompletion=complete_instance_or_model,
    ),
]
InstanceArgument = Annotated[
    str,
    typer.Argument(
        metavar="INSTANCE",
        help="An instance id, the start of one, or a model id.",
        autocompletion=complete_instance_or_model,
    ),
]
START_MIN_CHARS: Final = 8
"""Of an instance's id; the first 7 are the same for all that one node has placed."""
WaitOption = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for it to be done.")]


def add_instance_verbs(app: typer.Typer) -> None:
    """Register the verbs."""
    verb(app, "ps", examples=("skulk ps --watch", "skulk ps -o name | xargs -r skulk stop"))(
        list_instances
    )
    verb(
        app,
        "stop",
        examples=("skulk stop HuggingFaceTB/SmolLM2-135M", "skulk stop my/model --drain 60s"),
    )(stop_instances)
    verb(
        app, "retry", examples=("skulk retry abcdef-k3x9", "skulk retry abcdef-k3x9 --timeout 2m")
    )(retry_instance)
    instance = group(app, "instance", "One instance.")
    verb(
        instance,
        "show",
        examples=("skulk instance show abcdef-k3x9", "skulk instance show abcdef-k3x9 --json"),
    )(show_instance)
    verb(
        instance,
        "clear-breaker",
        examples=(
            "skulk instance clear-breaker abcdef-k3x9",
            "skulk instance clear-breaker my/model --dry-run",
        ),
    )(clear_breaker)


def list_instances(session: Session, *, watch: WatchOption = False) -> int | None:
    """List the placed models and how far they are."""
    if watch:
        from skulk_tui.cli.watches import watch_instances

        return watch_instances(session)
    state = state_of(session)
    records = instance_records(state)
    session.output.show(
        Listing(
            kind="instances",
            seq=state.seq,
            items=records,
            tables=(
                instances_table(records, now_ms=session.clock.wall_ms()),
                *queue_tables(records),
                *failures_tables(records),
            ),
            names=[record.instance_id for record in records],
        )
    )
    if not records and not session.output.is_for_programs:
        session.narrate("Nothing is placed. Place a model: `skulk place MODEL`.")
    return None


def stop_instances(
    session: Session,
    targets: TargetsArgument,
    *,
    every: Annotated[
        bool, typer.Option("--all", help="All instances of a model, where it has several.")
    ] = False,
    drain: Annotated[
        str | None,
        typer.Option(
            "--drain",
            metavar="DURATION",
            help="What running requests may take to end, such as 60s [default: nothing].",
        ),
    ] = None,
    wait: WaitOption = True,
    dry_run: DryRunOption = False,
) -> int | None:
    """Stop instances and wait until their processes are gone.

    Requests in flight end with an error, at once or when the time of `--drain` is over; meanwhile
    no further one is taken. The model's files stay.
    """
    query = {} if drain is None else {"drain_s": str(parse_drain(drain, "--drain"))}
    state = state_of(session)
    found = [view for target in targets for view in find_instances(state, target, several=every)]
    views = list({view.instance_id: view for view in found}.values())
    if dry_run:
        session.output.show(
            outcomes_listing(*(_outcome(one, _would_end(one, drain)) for one in views))
        )
        return None
    outcomes: list[OutcomeRecord] = []
    errors: list[SkulkError] = []
    for view in views:
        try:
            path = path_of("/instance/{}", view.instance_id)
            session.client.delete(path, CommandAccepted, query=query)
            if wait:
                wait_until_gone(session, view.instance_id)
        except SkulkError as error:
            if error.code in {"client.unreachable", "client.timeout"}:
                raise
            errors.append(error)
            outcomes.append(_outcome(view, "failed", error))
        else:
            outcomes.append(_outcome(view, "stopped" if wait else "stopping"))
    if errors and len(views) == 1:
        raise errors[0]
    session.output.show(outcomes_listing(*outcomes))
    return several_exit_code(errors, len(views))


def _would_end(view: InstanceView, drain: str | None) -> str:
    waiting = (view.in_flight or 0) + (view.queued or 0)
    if not waiting:
        return "would be stopped"
    if drain is not None:
        return f"would be stopped, once {waiting} requests have ended, in {drain} at the latest"
    return f"would be stopped, and {waiting} requests end"


def _outcome(view: InstanceView, outcome: str, error: SkulkError | None = None) -> OutcomeRecord:
    return OutcomeRecord(
        target=view.instance_id,
        instance_id=view.instance_id,
        model_id=view.model_id,
        outcome=outcome,
        error_code=error.code if error else None,
        error=error.message if error else None,
    )


def several_exit_code(errors: Sequence[SkulkError], n_targets: int) -> int:
    """Give the exit code of a command over several targets: all, some or none done."""
    if not errors:
        return exit_codes.OK
    if len(errors) < n_targets:
        return exit_codes.PARTIAL
    codes = {failure_of(error).exit_code for error in errors}
    return codes.pop() if len(codes) == 1 else exit_codes.FAILED


def retry_instance(
    session: Session,
    instance: InstanceArgument,
    *,
    wait: WaitOption = True,
    dry_run: DryRunOption = False,
) -> int | None:
    """Try a failed instance again, as it was placed."""
    (view,) = find_instances(state_of(session), instance)
    if dry_run:
        again = "would be tried again"
        outcome = again if view.phase == "failed" else f"is {view.phase}; only what failed {again}"
        session.output.show(outcomes_listing(_outcome(view, outcome)))
        return None
    session.client.post(path_of("/instance/{}/retry", view.instance_id), CommandAccepted)
    if wait:
        view = wait_until_ready(session, view.instance_id)
    else:
        session.narrate(instance_hint(view.instance_id))
    return _show(session, instance_record(view, names_of(state_of(session))))


def clear_breaker(
    session: Session, instance: InstanceArgument, *, dry_run: DryRunOption = False
) -> int | None:
    """Count the crashes of an instance from here on; one that failed for good is tried again.

    An engine that crashes is relaunched three times in ten minutes, later each time, then stands
    as failed. Nothing that runs is interrupted.
    """
    state = state_of(session)
    (view,) = find_instances(state, instance)
    has_failed = view.phase == "failed"
    n_failures = sum(one.instance_id == view.instance_id for one in state.failures)
    if dry_run:
        done = "tried again" if has_failed else "left as it is"
        outcome = f"would be {done}, and {n_failures} failures count no more"
        session.output.show(outcomes_listing(_outcome(view, outcome)))
        return None
    path = path_of("/instance/{}/clear-breaker", view.instance_id)
    session.client.post(path, CommandAccepted)
    session.output.show(
        outcomes_listing(_outcome(view, "tried again" if has_failed else "cleared"))
    )
    return None


def show_instance(session: Session, instance: InstanceArgument) -> int | None:
    """Show one instance: where it runs, how far it is, why it failed.

    Exit code: 0 ready, 8 on its way, 1 failed, 3 ready on a node that is out of reach.
    """
    state = state_of(session)
    (view,) = find_instances(state, instance)
    record = instance_record(view, names_of(state), no_place=no_place_of(state, view))
    _show(session, record, seq=state.seq)
    if view.phase in LOADING_PHASES:
        return exit_codes.PENDING
    if view.phase == "failed":
        return exit_codes.FAILED
    return exit_codes.UNREACHABLE if view.unreachable_nodes else exit_codes.OK


def _show(session: Session, record: InstanceRecord, *, seq: int | None = None) -> None:
    session.output.show(
        Listing(
            kind="instances",
            seq=seq,
            items=(record,),
            tables=(
                *instance_tables(record, now_ms=session.clock.wall_ms()),
                *queue_tables((record,)),
            ),
            names=(record.instance_id,),
        )
    )


def find_instances(
    state: StateDocument, target: str, *, several: bool = False
) -> list[InstanceView]:
    """Find what an operator means: an instance's id, the start of one, or a model's id.

    Args:
        state: Where to look.
        target: What was typed.
        several: More than one instance of a model may be meant.

    Raises:
        PlacementError: The placement under this id failed; as it failed.
        ClientError: `client.usage` when nothing or too much matches.
    """
    target = target.removesuffix("…")  # as a narrow table shows it
    exact = [view for view in state.instances.values() if target == view.instance_id]
    by_model = [view for view in state.instances.values() if target == view.model_id]
    started = [view for view in state.instances.values() if view.instance_id.startswith(target)]
    if len(target) < START_MIN_CHARS:
        started = []
    found = exact or by_model or started
    if not found:
        for failure in state.placement_failures:
            if failure.instance_id == target:
                raise error_of(failure.error)
        known = [*state.instances, *(view.model_id for view in state.instances.values())]
        raise unknown_value("an instance or a placed model", target, known, see="skulk ps")
    if len(found) > 1 and not (several and (exact or by_model)):
        ids = ", ".join(view.instance_id for view in found)
        raise ClientError(
            "client.usage",
            f"{target!r} means {len(found)} instances: {ids}",
            remediation="Name one by its id, or stop all of a model with `--all`.",
        )
    return found
