"""The requests that wait for a slot, as `skulk ps` shows them; nothing where none waits."""

from collections.abc import Sequence

from skulk_tui.cli.output import Column, Table
from skulk_tui.cli.records import InstanceRecord
from skulk_tui.formatting import UNKNOWN, format_duration


def queue_tables(instances: Sequence[InstanceRecord]) -> tuple[Table, ...]:
    """One row per waiting request that a node tells of, in the order in which they start."""
    rows = tuple(
        (
            one.model_id,
            one.instance_id,
            f"{waiting.position} of {one.queued}",
            waiting.asker or UNKNOWN,
            format_duration(waiting.waited_s),
            format_duration(waiting.expected_s),
        )
        for one in instances
        for waiting in one.waiting
    )
    if not rows:
        return ()
    return (
        Table(
            (
                Column("WAITS FOR", least=16),
                Column("INSTANCE", wide_only=True),
                Column("PLACE", right=True),
                Column("KEY"),
                Column("WAITED", right=True),
                Column("EXPECTED", right=True),
            ),
            rows,
        ),
    )
