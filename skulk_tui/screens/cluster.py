"""Screen 1: the way tokens take, the nodes, and the node under the cursor."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, Final, Literal, final, get_args

from textual.app import ComposeResult
from textual.containers import Container
from textual.events import Resize

from protocol.cluster_api import NodeView
from protocol.errors import SkulkError
from protocol.link_api import LinksDocument, ProbeLinksBody, ProbeView
from skulk_tui.lines import EMPTY, wrapped
from skulk_tui.naming import ref_named
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
from skulk_tui.screens.cluster_tabs import (
    DOOR_COLUMNS,
    MEMBER_COLUMNS,
    door_line,
    door_rows,
    member_rows,
    stranger_lines,
)
from skulk_tui.screens.link_matrix import KnownLinks, link_matrix
from skulk_tui.screens.node_cards import node_card
from skulk_tui.screens.node_traces import trace_lines
from skulk_tui.screens.view import Handler, Values, View
from skulk_tui.seat import Seat
from skulk_tui.table_model import Ref, TableModel
from skulk_tui.view_state import Changes
from skulk_tui.widgets.block_pane import BlockPane
from skulk_tui.widgets.card_pane import CardPane
from skulk_tui.widgets.pane import Pane, TablePane, TextPane

_ROUTES_LINES: Final = 6
CARDS_FROM: Final = (120, 36)
"""Columns and rows of the terminal from which nodes are cards, as long as all of them fit."""
LINKS_ROUTE: Final = "/v1/cluster/links"
PROBE_ROUTE: Final = "/v1/cluster/links/probe"
LINKS_LOOK_S: Final = 5.0
PROBE_LOOK_S: Final = 1.0
"""While links are being measured through this node."""
_TAB_HINT: Final = "[ and ] switch"
Tab = Literal["overview", "links", "members", "door"]
TABS: Final[tuple[Tab, ...]] = get_args(Tab)


@final
class ClusterView(View):
    """The screen Cluster."""

    view_id: ClassVar[str] = "cluster"
    title: ClassVar[str] = "Cluster"

    def __init__(self, seat: Seat) -> None:
        super().__init__(seat)
        dash = seat.glyphs.rule
        self.tab: Tab = "overview"
        self._cards: str = "auto"
        self.known_links = KnownLinks()
        self._is_asking = False
        self._asked_at_s = float("-inf")
        self._shown: Mapping[Ref, NodeView] = {}
        """The nodes that have rows, as they were when these were made."""
        self.routes = BlockPane(
            "routes",
            "Routes",
            empty=("no model is placed; 2 shows the models, and where they fit",),
            dash=dash,
        )
        self.routes.note = "m: link matrix"
        self.nodes = CardPane(
            "nodes",
            "Nodes",
            TableModel(NODE_COLUMNS, facets=NODE_FACETS, sort="name"),
            empty=("no node has answered yet",),
            dash=dash,
        )
        self.strip = TextPane("strip", "", dash=dash)
        self.links = TextPane("links", "Links", dash=dash)
        self.members = TablePane(
            "members",
            "Members",
            TableModel(MEMBER_COLUMNS, facets=frozenset({"link", "role", "live"}), sort="name"),
            empty=("no node has answered yet",),
            dash=dash,
        )
        self.door = TablePane(
            "door",
            "Door",
            TableModel(DOOR_COLUMNS),
            empty=("nobody was refused within the last hour",),
            dash=dash,
        )

    def compose(self) -> ComposeResult:
        """Put the strip below, or, where it is wide enough, to the right."""
        yield self.routes
        with Container(id="cluster-middle"):
            yield self.nodes
            yield self.strip
        yield self.links
        yield self.members
        yield self.door

    def on_mount(self) -> None:
        """Begin with the overview."""
        self._show_tab()

    def panes(self) -> Sequence[Pane]:
        """Nodes first: they are what most keys are about."""
        by_tab: Mapping[Tab, Sequence[Pane]] = {
            "overview": (self.nodes, self.routes, self.strip),
            "links": (self.links,),
            "members": (self.members,),
            "door": (self.door,),
        }
        return by_tab[self.tab]

    def handlers(self) -> Mapping[str, Handler]:
        """Give what the keys of this screen do."""
        return {
            "cluster.open": self._open,
            "cluster.logs": self._open,  # a node's own view has its log
            "cluster.cards": self._choose_cards,
            "cluster.routes": lambda _: self._go_tab("overview"),
            "cluster.matrix": lambda _: self._go_tab("links"),
            "cluster.probe": self._probe,
            "cluster.next_tab": lambda _: self._turn(1),
            "cluster.previous_tab": lambda _: self._turn(-1),
        }

    def commit(self, changes: Changes | None) -> None:
        """Show what changed."""
        del changes
        view, glyphs = self.seat.view, self.seat.glyphs
        if self.tab == "links":
            lines = link_matrix(view, self.known_links, self.size.width, now=self.seat.now())
            self.links.show(lines, state=_TAB_HINT)
        elif self.tab == "members":
            self.members.model.set_rows(member_rows(view))
            self.members.redraw()
        elif self.tab == "door":
            self.door.model.set_rows(door_rows(view))
            self.door.redraw()
        else:
            attached = view.hello.node_id if view.hello else None
            self.nodes.model.set_rows(node_rows(view, glyphs, attached=attached))
            self._shown = {ref_of_node(node): node for node in view.nodes}
            self._make_cards()
            self.routes.show(route_blocks(view, glyphs))
            self.nodes.foot = door_line(view)
            self._size_routes()
            self.nodes.redraw()
            self._show_strip()

    def tick(self) -> None:
        """Let the traces go on, where they are shown, and ask for the links once in a while."""
        if self.tab == "links":
            self._ask_links()
        if self.tab == "overview" and self.has_class("wide"):
            self._show_strip()

    def on_values(self, values: Values) -> None:
        """Show the sub-tab that a command names."""
        for tab in TABS:
            if values.get("tab") == tab:
                self._go_tab(tab)

    def on_moved(self) -> None:
        """Show the node that the cursor has come to."""
        self._show_strip()

    def on_resize(self, event: Resize) -> None:
        """Give the routes their share; Textual has the base class do its part too."""
        del event
        self._size_routes()
        self.call_after_refresh(self._fit)  # what there is room for is known then

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
        for ref in self.selection[:1]:
            if ref.kind == "stranger":
                await self._explain(ref)
            else:
                await self.seat.open_ref(ref)

    async def _explain(self, ref: Ref) -> None:
        stranger = next((one for one in self.seat.view.strangers if one.public_key == ref.id), None)
        if stranger is not None and self.seat.shell is not None:
            await self.seat.shell.show_text(f"Refused: {ref.shown}", stranger_lines(stranger))

    # ---- Links ----

    async def _probe(self, values: Values) -> None:
        """Have links measured: those between all nodes, or those of the nodes named."""
        words = [word for word in values.get("nodes", "").split(",") if word]
        named = tuple(ref_named(self.seat.view, "node", word).id for word in words)
        body = ProbeLinksBody(nodes=named)
        begun = await self.seat.link.request("POST", PROBE_ROUTE, ProbeView, body)
        self.seat.tell(f"measuring the links, pair after pair: {begun.n_pairs} in all")
        self._asked_at_s = float("-inf")
        self._go_tab("links")

    def _ask_links(self) -> None:
        document = self.known_links.document
        is_running = document and document.probe and document.probe.state == "running"
        every_s = PROBE_LOOK_S if is_running else LINKS_LOOK_S
        is_due = self.seat.now() - self._asked_at_s >= every_s
        if is_due and not self._is_asking and self.seat.link.view.may_change:
            self._is_asking, self._asked_at_s = True, self.seat.now()
            self.run_worker(self._take_links(), exit_on_error=False)

    async def _take_links(self) -> None:
        try:
            answer = await self.seat.link.request("GET", LINKS_ROUTE, LinksDocument)
            self.known_links = KnownLinks(answer, self.seat.now())
        except SkulkError as error:
            self.known_links = self.known_links._replace(problem=error)
        finally:
            self._is_asking = False
        if self.tab == "links":
            self.commit(None)

    # ---- Cards ----

    def _choose_cards(self, values: Values) -> None:
        """Show nodes as cards, or as rows; without a word as what they are not now."""
        self._cards = values.get("switch") or ("off" if self.nodes.has_cards else "on")
        self._go_tab("overview")

    def _make_cards(self) -> None:
        size = self.screen.size
        is_roomy = size.width >= CARDS_FROM[0] and size.height >= CARDS_FROM[1]
        is_shown = self._cards == "on" or (self._cards == "auto" and is_roomy)
        self.nodes.is_forced = self._cards == "on"
        make_card = partial(node_card, self._shown, self.seat.glyphs)
        self.nodes.make_card = make_card if is_shown else None

    def _fit(self) -> None:
        self._make_cards()
        self.nodes.redraw()
        self._show_strip()

    # ---- Sub-tabs ----

    def _turn(self, by: int) -> None:
        self._go_tab(TABS[(TABS.index(self.tab) + by) % len(TABS)])

    def _go_tab(self, tab: Tab) -> None:
        self.tab = tab
        if tab == "links":
            self._ask_links()
        self._show_tab()
        self.commit(None)
        self.focus_first()

    def _show_tab(self) -> None:
        self.query_one("#cluster-middle").display = self.tab == "overview"
        self.routes.display = self.tab == "overview"
        self.links.display = self.tab == "links"
        self.members.display = self.tab == "members"
        self.door.display = self.tab == "door"

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
        lines = node_strip(node, seat.view, seat.glyphs)
        width = self.strip.size.width
        if self.has_class("wide") and width:
            traces = trace_lines(seat.history, node.member.node_id, seat.glyphs, width)
            lines = [*traces, EMPTY, *(part for item in lines for part in wrapped(item, width))]
        self.strip.show(lines, title=title, state=state)
