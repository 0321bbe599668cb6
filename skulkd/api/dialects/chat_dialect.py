"""What a dialect gives to whoever serves chats: the task it asked for, and the two ways back."""

from typing import Any, Literal, Protocol

from protocol.data_frames import Chunk, Finished, Started
from protocol.tasks import ChatTask

Dialect = Literal["openai", "anthropic", "control"]
"""Whose form an error takes; `control` is our own."""


class StreamWriter(Protocol):
    """Turns the frames of one task into the events of a stream.

    Each event ends with a blank line, and its JSON follows `data: `.
    """

    @property
    def end_mark(self) -> bytes:
        """What follows the last event of a stream that ended well; b"" for nothing."""
        ...

    def start(self, started: Started) -> bytes:
        """Give the event that begins the stream; b"" for none."""
        ...

    def chunk(self, chunk: Chunk) -> bytes:
        """Give a piece of output: one event, or several."""
        ...

    def finish(self, finished: Finished) -> bytes:
        """Give the events that end it well."""
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

    def document(self, finished: Finished) -> bytes:
        """Give the whole answer as JSON."""
        ...


class ChatCall(Protocol):
    """One request that has been read."""

    @property
    def dialect(self) -> Dialect:
        """Whose errors it ends with."""
        ...

    @property
    def task(self) -> ChatTask:
        """What is to be done."""
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
