"""Screen 3: a conversation with a model, or with two beside each other."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final, final

from textual import on
from textual.app import ComposeResult
from textual.containers import Container
from textual.events import Resize

from protocol.errors import ClientError, SkulkError
from skulk_tui.changes import Option
from skulk_tui.chat_conversation import Conversation
from skulk_tui.chat_transcript import short
from skulk_tui.formatting import format_age, one_line
from skulk_tui.lines import Line
from skulk_tui.naming import ref_named
from skulk_tui.registry import Situation
from skulk_tui.screens.chat_column import ChatColumn
from skulk_tui.screens.chat_commands import ChatCommands
from skulk_tui.screens.chat_keeping import ChatKeeping
from skulk_tui.screens.chat_rows import LETTERS, ready_models, stats_line
from skulk_tui.screens.chat_run import ChatRun
from skulk_tui.screens.view import Handler, Values, View
from skulk_tui.seat import Seat
from skulk_tui.table_model import Ref
from skulk_tui.view_state import Changes
from skulk_tui.widgets.pane import Pane
from skulk_tui.widgets.rows import Row
from skulk_tui.widgets.text_field import TextField

FLUSH_HZ: Final = 8.0
"""How often what has come is drawn: fluent to read, and a third of what each token would cost."""
_OF_FIELD: Final = frozenset({"chat.send", "chat.newline", "chat.leave_field"})
COMPARE_FROM: Final = 120
"""Cells from which two columns have room."""


@final
class ChatView(View):
    """The screen Chat."""

    view_id: ClassVar[str] = "chat"
    title: ClassVar[str] = "Chat"

    def __init__(self, seat: Seat) -> None:
        super().__init__(seat)
        self._keeping = ChatKeeping(seat, self._start_writer)
        self._columns = [self._column("transcript", self._new_conversation())]
        self.field = TextField(
            "prompt", "prompt", command=self._command_of_field, dash=seat.glyphs.rule
        )
        self._box = Container(id="chat-columns")
        self._stats = Row("chat-stats", self._stats_row)
        self._is_shown = False
        self._is_draft_kept = True
        self._commands = ChatCommands(
            seat,
            self._keeping,
            columns=lambda: self._columns,
            here=lambda: self._column_here,
            draw=self._draw,
        )
        seat.stop_streams = self._stop_all

    # ---- Layout ----

    def panes(self) -> Sequence[Pane]:
        """Writing comes first."""
        return (self.field, *(column.pane for column in self._columns))

    def compose(self) -> ComposeResult:
        """Lay columns, field and figures out."""
        with self._box:
            yield from (column.pane for column in self._columns)
        yield self.field
        yield self._stats

    async def on_mount(self) -> None:
        """Begin where the operator was last time."""
        self._timer = self.set_interval(1.0 / FLUSH_HZ, self._beat, pause=True)
        self.run_worker(self._load_latest(), exit_on_error=False)

    def on_unmount(self) -> None:
        """Stop what is coming, and keep what there is."""
        self._keeping.end()
        self._stop_all()
        self.seat.stop_streams = None
        try:
            self._keeping.write_now(self._main.conversation, self.field.draft.text)
        except SkulkError as error:
            self.seat.tell_error(error)
        self._keeping.release()

    def on_resize(self, event: Resize) -> None:
        """Put two columns beside each other where there is room."""
        super().on_resize(event)
        self.set_class(event.size.width >= COMPARE_FROM, "roomy")
        self._fit_field()

    def on_shown(self) -> None:
        """Draw from now on."""
        self._is_shown = True

    def on_hidden(self) -> None:
        """Draw no more; what is coming is still read."""
        self._is_shown = False
        self._keep_draft()

    def commit(self, changes: Changes | None) -> None:
        """Show what changed around the texts."""
        del changes
        for column in self._columns:
            if not column.conversation.model_id and (ready := ready_models(self.seat.view)):
                column.conversation.model_id = ready[0]
        self._draw()

    def tick(self) -> None:
        """Keep the draft."""
        self._keep_draft()
        self.field.redraw()

    def on_moved(self) -> None:
        """The operator has scrolled."""
        for column in self._columns:
            if column.pane is self.focused_pane:
                column.moved()
        self._stats.redraw()

    def on_values(self, values: Values) -> None:
        """Talk to the model that was named; a conversation with another one is kept."""
        word = values.get("model", "")
        if not word:
            return
        model_id = self._model_named(word)
        conversation = self._main.conversation
        if conversation.exchanges and conversation.model_id != model_id:
            conversation = self._begin()
        conversation.model_id = model_id
        self._draw()

    def redraw(self) -> None:
        """Draw all of it."""
        self._draw()

    def _draw(self) -> None:
        for column in self._columns:
            column.redraw()
        self.field.redraw()
        self._stats.redraw()

    def _stats_row(self, width: int) -> Line:
        del width
        return stats_line(self._column_here.current)

    def _fit_field(self) -> None:
        height = self.field.rows_wanted(self.field.size.width or self.size.width)
        if self.field.styles.height is None or self.field.styles.height.value != height:
            self.field.styles.height = height

    # ---- What is there ----

    @property
    def _main(self) -> ChatColumn:
        return self._columns[0]

    @property
    def _column_here(self) -> ChatColumn:
        pane = self.focused_pane
        return next((one for one in self._columns if one.pane is pane), self._main)

    @property
    def selection(self) -> tuple[Ref, ...]:
        """The answer that keys are about; nothing while a question is written."""
        pane = self.focused_pane
        return () if pane is None or pane is self.field else pane.selection

    def situation(self) -> Situation:
        """Say too that keys write while the field has the keyboard."""
        return replace(super().situation(), is_typing=self.focused_pane is self.field)

    def _column(self, name: str, conversation: Conversation) -> ChatColumn:
        return ChatColumn(self.seat, name, conversation, self._start_run)

    def _new_conversation(self) -> Conversation:
        at_ms = self.seat.clock.wall_ms()
        return Conversation(id=f"{at_ms:012x}", created_ms=at_ms, changed_ms=at_ms)

    def _model_named(self, word: str) -> str:
        placed = [one.model_id for one in self.seat.view.instances]
        for model_id in placed:
            if word in {model_id, short(model_id)}:
                return model_id
        return ref_named(self.seat.view, "model", word).id

    def handlers(self) -> Mapping[str, Handler]:
        """Give what the keys and commands of this screen do."""
        return {
            "chat.send": lambda _: self._send(),
            "chat.newline": lambda _: self.field.newline(),
            "chat.stop": lambda _: self._stop(),
            "chat.page_up": lambda _: self._scroll(-1),
            "chat.page_down": lambda _: self._scroll(1),
            "chat.leave_field": lambda _: self._leave_field(),
            "chat.field": lambda _: self._go_to_field(),
            "chat.editor": lambda _: self._edit(),
            "chat.open_command": lambda _: self._open_command(),
            "chat.again": lambda _: self._again(),
            "chat.fold": lambda _: self._column_here.fold(),
            "chat.follow": lambda _: self._follow(),
            "chat.next": lambda _: self._column_here.step(1),
            "chat.previous": lambda _: self._column_here.step(-1),
            "chat.new": lambda _: self._new(),
            "chat.open": self._open,
            "chat.compare": self._compare,
            **self._commands.handlers(),
        }

    # ---- Asking ----

    def _send(self) -> None:
        question = self.field.draft.text.strip("\n")
        if not question.strip():
            self.seat.tell("write a question first")
            return
        self._ask(question)
        self.field.draft.set_text("")
        self.field.draft.remember(self._questions())
        self._fit_field()
        self.field.redraw()
        self._is_draft_kept = True
        self._keeping.keep_draft(self._main.conversation.id, "")

    def _again(self) -> None:
        if not self._main.conversation.exchanges:
            raise ClientError(
                "client.usage",
                "nothing has been asked yet",
                remediation="Type a question, and enter sends it.",
            )
        self._ask(None)

    def _ask(self, question: str | None) -> None:
        if any(column.is_busy for column in self._columns):
            raise ClientError(
                "client.usage",
                "an answer is still coming",
                remediation="Wait for its end, or stop it with ctrl+c.",
            )
        if not self._main.conversation.model_id:
            raise ClientError(
                "client.usage",
                "no model is chosen, as none is placed",
                remediation="Place one on the screen Models: f2, then 2.",
            )
        self._main.ask(question)
        for column in self._columns[1:]:
            column.ask_or_tell(question)
        self._draw()

    def _start_run(self, run: ChatRun, conversation: Conversation) -> None:
        self._count()
        self._timer.resume()
        self._keeping.keep(conversation)
        self.run_worker(self._read(run, conversation), exit_on_error=False)

    async def _read(self, run: ChatRun, conversation: Conversation) -> None:
        await run.read()
        if run.answer.is_over:
            self._keeping.keep(conversation)
        self._beat()

    def _beat(self) -> None:
        """Draw what has come, as far as the terminal keeps up; look at what waits."""
        for column in self._columns:
            run = column.run
            if run is not None and run.beat():
                self.run_worker(self._read(run, column.conversation), exit_on_error=False)
        was_streaming = self.seat.n_streaming
        self._count()
        if not self.seat.n_streaming:
            self._timer.pause()
        if self._is_shown and (self._has_room or not self.seat.n_streaming):
            for column in self._columns:
                column.redraw()
            self._stats.redraw()
        if was_streaming != self.seat.n_streaming and self.seat.shell is not None:
            self.seat.shell.show_changed()

    @property
    def _has_room(self) -> bool:
        return self.seat.shell is None or self.seat.shell.backlog <= 1

    def _count(self) -> None:
        self.seat.n_streaming = sum(column.is_busy for column in self._columns)

    def _stop(self) -> None:
        self._stop_all()

    def _stop_all(self) -> int:
        """Stop everything that is coming; gives how much that was."""
        stopped = [column for column in self._columns if column.stop()]
        for column in stopped:
            self._keeping.keep(column.conversation)
        if stopped:
            self.seat.tell("stopped; what had come is kept")
            self._beat()
        return len(stopped)

    # ---- Field and texts ----

    def _command_of_field(self, key: str) -> bool:
        action = self.seat.registry.for_key(key, self.situation())
        if action is None or action.id not in _OF_FIELD:
            return False
        if action.id == "chat.leave_field":
            self._leave_field()
            return True
        try:
            if action.id == "chat.send":
                self._send()
            else:
                self.field.newline()
        except SkulkError as error:
            self.seat.tell_error(error)
        return True

    @on(TextField.Edited)
    def _on_edited(self) -> None:
        self._is_draft_kept = False
        self.field.note = ""
        self._fit_field()

    @on(TextField.Overflowed)
    def _on_overflowed(self, message: TextField.Overflowed) -> None:
        self.seat.tell(f"{message.n_lost} characters had no room and were left out", level="warn")

    def _keep_draft(self) -> None:
        if not self._is_draft_kept:
            self._is_draft_kept = True
            self.field.note = "draft saved" if self.seat.state_dir is not None else ""
            self._keeping.keep_draft(self._main.conversation.id, self.field.draft.text)

    def _questions(self) -> list[str]:
        return [exchange.question for exchange in self._main.conversation.exchanges]

    def _leave_field(self) -> None:
        self._main.pane.focus()
        if self.seat.shell is not None:
            self.seat.shell.show_changed()  # the keys are others now

    def _go_to_field(self) -> None:
        self.field.focus()

    def _scroll(self, pages: int) -> None:
        column = self._main
        column.pane.move(pages * column.pane.page)
        column.moved()
        column.redraw()

    def _follow(self) -> None:
        column = self._column_here
        column.pane.follow()
        column.moved()
        column.redraw()

    async def _edit(self) -> None:
        if self.seat.shell is None:
            return
        text = await self.seat.shell.edit_text(self.field.draft.text)
        if text is not None:
            self.field.draft.set_text(text)
            self.field.after_edit()
        self.field.focus()

    async def _open_command(self) -> None:
        for ref in self.selection[:1]:
            await self.seat.open_ref(ref)

    # ---- Conversations ----

    def _start_writer(self) -> None:
        self.run_worker(self._keeping.write_out(), exit_on_error=False)

    async def _load_latest(self) -> None:
        try:
            latest = await self._keeping.latest()
        except SkulkError as error:
            self.seat.tell_error(error)
            return
        if latest is not None and not self._main.conversation.exchanges:
            chosen = self._main.conversation.model_id
            self._show(*latest)
            if not self._main.conversation.exchanges:
                self._main.conversation.model_id = chosen

    def _show(self, conversation: Conversation, draft: str) -> None:
        self._main.show(conversation)
        if not self.field.draft.text:
            self.field.draft.set_text(draft)
        self.field.draft.remember(self._questions())
        self._fit_field()
        self.commit(None)

    def _begin(self) -> Conversation:
        """Show a conversation of nothing, for the model of the one before."""
        self._refuse_while_busy()
        conversation = self._new_conversation()
        conversation.model_id = self._main.conversation.model_id
        self._keep_draft()
        self._main.show(conversation)
        self.field.draft.remember([])
        return conversation

    def _refuse_while_busy(self) -> None:
        if any(column.is_busy for column in self._columns):
            raise ClientError(
                "client.usage",
                "an answer is still coming",
                remediation="Wait for its end, or stop it with ctrl+c.",
            )

    async def _new(self) -> None:
        await self._end_comparison()
        self._begin()
        self._draw()
        self.field.focus()

    async def _open(self, values: Values) -> None:
        self._refuse_while_busy()
        wanted = values.get("title", "").lower()
        kept = [one for one in await self._keeping.recent() if wanted in one.title.lower()]
        if not kept:
            self.seat.tell("no conversation is kept" + (" under that name" if wanted else ""))
            return
        chosen_id = kept[0].id if len(kept) == 1 and wanted else None
        if chosen_id is None and self.seat.shell is not None:
            now_ms = self.seat.clock.wall_ms()
            options = [
                Option(
                    key=letter,
                    title=f"{one_line(one.title)}  {format_age(one.changed_ms, now_ms=now_ms)} ago",
                )
                for letter, one in zip(LETTERS, kept, strict=False)
            ]
            chosen = await self.seat.shell.choose("Conversations", options)
            found = [
                one.id for option, one in zip(options, kept, strict=False) if option.key == chosen
            ]
            chosen_id = found[0] if found else None
        if chosen_id is not None:
            await self._end_comparison()
            self._keep_draft()
            self._show(*await self._keeping.load(chosen_id))

    async def _compare(self, values: Values) -> None:
        self._refuse_while_busy()
        word = values.get("model", "")
        if not word:
            await self._end_comparison()
            return
        model_id = self._model_named(word)
        if self.size.width < COMPARE_FROM:
            raise ClientError(
                "client.usage",
                f"two columns need {COMPARE_FROM} cells; there are {self.size.width}",
                remediation="Widen the terminal, or ask the second model in another conversation.",
            )
        await self._end_comparison()
        conversation = self._main.conversation
        copied = conversation.copied(self._new_conversation().id, model_id)
        if copied.exchanges:
            copied.exchanges[-1].answers = []
        column = self._column("other", copied)
        self._columns.append(column)
        await self._box.mount(column.pane)
        if copied.exchanges:
            column.ask_or_tell(None)
        self._draw()

    async def _end_comparison(self) -> None:
        while len(self._columns) > 1:
            column = self._columns.pop()
            column.stop()
            self._commands.keep_begun()
            await column.pane.remove()
        self._count()
