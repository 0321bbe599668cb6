"""How keys and `:` commands change what is asked of the planner. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from protocol.control_api import InstanceView
from protocol.errors import ClientError
from protocol.ids import ModelId, NodeId
from protocol.placements import Refusal, Shape
from skulk_tui.naming import ref_named
from skulk_tui.screens.plan_rows import Made
from skulk_tui.table_model import Ref
from skulk_tui.view_state import ViewState
from skulk_tui.wish import (
    BACKEND_FORM,
    CONTEXT_BOUNDS,
    PRIORITY_BOUNDS,
    SLOTS_BOUNDS,
    TTL_BOUNDS,
    Wish,
    bounded_number,
)

_SHAPES: Final[Mapping[str, Shape]] = {
    "one": "single",
    "pipeline": "pipeline",
    "tensor": "tensor",
    "rpc": "rpc",
}
_SHAPE_CYCLE: Final[tuple[Shape | None, ...]] = (None, "single", "pipeline", "tensor", "rpc")
_UNIT_S: Final[Mapping[str, int]] = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LONG: Final = 8
"""Digits of a number that is no sensible time in any unit."""
_FIRST_CONTEXT: Final = 4096
"""Tokens to begin with where no plan says what would be chosen."""


def wish_of(values: Mapping[str, str], view: ViewState, model_id: str) -> Wish:
    """Read the words of `:plan` and `:place`.

    Args:
        values: By argument.
        view: Knows models and nodes by name.
        model_id: Meant where no model is named; empty where none is chosen.

    Raises:
        ClientError: `client.usage`: no model, no such model, node or backend, or a number that is
            out of bounds.
    """
    named = values.get("model", "")
    if not named and not model_id:
        raise ClientError(
            "client.usage", "no model is chosen", remediation=":plan MODEL [on A,B] [ctx N]"
        )
    backend = values.get("backend")
    if backend is not None and BACKEND_FORM.match(backend) is None:
        raise ClientError(
            "client.usage",
            f"{backend[:40]!r} is no backend",
            remediation="Such as llama_server-cpu, or an engine alone: vllm.",
        )
    context, slots = values.get("context"), values.get("slots")
    priority = values.get("priority", "0")
    ttl_s = ttl_of(values.get("ttl"))
    return Wish(
        model_id=ModelId(ref_named(view, "model", named).id if named else model_id),
        nodes=nodes_of(values.get("nodes", ""), view),
        excluded_nodes=nodes_of(values.get("excluded", ""), view),
        shape=_SHAPES.get(values.get("shape", "")),
        backend=backend,
        context_tokens=None if context is None else bounded_number("ctx", context, CONTEXT_BOUNDS),
        slots=None if slots is None else bounded_number("slots", slots, SLOTS_BOUNDS),
        on_demand=ttl_s is not None,
        ttl_s=ttl_s,
        priority=bounded_number("priority", priority, PRIORITY_BOUNDS),
    )


def ttl_of(word: str | None) -> int | None:
    """Read how long an on-demand model stays loaded after a request; None where it always is.

    Raises:
        ClientError: `client.usage`: it is no duration, or out of bounds.
    """
    if word is None:
        return None
    number, unit = word[:-1], word[-1:]
    if word.isdecimal():
        number, unit = word, "s"
    seconds = (
        int(number) * _UNIT_S.get(unit, 0) if number.isdecimal() and len(number) < _LONG else 0
    )
    low, high = TTL_BOUNDS
    if not low <= seconds <= high:
        raise ClientError(
            "client.usage",
            f"on-demand takes a time up to {high // 86400} days, not {word[:40]!r}",
            remediation="Write it like 90s, 10m, 2h or 1d: it is unloaded so long after a request.",
        )
    return seconds


def nodes_of(words: str, view: ViewState) -> tuple[NodeId, ...]:
    """Read names of nodes with commas between.

    Raises:
        ClientError: `client.usage`: there is no such node.
    """
    found = [ref_named(view, "node", word).id for word in words.split(",") if word]
    return tuple(NodeId(node_id) for node_id in dict.fromkeys(found))


def next_shape(wish: Wish) -> Wish:
    """Ask for the next shape; after the last one the planner chooses again."""
    index = _SHAPE_CYCLE.index(wish.shape)
    return replace(wish, shape=_SHAPE_CYCLE[(index + 1) % len(_SHAPE_CYCLE)])


def resized_context(wish: Wish, made: Made | None, by: int) -> Wish:
    """Ask for the next power of two of context, above or below what is planned now."""
    best = made.best if made is not None else None
    now = wish.context_tokens or (best.context_tokens if best is not None else _FIRST_CONTEXT)
    above = 1 << now.bit_length()
    below = 1 << (max(2, now) - 1).bit_length() - 1
    return wish.with_context(above if by > 0 else below)


def resized_slots(wish: Wish, made: Made | None, by: int) -> Wish:
    """Ask for so many slots more than are planned now."""
    best = made.best if made is not None else None
    now = wish.slots or (best.slots if best is not None else 1)
    return wish.with_slots(now + by)


def applied(wish: Wish, refusals: Sequence[Refusal]) -> Wish:
    """Ask with the smallest change of the first refusal that names one which can be asked for.

    Raises:
        ClientError: `client.usage`: none does; with what would help.
    """
    changes = [one.smallest_change for one in refusals if one.smallest_change is not None]
    for change in changes:
        if change.kind == "context_tokens" and change.context_tokens is not None:
            return wish.with_context(change.context_tokens)
    raise ClientError(
        "client.usage",
        "no refusal here names a change that could be asked for",
        remediation=changes[0].text if changes else "Pick other nodes, or a smaller model.",
    )


def one_instance(view: ViewState, named: str, selection: Sequence[Ref]) -> InstanceView:
    """Give the instance that a command names, or that the selection means.

    Raises:
        ClientError: `client.usage`: there is none, or a model has several.
    """
    if named:
        selection = (ref_named(view, "instance", named),)
    for ref in selection[:1]:
        found = [one for one in view.instances if ref.id in {one.instance_id, one.model_id}]
        if len(found) == 1:
            return found[0]
        if found:
            raise ClientError(
                "client.usage",
                f"{ref.shown} has {len(found)} instances",
                remediation="Go to the pane Runs, and choose one there.",
            )
    raise ClientError(
        "client.usage", "nothing that runs is chosen", remediation="`:stop` takes an instance's id"
    )
