"""What can be changed about the cluster, each as plan, effect and `skulk` line."""

from protocol.cluster_api import HandoverBody, HandoverDone, Invitation, InviteBody, NodeView
from protocol.control_api import CommandAccepted
from protocol.errors import ClientError
from skulk_tui.changes import Change, Option, Sent
from skulk_tui.client import path_of
from skulk_tui.formatting import format_duration
from skulk_tui.frozen import still_so
from skulk_tui.lines import EMPTY, Line, Span, line, span
from skulk_tui.screens.cluster_rows import short_model
from skulk_tui.seat import Seat
from skulk_tui.table_model import Ref

_GO_ON = Option(key="x", title="remove now", is_default_danger=True)


def node_of(seat: Seat, ref: Ref) -> NodeView:
    """Give the node that an identity names, as it is now.

    Raises:
        ClientError: `client.usage`: it is no longer a member.
    """
    for node in seat.view.nodes:
        if ref.id == node.member.node_id:
            return node
    raise ClientError(
        "client.usage",
        f"{ref.shown} is no longer a member",
        remediation="`:members` shows who is.",
    )


def removal(seat: Seat, ref: Ref) -> Change:
    """Plan the removal of a node: what runs there would go with it."""
    node = node_of(seat, ref)
    runs = [
        item
        for item in seat.view.instances
        if any(shard.node_id == node.member.node_id for shard in item.plan.shards)
    ]
    names = ", ".join(short_model(item.model_id) for item in runs)
    effect: list[Line] = [
        line("Removes ", span(node.member.name, "strong"), " from the cluster for good; its key"),
        line("is refused from then on. Its files stay on its disk."),
    ]
    if runs:
        n_busy = sum(item.in_flight or 0 for item in runs)
        effect.append(line(Span(f"Stops {names}", "bad"), f"; {n_busy} requests are running."))
    effect.append(line("To have it back: invite it, and join again there."))
    path = path_of("/v1/cluster/members/{}", node.member.node_id)

    async def send(option: str) -> Sent:
        del option
        done = await seat.link.request("DELETE", path, CommandAccepted)
        return Sent(message=f"{node.member.name} is removed", command_id=done.command_id)

    return Change(
        title=f"Remove {node.member.name}",
        effect=tuple(effect),
        cli=f"skulk cluster remove {node.member.name}",
        options=(_GO_ON,),
        send=send,
        typed_word=node.member.name,
        is_still_so=still_so(seat.view, [ref]),
    )


def invitation(seat: Seat) -> Change:
    """Plan an invitation by six words."""

    async def send(option: str) -> Sent:
        kind = "code" if option == "w" else "token"
        made = await seat.link.request(
            "POST", "/v1/cluster/invite", Invitation, InviteBody(kind=kind)
        )
        left_s = max(0.0, (made.expires_at_ms - seat.clock.wall_ms()) / 1000)
        secret = made.code or made.token or ""
        # The secret is shown once and kept nowhere: not in the messages' list, not in a file.
        if seat.shell is not None:
            await seat.shell.show_text(
                f"Invitation {made.token_id}",
                (
                    line("On the other machine, type:"),
                    EMPTY,
                    line(span(_join_line(made), "accent")),
                    EMPTY,
                    line(span(secret, "strong")),
                    EMPTY,
                    line(f"It serves {made.uses} machine, for {format_duration(left_s)}."),
                ),
            )
        return Sent(message=f"the invitation {made.token_id} is valid {format_duration(left_s)}")

    return Change(
        title="Invite a node",
        effect=(
            line("Makes an invitation for one further machine."),
            line("A node that is closed listens to other nodes from then on."),
        ),
        cli="skulk cluster invite --code",
        options=(Option(key="w", title="six words"), Option(key="t", title="a token")),
        send=send,
    )


def _join_line(made: Invitation) -> str:
    return f"skulk cluster join --code '{made.code}'" if made.code else "skulk cluster join -"


def handover(seat: Seat, ref: Ref) -> Change:
    """Plan that another node becomes master."""
    node = node_of(seat, ref)

    async def send(option: str) -> Sent:
        del option
        body = HandoverBody(node=node.member.node_id)
        done = await seat.link.request("POST", "/v1/cluster/handover", HandoverDone, body)
        return Sent(message=f"{done.name or done.master} is master of term {done.term}")

    return Change(
        title=f"Hand over to {node.member.name}",
        effect=(
            line("Makes ", span(node.member.name, "strong"), " the master."),
            line("Running streams are not touched; changes wait for about a second."),
        ),
        cli=f"skulk cluster handover {node.member.name}",
        options=(Option(key="h", title="hand over now"),),
        send=send,
        is_still_so=still_so(seat.view, [ref]),
    )
