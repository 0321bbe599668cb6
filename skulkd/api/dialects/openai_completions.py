"""OpenAI completions, the way in: a text to go on with, or several. Pure.

The older form of its API, which editors and evaluations use: the model gets the text as it is,
without a template. Fields that nobody here knows are ignored, and null means absent.
"""

from dataclasses import dataclass
from typing import Final, Literal, cast, final

from protocol.ids import CommandId
from protocol.tasks import ChatTask
from skulkd.api.dialects.fields import (
    MAX_TOKENS,
    Fields,
    model_id_of,
    read_flag,
    read_integer,
    refuse,
    unsupported,
    wrong,
)
from skulkd.api.dialects.framing import SSE, Framing
from skulkd.api.dialects.openai_choices import (
    MAX_CHOICES,
    UsageTally,
    choices_of,
    head_of,
    read_n,
)
from skulkd.api.dialects.openai_completions_output import CompletionAnswer, CompletionStream
from skulkd.api.dialects.openai_generation import read_include_usage, read_sampling, read_stop
from skulkd.api.dialects.pictures import Pictures

MAX_LOGPROBS: Final = 20
"""As many alternatives as chats have; OpenAI gives at most 5 here."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionCall:
    """Tasks, and how their answers are wanted; a `ChoicesCall`."""

    tasks: tuple[ChatTask, ...]
    """One a choice, prompt by prompt."""
    n_each: int
    """Choices a prompt."""
    echo: bool
    """The prompt is part of the answer's text."""
    include_usage: bool
    """A trailer with the token counts, when streaming."""

    @property
    def task(self) -> ChatTask:
        """The first, which the request is known by."""
        return self.tasks[0]

    @property
    def dialect(self) -> Literal["openai"]:
        """Whose errors it ends with."""
        return "openai"

    @property
    def framing(self) -> Framing:
        """Server-sent events."""
        return SSE

    @property
    def refuses_by_status(self) -> bool:
        """A failure is the first event, as this dialect's clients look for it."""
        return False

    @property
    def shrinks_to_window(self) -> bool:
        """A budget that cannot be is refused."""
        return False

    def streams(self, created_s: int) -> tuple[CompletionStream, ...]:
        """Make what turns frames into events, for each choice."""
        head = head_of(self.task, created_s, include_usage=self.include_usage)
        tally = UsageTally(len(self.tasks), self.n_each)
        return tuple(
            CompletionStream(head, choice, tally, echo=self._echo(task))
            for choice, task in enumerate(self.tasks)
        )

    def stream(self, created_s: int) -> CompletionStream:
        """Make the only writer of a request for one choice."""
        return self.streams(created_s)[0]

    def answer(self, created_s: int) -> CompletionAnswer:
        """Make what gathers frames into a whole answer."""
        return CompletionAnswer(
            head_of(self.task, created_s),
            n_each=self.n_each,
            echoes=tuple(self._echo(task) for task in self.tasks),
        )

    def _echo(self, task: ChatTask) -> str:
        return task.prompt or "" if self.echo else ""


def parse_completion(
    body: Fields, *, command_id: CommandId, pictures: Pictures | None = None
) -> CompletionCall:
    """Read a request.

    Args:
        body: The request.
        command_id: Its id.
        pictures: A text has none.

    Raises:
        RequestError: `request.invalid`, `request.unsupported_field` or, for what cannot be the id
            of any model, `request.model_not_found`; `details["param"]` names the field.
    """
    del pictures
    model_id = model_id_of(body)
    n = read_n(body)
    prompts = _prompts(body.get("prompt"), n)
    logprobs = _logprobs(body)
    echo = read_flag(body, "echo") or False
    _refuse_unsupported(body, n, has_scores=echo and logprobs is not None)
    task = ChatTask(
        command_id=command_id,
        model_id=model_id,
        messages=(),
        prompt=prompts[0],
        sampling=read_sampling(body),
        max_tokens=read_integer(body, "max_tokens", 1, MAX_TOKENS),
        stop=read_stop(body),
        logprobs=logprobs,
        stream=read_flag(body, "stream") or False,
    )
    # The rest has been checked with the first.
    tasks = (task, *(task.model_copy(update={"prompt": prompt}) for prompt in prompts[1:]))
    return CompletionCall(
        tasks=choices_of(tasks, n),
        n_each=n,
        echo=echo,
        include_usage=read_include_usage(body),
    )


def _prompts(value: object, n: int) -> tuple[str, ...]:
    listed = cast("list[object]", value) if isinstance(value, list) else [value]
    if not listed:
        refuse("prompt", "is empty", "Send a text, or several.")
    if len(listed) * n > MAX_CHOICES and isinstance(listed[0], str):
        refuse(
            "prompt",
            f"asks for {len(listed) * n} answers, {len(listed)} texts with {n} each; at most "
            f"{MAX_CHOICES} are given to one request",
            "Send several requests.",
        )
    return tuple(_prompt(item) for item in listed)


def _prompt(value: object) -> str:
    if isinstance(value, int | list) and not isinstance(value, bool):
        unsupported(
            "prompt",
            "holds the numbers of tokens, which mean something else to each model",
            "Send text.",
        )
    if not isinstance(value, str) or not value:
        wrong("prompt", "a string or an array of strings, none of them empty", value)
    return value


def _logprobs(body: Fields) -> int | None:
    if isinstance(body.get("logprobs"), bool):  # the form of chats
        wrong("logprobs", f"an integer from 0 to {MAX_LOGPROBS}", body["logprobs"])
    return read_integer(body, "logprobs", 0, MAX_LOGPROBS)


def _refuse_unsupported(body: Fields, n: int, *, has_scores: bool) -> None:
    if body.get("suffix"):
        unsupported("suffix", "is not served: texts are only gone on with", "Leave it out.")
    best_of = read_integer(body, "best_of", 1, 1 << 20)
    if best_of is not None and best_of != n:
        unsupported("best_of", "must be as many as `n`: all are given", "Leave it out.")
    if has_scores:
        unsupported(
            "echo",
            "cannot be had together with `logprobs`: engines score what they write alone",
            "Leave one of them out.",
        )
    if body.get("logit_bias"):
        unsupported("logit_bias", "is not served", "Leave it out.")
    if body.get("response_format"):
        unsupported("response_format", "is served for chats", "Use /v1/chat/completions.")
