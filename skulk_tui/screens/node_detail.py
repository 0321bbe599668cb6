"""One node: what the machine is, what runs there, what is wrong, and its log."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, final

from protocol.cluster_api import NodeView
from skulk_tui.lines import toned
from skulk_tui.screens.node_rows import RUN_COLUMNS, facts_lines, health_lines, run_rows
from skulk_tui.screens.view import Handler, Values, View
from skulk_tui.seat import Seat
from skulk_tui.table_model import Ref, TableModel
from skulk_tui.view_state import Changes
from skulk_tui.widgets.log_pane import LogPane
from skulk_tui.widgets.pane import Pane, TablePane, TextPane

_BACKLOG: Final = 50


@final
class NodeDetail(View):
    """A node's detail."""

    view_id: ClassVar[str] = "node"
    title: ClassVar[str] = "Node"

    def __init__(self, seat: Seat, ref: Ref | None = None) -> None:
        super().__init__(seat, ref)
        dash = seat.glyphs.rule
        self.runs = TablePane(
            "runs",
            "Runs",
            TableModel(RUN_COLUMNS, sort="model"),
            empty=("nothing runs on this node",),
            dash=dash,
        )
        self.facts = TextPane("facts", "Machine", dash=dash)
        self.wrong = TextPane("wrong", "Health", dash=dash)
        self.tail = LogPane("tail", "Log", dash=dash)
        self._log_id: int | None = None

    @property
    def node(self) -> NodeView | None:
        """The node as it is now; None once it is no member any more."""
        wanted = self.ref.id if self.ref else ""
        return next((one for one in self.seat.view.nodes if one.member.node_id == wanted), None)

    def panes(self) -> Sequence[Pane]:
        """What runs comes first: Enter opens it."""
        return (self.runs, self.facts, self.wrong, self.tail)

    def handlers(self) -> Mapping[str, Handler]:
        """Give what the keys of this view do."""
        return {"node.open": self._open, "node.log": self._to_log}

    def on_shown(self) -> None:
        """Follow the node's log."""
        if self._log_id is None and self.ref is not None:
            self._log_id = self.seat.link.subscribe("logs", node=self.ref.id, backlog=_BACKLOG)

    def on_hidden(self) -> None:
        """Follow it no more."""
        if self._log_id is not None:
            self.seat.link.unsubscribe(self._log_id)
            self._log_id = None

    def commit(self, changes: Changes | None) -> None:
        """Show what changed."""
        if changes is None or changes.keys:
            self._show_node()
        if self._log_id is not None and (changes is None or self._log_id in changes.line_ids):
            refusal = self.seat.link.error_of(self._log_id)
            self.tail.show(self.seat.view.lines(self._log_id), refusal=refusal)

    def _show_node(self) -> None:
        node = self.node
        if node is None:
            self.facts.show((toned(" this node is no longer a member", "warn"),))
            self.runs.model.set_rows(())
            self.runs.redraw()
            return
        self.runs.model.set_rows(run_rows(node.member.node_id, self.seat.view))
        self.runs.redraw()
        self.facts.show(facts_lines(node, self.seat.glyphs), title=node.member.name)
        self.wrong.show(health_lines(node))

    async def _open(self, values: Values) -> None:
        del values
        for ref in self.runs.selection[:1]:
            await self.seat.open_ref(ref)

    def _to_log(self, values: Values) -> None:
        del values
        self.tail.focus()
