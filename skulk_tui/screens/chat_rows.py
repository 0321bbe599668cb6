"""What the screen Chat shows around its texts: whom it talks to, and what stands in for a text.

Pure.
"""

import string
from collections.abc import Sequence
from typing import Final

from protocol.control_api import InstanceView, LoadingDocument, ProgressView
from skulk_tui.changes import Option
from skulk_tui.chat_answer import Answer
from skulk_tui.chat_conversation import Conversation
from skulk_tui.chat_transcript import short
from skulk_tui.formatting import format_count, one_line
from skulk_tui.lines import EMPTY, Line, Span, line, span, toned
from skulk_tui.link_view import LinkView
from skulk_tui.view_state import ViewState

LETTERS: Final = string.ascii_lowercase
_THOUSAND: Final = 1000


def instances_of(view: ViewState, model_id: str) -> Sequence[InstanceView]:
    """Give where a model is placed, what is ready first."""
    found = [one for one in view.instances if one.model_id == model_id]
    return sorted(found, key=lambda one: one.phase != "ready")


def ready_models(view: ViewState) -> Sequence[str]:
    """Give the models that answer, each once: those that are asked for their load come last."""
    answering = sorted(
        (one for one in view.instances if one.phase in {"ready", "asleep"}),
        key=lambda one: one.phase == "asleep",
    )
    return list(dict.fromkeys(one.model_id for one in answering))


def route_of(instance: InstanceView, view: ViewState) -> str:
    """Write the way a token takes: `den-01 > den-02`."""
    shards = sorted(instance.plan.shards, key=lambda shard: shard.rank)
    return " > ".join(dict.fromkeys(one_line(view.name_of(shard.node_id)) for shard in shards))


def title_of(conversation: Conversation, view: ViewState) -> str:
    """Write the rule's left side: the model and its way."""
    if not conversation.model_id:
        return "no model"
    found = instances_of(view, conversation.model_id)
    where = route_of(found[0], view) if found else "not placed"
    return f"{short(conversation.model_id)}  {where}"


def note_of(conversation: Conversation, view: ViewState, link: LinkView) -> str:
    """Write the rule's right side: what is used of the window, and how it is asked."""
    parts: list[str] = []
    if conversation.is_busy and link.word not in {"live", "stale", "syncing"}:
        parts.append("link lost; the answer goes on when it is back")
    answer = conversation.last_answer
    found = instances_of(view, conversation.model_id)
    if found:
        used = 0 if answer is None else (answer.prompt_tokens or 0) + answer.n_tokens
        parts.append(f"ctx {_thousands(used)}/{_thousands(found[0].context_token_limit)}")
    if conversation.temperature is not None:
        parts.append(f"T {conversation.temperature:g}")
    if conversation.max_tokens is not None:
        parts.append(f"max {conversation.max_tokens}")
    if conversation.system:
        parts.append("system set")
    return "  ".join(parts)


def _thousands(count: int) -> str:
    if count < _THOUSAND:
        return str(count)
    return (
        f"{count / _THOUSAND:.1f}k".replace(".0k", "k")
        if count < 10 * _THOUSAND
        else (f"{count / 1024:.0f}k")
    )


def stats_line(answer: Answer | None) -> Line:
    """Write the figures of the answer that keys are about."""
    if answer is None:
        return EMPTY
    ttft = "-" if answer.first_token_s is None else f"{answer.first_token_s:.2f}s"
    rate = "-" if answer.tokens_per_s is None else f"{answer.tokens_per_s:.1f} tok/s"
    tokens = f"{answer.n_tokens} out / {format_count(answer.prompt_tokens)} in"
    parts = line(f" ttft {ttft}  {tokens}  {rate}")
    if answer.command_id:
        return (*parts, Span("  command ", "dim"), span(answer.command_id, "dim"))
    return parts


def empty_lines(conversation: Conversation, view: ViewState, link: LinkView) -> Sequence[Line]:
    """Say what can be done before anything was asked."""
    if link.word not in {"live", "stale"}:
        return _texts(
            f"the link is {link.word}: nothing can be asked now",
            "what you write is kept, and can be sent when the link is back",
        )
    if not conversation.model_id:
        return [*_not_ready(view), EMPTY, *_texts("earlier conversations: f2, then :open")]
    found = instances_of(view, conversation.model_id)
    model = short(conversation.model_id)
    if not found:
        return _texts(
            f"{model} is not placed anywhere",
            "ctrl+o chooses another model; f2, then 2 places this one",
        )
    if found[0].phase == "asleep":
        return _texts(f"{model} is asleep: what you ask loads it, and is answered then")
    if found[0].phase != "ready":
        return [
            *_texts(f"{model} is not ready yet: {found[0].phase}{_share(found[0])}"),
            *_texts("ask already: it answers as soon as it is ready"),
        ]
    return _texts(
        f"ask {model}: write below, enter sends",
        "ctrl+o chooses another model; f2, then :open goes back to an earlier conversation",
    )


def _not_ready(view: ViewState) -> list[Line]:
    waiting = [one for one in view.instances if one.phase not in {"ready", "failed", "stopping"}]
    if waiting:
        return _texts(
            "no model is ready yet",
            *(f"{short(one.model_id)}  {one.phase}{_share(one)}" for one in waiting[:4]),
        )
    return _texts(
        "no model is placed, so nobody can answer",
        "f2, then 2 shows the models and where they fit; enter there places one",
        "skulk place MODEL does the same from a shell",
    )


def _share(instance: InstanceView) -> str:
    slowest = slowest_of(instance)
    if slowest is None or not slowest.total_bytes or slowest.done_bytes is None:
        return ""
    return f" {int(100 * min(slowest.done_bytes, slowest.total_bytes) / slowest.total_bytes)}%"


def slowest_of(instance: InstanceView) -> ProgressView | None:
    """Give the runner that the others wait for."""

    def left(one: ProgressView) -> float:
        if not one.total_bytes or one.done_bytes is None:
            return 0.0
        return 1.0 - one.done_bytes / one.total_bytes

    return max(instance.progress, key=left, default=None)


def loading_from(instance: InstanceView, view: ViewState) -> LoadingDocument:
    """Give how far an instance is, in the form in which a refusal says it."""
    one = slowest_of(instance)
    return LoadingDocument(
        instance_id=instance.instance_id,
        model_id=instance.model_id,
        phase=instance.phase if one is None else one.phase,
        attempt=instance.attempt,
        node_id=None if one is None else one.node_id,
        node_name="" if one is None else view.name_of(one.node_id),
        phase_s=None if one is None else one.phase_s,
        done_bytes=None if one is None else one.done_bytes,
        total_bytes=None if one is None else one.total_bytes,
        rate_bytes_s=None if one is None else one.rate_bytes_s,
        eta_s=None if one is None else one.eta_s,
    )


def model_options(view: ViewState) -> tuple[Sequence[Option], Sequence[str]]:
    """Give the choices of a model, with way and load, and the model of each."""
    instances = sorted(view.instances, key=lambda one: (one.phase != "ready", one.model_id))
    options: list[Option] = []
    models: list[str] = []
    for letter, one in zip(LETTERS, instances, strict=False):
        load = "" if one.in_flight is None else f"  {one.in_flight}/{one.slots} busy"
        state = load if one.phase == "ready" else f"  {one.phase}{_share(one)}"
        title = f"{short(one.model_id)}  {route_of(one, view)}{state}"
        options.append(Option(key=letter, title=title))
        models.append(one.model_id)
    return options, models


def _texts(*texts: str) -> list[Line]:
    return [toned(f"   {one_line(text)}", "dim") for text in texts]
