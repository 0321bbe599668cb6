"""Screen 1: the way tokens take, the nodes, and the node under the cursor."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, final

from textual.app import ComposeResult
from textual.containers import Container
from textual.events import Resize

from skulk_tui.screens.cluster_rows import (
    NODE_COLUMNS,
    NODE_FACETS,
    is_alert,
    node_rows,
    node_strip,
    ref_of_node,
    route_blocks,
    strip_title,
)
from skulk_tui.screens.view import Handler, Values, View
from skulk_tui.seat import Seat
from skulk_tui.table_model import TableModel
from skulk_tui.view_state import Changes
from skulk_tui.widgets.block_pane import BlockPane
from skulk_tui.widgets.pane import Pane, TablePane, TextPane

_ROUTES_LINES = 6
_WIDE = 100


@final
class ClusterView(View):
    """The screen Cluster."""

    view_id: ClassVar[str] = "cluster"
    title: ClassVar[str] = "Cluster"

    def __init__(self, seat: Seat) -> None:
        super().__init__(seat)
        dash = seat.glyphs.rule
        self.routes = BlockPane(
            "routes",
            "Routes",
            empty=("no model is placed; 2 shows the models, and where they fit",),
            dash=dash,
        )
        self.nodes = TablePane(
            "nodes",
            "Nodes",
            TableModel(NODE_COLUMNS, facets=NODE_FACETS, sort="name"),
            empty=("no node has answered yet",),
            dash=dash,
        )
        self.strip = TextPane("strip", "", dash=dash)
        self.routes.note = "m: link matrix"

    def compose(self) -> ComposeResult:
        """Put the strip below, or, where it is wide enough, to the right."""
        yield self.routes
        with Container(id="cluster-middle"):
            yield self.nodes
            yield self.strip

    def panes(self) -> Sequence[Pane]:
        """Nodes first: they are what most keys are about."""
        return (self.nodes, self.routes, self.strip)

    def handlers(self) -> Mapping[str, Handler]:
        """Give what the keys of this screen do."""
        return {"cluster.open": self._open}

    def commit(self, changes: Changes | None) -> None:
        """Show what changed."""
        del changes
        seat = self.seat
        attached = seat.view.hello.node_id if seat.view.hello else None
        self.nodes.model.set_rows(node_rows(seat.view, seat.glyphs, attached=attached))
        self.routes.show(route_blocks(seat.view, seat.glyphs))
        self._size_routes()
        self.nodes.redraw()
        self._show_strip()

    def on_moved(self) -> None:
        """Show the node that the cursor has come to."""
        self._show_strip()

    def on_resize(self, event: Resize) -> None:
        """Choose between strip below and strip beside."""
        self.set_class(event.size.width >= _WIDE, "wide")
        self._size_routes()

    def to_next_alert(self) -> bool:
        """Put the cursor on the next node that needs somebody."""
        nodes = {ref_of_node(node): node for node in self.seat.view.nodes}
        rows = [row.ref for row in self.nodes.model.rows]
        here = rows.index(self.nodes.model.cursor) if self.nodes.model.cursor in rows else -1
        for ref in (*rows[here + 1 :], *rows[: here + 1]):
            if ref in nodes and is_alert(nodes[ref]):
                self.nodes.model.point_at(ref)
                self.nodes.focus()
                self.nodes.redraw()
                self._show_strip()
                return True
        return False

    async def _open(self, values: Values) -> None:
        del values
        if self.selection:
            await self.open_ref(self.selection[0])

    def _size_routes(self) -> None:
        room = max(3, min(_ROUTES_LINES, self.size.height // 3))
        self.routes.styles.height = 1 + min(room, self.routes.n_lines)

    def _show_strip(self) -> None:
        cursor = self.nodes.model.cursor
        seat = self.seat
        node = next((item for item in seat.view.nodes if cursor == ref_of_node(item)), None)
        if node is None:
            self.strip.show((), title="")
            return
        term = seat.view.head.term if seat.view.head else None
        attached = seat.view.hello.node_id if seat.view.hello else None
        title, state = strip_title(node, term=term, attached=attached)
        self.strip.show(node_strip(node, seat.view, seat.glyphs), title=title, state=state)
