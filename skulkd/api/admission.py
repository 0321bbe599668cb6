"""Which of a model's instances can do what a request asks for, before anything is sent. Pure.

What an engine cannot do is refused by the field's name: left out in silence, it would change the
answer.
"""

from dataclasses import dataclass
from typing import Final

from engines.base import Feature
from engines.registry import engine_names, features_of, image_types_of
from protocol.cards import EngineName
from protocol.errors import RequestError
from protocol.images import ImageType
from protocol.instances import Instance
from protocol.tasks import ChatTask, images_of
from skulkd.api.dialects.chat_dialect import ChatCall
from skulkd.api.sight import blind, shows_images


@dataclass(frozen=True, slots=True)
class _Need:
    """What a request needs of an engine, and for which of its fields."""

    feature: Feature
    param: str
    lack: str


_SCORES: Final = _Need("logprobs", "logprobs", "tells no probabilities of tokens")
_FORM: Final = _Need("grammar", "response_format", "has no grammar to hold an answer to a form")
_CALL: Final = _Need("tools", "tool_choice", "cannot make a model call a tool")
_TEXT: Final = _Need("complete", "prompt", "serves chats only, not texts to go on with")


def admitted(call: ChatCall, candidates: tuple[Instance, ...]) -> tuple[Instance, ...]:
    """Give the instances that can serve a call, in the order that they came in.

    Args:
        call: What is asked. Images have been refused where no copy of its model sees.
        candidates: Instances of its model, at least one.

    Raises:
        RequestError: `request.invalid`, `request.unsupported_field`,
            `request.context_length_exceeded`; `details["param"]` names the field.
    """
    task, card = call.task, candidates[0].card
    if "TextGeneration" not in card.tasks:
        raise RequestError(
            "request.invalid",
            f"{task.model_id} does not generate text; its card lists {', '.join(card.tasks)}",
            remediation="Choose a model with TextGeneration; see `skulk models list`.",
            details={"param": "model"},
        )
    if task.tools and not card.tooling.supports_tool_calling:
        raise RequestError(
            "request.unsupported_field",
            f"`tools`: the prompt format of {task.model_id} has no place for tools, so they "
            "would be dropped",
            remediation="Leave them out, or choose a model whose card has "
            "tooling.supports_tool_calling.",
            details={"param": "tools"},
        )
    for need in _needs(task):
        candidates = _with(need, candidates)
    shown = images_of(task)
    if shown:
        candidates = _seeing(candidates, frozenset(image.media_type for image in shown))
    return _roomy(call, candidates)


def _needs(task: ChatTask) -> list[_Need]:
    needs: list[_Need] = []
    if task.logprobs is not None:
        needs.append(_SCORES)
    if task.response_format is not None:
        needs.append(_FORM)
    if task.tools and task.tool_choice not in {"auto", "none"}:
        needs.append(_CALL)
    if task.prompt is not None:
        needs.append(_TEXT)
    return needs


def _with(need: _Need, candidates: tuple[Instance, ...]) -> tuple[Instance, ...]:
    able = tuple(item for item in candidates if _may(need.feature, item.plan.engine))
    if able:
        return able
    engines = ", ".join(sorted({item.plan.engine for item in candidates}))
    raise RequestError(
        "request.unsupported_field",
        f"`{need.param}`: the engine that runs {candidates[0].model_id} ({engines}) {need.lack}",
        remediation="Leave it out, or place the model on an engine that can.",
        details={"param": need.param, "engine": engines},
    )


def _seeing(candidates: tuple[Instance, ...], wanted: frozenset[ImageType]) -> tuple[Instance, ...]:
    """Give those that take images of these types; a copy that is not ready may be one, too."""
    seeing = tuple(item for item in candidates if shows_images(item))
    if not seeing:
        raise blind(candidates, "messages", ())
    able = tuple(item for item in seeing if wanted <= image_types_of(item.plan.engine))
    if able:
        return able
    engine = seeing[0].plan.engine
    lacking = ", ".join(sorted(wanted - image_types_of(engine)))
    taken = ", ".join(sorted(image_types_of(engine)))
    raise RequestError(
        "request.unsupported_field",
        f"`messages`: the engine of {candidates[0].model_id} ({engine}) decodes no {lacking}",
        remediation=f"Convert it to one of: {taken}.",
        details={"param": "messages", "engine": engine},
    )


def _may(feature: Feature, engine: EngineName) -> bool:
    """Say whether an engine has a feature; of one that only a newer node runs, that node knows."""
    return engine not in engine_names() or feature in features_of(engine)


def _roomy(call: ChatCall, candidates: tuple[Instance, ...]) -> tuple[Instance, ...]:
    """Give those whose window is larger than the budget that was asked for."""
    max_tokens = call.task.max_tokens
    if call.shrinks_to_window or max_tokens is None:
        return candidates  # the worker gives what is left
    window = max(item.plan.context_tokens for item in candidates)
    if max_tokens >= window:
        raise RequestError(
            "request.context_length_exceeded",
            f"max_tokens is {max_tokens}, the window is {window} tokens and must hold the prompt "
            "too",
            remediation=f"Ask for fewer than {window} tokens, or place the model with a larger "
            "context.",
            details={"param": "max_tokens", "context_tokens": window},
        )
    return tuple(item for item in candidates if max_tokens < item.plan.context_tokens)
