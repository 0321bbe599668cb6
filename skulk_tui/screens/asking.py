"""Dialogs and what their answers lead to: changes, menus, copying, help, messages."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, Protocol, final

from protocol.errors import SkulkError
from skulk_tui.changes import Change, Option
from skulk_tui.formatting import shorten
from skulk_tui.lines import Line, Span, toned
from skulk_tui.registry import Action, Situation
from skulk_tui.screens.copying import copyables
from skulk_tui.screens.diag_rows import clock_of
from skulk_tui.screens.dialogs import ChoiceDialog, ConfirmDialog, Dialog, TextDialog
from skulk_tui.screens.help import help_lines, topic_lines
from skulk_tui.screens.view import Values
from skulk_tui.seat import Seat
from skulk_tui.widgets.pane import Pane, TablePane

_COPIED_CHARS: Final = 24
"""Of what was copied, as the message names it."""


class Desk(Protocol):
    """What lies under the dialogs."""

    @property
    def situation(self) -> Situation:
        """Where the operator is."""
        ...

    @property
    def pane(self) -> Pane | None:
        """The pane that holds the keyboard."""
        ...

    async def perform(self, action: Action, values: Values) -> None:
        """Do an action."""
        ...

    def open_prompt(self, kind: str, text: str = "") -> None:
        """Begin a command line."""
        ...


@final
class Asking:
    """Asks the operator.

    Args:
        seat: The run.
        desk: What lies under the dialogs.
        ask: Shows a dialog and waits for its answer; in a worker.
    """

    def __init__(
        self, seat: Seat, desk: Desk, ask: Callable[[Dialog], Awaitable[str | None]]
    ) -> None:
        self._seat = seat
        self._desk = desk
        self._ask = ask

    async def confirm(self, change: Change) -> None:
        """Show a change, and send it if the operator says so."""
        age = self._seat.link.view.age_s(self._seat.now())
        if self._seat.link.view.word == "stale" and age is not None:
            old = toned(f"The view is {age:.0f} s old; this may hit what has changed since.", "bad")
            change = replace(change, effect=(old, *change.effect))
        elif change.is_at_once and not self._seat.is_protected:
            await self._send(change, change.options[0].key)
            return
        if self._seat.is_protected:
            change = replace(change, cluster_word=self._seat.profile)
        chosen = await self._ask(ConfirmDialog(change, self._seat.glyphs))
        if chosen is None:
            self._seat.tell("cancelled; nothing was changed")
            return
        await self._send(change, chosen)

    async def _send(self, change: Change, chosen: str) -> None:
        self._seat.tell(f"{change.title}: sent")
        try:
            sent = await change.send(chosen)
        except SkulkError as error:
            self._seat.tell_error(error)
            return
        self._seat.offer_undo(sent.undo)
        if sent.command_id:
            self._seat.started.append((change.title, sent.command_id))
        self._seat.tell(sent.message, level="good")

    async def undo(self) -> None:
        """Offer to take the last change back."""
        undo = self._seat.undo if self._seat.has_undo else None
        self._seat.undo = None
        if undo is not None:
            await self.confirm(undo)

    async def menu(self) -> None:
        """Show what can be done with the selection, and do what is chosen."""
        registry, situation = self._seat.registry, self._desk.situation
        actions = [item for item in registry.menu(situation) if registry.keys_of(item)]
        options = tuple(
            Option(key=registry.keys_of(item)[0], title=item.title, is_default_danger=item.mutates)
            for item in actions
        )
        names = ", ".join(ref.shown for ref in situation.selection[:3]) or situation.view
        chosen = await self._ask(ChoiceDialog(names, options, self._seat.glyphs))
        for item in actions:
            if registry.keys_of(item)[0] == chosen:
                await self._desk.perform(item, {})
                return

    async def copy(self) -> None:
        """Show what can be copied of the selection, and copy what is chosen."""
        ref = self._desk.situation.selection[0]
        row = self._desk.pane.model.cursor_row if isinstance(self._desk.pane, TablePane) else None
        texts = copyables(ref, self._seat.view, row=row.full if row is not None else "")
        options = [text.option for text in texts]
        chosen = await self._ask(ChoiceDialog(f"Copy {ref.shown}", options, self._seat.glyphs))
        for text in texts:
            if text.option.key == chosen and self._seat.clipboard is not None:
                copied = await self._seat.clipboard.copy(text.text)
                self._seat.tell(copied.said)

    async def chat_with(self) -> None:
        """Talk to the selected model."""
        ref = self._desk.situation.selection[0]
        model = ref.shown if ref.kind == "instance" else ref.id
        await self._desk.perform(self._seat.registry.get("go.chat"), {"model": model})

    async def help(self, topic: str = "") -> None:
        """Show what can be done here, or what there is about a topic; Enter on a line does it."""
        registry, situation = self._seat.registry, self._desk.situation
        if topic:
            lines, ids = topic_lines(registry, situation, topic)
        else:
            lines, ids = help_lines(registry, situation)
        chosen = await self._ask(TextDialog("Help", lines, self._seat.glyphs, keys=ids))
        if chosen is not None:
            action = self._seat.registry.get(chosen)
            if any(item.is_required for item in action.arguments):
                self._desk.open_prompt("command", f"{action.command} ")
            else:
                await self._desk.perform(action, {})

    async def messages(self) -> None:
        """Show all that was told."""
        self._seat.flash.see()
        lines: list[Line] = []
        for message in self._seat.flash.messages:
            at = clock_of(message.at_ms, self._seat.utc_offset_s).partition(".")[0]
            lines.append((Span(f"{at}  ", "dim"), *message.content))
        if not lines:
            lines = [toned("nothing has been told yet", "dim")]
        await self._ask(TextDialog("Messages", lines, self._seat.glyphs))


async def copy_text(seat: Seat, text: str) -> None:
    """Copy what needs no choice, if anything, and say how to leave: Ctrl-C may have meant that.

    Raises:
        ClientError: `client.usage`: it could go nowhere.
    """
    if not text or seat.clipboard is None:
        seat.tell("q quits")
        return
    copied = await seat.clipboard.copy(text)
    n_lines = text.count("\n") + 1
    what = shorten(text, _COPIED_CHARS) if n_lines == 1 else f"{n_lines} lines"
    seat.tell(f"q quits; {what}: {copied.said}")
