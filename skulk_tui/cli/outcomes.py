"""What became of each target of a command, or would, as a listing."""

from skulk_tui.cli.output import Listing
from skulk_tui.cli.records import OutcomeRecord
from skulk_tui.cli.session import Session
from skulk_tui.cli.tables import outcomes_table


def outcomes_listing(*outcomes: OutcomeRecord) -> Listing:
    """List outcomes; the identifier of each is its target."""
    return Listing(
        kind="outcomes",
        items=outcomes,
        tables=(outcomes_table(outcomes),),
        names=[one.target for one in outcomes],
    )


def show_outcome(session: Session, target: str, outcome: str) -> None:
    """Show what became of the one target there is, or would."""
    session.output.show(outcomes_listing(OutcomeRecord(target=target, outcome=outcome)))
