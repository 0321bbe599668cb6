"""What a dialect gives to whoever serves chats: the task it asked for, and the two ways back."""

from typing import Any, Literal, Protocol

from protocol.data_frames import Chunk, Finished, Started
from protocol.tasks import ChatTask
from skulkd.api.dialects.framing import Framing

Dialect = Literal["openai", "anthropic", "ollama", "control"]
"""Whose form an error takes; `control` is our own."""


class StreamWriter(Protocol):
    """Turns the frames of one task into the events of a stream, in the framing of its call."""

    @property
    def opening(self) -> bytes:
        """What leaves at once, before the prompt is read, and is no event; b"" for nothing."""
        ...

    @property
    def end_mark(self) -> bytes:
        """What follows the last event of a stream that ended well; b"" for nothing."""
        ...

    def begin(self) -> bytes:
        """Give the events that are due before the engine has the request; b"" for none."""
        ...

    def start(self, started: Started) -> bytes:
        """Give the event that tells of the engine's admission; b"" for none."""
        ...

    def chunk(self, chunk: Chunk) -> bytes:
        """Give a piece of output: one event, or several."""
        ...

    def keep_alive(self) -> bytes:
        """Give what fills a silence, for the connection alone: it is not kept with the events."""
        ...

    def finish(self, finished: Finished, elapsed_s: float) -> bytes:
        """Give the events that end it well.

        Args:
            finished: The terminal.
            elapsed_s: Since the request was admitted.
        """
        ...

    def fail(self, error: dict[str, Any]) -> bytes:
        """Give the event that ends it badly.

        Args:
            error: The error in the dialect's own form.
        """
        ...


class AnswerWriter(Protocol):
    """Gathers the frames of one task into a whole answer."""

    def add(self, chunk: Chunk) -> None:
        """Take a piece of output."""
        ...

    def document(self, finished: Finished, elapsed_s: float) -> bytes:
        """Give the whole answer as JSON; arguments as for `StreamWriter.finish`."""
        ...


class ChatCall(Protocol):
    """One request that has been read."""

    @property
    def dialect(self) -> Dialect:
        """Whose errors it ends with."""
        ...

    @property
    def framing(self) -> Framing:
        """The form of its stream."""
        ...

    @property
    def task(self) -> ChatTask:
        """What is to be done."""
        ...

    @property
    def refuses_by_status(self) -> bool:
        """A stream that fails before an engine has begun gets a status; else its first event."""
        ...

    @property
    def shrinks_to_window(self) -> bool:
        """A `max_tokens` that the window cannot hold means what is left of it; else a refusal."""
        ...

    def stream(self, created_s: int) -> StreamWriter:
        """Make what turns frames into events.

        Args:
            created_s: Seconds since 1970.
        """
        ...

    def answer(self, created_s: int) -> AnswerWriter:
        """Make what gathers frames into a whole answer."""
        ...


class ChoicesWriter(Protocol):
    """Gathers the frames of several tasks, one a choice, into one whole answer."""

    def add(self, chunk: Chunk, choice: int = 0) -> None:
        """Take a piece of the output of one choice."""
        ...

    def document(
        self, finished: Finished, elapsed_s: float, further: tuple[Finished, ...] = ()
    ) -> bytes:
        """Give the whole answer as JSON.

        Args:
            finished: The terminal of the first choice.
            elapsed_s: Since the request was admitted.
            further: Those of the others, in their order.
        """
        ...


class ChoicesCall(ChatCall, Protocol):
    """A request that may be for several choices, each a task of its own.

    `stream` and `answer` are for all of them.
    """

    @property
    def tasks(self) -> tuple[ChatTask, ...]:
        """All of them, in the order of the choices; the first is `task`."""
        ...

    def streams(self, created_s: int) -> tuple[StreamWriter, ...]:
        """Make a writer for each choice; what ends the stream comes from the last to finish."""
        ...

    def answer(self, created_s: int) -> ChoicesWriter:
        """Make what gathers all choices."""
        ...
