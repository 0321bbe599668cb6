"""What became of each target of a command, as a listing."""

from skulk_tui.cli.output import Listing
from skulk_tui.cli.records import OutcomeRecord
from skulk_tui.cli.tables import outcomes_table


def outcomes_listing(*outcomes: OutcomeRecord) -> Listing:
    """List outcomes; the identifier of each is its target."""
    return Listing(
        kind="outcomes",
        items=outcomes,
        tables=(outcomes_table(outcomes),),
        names=[one.target for one in outcomes],
    )
