"""Draining a node and ending that, each as plan, effect and `skulk` line."""

from typing import Final

from protocol.control_api import CommandAccepted
from protocol.drain_api import DEFAULT_DRAIN_S, DrainBody, DrainDocument, DrainedInstance
from protocol.errors import ClientError
from skulk_tui.changes import Change, Option, Sent
from skulk_tui.client import path_of
from skulk_tui.frozen import still_so
from skulk_tui.lines import Line, Span, line, span
from skulk_tui.screens.cluster_changes import node_of
from skulk_tui.seat import Seat
from skulk_tui.table_model import Ref

_NOW: Final = "x"
_ROUTE: Final = "/v1/nodes/{}/drain"


async def drain(seat: Seat, node: Ref) -> Change:
    """Ask what a drain stops: exactly that is stopped, or nothing.

    Raises:
        SkulkError: The cluster refuses it, or cannot be asked.
    """
    path = path_of(_ROUTE, node.id)
    plan = await seat.link.request("POST", path, DrainDocument, DrainBody(dry_run=True))
    seen = tuple(one.instance_id for one in plan.stops)

    async def send(option: str) -> Sent:
        deadline_s = 0 if option == _NOW else DEFAULT_DRAIN_S
        body = DrainBody(deadline_s=deadline_s, instances=seen)
        begun = await seat.link.request("POST", path, DrainDocument, body)
        return Sent(
            message=f"{begun.name} takes no models any more; what runs there is being stopped",
            command_id=begun.command_id or "",
            undo=_undrain(seat, node, begun.name),
        )

    options = [Option(key="d", title=f"drain (up to {DEFAULT_DRAIN_S} s)")]
    if plan.stops:
        options.append(Option(key=_NOW, title="drain now", is_default_danger=True))
    return Change(
        title=f"Drain {plan.name}",
        effect=(
            line("Places nothing on ", span(plan.name, "strong"), " until it is undrained."),
            line("It stays a member, and keeps its files."),
            *_stops(plan),
        ),
        cli=f"skulk node drain {plan.name}",
        options=tuple(options),
        send=send,
        is_still_so=still_so(seat.view, [node]),
    )


def _stops(plan: DrainDocument) -> tuple[Line, ...]:
    if not plan.stops:
        left = "; what is left there is stopping" if plan.eligibility == "draining" else ""
        return (line(f"It stops nothing{left}."),)
    lines: list[Line] = []
    for one in plan.stops:
        lines += [
            line("Stops ", span(one.model_id, "bad"), f" ({one.phase})", _requests(one)),
            line(span(f"  {_what_is_left(one)}")),
        ]
        if one.pinned:
            lines.append(line(span("  It is pinned: unpin or move it first.", "bad")))
        if one.why_not is not None and not one.copies:
            lines.append(line(span(f"  {one.why_not.message}", "warn")))
    lines.append(line("Each ends what it is answering first, and takes no more."))
    return tuple(lines)


def _requests(one: DrainedInstance) -> Span:
    if not one.requests:
        return Span(".")
    noun = "request" if one.requests == 1 else "requests"
    return Span(f"; {one.requests} {noun}.", "warn")


def _what_is_left(one: DrainedInstance) -> str:
    if one.copies:
        return f"Other nodes go on with {one.copies} more."
    if one.elsewhere:
        return f"Nothing is left of it; it could be moved to {one.elsewhere} first."
    return "Nothing is left of it, and no other node could take it."


def undrain(seat: Seat, node: Ref) -> Change:
    """Plan that a drained node takes models again.

    Raises:
        ClientError: `client.usage`: it is no member any more, or is not drained.
    """
    member = node_of(seat, node).member
    if member.eligibility == "eligible":
        raise ClientError(
            "client.usage",
            f"{member.name} is not drained",
            remediation="Models may be placed there; `:drain` would keep them from it.",
        )
    return _undrain(seat, node, member.name)


def _undrain(seat: Seat, node: Ref, name: str) -> Change:
    async def send(option: str) -> Sent:
        del option
        done = await seat.link.request("DELETE", path_of(_ROUTE, node.id), CommandAccepted)
        return Sent(message=f"{name} takes models again", command_id=done.command_id)

    return Change(
        title=f"Undrain {name}",
        effect=(
            line("Models may be placed on ", span(name, "strong"), " again."),
            line("What the drain has stopped does not come back by itself."),
        ),
        cli=f"skulk node undrain {name}",
        options=(Option(key="u", title="undrain it"),),
        send=send,
    )
