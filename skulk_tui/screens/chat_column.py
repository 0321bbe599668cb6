"""One conversation on the screen: its rows, the answer that keys are about, and what is coming."""

from collections.abc import Callable, Sequence
from typing import final

from protocol.errors import SkulkError
from skulk_tui.chat_answer import Answer
from skulk_tui.chat_conversation import Conversation
from skulk_tui.chat_transcript import Look, Transcript
from skulk_tui.lines import Line
from skulk_tui.screens.chat_rows import empty_lines, note_of, title_of
from skulk_tui.screens.chat_run import ChatRun
from skulk_tui.seat import Seat
from skulk_tui.table_model import Ref
from skulk_tui.widgets.stream_pane import StreamPane


@final
class ChatColumn:
    """The column.

    Args:
        seat: The run.
        name: Of its pane.
        conversation: What it shows first.
        start: Reads a run to its end, in the background.
    """

    def __init__(
        self,
        seat: Seat,
        name: str,
        conversation: Conversation,
        start: Callable[[ChatRun, Conversation], None],
    ) -> None:
        self._seat = seat
        self._start = start
        self._conversation = conversation
        self._transcript = Transcript(seat.glyphs)
        self._chosen: Answer | None = None
        self.run: ChatRun | None = None
        self.pane = StreamPane(
            name, "", self, select=self._select, dash=seat.glyphs.rule, down=seat.glyphs.down
        )
        self.pane.pane_name = "transcript"

    @property
    def conversation(self) -> Conversation:
        """What it shows."""
        return self._conversation

    def show(self, conversation: Conversation) -> None:
        """Show another conversation, from its end."""
        self._conversation = conversation
        self._transcript = Transcript(self._seat.glyphs)
        self._chosen = None
        self.pane.follow()
        self.redraw()

    # ---- What the pane shows ----

    def update(self, width: int) -> int:
        """Lay out what is new."""
        self._transcript.update(self._conversation, width)
        return len(self._transcript)

    def rows(self, start: int, end: int, *, is_focused: bool) -> Sequence[Line]:
        """Give some of the rows."""
        look = Look(
            width=self.pane.size.width,
            now=self._seat.now(),
            utc_offset_s=self._seat.utc_offset_s,
            current=self.current,
            is_focused=is_focused,
        )
        return self._transcript.rows(start, end, look)

    def empty(self, width: int) -> Sequence[Line]:
        """Say what can be done."""
        del width
        return empty_lines(self._conversation, self._seat.view, self._seat.link.view)

    def redraw(self) -> None:
        """Draw what has changed."""
        self.pane.title = title_of(self._conversation, self._seat.view)
        self.pane.note = note_of(self._conversation, self._seat.view, self._seat.link.view)
        self.pane.redraw()

    # ---- Which answer ----

    @property
    def current(self) -> Answer | None:
        """The answer that keys are about: the chosen one, or the last that is on the screen."""
        if self._chosen is not None:
            return self._chosen
        if self.pane.is_following:
            return self._conversation.last_answer
        found = [one for row, one in self._transcript.tops() if row < self.pane.bottom]
        return found[-1] if found else None

    def moved(self) -> None:
        """The operator has scrolled: what was chosen is no longer."""
        self._chosen = None

    def step(self, by: int) -> None:
        """Go to the next answer, or the one before."""
        tops = self._transcript.tops()
        answers = [one for _, one in tops]
        if not answers:
            return
        current = self.current
        here = answers.index(current) if current in answers else 0
        row, self._chosen = tops[max(0, min(here + by, len(tops) - 1))]
        self.pane.look_at(row)
        self.redraw()

    def fold(self) -> None:
        """Unfold reasoning and tools of the answer, or fold them."""
        answer = self.current
        if answer is not None:
            self._transcript.unfolded ^= {answer}
            self.redraw()

    def _select(self) -> tuple[Ref, ...]:
        answer = self.current
        if answer is None:
            return ()
        if answer.command_id:
            return (Ref(kind="command", id=answer.command_id),)
        return (Ref(kind="answer", id=str(answer.at_ms), name="the answer"),)

    # ---- Asking ----

    def ask(self, question: str | None) -> None:
        """Send a question, or the last one again.

        Raises:
            SkulkError: It was not sent; the conversation is as before.
        """
        seat, conversation = self._seat, self._conversation
        body = conversation.body(question)
        stream = seat.link.open_chat(body)
        at_ms, now = seat.clock.wall_ms(), seat.now()
        if question is None:
            answer = conversation.ask_again(at_ms=at_ms, now=now)
        else:
            answer = conversation.ask(question, at_ms=at_ms, now=now)
        self.run = ChatRun(seat, answer, body, stream)
        self._chosen = None
        self.pane.follow()
        self._start(self.run, conversation)

    def ask_or_tell(self, question: str | None) -> None:
        """Send it, beside another one that was sent: what goes wrong is told by the answer."""
        seat = self._seat
        try:
            self.ask(question)
        except SkulkError as error:
            at_ms, now = seat.clock.wall_ms(), seat.now()
            if question is None:
                answer = self._conversation.ask_again(at_ms=at_ms, now=now)
            else:
                answer = self._conversation.ask(question, at_ms=at_ms, now=now)
            answer.fail(error)

    @property
    def is_busy(self) -> bool:
        """Whether an answer is coming."""
        return self.run is not None and not self.run.answer.is_over

    def stop(self) -> bool:
        """Stop what is coming; False where nothing is."""
        if self.run is None or self.run.answer.is_over:
            return False
        self.run.stop()
        return True
