"""`skulk pin | unpin`: whether an instance stays loaded, whatever its time to live."""

import typer

from protocol.control_api import CommandAccepted
from skulk_tui.cli.instances import InstanceArgument, find_instances
from skulk_tui.cli.outcomes import outcomes_listing
from skulk_tui.cli.records import OutcomeRecord
from skulk_tui.cli.session import Session
from skulk_tui.cli.verb import DryRunOption, verb
from skulk_tui.cli.waiting import state_of
from skulk_tui.client import path_of


def add_pin_verbs(app: typer.Typer) -> None:
    """Register the verbs."""
    verb(app, "pin", examples=("skulk pin my/model", "skulk pin abcdef-k3x9 --dry-run"))(pin)
    verb(app, "unpin", examples=("skulk unpin my/model", "skulk unpin abcdef-k3x9 --dry-run"))(
        unpin
    )


def pin(session: Session, instance: InstanceArgument, *, dry_run: DryRunOption = False) -> None:
    """Keep an instance loaded, and out of drains, until it is unpinned.

    One that is on demand is not unloaded any more once a request has loaded it; no drain of a node
    takes it along. It holds over restarts of all machines.
    """
    _set(session, instance, is_wanted=True, dry_run=dry_run)


def unpin(session: Session, instance: InstanceArgument, *, dry_run: DryRunOption = False) -> None:
    """Take the pin of an instance back: it is unloaded and drained as any other."""
    _set(session, instance, is_wanted=False, dry_run=dry_run)


def _set(session: Session, instance: str, *, is_wanted: bool, dry_run: bool) -> None:
    (view,) = find_instances(state_of(session), instance)
    outcome = "pinned" if is_wanted else "unpinned"
    if view.pinned == is_wanted:
        outcome = "is pinned already" if is_wanted else "is not pinned"
    elif dry_run:
        outcome = f"would be {outcome}"
    if not dry_run:
        ask = session.client.post if is_wanted else session.client.delete
        ask(path_of("/instance/{}/pin", view.instance_id), CommandAccepted)
    record = OutcomeRecord(
        target=view.instance_id,
        instance_id=view.instance_id,
        model_id=view.model_id,
        outcome=outcome,
        error_code=None,
        error=None,
    )
    session.output.show(outcomes_listing(record))
