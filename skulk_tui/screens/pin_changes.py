"""Pinning an instance and taking that back, each as plan, effect and `skulk` line."""

from protocol.control_api import CommandAccepted, InstanceView
from skulk_tui.changes import Change, Option, Sent
from skulk_tui.client import path_of
from skulk_tui.formatting import format_duration
from skulk_tui.frozen import still_so
from skulk_tui.lines import Line, line, span
from skulk_tui.screens.cluster_rows import ref_of_instance
from skulk_tui.seat import Seat


def pinning(seat: Seat, item: InstanceView, *, is_wanted: bool) -> Change:
    """Plan to pin an instance, or to take that back; the other one undoes it."""
    verb = "pin" if is_wanted else "unpin"

    async def send(option: str) -> Sent:
        del option
        method = "POST" if is_wanted else "DELETE"
        path = path_of("/instance/{}/pin", item.instance_id)
        accepted = await seat.link.request(method, path, CommandAccepted)
        return Sent(
            message=f"{item.model_id} is {verb}ned",
            command_id=accepted.command_id,
            undo=pinning(seat, item, is_wanted=not is_wanted),
        )

    return Change(
        title=f"{verb.capitalize()} {item.model_id}",
        effect=_kept(item) if is_wanted else _let_go(item),
        cli=f"skulk {verb} {item.instance_id}",
        options=(Option(key="p" if is_wanted else "u", title=f"{verb} it"),),
        send=send,
        is_still_so=still_so(seat.view, [ref_of_instance(item)]),
    )


def _kept(item: InstanceView) -> tuple[Line, ...]:
    lines = [
        line(span(item.instance_id, "strong"), " stays loaded until it is unpinned, over restarts"),
        line("of all machines; no drain of a node takes it along."),
    ]
    if item.phase == "asleep":
        lines.append(line("It is asleep: the next request loads it, and then it stays."))
    return tuple(lines)


def _let_go(item: InstanceView) -> tuple[Line, ...]:
    lines = [line("A drain of its node stops ", span(item.instance_id, "strong"), " again.")]
    if item.ttl_ms is not None:
        time = format_duration(item.ttl_ms / 1000)
        lines.append(line(f"It is on demand: unloaded when nobody has asked for it for {time}."))
    return tuple(lines)
