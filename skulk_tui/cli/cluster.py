"""`skulk status`: the cluster as one node sees it."""

import typer

from skulk_tui.cli.answers import status_record
from skulk_tui.cli.output import Listing
from skulk_tui.cli.session import Session
from skulk_tui.cli.tables import status_tables
from skulk_tui.cli.verb import verb
from skulk_tui.cli.waiting import state_of


def add_cluster_verbs(app: typer.Typer) -> None:
    """Register the verb."""
    verb(app, "status", examples=("skulk status", "skulk status --json | jq .items[0].nodes"))(
        show_status
    )


def show_status(session: Session) -> int | None:
    """Show the cluster: nodes, what is wrong with them, instances, downloads."""
    status = status_record(state_of(session))
    session.output.show(
        Listing(
            kind="status",
            seq=status.seq,
            items=(status,),
            tables=status_tables(status, now_ms=session.clock.wall_ms()),
            names=(status.cluster_id,),
        )
    )
    return None
