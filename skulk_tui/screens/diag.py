"""Screen 5: health, events, traces, logs and the network, each a sub-tab."""

import re
import string
from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar, Final, Literal, final, get_args

from textual.app import ComposeResult

from protocol.errors import ClientError
from skulk_tui.changes import Option
from skulk_tui.lines import Line, line, span
from skulk_tui.naming import ref_named
from skulk_tui.screens.bundling import BundlePane
from skulk_tui.screens.diag_rows import (
    HEALTH_COLUMNS,
    HEALTH_FACETS,
    NETWORK_COLUMNS,
    NETWORK_FACETS,
    empty_traces,
    event_line,
    health_rows,
    levels_at_least,
    n_problems,
    network_rows,
    node_choices,
    tab_line,
)
from skulk_tui.screens.view import Handler, Values, View
from skulk_tui.seat import Seat
from skulk_tui.table_model import Ref, TableModel
from skulk_tui.view_state import Changes, LineItem
from skulk_tui.widgets.log_pane import LogPane
from skulk_tui.widgets.pane import Pane, TablePane, TextPane
from skulk_tui.widgets.rows import Row

Tab = Literal["health", "timeline", "traces", "logs", "network", "bundle"]
TABS: Final[tuple[Tab, ...]] = get_args(Tab)
_LEVELS: Final = ("debug", "info", "warning", "error")
_BACKLOG: Final = 500
_LETTERS: Final = string.ascii_lowercase
_PATTERN_MAX_CHARS: Final = 200


