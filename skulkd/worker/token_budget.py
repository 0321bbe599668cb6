"""How many tokens a task may take, before anybody has counted them. Pure.

The window of one request and the pool that all requests of an instance share have the same size:
the engine keeps one unified cache. What a task may take is its prompt and its answer at their
longest; the prompt is first bounded from above by what can be seen without a tokenizer.
"""

import json
from dataclasses import dataclass
from typing import Final

from protocol.errors import RequestError
from protocol.tasks import ChatMessage, ChatTask, TaskImage, images_of

DEFAULT_MAX_OUTPUT_TOKENS: Final = 4096
TOOLS_TOKENS: Final = 1024
"""What a template says about how to call tools."""
_OPENING_SLACK_TOKENS: Final = 64
_MESSAGE_SLACK_TOKENS: Final = 16
"""Beyond what was measured: a date, a switch for thinking, a role with a longer name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSize:
    """How many tokens a chat template adds, at most; the defaults are for one nobody measured."""

    opening_tokens: int = 512
    """On its own: a default system prompt, the opening of the answer."""
    message_tokens: int = 64
    """Around each message."""


UNMEASURED: Final = TemplateSize()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSize:
    """How many tokens an image is, at most: no engine counts them beforehand.

    A model looks at patches of 28 pixels square, within bounds of its own; the defaults are for a
    family that nobody knows.
    """

    least_tokens: int = 4096
    most_tokens: int = 4096

    def tokens(self, image: TaskImage) -> int:
        """Bound one image, with the marks around it."""
        patches = -(-image.width_px // _PATCH_PX) * -(-image.height_px // _PATCH_PX)
        return _IMAGE_MARKS_TOKENS + max(self.least_tokens, min(self.most_tokens, patches))


UNKNOWN_IMAGES: Final = ImageSize()
_PATCH_PX: Final = 28
_IMAGE_MARKS_TOKENS: Final = 8
_IMAGE_SIZES: Final = {
    "gemma": ImageSize(least_tokens=280, most_tokens=280),  # one size: every image is scaled to it
    "qwen": ImageSize(least_tokens=64, most_tokens=4096),  # as large as it is, within bounds
}
"""By what the names of families begin with."""


def image_size(family: str | None) -> ImageSize:
    """Give what is known of a family of models."""
    for name, size in _IMAGE_SIZES.items():
        if (family or "").startswith(name):
            return size
    return UNKNOWN_IMAGES


def image_tokens(task: ChatTask, size: ImageSize) -> int:
    """Bound all images of a task."""
    return sum(map(size.tokens, images_of(task)))


def template_size(one_message_tokens: int, three_messages_tokens: int) -> TemplateSize:
    """Judge a template by two prompts that were counted: one short message, and three."""
    per_message = max(0, -(-(three_messages_tokens - one_message_tokens) // 2))
    opening = max(0, one_message_tokens - per_message)
    return TemplateSize(
        opening_tokens=opening + _OPENING_SLACK_TOKENS,
        message_tokens=per_message + _MESSAGE_SLACK_TOKENS,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBudget:
    """What a task is allowed, and what it reserves of the pool."""

    prompt_tokens: int
    """Exact when counted, else an upper bound."""
    max_tokens: int

    @property
    def reserved_tokens(self) -> int:
        """Prompt and answer at their longest."""
        return self.prompt_tokens + self.max_tokens


def prompt_bound_tokens(task: ChatTask, template: TemplateSize) -> int:
    """Bound the rendered prompt from above: no tokenizer makes more tokens than bytes."""
    if task.prompt is not None:
        return _OPENING_SLACK_TOKENS + len(task.prompt.encode())
    bound = template.opening_tokens + template.message_tokens * len(task.messages)
    bound += sum(_message_bytes(message) for message in task.messages)
    if task.tools:
        bound += TOOLS_TOKENS + sum(
            len(tool.name.encode()) + len(tool.description.encode()) + _json_bytes(tool.parameters)
            for tool in task.tools
        )
    if task.response_format is not None and task.response_format.json_schema is not None:
        bound += _json_bytes(task.response_format.json_schema)
    return bound


def wanted_tokens(task: ChatTask, default_max_tokens: int) -> int:
    """Give the answer's limit before it is cut to the window."""
    return default_max_tokens if task.max_tokens is None else task.max_tokens


def bounded_budget(
    task: ChatTask,
    default_max_tokens: int,
    template: TemplateSize,
    images: ImageSize = UNKNOWN_IMAGES,
) -> TokenBudget:
    """Give the budget of a task by its bound; it fits, or the prompt has to be counted."""
    return TokenBudget(
        prompt_tokens=prompt_bound_tokens(task, template) + image_tokens(task, images),
        max_tokens=wanted_tokens(task, default_max_tokens),
    )


def counted_budget(
    task: ChatTask,
    prompt_tokens: int,
    *,
    window_tokens: int,
    default_max_tokens: int,
    images: ImageSize = UNKNOWN_IMAGES,
) -> TokenBudget:
    """Give the budget of a task whose prompt was counted; the answer is cut to the window.

    Images are only estimated. So they take their part of the pool, but refuse nothing: the engine
    counts them before it begins, and its refusal has the true numbers.

    Raises:
        RequestError: `request.context_length_exceeded` when no token is left for the answer.
    """
    left = window_tokens - prompt_tokens
    if left < 1:
        beside = " beside its images" if images_of(task) else ""
        raise RequestError(
            "request.context_length_exceeded",
            f"the prompt has {prompt_tokens} tokens{beside} and the context window "
            f"{window_tokens}, so nothing is left for an answer",
            remediation="Shorten the prompt, or place the model with a larger --context.",
            details={"prompt_tokens": prompt_tokens, "context_tokens": window_tokens},
        )
    max_tokens = min(left, wanted_tokens(task, default_max_tokens))
    in_all = min(prompt_tokens + image_tokens(task, images), window_tokens - max_tokens)
    return TokenBudget(prompt_tokens=in_all, max_tokens=max_tokens)


def _message_bytes(message: ChatMessage) -> int:
    n_bytes = len(message.content.encode()) + len((message.reasoning or "").encode())
    n_bytes += len((message.name or "").encode()) + len((message.tool_call_id or "").encode())
    return n_bytes + sum(
        len(call.id.encode()) + len(call.name.encode()) + len(call.arguments.encode())
        for call in message.tool_calls
    )


def _json_bytes(value: object) -> int:
    # Templates print schemas indented and with spaces; twice the compact form covers that.
    return 2 * len(json.dumps(value, ensure_ascii=False).encode())
