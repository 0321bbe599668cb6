"""What can be changed about placements, each as plan, effect and `skulk` line."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from protocol.control_api import CommandAccepted, InstanceView
from protocol.drain_api import DEFAULT_DRAIN_S
from protocol.errors import PlacementError, SkulkError
from protocol.ids import NodeId
from protocol.instances import LOADING_PHASES
from protocol.placements import Plan
from skulk_tui.changes import Change, Option, Sent
from skulk_tui.cli.plan_notes import differences
from skulk_tui.client import envelope_of, path_of
from skulk_tui.formatting import format_bytes, format_count, format_duration
from skulk_tui.frozen import still_so
from skulk_tui.lines import Line, Span, line, span
from skulk_tui.screens.cluster_rows import ref_of_instance
from skulk_tui.screens.plan_rows import nodes_text
from skulk_tui.seat import Seat
from skulk_tui.view_state import ViewState
from skulk_tui.wish import Wish, same_again

_PLAIN_NAME: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")

_DRAIN: Final = "d"
_ON_DEMAND: Final = "d"

OnChanged = Callable[[], None]
"""Called when the node says that a plan no longer holds."""


def command_name(view: ViewState) -> Callable[[NodeId], str]:
    """Give a function that names nodes in commands: by name where that names one node alone."""
    names = [node.member.name for node in view.nodes]

    def name_of(node_id: NodeId) -> str:
        name = view.name_of(node_id)
        return name if _PLAIN_NAME.match(name) and names.count(name) == 1 else node_id

    return name_of


# ---- Placing -----------------------------------------------------------------------------------


def placement(seat: Seat, wish: Wish, plan: Plan, *, on_changed: OnChanged) -> Change:
    """Plan a placement: exactly the plan that was shown, or nothing."""
    view = seat.view

    async def send(option: str) -> Sent:
        asked = replace(wish, on_demand=True) if option == _ON_DEMAND else wish
        try:
            accepted = await seat.link.request(
                "POST", "/place_instance", CommandAccepted, asked.body(plan.plan_id)
            )
        except SkulkError as error:
            changed = what_changed(error, plan, view)
            if not changed:
                raise
            on_changed()
            raise PlacementError(
                "placement.plan_changed",
                f"nothing was placed; since the plan was made: {changed}",
                remediation="The plan has been made anew: look at it, and place that.",
            ) from error
        instance_id = accepted.instance_id or accepted.command_id
        return Sent(
            message=f"{plan.model_id} is accepted as {instance_id}; its phases are told here",
            command_id=accepted.command_id,
            undo=_taken_back(seat, instance_id, accepted.plan or plan),
        )

    effect, options = placement_effect(plan, view), [Option(key="p", title="place it")]
    if not wish.on_demand:
        options.append(Option(key=_ON_DEMAND, title="on demand (unloaded when idle)"))
    else:
        time = "a while" if wish.ttl_s is None else format_duration(wish.ttl_s)
        loads = line(f"Loaded when a request asks for it, unloaded {time} after the last one.")
        effect = (*effect, loads)
    return Change(
        title=f"Place {plan.model_id}",
        effect=effect,
        cli=wish.cli(command_name(view), plan.plan_id),
        options=tuple(options),
        send=send,
    )


def placement_effect(plan: Plan, view: ViewState) -> tuple[Line, ...]:
    """Say where a plan runs, with the arithmetic of each node, and what it fetches."""
    lines: list[Line] = [
        line(
            "Runs on ", span(nodes_text(plan, view), "strong"), f" with {plan.backend}: context ",
            f"{format_count(plan.context_tokens)}, {plan.slots} at a time.",
        )
    ]  # fmt: skip
    for shard in plan.shards:
        memory = shard.memory
        lines.append(
            line(
                span(f"{view.name_of(shard.node_id)}: "),
                f"weights {format_bytes(memory.weights_bytes)}",
                f" + kv {format_bytes(memory.kv_cache_bytes)}",
                f" + overhead {format_bytes(memory.overhead_bytes)}",
                f" = {format_bytes(memory.needed_bytes)}",
            )
        )
        claimed = ""
        if memory.reserved_bytes:
            claimed = f", {format_bytes(memory.reserved_bytes)} of it claimed"
        lines.append(
            line(
                f"  of {format_bytes(memory.available_bytes)} free{claimed};"
                f" {format_bytes(memory.headroom_bytes)} stay free."
            )
        )
    if plan.download_bytes:
        lines.append(line("Fetches ", Span(format_bytes(plan.download_bytes), "warn"), " first."))
    else:
        lines.append(line("The files are there already."))
    return tuple(lines)


def what_changed(error: SkulkError, plan: Plan, view: ViewState) -> str:
    """Say what has changed since the plan was made; nothing where that does not stand against it.

    Nothing was applied.
    """
    envelope = envelope_of(error)
    if error.code != "placement.plan_changed" or envelope is None or envelope.plan is None:
        return ""
    found = differences(plan, envelope.plan, name_of=view.name_of)
    return "; ".join(found) or "the memory that is free"


# ---- Stopping ----------------------------------------------------------------------------------


def stop(seat: Seat, item: InstanceView) -> Change:
    """Plan the end of an instance, at any phase; it can be placed again as it was."""
    effect: list[Line] = [
        line("Stops ", span(item.instance_id, "strong"), " on ",
             span(nodes_text(item.plan, seat.view), "strong"), ".")
    ]  # fmt: skip
    if item.phase in LOADING_PHASES:
        effect.append(line(f"It is in the phase {item.phase}; nobody uses it yet."))
    elif item.phase == "stopping" and item.drain_ms:
        effect.append(line("It is ending what it is answering; that would be cut off."))
    else:
        effect.append(_load_line(item))
    effect.append(line("Frees ", Span(format_bytes(_memory_of(item.plan)), "strong"), "."))
    took = "" if item.launch is None else f" (about {format_duration(item.launch.load_ms / 1000)})"
    effect.append(line(f"Files stay on disk. To bring it back: place it again{took}."))
    may_drain = item.phase == "ready" and item.in_flight != 0
    ttl_s = None if item.ttl_ms is None else item.ttl_ms // 1000
    wish = replace(same_again(item.plan), on_demand=ttl_s is not None, ttl_s=ttl_s)
    change = _stop_change(
        seat, item.instance_id, item.plan, tuple(effect), may_drain=may_drain, wish=wish
    )
    return replace(change, is_still_so=still_so(seat.view, [ref_of_instance(item)]))


def _load_line(item: InstanceView) -> Line:
    if item.in_flight is None:
        return line("Requests that it serves would fail.")
    waiting = f", {item.queued} are waiting" if item.queued else ""
    if not item.in_flight:
        return line(f"No request is running{waiting}.")
    noun = "request is" if item.in_flight == 1 else "requests are"
    return line(Span(f"{item.in_flight} {noun} running", "bad"), Span(f"{waiting} and would fail."))


def _taken_back(seat: Seat, instance_id: str, plan: Plan) -> Change:
    """Plan the end of what has just been placed, whatever it serves by then."""
    effect = (
        line("Stops ", span(instance_id, "strong"), " on ",
             span(nodes_text(plan, seat.view), "strong"), ", at whatever phase it is."),
        line("Requests that it serves by then would fail."),
        line("Frees ", Span(format_bytes(_memory_of(plan)), "strong"), ". Files stay on disk."),
    )  # fmt: skip
    return _stop_change(seat, instance_id, plan, effect)


def _stop_change(
    seat: Seat,
    instance_id: str,
    plan: Plan,
    effect: tuple[Line, ...],
    *,
    may_drain: bool = False,
    wish: Wish | None = None,
) -> Change:
    async def send(option: str) -> Sent:
        path = path_of("/instance/{}", instance_id)
        query = {"drain_s": str(DEFAULT_DRAIN_S)} if option == _DRAIN else {}
        accepted = await seat.link.request("DELETE", path, CommandAccepted, query=query)
        first = ", once it has answered" if option == _DRAIN else ""
        return Sent(
            message=f"{plan.model_id} is being stopped{first}",
            command_id=accepted.command_id,
            undo=again(seat, plan, wish),
        )

    now = Option(key="x", title="stop now", is_default_danger=True)
    first = Option(key=_DRAIN, title=f"drain first (up to {DEFAULT_DRAIN_S} s)")
    options = (first, now) if may_drain else (now,)
    return Change(
        title=f"Stop {plan.model_id}",
        effect=effect,
        cli=f"skulk stop {instance_id}",
        options=options,
        send=send,
    )


def again(seat: Seat, plan: Plan, wish: Wish | None = None) -> Change:
    """Plan to place what was stopped: the same nodes, backend, window and slots."""
    return placement(seat, wish or same_again(plan), plan, on_changed=_nobody)


def _nobody() -> None:
    """No plan is shown that would have to be made anew."""


def _memory_of(plan: Plan) -> int:
    return sum(shard.memory.needed_bytes for shard in plan.shards)


# ---- Again -------------------------------------------------------------------------------------


def retry(seat: Seat, item: InstanceView) -> Change:
    """Plan another try of a failed instance, as it was placed."""

    async def send(option: str) -> Sent:
        del option
        path = path_of("/instance/{}/retry", item.instance_id)
        accepted = await seat.link.request("POST", path, CommandAccepted)
        return Sent(
            message=f"{item.model_id} is tried again; its phases are told here",
            command_id=accepted.command_id,
            undo=_taken_back(seat, item.instance_id, item.plan),
        )

    effect: list[Line] = [
        line("Starts ", span(item.instance_id, "strong"), " again on ",
             span(nodes_text(item.plan, seat.view), "strong"), ", as it was placed."),
    ]  # fmt: skip
    if item.failure is not None:
        effect.append(line("It failed with: ", span(item.failure.error.message, "warn")))
    return Change(
        title=f"Try {item.model_id} again",
        effect=tuple(effect),
        cli=f"skulk retry {item.instance_id}",
        options=(Option(key="r", title="try again"),),
        send=send,
        is_still_so=still_so(seat.view, [ref_of_instance(item)]),
    )


def breaker_clearance(seat: Seat, item: InstanceView) -> Change:
    """Plan to count an instance's crashes from here on."""

    async def send(option: str) -> Sent:
        del option
        path = path_of("/instance/{}/clear-breaker", item.instance_id)
        accepted = await seat.link.request("POST", path, CommandAccepted)
        return Sent(
            message=f"the crashes of {item.model_id} so far count no more",
            command_id=accepted.command_id,
        )

    effect: list[Line] = [
        line("The crashes of ", span(item.instance_id, "strong"), " so far count no more: it is"),
        line("relaunched up to three times in ten minutes again. Nothing is interrupted."),
    ]
    if item.phase == "failed":
        effect.append(line(Span("It has failed for good, and is tried again now.", "warn")))
    return Change(
        title=f"Clear the breaker of {item.model_id}",
        effect=tuple(effect),
        cli=f"skulk instance clear-breaker {item.instance_id}",
        options=(Option(key="c", title="clear it"),),
        send=send,
        is_still_so=still_so(seat.view, [ref_of_instance(item)]),
    )
