"""The one screen: two rows on top, the body, two rows below; keys, prompts and dialogs.

Every key goes through the registry, unless a text field has taken it. What an action does is looked
up by its id: first in the view, then here.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.events import Key, Paste, Resize
from textual.screen import Screen

from protocol.errors import ClientError, SkulkError
from skulk_tui.actions.everywhere import ROOTS
from skulk_tui.changes import Change
from skulk_tui.completions import complete, preview
from skulk_tui.glyphs import ASCII, UNICODE
from skulk_tui.lines import Line, Span
from skulk_tui.naming import ref_named
from skulk_tui.prompt_history import PromptHistory
from skulk_tui.registry import Action, Situation, is_allowed, parse_command
from skulk_tui.screens.asking import Asking
from skulk_tui.screens.card import Card
from skulk_tui.screens.cluster_changes import handover, invitation, removal
from skulk_tui.screens.columns import ChosenColumns
from skulk_tui.screens.dialogs import Dialog
from skulk_tui.screens.event_window import event_handlers
from skulk_tui.screens.move_asking import move_handlers
from skulk_tui.screens.moves import row_handlers
from skulk_tui.screens.node_asking import node_handlers
from skulk_tui.screens.notice import notice_lines, staleness
from skulk_tui.screens.tools import tool_handlers
from skulk_tui.screens.view import WIDE, Handler, Values, View
from skulk_tui.screens.view_stack import DetailFactory, RootFactory, ViewStack
from skulk_tui.seat import Seat
from skulk_tui.status_row import StatusFlags, status_row, tab_row
from skulk_tui.table_model import Ref
from skulk_tui.tasks import run_blocking
from skulk_tui.view_state import Changes
from skulk_tui.widgets.pane import Pane, TablePane
from skulk_tui.widgets.rows import Notice, Prompt, PromptOutcome, Row

_log = logging.getLogger(__name__)

_HOMES: Final[Mapping[str, str]] = {
    "cluster": "cluster",
    "placement": "models",
    "chat": "chat",
    "store": "store",
    "diag": "diag",
}
"""The root that knows the actions of a topic."""
_MOVES: Final = ("go.", "open.", "view.back", "view.last", "app.leave")
"""Actions that lead to another view: the next key is meant for that, however soon it comes."""
CARD_BELOW: Final = (60, 16)
"""Columns and rows below which a card takes the place of the body."""


class SeatScreen(Screen[None], inherit_bindings=False):
    """What the operator sits in front of.

    Args:
        seat: The run.
        roots: Makes the five root views.
        details: Makes the details.
        app_handlers: What the application itself does, by action id.
        ask: Shows a dialog and waits for its answer; called in a worker.
    """

    BINDINGS: ClassVar = []

    def __init__(
        self,
        seat: Seat,
        roots: Mapping[str, RootFactory],
        details: Mapping[str, DetailFactory],
        app_handlers: Mapping[str, Handler],
        ask: Callable[[Dialog], Awaitable[str | None]],
    ) -> None:
        super().__init__()
        self.seat = seat
        self._columns = ChosenColumns(seat, self)
        self.stack = ViewStack(seat, roots, details, prepare=self._columns.apply)
        self.prompt = Prompt(preview=self._preview, complete=self._complete)
        self._status = Row("status", self._status_row)
        self._tabs = Row("tabs", self._tab_row)
        self._notice = Notice("notice", self._notice_lines)
        self._flash = Row("flash", seat.flash.row)
        self._keys = Row("keys", self._key_row)
        self._card = Card(seat)
        self._has_told_history = False
        self._failed_view: View | None = None
        """The one whose bug has been told."""
        self._history = PromptHistory(seat.state_dir)
        self._app_handlers = app_handlers
        self._asking = Asking(seat, self, ask)

    def compose(self) -> ComposeResult:
        """Lay the rows out."""
        yield self._status
        yield self._tabs
        yield self._notice
        yield self.stack
        yield self._card
        yield self._flash
        yield self.prompt
        yield self._keys

    async def on_mount(self) -> None:
        """Show the first root."""
        self.prompt.display = False
        self._choose_layout()
        await self.stack.go(ROOTS[0])
        self.redraw_rows()
        self.recall()

    def recall(self) -> None:
        """Have at hand what was typed and chosen for this cluster before."""
        self.run_worker(self._recall(), exit_on_error=False, group="recall", exclusive=True)

    async def _recall(self) -> None:
        try:
            self.prompt.recall(await run_blocking(self._history.load, self.seat.profile))
        except SkulkError as error:
            self.seat.tell_error(error)
        await self._columns.load(self.stack.current)

    async def _keep(self, text: str) -> None:
        try:
            await run_blocking(self._history.add, self.seat.profile, text)
        except SkulkError as error:
            if not self._has_told_history:
                self._has_told_history = True
                self.seat.tell_error(error)

    def on_resize(self, event: Resize) -> None:
        """Show the card where the body would have no room."""
        del event
        self._choose_layout()

    # ---- What is drawn ----

    def commit(self, changes: Changes) -> None:
        """Show what has changed, on the view in front alone."""
        if self.seat.paused_since is None:
            self._draw(lambda view: view.commit(changes))
        self.redraw_rows()

    def tick(self) -> None:
        """A second has passed: ages have grown."""
        if self.size.width >= WIDE and self.seat.link.view.word == "live":
            self.seat.history.look(self.seat.view, self.seat.now())
        if self.seat.paused_since is None or self._is_card:
            self._draw(lambda view: view.tick())
        self.redraw_rows()

    def _draw(self, work: Callable[[View], None]) -> None:
        """Have the view in front, or the card, take what is new; a bug there is told, once."""
        view = self.stack.current
        if self._is_card:
            self._card.redraw()
        elif view is not None:
            try:
                work(view)
            except Exception:  # ruff: ignore[blind-except]  a bug in a view must not end the seat
                if view is not self._failed_view:  # it may come with every frame
                    self._failed_view = view
                    self._tell_bug(f"drawing {view.title or view.view_id}")

    def redraw_rows(self) -> None:
        """Redraw the rows around the body."""
        self._show_staleness()
        for row in (self._status, self._tabs, self._flash, self._keys):
            row.redraw()

    def _show_staleness(self) -> None:
        """Let nothing that is old look live: rules say how old, values are dimmed, a notice why."""
        link, now = self.seat.link.view, self.seat.now()
        old = staleness(link, self.seat.view, now=now, utc_offset_s=self.seat.utc_offset_s)
        self.set_class(bool(old), "stale")
        self._notice.show(is_shown=bool(self._notice_lines()) and not self._is_card)
        view = self.stack.current
        for pane in view.panes() if view is not None else ():
            if pane.staleness != old:
                pane.staleness = old
                pane.redraw()

    def _notice_lines(self) -> Sequence[Line]:
        return notice_lines(self.seat.link.view, self.seat.view, now=self.seat.now())

    @property
    def situation(self) -> Situation:
        """Give what conditions are asked about."""
        view = self.stack.current
        return view.situation() if view is not None else Situation(view="", pane="")

    @property
    def pane(self) -> Pane | None:
        """The pane that holds the keyboard."""
        view = self.stack.current
        return view.focused_pane if view is not None else None

    @property
    def _is_card(self) -> bool:
        return self.size.width < CARD_BELOW[0] or self.size.height < CARD_BELOW[1]

    def _choose_layout(self) -> None:
        is_card = self._is_card
        self.stack.display = not is_card
        self._card.display = is_card
        # A card needs every row there is: only the keys that still work are told, on it.
        for row in (self._status, self._tabs, self._keys):
            row.display = not is_card
        if not is_card:
            self._draw(lambda view: view.commit(None))

    def _status_row(self, width: int) -> Line:
        seat = self.seat
        flags = StatusFlags(
            profile=seat.profile,
            is_protected=seat.is_protected,
            is_readonly=not seat.may_change,
            paused_since=seat.paused_since,
        )
        return status_row(seat.view, seat.link.view, flags, now=seat.now(), width=width)

    def _tab_row(self, width: int) -> Line:
        return tab_row(self.stack.root_id, self.stack.crumbs, width=width)

    def _key_row(self, width: int) -> Line:
        del width
        parts: list[Span] = [Span(" ")]
        for key, title in self.seat.registry.hints(self.situation):
            parts += [Span(key, "accent"), Span(f" {title}  ")]
        return tuple(parts)

    # ---- Keys and actions ----

    async def on_key(self, event: Key) -> None:
        """Do what a key means here; text fields have had their say before."""
        event.stop()
        event.prevent_default()
        if not self.is_current:
            return  # typed before a dialog came, and not meant for what lies under it
        if self.prompt.display and event.key != "ctrl+q":
            await self._take_prompt(self.prompt.press(event))
            return
        action = self.seat.registry.for_key(event.key, self.situation)
        if action is not None:
            await self.perform(action, {})
        elif event.is_printable or event.key in {"enter", "delete"}:
            self._tell_no_key(event.key)

    async def on_paste(self, event: Paste) -> None:
        """Paste into the prompt; nothing else here takes text."""
        event.stop()
        if self.prompt.display:
            await self._take_prompt(self.prompt.paste(event.text))

    def _tell_no_key(self, key: str) -> None:
        """Say why a key did nothing, where it would do something elsewhere or later."""
        situation = self.situation
        for action in self.seat.registry.actions:
            if key in self.seat.registry.keys_of(action) and action.is_here(situation):
                self.seat.tell(self._why_not(action, situation))
                return

    def _why_not(self, action: Action, situation: Situation) -> str:
        if not is_allowed(action, situation):
            reason = "this view is read-only" if self.seat.is_readonly else "the key may not"
            return f"{action.title}: {reason}"
        if (action.mutates or action.needs_link) and not situation.is_linked:
            return f"{action.title}: not while the link is {self.seat.link.view.word}"
        return f"{action.title}: not for what is selected here"

    async def perform(self, action: Action, values: Values) -> None:
        """Do an action; what goes wrong is told, and nothing ends."""
        try:
            handler = await self._find_handler(action)
            awaited = self._begin(handler, action, values) if handler is not None else None
            if awaited is not None:
                await self._go_on(action, awaited)
        except SkulkError as error:
            self.seat.tell_error(error)
        except Exception:  # ruff: ignore[blind-except]  a bug in one action must not end the seat
            self._tell_bug(action.title)
        self.redraw_rows()

    async def _go_on(self, action: Action, work: Awaitable[None]) -> None:
        """Do it meanwhile; but wait for another view: the next key is meant for that."""
        if action.id.startswith(_MOVES):
            await work
        else:
            self.run_worker(self._finish(work, action.title), exit_on_error=False)

    def _begin(self, handler: Handler, action: Action, values: Values) -> Awaitable[None] | None:
        """Call a handler; a command that names nothing is about the selection, as its key is."""
        situation = self.situation
        if not values and not action.condition(situation):
            self.seat.tell(self._why_not(action, situation))
            return None
        return handler(values)

    async def _find_handler(self, action: Action) -> Handler | None:
        """Find what does an action, going to where it is known: a command works from everywhere."""
        handler, home = self.handler_of(action.id), _HOMES.get(action.topic)
        if handler is None and home is not None:
            await self.stack.go(home)
            handler = self.handler_of(action.id)
        if handler is None:
            self.seat.tell(f"{action.title}: nothing here does that", level="warn")
        return handler

    def handler_of(self, action_id: str) -> Handler | None:
        """Find what does an action: the view in front, this screen, or the application."""
        view = self.stack.current
        sources = (self._handlers(), self._app_handlers)
        for handlers in sources if view is None else (view.handlers(), *sources):
            if action_id in handlers:
                return handlers[action_id]
        return None

    async def _finish(self, work: Awaitable[None], title: str) -> None:
        try:
            await work
        except SkulkError as error:
            self.seat.tell_error(error)
        except Exception:  # ruff: ignore[blind-except]  a bug in one action must not end the seat
            self._tell_bug(title)

    def _tell_bug(self, title: str) -> None:
        _log.exception("%s failed", title)
        self.seat.tell(f"{title} failed; the log has the story", level="bad")

    def _handlers(self) -> Mapping[str, Handler]:
        return {
            **{f"go.{root}": self._go_to(root) for root in ROOTS},
            "open.node": lambda values: self._open_named("node", values["node"]),
            "open.model": lambda values: self._open_named("model", values["model"]),
            "open.instance": lambda values: self._open_named("instance", values["instance"]),
            "open.command": lambda values: self._open_named("command", values["command"]),
            "cluster.members": lambda _: self._go_to("cluster")({"tab": "members"}),
            "cluster.door": lambda _: self._go_to("cluster")({"tab": "door"}),
            "cluster.timeline": lambda _: self._go_to("diag")({"tab": "timeline"}),
            "cluster.invite": lambda _: self.seat.confirm(invitation(self.seat)),
            "cluster.remove": lambda values: self._change_node(removal, values),
            "cluster.handover": lambda values: self._change_node(handover, values),
            "view.back": lambda _: self._back(),
            "view.last": lambda _: self.stack.last(),
            "app.leave": lambda _: self._leave(),
            "move.next_pane": lambda _: self._focus_next(1),
            "move.previous_pane": lambda _: self._focus_next(-1),
            "prompt.command": lambda _: self.open_prompt("command"),
            "prompt.filter": self._filter,
            "view.help": lambda values: self._asking.help(values.get("topic", "")),
            "rows.columns": self._columns.choose,
            "rows.actions": lambda _: self._asking.menu(),
            "rows.copy": lambda _: self._asking.copy(),
            "chat.with": lambda _: self._asking.chat_with(),
            "view.messages": lambda _: self._asking.messages(),
            "view.zoom": lambda _: self._zoom(),
            "view.pause": lambda _: self._pause(),
            "view.undo": lambda _: self._asking.undo(),
            "view.density": lambda _: self._turn_density(),
            "view.glyphs": self._choose_glyphs,
            "view.utc": lambda _: self._turn_utc(),
            "view.redraw": lambda _: self._redraw_all(),
            "view.alert": lambda _: self._next_alert(),
            "view.readonly": self._readonly,
            **event_handlers(self.seat, self),
            **row_handlers(self._moved),
            **node_handlers(self.seat, self),
            **move_handlers(self.seat, self),
            **tool_handlers(self.seat, self),
        }

    # ---- Going about ----

    def _go_to(self, root: str) -> Handler:
        async def go(values: Values) -> None:
            await self.stack.go(root)
            view = self.stack.current
            if view is not None and any(values.values()):
                view.on_values(values)
            self.redraw_rows()

        return go

    async def open_ref(self, ref: Ref) -> None:
        """Open an object's detail, or say that it has none."""
        if not await self.stack.open(ref):
            self.seat.tell(f"{ref.shown}: there is nothing more to show")
        self.redraw_rows()

    def _change_node(self, plan: Callable[[Seat, Ref], Change], values: Values) -> None:
        named = values.get("node")
        refs = [ref_named(self.seat.view, "node", named)] if named else self.situation.selection
        for ref in refs[:1]:
            self.seat.confirm(plan(self.seat, ref))

    async def _open_named(self, kind: str, word: str) -> None:
        await self.open_ref(ref_named(self.seat.view, kind, word))

    async def _back(self) -> None:
        pane = self.pane
        if pane is not None and pane.unfilter():
            pane.redraw()
        else:
            await self.stack.back()
        self.redraw_rows()

    async def _leave(self) -> None:
        if not await self.stack.back():
            handler = self._app_handlers["app.quit"]
            handler({})
        self.redraw_rows()

    def _focus_next(self, by: int) -> None:
        if self.stack.current is not None:
            self.stack.current.focus_next_pane(by)

    def _moved(self, move: Callable[[Pane], None]) -> None:
        """Move in the focused pane, and redraw it and what follows its cursor."""
        view, pane = self.stack.current, self.pane
        if view is None or pane is None:
            return
        move(pane)
        pane.redraw()
        view.on_moved()

    def _next_alert(self) -> None:
        view = self.stack.current
        if view is None or not view.to_next_alert():
            self.seat.tell("no alert here")

    # ---- The view ----

    def _zoom(self) -> None:
        if self.stack.current is not None:
            self.stack.current.zoom()

    def _pause(self) -> None:
        seat = self.seat
        seat.paused_since = seat.now() if seat.paused_since is None else None
        if seat.paused_since is None and self.stack.current is not None:
            self.stack.current.commit(None)

    def _turn_density(self) -> None:
        if self.stack.current is not None:
            self.stack.current.turn_density()

    async def _choose_glyphs(self, values: Values) -> None:
        self.seat.glyphs = ASCII if values["set"] == "ascii" else UNICODE
        await self.stack.reset()

    async def _turn_utc(self) -> None:
        seat = self.seat
        seat.utc_offset_s = 0 if seat.utc_offset_s else seat.local_offset_s
        await self.stack.reset()
        seat.tell("times are UTC" if not seat.utc_offset_s else "times are local")

    def _redraw_all(self) -> None:
        view = self.stack.current
        if view is not None:
            view.commit(None)
        self.refresh(layout=True, repaint=True)

    def _readonly(self, values: Values) -> None:
        self.seat.is_readonly = values["switch"] == "on"
        view = self.stack.current
        if view is not None:
            view.commit(None)

    # ---- Prompts ----

    def open_prompt(self, kind: str, text: str = "") -> None:
        """Put a prompt in the place of the flash row."""
        self._flash.display = False
        self.prompt.display = True
        if kind == "filter":
            pane = self.pane
            if not isinstance(pane, TablePane):
                self._close_prompt()
                self.seat.tell("this pane has no rows to filter")
                return
            self.prompt.open("filter", text or pane.model.filter.text)
        else:
            self.prompt.open("command", text)

    def _close_prompt(self) -> None:
        self.prompt.display = False
        self._flash.display = True
        self.redraw_rows()

    def _filter(self, values: Values) -> None:
        if "text" in values:
            self._filter_pane(values["text"])
        else:
            self.open_prompt("filter")

    def _filter_pane(self, text: str) -> None:
        pane = self.pane
        if isinstance(pane, TablePane):
            table = pane
            self._moved(lambda _: table.model.set_filter(text))

    async def _take_prompt(self, outcome: PromptOutcome | None) -> None:
        kind, text = self.prompt.kind, self.prompt.text
        if outcome in {"submitted", "dismissed"}:
            self._close_prompt()
        if outcome is not None and kind == "filter":
            self._filter_pane("" if outcome == "dismissed" else text)
        elif outcome == "submitted":
            await self._run_command(text)

    async def _run_command(self, text: str) -> None:
        if not text.strip():
            return
        try:
            call = parse_command(text, self.seat.registry)
        except ClientError as wrong:
            self.seat.tell_error(wrong)
            return
        situation = self.situation
        if not is_allowed(call.action, situation) or (
            call.action.mutates and not situation.is_linked
        ):
            self.seat.tell(self._why_not(call.action, situation), level="warn")
            return
        self.run_worker(self._keep(text), exit_on_error=False)
        await self.perform(call.action, call.values)

    def _preview(self, text: str) -> tuple[str, bool]:
        return preview(text, self.seat.registry, self.situation)

    def _complete(self, before: str) -> tuple[str, ...]:
        seat = self.seat
        return tuple(
            complete(
                before,
                seat.registry,
                self.situation,
                seat.view,
                clusters=seat.clusters.names if seat.clusters is not None else (),
                columns=self._columns.proposals,
            )
        )

    # ---- Dialogs ----

    def confirm(self, change: Change) -> None:
        """Show a change, and send it if the operator says so."""
        work = self._asking.confirm(change)
        self.run_worker(self._finish(work, change.title), exit_on_error=False)
