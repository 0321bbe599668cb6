"""What can be changed about one node: its settings, and starting it anew.

Each is planned by the node itself: what it would hold and what it would interrupt is asked for
first, shown, and then done.
"""

from collections.abc import Mapping
from typing import Final

from protocol.admin_api import ConfigDocument, RestartBody, RestartDocument
from protocol.errors import ClientError
from skulk_tui.changes import Change, Option, Sent
from skulk_tui.cli.config import body_of, setting_records
from skulk_tui.cli.operation_records import SettingRecord, SettingShown
from skulk_tui.formatting import UNKNOWN
from skulk_tui.frozen import still_so
from skulk_tui.lines import EMPTY, Line, Span, line, span
from skulk_tui.naming import ref_named
from skulk_tui.seat import Seat
from skulk_tui.table_model import Ref

CONFIG: Final = "/config"
_RESTART: Final = "/admin/restart"


def node_meant(seat: Seat, named: str, selection: tuple[Ref, ...]) -> Ref:
    """Give the node that a command names, else that of the selection, else the one attached to.

    Raises:
        ClientError: `client.usage`: there is none.
    """
    if named:
        return ref_named(seat.view, "node", named)
    for ref in selection[:1]:
        if ref.kind == "node":
            return ref
        if ref.kind in {"settings", "setting"}:
            node_id = ref.id.partition("/")[0]
            return Ref(kind="node", id=node_id, name=seat.view.name_of(node_id))
    if seat.view.hello is None:
        raise ClientError(
            "client.usage", "no node has answered yet", remediation="Wait until the link is up."
        )
    return Ref(kind="node", id=seat.view.hello.node_id, name=seat.view.hello.name)


def ref_of_settings(node: Ref) -> Ref:
    """Give the identity of a node's settings, as they are opened."""
    return Ref(kind="settings", id=node.id, name=f"{node.shown} settings")


def setting_text(value: SettingShown) -> str:
    """Write a value as a command takes it."""
    match value:
        case None:
            return UNKNOWN
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join(value)
        case _:
            return str(value)


# ---- Settings ----------------------------------------------------------------------------------


async def settings_change(seat: Seat, node: Ref, changes: list[str], unset: list[str]) -> Change:
    """Have a node check a change of its settings, or of the cluster's, and say what would hold.

    Raises:
        ClientError: `client.usage`: it is none.
        SkulkError: The node refuses it, or cannot be asked.
    """
    query = {"node": node.id}
    before = await seat.link.request("GET", CONFIG, ConfigDocument, query=query)
    body = body_of(changes, unset, dry_run=True)
    after = await seat.link.request("PUT", CONFIG, ConfigDocument, body, query=query)
    keys = [*(change.partition("=")[0] for change in changes), *unset]

    async def send(option: str) -> Sent:
        del option
        sent = body.model_copy(update={"dry_run": False})
        done = await seat.link.request("PUT", CONFIG, ConfigDocument, sent, query=query)
        waiting = [key for key in keys if key in done.node.pending]
        later = f"; {', '.join(waiting)} when it starts: :restart" if waiting else ""
        return Sent(message=f"the settings of {done.name} are changed{later}")

    words = " ".join([*changes, *(f"--unset {key}" for key in unset)])
    return Change(
        title=f"Settings of {after.name}",
        effect=_difference(before, after, keys),
        cli=f"skulk config set {words} --on {after.name}",
        options=(Option(key="s", title="set it"),),
        send=send,
    )


def _difference(before: ConfigDocument, after: ConfigDocument, keys: list[str]) -> tuple[Line, ...]:
    old = {record.key: record for record in setting_records(before)}
    lines: list[Line] = []
    for record in setting_records(after):
        if record.key not in keys:
            continue
        was = old.get(record.key)
        lines.append(
            line(
                span(record.key, "strong"), ": ",
                span(_wanted(was)), " becomes ", span(_wanted(record), "strong"),
            )
        )  # fmt: skip
        if record.key.startswith("cluster."):
            lines.append(line("  on every node, at once."))
        elif record.pending:
            lines.append(line(Span("  It is taken up when the node starts.", "warn")))
    return tuple(lines) or (line("Nothing would change."),)


def _wanted(record: SettingRecord | None) -> str:
    """What holds once the node has started, as far as its file says it."""
    if record is None:
        return UNKNOWN
    is_waiting = record.pending and record.in_file is not None
    return setting_text(record.in_file if is_waiting else record.value)


# ---- Starting it anew --------------------------------------------------------------------------


async def restart(seat: Seat, node: Ref) -> Change:
    """Ask a node what starting it anew would interrupt.

    Raises:
        SkulkError: The node refuses it, or cannot be asked.
    """
    query: Mapping[str, str] = {"node": node.id}
    plan = await seat.link.request(
        "POST", _RESTART, RestartDocument, RestartBody(dry_run=True), query=query
    )

    async def send(option: str) -> Sent:
        del option
        begun = await seat.link.request(
            "POST", _RESTART, RestartDocument, RestartBody(), query=query
        )
        return Sent(message=f"{begun.name} is starting anew; its instances come back with it")

    effect: list[Line] = [
        line("Starts ", span(plan.name, "strong"), " anew, with its settings as they are now."),
    ]
    for item in plan.interrupted:
        n_requests = item.requests
        what = "" if not n_requests else f"; {n_requests} requests would fail"
        effect.append(line("Interrupts ", span(item.model_id, "bad"), f" ({item.phase}){what}."))
    effect.append(
        line("They come back with it." if plan.interrupted else "It interrupts no instance.")
    )
    if seat.view.hello is not None and seat.view.hello.node_id == node.id:
        effect += [EMPTY, line("This link goes through it; it comes back by itself.")]
    return Change(
        title=f"Restart {plan.name}",
        effect=tuple(effect),
        cli=f"skulk node restart {plan.name}",
        options=(Option(key="x", title="restart now", is_default_danger=True),),
        send=send,
        is_still_so=still_so(seat.view, [node]),
    )
