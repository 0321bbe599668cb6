"""What is set about a conversation, and what is taken out of it: model, system, names, copies."""

from collections.abc import Callable, Mapping, Sequence
from typing import final

from skulk_tui.changes import Option
from skulk_tui.chat_conversation import TITLE_CHARS, read_temperature
from skulk_tui.formatting import one_line
from skulk_tui.screens.asking import copy_text
from skulk_tui.screens.chat_column import ChatColumn
from skulk_tui.screens.chat_keeping import ChatKeeping
from skulk_tui.screens.chat_rows import model_options
from skulk_tui.screens.copying import Copyable
from skulk_tui.screens.view import Handler, Values
from skulk_tui.seat import Seat


@final
class ChatCommands:
    """The commands.

    Args:
        seat: The run.
        keeping: Writes what was changed.
        columns: Gives the columns, the main one first.
        here: Gives the column that has the keyboard.
        draw: Draws the screen anew.
    """

    def __init__(
        self,
        seat: Seat,
        keeping: ChatKeeping,
        *,
        columns: Callable[[], Sequence[ChatColumn]],
        here: Callable[[], ChatColumn],
        draw: Callable[[], None],
    ) -> None:
        self._seat = seat
        self._keeping = keeping
        self._columns = columns
        self._here = here
        self._draw = draw

    def handlers(self) -> Mapping[str, Handler]:
        """Give what they do, by action id."""
        return {
            "rows.copy": lambda _: self._copy(),
            "chat.copy": lambda _: self._copy_answer(),
            "chat.model": lambda _: self._choose_model(),
            "chat.rename": self._rename,
            "chat.export": self._export,
            "chat.system": self._set_system,
            "chat.temperature": self._set_temperature,
            "chat.max": self._set_max,
        }

    async def _copy_answer(self) -> None:
        answer = self._here().current
        await copy_text(self._seat, answer.text if answer is not None else "")

    async def _copy(self) -> None:
        answer = self._here().current
        if answer is None or self._seat.shell is None:
            return
        texts = [("t", "the answer", answer.text), ("q", "the question", self._question_of())]
        texts.append(("c", "the command's id", answer.command_id or ""))
        offered = [
            Copyable(option=Option(key=key, title=title), text=text)
            for key, title, text in texts
            if text
        ]
        chosen = await self._seat.shell.choose("Copy", [one.option for one in offered])
        for one in offered:
            if one.option.key == chosen and self._seat.clipboard is not None:
                copied = await self._seat.clipboard.copy(one.text)
                self._seat.tell(copied.said)

    def _question_of(self) -> str:
        column = self._here()
        for exchange in column.conversation.exchanges:
            if column.current in exchange.answers:
                return exchange.question
        return ""

    # ---- Whom to ask, and how ----

    async def _choose_model(self) -> None:
        options, models = model_options(self._seat.view)
        if not options:
            self._seat.tell("no model is placed; the screen Models places one", level="warn")
            return
        if self._seat.shell is None:
            return
        chosen = await self._seat.shell.choose("Talk to", options)
        for option, model_id in zip(options, models, strict=True):
            if option.key == chosen:
                self._here().conversation.model_id = model_id
                self.keep_begun()
        self._draw()

    def _set_system(self, values: Values) -> None:
        text = values.get("text", "")
        for column in self._columns():
            column.conversation.system = text
        self._seat.tell(
            "the model is told that first" if text else "the model is told nothing first"
        )
        self.keep_begun()
        self._draw()

    def _set_temperature(self, values: Values) -> None:
        word = values.get("value")
        value = None if word is None else read_temperature(word)
        for column in self._columns():
            column.conversation.temperature = value
        self._seat.tell(
            "the model's own temperature" if value is None else f"temperature {value:g}"
        )
        self.keep_begun()
        self._draw()

    def _set_max(self, values: Values) -> None:
        word = values.get("tokens")
        value = None if word is None or int(word) == 0 else int(word)
        for column in self._columns():
            column.conversation.max_tokens = value
        self._seat.tell(
            "answers may be as long as there is room"
            if value is None
            else f"answers have at most {value} tokens"
        )
        self.keep_begun()
        self._draw()

    def keep_begun(self) -> None:
        """Have written what was asked in already."""
        for column in self._columns():
            if column.conversation.exchanges:
                self._keeping.keep(column.conversation)

    def _rename(self, values: Values) -> None:
        title = one_line(values["title"])[:TITLE_CHARS]
        self._columns()[0].conversation.title = title
        self._keeping.keep(self._columns()[0].conversation)
        self._seat.tell(f"this conversation is {title!r} now")

    async def _export(self, values: Values) -> None:
        form = values.get("form", "md")
        path = await self._keeping.export(self._here().conversation, form)
        self._seat.tell(f"written to {path}", level="good")
