"""Several answers to one request: their tasks, and what they take together. Pure.

Choices are numbered prompt by prompt: of `n` choices a prompt, those of the first come first.
"""

import json
from dataclasses import dataclass
from typing import Any, Final, final

from protocol.data_frames import Usage
from protocol.ids import CommandId, ModelId, further_command_id
from protocol.tasks import ChatTask
from skulkd.api.dialects.fields import Fields, read_integer

MAX_CHOICES: Final = 16
"""All the slots that an instance has by default."""
_DUMP: Final = json.JSONEncoder(separators=(",", ":")).encode


def read_n(body: Fields) -> int:
    """Read how many choices are wanted of each prompt.

    Raises:
        RequestError: `request.invalid`.
    """
    n = read_integer(body, "n", 1, MAX_CHOICES)
    return 1 if n is None else n


def choices_of(prompts: tuple[ChatTask, ...], n: int) -> tuple[ChatTask, ...]:
    """Give `n` tasks for each prompt, which ask for the same and answer independently.

    All but the first get ids of their own. A seed goes up by one a choice: with one seed for all,
    all would say the same.

    Args:
        prompts: A task for each prompt, all with the id of the request.
        n: Choices a prompt.
    """
    if n == 1 and len(prompts) == 1:  # as nearly every request
        return prompts
    return tuple(
        _choice(task, index * n + number, number)
        for index, task in enumerate(prompts)
        for number in range(n)
    )


def _choice(task: ChatTask, choice: int, number: int) -> ChatTask:
    if choice == 0:
        return task
    sampling = task.sampling
    if sampling.seed is not None:
        sampling = sampling.model_copy(update={"seed": (sampling.seed + number) & 0xFFFFFFFF})
    command_id = further_command_id(task.command_id, choice)
    return task.model_copy(update={"command_id": command_id, "sampling": sampling})


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """What an answer, and each event of a stream, says of its request."""

    command_id: CommandId
    model_id: ModelId
    """As the client wrote it."""
    created_s: int
    """Seconds since 1970; the same in every event."""
    include_usage: bool
    """A stream is to end with the token counts."""

    def fields(self, kind: str) -> dict[str, Any]:
        """Give it as members; `kind` says what the object is."""
        return {
            "id": self.command_id,
            "object": kind,
            "created": self.created_s,
            "model": self.model_id,
        }

    def event(self, kind: str) -> bytes:
        """Write how an event begins; members follow."""
        return f"data: {_DUMP(self.fields(kind))[:-1]},".encode()


def head_of(task: ChatTask, created_s: int, *, include_usage: bool = False) -> AnswerHead:
    """Give the head of the answer to a request, known by its first task."""
    return AnswerHead(
        command_id=task.command_id,
        model_id=task.model_id,
        created_s=created_s,
        include_usage=include_usage,
    )


@final
class UsageTally:
    """The tokens of all choices together; a prompt counts once, however many it has.

    Args:
        n_choices: Of all prompts.
        n_each: Choices a prompt.
    """

    __slots__ = ("_n_each", "_n_left", "_total")

    def __init__(self, n_choices: int = 1, n_each: int = 1) -> None:
        self._n_left = n_choices
        self._n_each = n_each
        self._total = Usage(0, 0)

    @property
    def is_complete(self) -> bool:
        """Every choice has been added."""
        return self._n_left == 0

    @property
    def total(self) -> Usage:
        """Of those added so far, without times: choices run side by side."""
        return self._total

    def add(self, choice: int, usage: Usage) -> None:
        """Add a choice that has finished."""
        self._n_left -= 1
        total = self._total
        brings_prompt = choice % self._n_each == 0
        self._total = Usage(
            total.prompt_tokens + (usage.prompt_tokens if brings_prompt else 0),
            total.completion_tokens + usage.completion_tokens,
            total.cached_tokens + (usage.cached_tokens if brings_prompt else 0),
        )
