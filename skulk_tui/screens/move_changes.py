"""Moving an instance, as plan, effect and `skulk` line: the node says what it would mean."""

from typing import Final

from protocol.control_api import CommandAccepted, InstanceView
from protocol.errors import PlacementError, SkulkError
from protocol.ids import InstanceId
from protocol.move_api import MoveDocument
from protocol.placements import Plan
from skulk_tui.changes import Change, Option, Sent
from skulk_tui.client import path_of
from skulk_tui.formatting import format_bytes
from skulk_tui.frozen import still_so
from skulk_tui.lines import EMPTY, Line, Span, line, span
from skulk_tui.moving import MoveWish
from skulk_tui.screens.cluster_rows import ref_of_instance
from skulk_tui.screens.plan_changes import command_name, placement_effect, what_changed
from skulk_tui.screens.plan_rows import nodes_text
from skulk_tui.screens.view import Values
from skulk_tui.seat import Seat
from skulk_tui.table_model import Ref
from skulk_tui.wish import refused

_STOP_FIRST: Final = "s"


async def move(seat: Seat, item: InstanceView, wish: MoveWish) -> Change:
    """Have the node say where an instance could go, and plan its move to the best place.

    Raises:
        SkulkError: It fits nowhere there, or the node refuses it.
    """
    look = await seat.link.request("GET", wish.path, MoveDocument, query=wish.query())
    if not look.plans:
        raise refused(look)
    first = MoveWish(instance_id=wish.instance_id, nodes=wish.nodes, stop_first=True)
    look_first = await seat.link.request("GET", wish.path, MoveDocument, query=first.query())
    plan, name_of = look.plans[0], command_name(seat.view)
    back = ",".join(name_of(node_id) for node_id in look.from_nodes)

    async def send(option: str) -> Sent:
        chosen = first if option == _STOP_FIRST else wish
        try:
            accepted = await seat.link.request(
                "POST", wish.path, CommandAccepted, chosen.body(plan.plan_id)
            )
        except SkulkError as error:
            changed = what_changed(error, plan, seat.view)
            if not changed:
                raise
            raise PlacementError(
                "placement.plan_changed",
                f"nothing was moved; since the plan was made: {changed}",
                remediation="Ask for the move again: its plan is then made anew.",
            ) from error
        new_id = InstanceId(accepted.instance_id or accepted.command_id)
        return Sent(
            message=f"{item.model_id} moves; back: :move {new_id[:12]} to {back}",
            command_id=accepted.command_id,
            undo=None if chosen.stop_first else _given_up(seat, item, new_id, plan),
        )

    return Change(
        title=f"Move {item.model_id}",
        effect=_effect(seat, item, plan, look, look_first),
        cli=wish.cli(name_of, plan.plan_id),
        options=(
            Option(key="m", title="move it"),
            Option(key=_STOP_FIRST, title="stop it first", is_default_danger=True),
        ),
        send=send,
        is_still_so=still_so(seat.view, [ref_of_instance(item)]),
    )


async def move_asked(seat: Seat, values: Values, selection: tuple[Ref, ...]) -> Change:
    """Plan what `:move ID to A,B` asks for.

    Raises:
        ClientError: `client.usage`: no such instance or node.
        SkulkError: As `move`.
    """
    from skulk_tui.screens.plan_inputs import nodes_of, one_instance

    item = one_instance(seat.view, values.get("instance", ""), selection)
    nodes = nodes_of(values.get("nodes", ""), seat.view)
    return await move(seat, item, MoveWish(instance_id=item.instance_id, nodes=nodes))


def _effect(
    seat: Seat, item: InstanceView, plan: Plan, look: MoveDocument, look_first: MoveDocument
) -> tuple[Line, ...]:
    lines: list[Line] = [
        line("Moves ", span(item.instance_id, "strong"), " from ",
             span(nodes_text(item.plan, seat.view), "strong"), "."),
        *placement_effect(plan, seat.view),
    ]  # fmt: skip
    if look.in_flight:
        lines.append(line(Span(f"It is answering, or keeps waiting: {look.in_flight}.", "warn")))
    lines += [EMPTY, *(line(span(text)) for text in look.consequences)]
    lines += [EMPTY, line(Span(f"{_STOP_FIRST}", "strong"), " stops it first instead:")]
    lines += [line(span(text, "warn")) for text in look_first.consequences]
    return tuple(lines)


def _given_up(seat: Seat, item: InstanceView, new_id: InstanceId, plan: Plan) -> Change:
    """Plan the end of a move under way: the new instance goes, the old one stays."""
    freed = sum(shard.memory.needed_bytes for shard in plan.shards)

    async def send(option: str) -> Sent:
        del option
        path = path_of("/instance/{}", new_id)
        accepted = await seat.link.request("DELETE", path, CommandAccepted)
        return Sent(
            message=f"the move is given up; {item.model_id} stays", command_id=accepted.command_id
        )

    return Change(
        title=f"Give up the move of {item.model_id}",
        effect=(
            line("Stops ", span(new_id, "strong"), ", which frees ", f"{format_bytes(freed)}."),
            line(span(item.instance_id, "strong"), " goes on on ",
                 span(nodes_text(item.plan, seat.view), "strong"), "."),
        ),
        cli=f"skulk stop {new_id}",
        options=(Option(key="x", title="give it up", is_default_danger=True),),
        send=send,
        is_still_so=still_so(seat.view, [ref_of_instance(item)]),
    )  # fmt: skip
