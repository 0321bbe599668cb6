"""The one screen: two rows on top, the body, two rows below; keys, prompts and dialogs.

Every key goes through the registry, unless a text field has taken it. What an action does is looked
up by its id: first in the view, then here.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final

from textual import on
from textual.app import ComposeResult
from textual.events import Key, Paste, Resize
from textual.screen import Screen

from protocol.errors import ClientError, SkulkError
from skulk_tui.actions.everywhere import ROOTS
from skulk_tui.changes import Change, Option
from skulk_tui.completions import complete, preview
from skulk_tui.glyphs import ASCII, UNICODE
from skulk_tui.lines import Line, Span, toned
from skulk_tui.naming import ref_named
from skulk_tui.registry import Action, Situation, is_allowed, parse_command
from skulk_tui.screens.card import Card
from skulk_tui.screens.cluster_changes import handover, invitation, removal
from skulk_tui.screens.copying import copyables
from skulk_tui.screens.dialogs import ChoiceDialog, ConfirmDialog, Dialog, TextDialog
from skulk_tui.screens.help import help_lines
from skulk_tui.screens.notice import notice_lines, staleness
from skulk_tui.screens.view import Handler, Values
from skulk_tui.screens.view_stack import DetailFactory, RootFactory, ViewStack
from skulk_tui.seat import Seat
from skulk_tui.status_row import StatusFlags, status_row, tab_row
from skulk_tui.table_model import Ref
from skulk_tui.view_state import Changes
from skulk_tui.widgets.pane import Pane, TablePane
from skulk_tui.widgets.rows import Notice, Prompt, Row

_log = logging.getLogger(__name__)

_HOMES: Final[Mapping[str, str]] = {
    "cluster": "cluster",
    "placement": "models",
    "chat": "chat",
    "store": "store",
    "diag": "diag",
}
"""The root that knows the actions of a topic."""
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
        self.stack = ViewStack(seat, roots, details)
        self.prompt = Prompt(preview=self._preview, complete=self._complete)
        self._status = Row("status", self._status_row)
        self._tabs = Row("tabs", self._tab_row)
        self._notice = Notice("notice", self._notice_lines)
        self._flash = Row("flash", seat.flash.row)
        self._keys = Row("keys", self._key_row)
        self._card = Card(seat)
        self._app_handlers = app_handlers
        self._ask = ask

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

    def on_resize(self, event: Resize) -> None:
        """Show the card where the body would have no room."""
        del event
        self._choose_layout()

    # ---- What is drawn ----

    def commit(self, changes: Changes) -> None:
        """Show what has changed, on the view in front alone."""
        if self.seat.paused_since is None:
            view = self.stack.current
            if view is not None and not self._is_card:
                view.commit(changes)
            if self._is_card:
                self._card.redraw()
        self.redraw_rows()

    def tick(self) -> None:
        """A second has passed: ages have grown."""
        view = self.stack.current
        if view is not None and self.seat.paused_since is None and not self._is_card:
            view.tick()
        if self._is_card:
            self._card.redraw()
        self.redraw_rows()

    def redraw_rows(self) -> None:
        """Redraw the rows around the body."""
        self._show_staleness()
        for row in (self._status, self._tabs, self._flash, self._keys):
            row.redraw()

    def _show_staleness(self) -> None:
        """Let nothing that is old look live: rules say how old, values are dimmed, a notice why."""
        link, now = self.seat.link.view, self.seat.now()
        old = staleness(link, now=now)
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
    def _pane(self) -> Pane | None:
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
        view = self.stack.current
        if view is not None and not is_card:
            view.commit(None)

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
            self.prompt.press(event)
            return
        action = self.seat.registry.for_key(event.key, self.situation)
        if action is not None:
            await self.perform(action, {})
        elif event.is_printable or event.key in {"enter", "delete"}:
            self._tell_no_key(event.key)

    def on_paste(self, event: Paste) -> None:
        """Paste into the prompt; nothing else here takes text."""
        event.stop()
        if self.prompt.display:
            self.prompt.paste(event.text)

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
        handler = self.handler_of(action.id)
        home = _HOMES.get(action.topic)
        if handler is None and home is not None:
            await self.stack.go(home)  # a command works from everywhere
            handler = self.handler_of(action.id)
        if handler is None:
            self.seat.tell(f"{action.title}: nothing here does that", level="warn")
            return
        try:
            awaited = handler(values)
            if awaited is not None:
                self.run_worker(self._finish(awaited, action), exit_on_error=False)
        except SkulkError as error:
            self.seat.tell_error(error)
        self.redraw_rows()

    def handler_of(self, action_id: str) -> Handler | None:
        """Find what does an action: the view in front, this screen, or the application."""
        view = self.stack.current
        sources = (self._handlers(), self._app_handlers)
        for handlers in sources if view is None else (view.handlers(), *sources):
            if action_id in handlers:
                return handlers[action_id]
        return None

    async def _finish(self, work: Awaitable[None], action: Action) -> None:
        try:
            await work
        except SkulkError as error:
            self.seat.tell_error(error)
        except Exception:  # ruff: ignore[blind-except]  a bug in one action must not end the seat
            _log.exception("the action %s failed", action.id)
            self.seat.tell(f"{action.title} failed; the log has the story", level="bad")

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
            "view.help": lambda _: self._help(),
            "rows.actions": lambda _: self._menu(),
            "rows.copy": lambda _: self._copy(),
            "chat.with": lambda _: self._chat_with(),
            "view.messages": lambda _: self._messages(),
            "view.zoom": lambda _: self._zoom(),
            "view.pause": lambda _: self._pause(),
            "view.undo": lambda _: self._undo(),
            "view.density": lambda _: self._turn_density(),
            "view.glyphs": self._choose_glyphs,
            "view.utc": lambda _: self._turn_utc(),
            "view.redraw": lambda _: self._redraw_all(),
            "view.alert": lambda _: self._next_alert(),
            "view.readonly": self._readonly,
            **self._row_handlers(),
        }

    def _row_handlers(self) -> Mapping[str, Handler]:
        def moving(move: Callable[[], None]) -> Handler:
            def handle(values: Values) -> None:
                del values
                move()
                self._redraw_pane()

            return handle

        return {
            "move.down": moving(lambda: self._move(1)),
            "move.up": moving(lambda: self._move(-1)),
            "move.page_down": moving(lambda: self._move_page(1)),
            "move.page_up": moving(lambda: self._move_page(-1)),
            "move.first": moving(lambda: self._move_to_end(last=False)),
            "move.last": moving(lambda: self._move_to_end(last=True)),
            "rows.mark": moving(lambda: self._in_table(lambda pane: pane.model.mark())),
            "rows.mark_range": moving(lambda: self._in_table(lambda pane: pane.model.mark_range())),
            "rows.mark_all": moving(lambda: self._in_table(lambda pane: pane.model.mark_all())),
            "rows.sort": moving(lambda: self._in_table(lambda pane: pane.model.sort_next())),
            "rows.reverse": moving(lambda: self._in_table(lambda pane: pane.model.reverse())),
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
        pane = self._pane
        if isinstance(pane, TablePane) and (pane.model.clear_marks() or self._unfilter(pane)):
            pane.redraw()
        else:
            await self.stack.back()
        self.redraw_rows()

    @staticmethod
    def _unfilter(pane: TablePane) -> bool:
        if not pane.model.filter:
            return False
        pane.model.set_filter("")
        return True

    async def _leave(self) -> None:
        if not await self.stack.back():
            handler = self._app_handlers["app.quit"]
            handler({})
        self.redraw_rows()

    def _focus_next(self, by: int) -> None:
        if self.stack.current is not None:
            self.stack.current.focus_next_pane(by)

    def _move(self, by: int) -> None:
        pane = self._pane
        if pane is not None:
            pane.move(by)

    def _move_page(self, by: int) -> None:
        pane = self._pane
        if pane is not None:
            pane.move(by * pane.page)

    def _move_to_end(self, *, last: bool) -> None:
        pane = self._pane
        if pane is not None:
            pane.move_to_end(last=last)

    def _in_table(self, work: Callable[[TablePane], None]) -> None:
        pane = self._pane
        if isinstance(pane, TablePane):
            work(pane)

    def _redraw_pane(self) -> None:
        view = self.stack.current
        if view is None:
            return
        pane = view.focused_pane
        if pane is not None:
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
            pane = self._pane
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
            self._in_table(lambda pane: pane.model.set_filter(values["text"]))
            self._redraw_pane()
        else:
            self.open_prompt("filter")

    def _filter_pane(self, text: str) -> None:
        pane = self._pane
        if isinstance(pane, TablePane):
            pane.model.set_filter(text)
            pane.redraw()

    @on(Prompt.Edited)
    def _on_edited(self, message: Prompt.Edited) -> None:
        if message.kind == "filter":
            self._filter_pane(message.text)

    @on(Prompt.Dismissed)
    def _on_dismissed(self, message: Prompt.Dismissed) -> None:
        if message.kind == "filter":
            self._filter_pane("")
        self._close_prompt()

    @on(Prompt.Submitted)
    async def _on_submitted(self, message: Prompt.Submitted) -> None:
        self._close_prompt()
        if message.kind == "filter":
            self._filter_pane(message.text)
            return
        if not message.text.strip():
            return
        try:
            call = parse_command(message.text, self.seat.registry)
        except ClientError as wrong:
            self.seat.tell_error(wrong)
            return
        situation = self.situation
        if not is_allowed(call.action, situation) or (
            call.action.mutates and not situation.is_linked
        ):
            self.seat.tell(self._why_not(call.action, situation), level="warn")
            return
        await self.perform(call.action, call.values)

    def _preview(self, text: str) -> tuple[str, bool]:
        return preview(text, self.seat.registry, self.situation)

    def _complete(self, before: str) -> tuple[str, ...]:
        return tuple(complete(before, self.seat.registry, self.situation, self.seat.view))

    # ---- Dialogs ----

    def confirm(self, change: Change) -> None:
        """Show a change, and send it if the operator says so."""
        self.run_worker(self._confirm(change), exit_on_error=False)

    async def _confirm(self, change: Change) -> None:
        age = self.seat.link.view.age_s(self.seat.now())
        if self.seat.link.view.word == "stale" and age is not None:
            old = toned(f"The view is {age:.0f} s old; this may hit what has changed since.", "bad")
            change = replace(change, effect=(old, *change.effect))
        chosen = await self._ask(ConfirmDialog(change, self.seat.glyphs))
        if chosen is None:
            self.seat.tell("cancelled; nothing was changed")
            return
        self.seat.tell(f"{change.title}: sent")
        try:
            sent = await change.send(chosen)
        except SkulkError as error:
            self.seat.tell_error(error)
            return
        self.seat.undo = sent.undo
        if sent.command_id:
            self.seat.started.append((change.title, sent.command_id))
        self.seat.tell(sent.message, level="good")

    async def _undo(self) -> None:
        undo, self.seat.undo = self.seat.undo, None
        if undo is not None:
            await self._confirm(undo)

    async def _menu(self) -> None:
        registry, situation = self.seat.registry, self.situation
        actions = [item for item in registry.menu(situation) if registry.keys_of(item)]
        options = tuple(
            Option(key=registry.keys_of(item)[0], title=item.title, is_default_danger=item.mutates)
            for item in actions
        )
        names = ", ".join(ref.shown for ref in situation.selection[:3]) or situation.view
        chosen = await self._ask(ChoiceDialog(names, options, self.seat.glyphs))
        for item in actions:
            if registry.keys_of(item)[0] == chosen:
                await self.perform(item, {})
                return

    async def _copy(self) -> None:
        ref = self.situation.selection[0]
        row = self._pane.model.cursor_row if isinstance(self._pane, TablePane) else None
        texts = copyables(ref, self.seat.view, row=row.full if row is not None else "")
        options = [text.option for text in texts]
        chosen = await self._ask(ChoiceDialog(f"Copy {ref.shown}", options, self.seat.glyphs))
        for text in texts:
            if text.option.key == chosen and self.seat.clipboard is not None:
                copied = await self.seat.clipboard.copy(text.text)
                self.seat.tell(copied.said)

    async def _chat_with(self) -> None:
        ref = self.situation.selection[0]
        model = ref.shown if ref.kind == "instance" else ref.id
        await self.perform(self.seat.registry.get("go.chat"), {"model": model})

    async def _help(self) -> None:
        lines, ids = help_lines(self.seat.registry, self.situation)
        chosen = await self._ask(TextDialog("Help", lines, self.seat.glyphs, keys=ids))
        if chosen is not None:
            action = self.seat.registry.get(chosen)
            if any(item.is_required for item in action.arguments):
                self.open_prompt("command", f"{action.command} ")
            else:
                await self.perform(action, {})

    async def _messages(self) -> None:
        self.seat.flash.see()
        lines: list[Line] = [message.content for message in self.seat.flash.messages]
        if not lines:
            lines = [toned("nothing has been told yet", "dim")]
        await self._ask(TextDialog("Messages", lines, self.seat.glyphs))