@final
class DiagView(View):
    """The screen Diag."""

    view_id: ClassVar[str] = "diag"
    title: ClassVar[str] = "Diag"

    def __init__(self, seat: Seat) -> None:
        super().__init__(seat)
        dash = seat.glyphs.rule
        self.tab: Tab = "health"
        self.health = TablePane(
            "health",
            "Health",
            TableModel(HEALTH_COLUMNS, facets=HEALTH_FACETS),
            empty=("no node has answered yet",),
            dash=dash,
        )
        self.events = LogPane(
            "events",
            "Events",
            form=partial(event_line, utc_offset_s=seat.utc_offset_s),
            dash=dash,
        )
        self.traces = TextPane("traces", "Traces", dash=dash)
        self.logs = LogPane("logs", "Logs", dash=dash)
        self.network = TablePane(
            "network",
            "Network",
            TableModel(NETWORK_COLUMNS, facets=NETWORK_FACETS),
            empty=("one node alone has no links; :invite lets another one in",),
            dash=dash,
        )
        self.bundle = BundlePane(seat)
        self._tabs = Row("diag-tabs", self._tab_line)
        self._events_id: int | None = None
        self._logs_id: int | None = None
        self._log_node: Ref | None = None
        self._level = "info"
        self._pattern: re.Pattern[str] | None = None

    # ---- Layout ----

    def panes(self) -> Sequence[Pane]:
        """Give the pane of the sub-tab."""
        return (self._by_tab()[self.tab],)

    def compose(self) -> ComposeResult:
        """Lay all sub-tabs out; one is shown."""
        yield self._tabs
        yield from self._by_tab().values()

    def on_mount(self) -> None:
        """Begin with health."""
        self._show_tab()

    def _by_tab(self) -> Mapping[Tab, Pane]:
        return {
            "health": self.health,
            "timeline": self.events,
            "traces": self.traces,
            "logs": self.logs,
            "network": self.network,
            "bundle": self.bundle,
        }

    def _tab_line(self, width: int) -> Line:
        return tab_line(TABS, self.tab, n_problems=n_problems(self.seat.view), width=width)

    def handlers(self) -> Mapping[str, Handler]:
        """Give what the keys of this screen do."""
        return {
            "diag.next_tab": lambda _: self._turn(1),
            "diag.previous_tab": lambda _: self._turn(-1),
            "diag.health": lambda _: self._go("health"),
            "diag.doctor": lambda _: self._go("health"),
            "diag.timeline": self._timeline,
            "diag.events": lambda _: self._go("timeline"),
            "diag.traces": lambda _: self._go("traces"),
            "diag.network": lambda _: self._go("network"),
            "diag.open": self._open,
            "diag.follow": lambda _: self._follow(),
            "diag.level": self._choose_level,
            "diag.node": self._choose_node,
            "diag.grep": self._grep,
            "diag.logs": self._logs_of,
            "diag.bundle": self._bundle,
            "diag.make_bundle": lambda _: self.bundle.make(),
            "diag.stop_bundle": lambda _: self.bundle.stop(),
        }

    # ---- Life ----

    def on_shown(self) -> None:
        """Follow the events, and the log that was followed before."""
        if self._events_id is None:
            self._events_id = self.seat.link.subscribe("events", backlog=_BACKLOG)
        if self.tab == "logs":
            self._follow_log()

    def on_hidden(self) -> None:
        """Follow nothing."""
        for subscription in (self._events_id, self._logs_id):
            if subscription is not None:
                self.seat.link.unsubscribe(subscription)
        self._events_id = self._logs_id = None

    def commit(self, changes: Changes | None) -> None:
        """Show what changed in the sub-tab."""
        view, link = self.seat.view, self.seat.link
        if self.tab == "health":
            self.health.model.set_rows(health_rows(view))
            problems = n_problems(view)
            self.health.note = f"{problems} to look at" if problems else "all is well"
            self.health.redraw()
        elif self.tab == "network":
            self.network.model.set_rows(network_rows(view))
            self.network.redraw()
        elif self.tab == "bundle":
            self.bundle.redraw_text()
        elif self.tab == "traces":
            self.traces.show(empty_traces())
        elif self.tab == "timeline" and self._is_new(changes, self._events_id):
            self.events.show(
                view.lines(self._events_id or 0), refusal=link.error_of(self._events_id or 0)
            )
        elif self.tab == "logs" and self._is_new(changes, self._logs_id):
            self._show_log()
        self._tabs.redraw()

    @staticmethod
    def _is_new(changes: Changes | None, subscription: int | None) -> bool:
        return changes is None or subscription in changes.line_ids

    def on_values(self, values: Values) -> None:
        """Show the sub-tab that a command names."""
        for tab in TABS:
            if values.get("tab") == tab:
                self._go(tab)

    def to_next_alert(self) -> bool:
        """Go to health, where all that is not well stands."""
        self._go("health")
        return n_problems(self.seat.view) > 0

    # ---- Sub-tabs ----

    def _turn(self, by: int) -> None:
        self._go(TABS[(TABS.index(self.tab) + by) % len(TABS)])

    async def _timeline(self, values: Values) -> None:
        if values.get("command"):
            await self.seat.open_ref(ref_named(self.seat.view, "command", values["command"]))
        else:
            self._go("timeline")

    def _go(self, tab: Tab) -> None:
        self.tab = tab
        if tab == "logs":
            self._follow_log()
        self._show_tab()
        self.commit(None)
        self.focus_first()

    def _show_tab(self) -> None:
        for tab, pane in self._by_tab().items():
            pane.display = tab == self.tab

    def _follow(self) -> None:
        for pane in (self.events, self.logs):
            pane.follow()

    async def _open(self, values: Values) -> None:
        del values
        for ref in self.selection[:1]:
            if ref.kind == "check":
                await self._explain(ref)
            else:
                await self.seat.open_ref(ref)

    async def _explain(self, ref: Ref) -> None:
        node_id, _, code = ref.id.partition("/")
        health = self.seat.view.health.get(node_id)
        for reason in health.reasons if health is not None else ():
            if reason.code == code and self.seat.shell is not None:
                text = (
                    line(span(reason.message, "strong")),
                    line(),
                    line(span(reason.remediation, "accent")),
                )
                await self.seat.shell.show_text(ref.shown, text)

    def _bundle(self, values: Values) -> None:
        if not self.bundle.is_making:
            self.bundle.want(values)
        self._go("bundle")

    # ---- Logs ----

    def _follow_log(self) -> None:
        if self._logs_id is None:
            node = self._log_node.id if self._log_node else None
            self._logs_id = self.seat.link.subscribe("logs", node=node, backlog=_BACKLOG)

    def _show_log(self) -> None:
        if self._logs_id is None:
            return
        name = self._log_node.shown if self._log_node else "the node attached to"
        self.logs.title = f"Log of {name}   level {self._level}+"
        if self._pattern is not None:
            self.logs.title += f"   grep {self._pattern.pattern}"
        buffer = self.seat.view.lines(self._logs_id)
        refusal = self.seat.link.error_of(self._logs_id)
        self.logs.show(buffer, refusal=refusal, keep=self._keeps)

    def _keeps(self, item: LineItem) -> bool:
        level = str(item.item.get("level") or "info").lower()
        if level not in levels_at_least(self._level):
            return False
        message = str(item.item.get("message") or "")
        return self._pattern is None or self._pattern.search(message) is not None

    def _choose_level(self, values: Values) -> None:
        level = values.get("level")
        if level is None:
            here = _LEVELS.index(self._level) if self._level in _LEVELS else 0
            level = _LEVELS[(here + 1) % len(_LEVELS)]
        self._level = level
        self._show_log()

    async def _choose_node(self, values: Values) -> None:
        del values
        if self.seat.shell is None:
            return
        nodes = list(node_choices(self.seat.view))[: len(_LETTERS)]
        options = [
            Option(key=letter, title=name)
            for letter, (_, name) in zip(_LETTERS, nodes, strict=False)
        ]
        chosen = await self.seat.shell.choose("Log of", options)
        for letter, (node_id, name) in zip(_LETTERS, nodes, strict=False):
            if letter == chosen:
                self._take_node(Ref(kind="node", id=node_id, name=name))

    def _take_node(self, ref: Ref | None) -> None:
        if self._logs_id is not None:
            self.seat.link.unsubscribe(self._logs_id)
            self._logs_id = None
        self._log_node = ref
        self._go("logs")

    def _grep(self, values: Values) -> None:
        text = values.get("pattern", "")
        self._pattern = pattern_of(text) if text else None
        self._go("logs")

    def _logs_of(self, values: Values) -> None:
        if "level" in values:
            self._level = values["level"]
        if "grep" in values:
            self._pattern = pattern_of(values["grep"])
        word = values.get("node")
        self._take_node(ref_named(self.seat.view, "node", word) if word else self._log_node)


def pattern_of(text: str) -> re.Pattern[str]:
    """Read a pattern to look for in logs.

    Raises:
        ClientError: `client.usage`: it is none, or too long.
    """
    try:
        return re.compile(text[:_PATTERN_MAX_CHARS], re.IGNORECASE)
    except re.error as wrong:
        raise ClientError(
            "client.usage",
            f"{text[:40]!r} is no regular expression: {wrong}",
            remediation="Write `\\` before what is meant literally, such as `\\[`.",
        ) from wrong
