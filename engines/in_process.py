"""An engine that is a library: what a runner child asks of it.

Everything here is called from one thread of the child, the engine's own, so that an engine needs
no locks. `step` is the only call that computes for long.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from engines.base import EngineStatistics
from protocol.cards import ModelCard
from protocol.data_frames import Frame
from protocol.tasks import ChatTask

Report = Callable[[float, str], None]
"""Gets how much of the weights is in memory, 0 to 1, and what is being done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """What a runner child is started with."""

    engine: str
    card: ModelCard
    entry_path: Path
    socket_path: Path
    context_tokens: int
    """Window of one request."""
    slots: int
    n_threads: int
    compute: str


class InProcessEngine(Protocol):
    """One loaded model."""

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        ...

    def load(self, report: Report) -> None:
        """Bring the model to where it can answer.

        Raises:
            EngineError: It cannot be loaded; the message names the file.
        """
        ...

    def submit(self, request_id: int, task: ChatTask) -> None:
        """Take a task; its frames come out of `step`, under this id.

        Raises:
            SkulkError: The task cannot be served.
        """
        ...

    def cancel(self, request_id: int) -> None:
        """Drop a task before the next step; an id that is not known is one that has ended."""
        ...

    def step(self) -> list[tuple[int, Frame]]:
        """Compute one token of each running task, or read a piece of a waiting one's prompt."""
        ...

    def count_tokens(self, task: ChatTask) -> int:
        """Count the tokens of a task's prompt.

        Raises:
            RequestError: `request.invalid` when the template refuses the conversation.
        """
        ...

    def count_text(self, text: str) -> int:
        """Count the tokens of a text that is gone on with as it is."""
        ...

    def statistics(self) -> EngineStatistics:
        """Say what is running."""
        ...
