"""The settings of a node, and those of the whole cluster: what holds, and where it comes from."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, final

from protocol.admin_api import ConfigDocument
from protocol.errors import SkulkError
from skulk_tui.cli.config import setting_records
from skulk_tui.cli.operation_records import SettingRecord
from skulk_tui.lines import line, span, toned
from skulk_tui.screens.node_changes import CONFIG, setting_text
from skulk_tui.screens.view import Handler, View
from skulk_tui.seat import Seat
from skulk_tui.table_columns import Column
from skulk_tui.table_model import Ref, TableModel, TableRow
from skulk_tui.view_state import Changes
from skulk_tui.widgets.pane import Pane, TablePane

COLUMNS: Final = (
    Column(key="key", title="SETTING", width=22, grow=1),
    Column(key="value", title="VALUE", width=16, grow=2),
    Column(key="source", title="FROM", width=11),
    Column(key="file", title="IN FILE", width=20, grow=1, drop=1),
)
FACETS: Final = frozenset({"from", "pending"})


@final
class SettingsDetail(View):
    """A node's settings."""

    view_id: ClassVar[str] = "settings"
    title: ClassVar[str] = "Settings"

    def __init__(self, seat: Seat, ref: Ref | None = None) -> None:
        super().__init__(seat, ref)
        self.table = TablePane(
            "table",
            "Settings",
            TableModel(COLUMNS, facets=FACETS),
            empty=("the node is being asked",),
            dash=seat.glyphs.rule,
        )

    def panes(self) -> Sequence[Pane]:
        """There is one."""
        return (self.table,)

    def handlers(self) -> Mapping[str, Handler]:
        """Give what the keys of this view do."""
        return {"view.resync": lambda _: self.on_shown()}

    def on_shown(self) -> None:
        """Ask for them."""
        self.run_worker(self._ask, group="ask", exclusive=True, exit_on_error=False)

    async def _ask(self) -> None:
        node_id = self.ref.id if self.ref else ""
        try:
            document = await self.seat.link.request(
                "GET", CONFIG, ConfigDocument, query={"node": node_id}
            )
        except SkulkError as error:
            self.table.empty = (error.message, error.remediation)
        else:
            rows = [_row(node_id, record) for record in setting_records(document)]
            self.table.model.set_rows(rows)
            n_pending = len(document.node.pending)
            self.table.note = f"{n_pending} wait for a restart" if n_pending else ""
        self.table.redraw()

    def commit(self, changes: Changes | None) -> None:
        """Nothing of it is told as it changes: it was asked for."""
        del changes
        self.table.redraw()


def _row(node_id: str, record: SettingRecord) -> TableRow:
    value, in_file = setting_text(record.value), setting_text(record.in_file)
    return TableRow(
        ref=Ref(kind="setting", id=f"{node_id}/{record.key}", name=record.key),
        cells={
            "key": line(span(record.key, "strong")),
            "value": line(span(value)),
            "source": line(span(record.source)),
            "file": toned(f"{in_file} after a restart", "warn")
            if record.pending
            else line(span(in_file)),
        },
        facets={"from": record.source, "pending": "yes" if record.pending else "no"},
        full=f"{record.key} = {value}",
    )
