"""Tools of the seat: sorting by name, keys as they arrive, the keymap, pictures, inner figures."""

from collections.abc import Mapping, Sequence
from typing import Final, final

from protocol.errors import ClientError
from protocol.keys_api import KeyList, KeyView
from skulk_tui.formatting import format_count, rfc3339
from skulk_tui.lines import EMPTY, Line, Span, line, span, toned
from skulk_tui.own_files import replace_file
from skulk_tui.registry import form_of, key_name
from skulk_tui.screens.asking import Desk
from skulk_tui.screens.view import Handler, Values
from skulk_tui.seat import Seat
from skulk_tui.tasks import run_blocking
from skulk_tui.widgets.pane import TablePane

_PICTURES: Final = "pictures"
_NAME_CELLS: Final = 14


def tool_handlers(seat: Seat, desk: Desk) -> Mapping[str, Handler]:
    """Give what they do, by action id."""
    tools = _Tools(seat, desk)
    return {
        "rows.sort": tools.sort,
        "view.keymap": tools.keymap,
        "view.mouse": tools.mouse,
        "view.screenshot": lambda _: tools.take_picture(),
        "view.debug": lambda _: tools.show_figures(),
        "cluster.keys": lambda _: tools.show_keys(),
    }


@final
class _Tools:
    def __init__(self, seat: Seat, desk: Desk) -> None:
        self._seat = seat
        self._desk = desk

    def sort(self, values: Values) -> None:
        """Sort by the column that is named, or by the next one.

        Raises:
            ClientError: `client.usage`: the pane has no such column.
        """
        pane = self._desk.pane
        if not isinstance(pane, TablePane):
            self._seat.tell("this pane has no rows to sort")
            return
        wanted = "-".join(values.get("column", "").lower().split())
        known = {item.name: item.key for item in pane.model.columns.all if item.is_sortable}
        if wanted and wanted not in known:
            raise ClientError(
                "client.usage",
                f"there is no column {wanted[:40]!r} to sort by",
                remediation=f"There are {', '.join(sorted(known))}.",
            )
        pane.model.sort(known.get(wanted, ""))
        pane.redraw()

    async def keymap(self, values: Values) -> None:
        """List all keys with the ids by which `config.toml` rebinds them, or show what arrives."""
        shell = self._seat.shell
        if shell is None:
            return
        if values.get("what") == "probe":
            await shell.probe_keys()
            return
        registry = self._seat.registry
        lines: list[Line] = [toned(fault, "warn") for fault in registry.keymap_faults()]
        for action in registry.actions:
            keys = " ".join(key_name(key) for key in registry.keys_of(action))
            shown = keys or f":{form_of(action)}"
            lines.append(
                line(Span(f"{shown[:_NAME_CELLS]:<{_NAME_CELLS}} ", "accent"), span(action.id))
            )
        await shell.show_text("Keymap", lines)

    def mouse(self, values: Values) -> None:
        """Ask the terminal for the mouse, or leave it to the terminal."""
        is_on = values["switch"] == "on"
        if self._seat.shell is not None:
            self._seat.shell.turn_mouse(is_on=is_on)
        whose = "this program's" if is_on else "the terminal's"
        self._seat.tell(f"the mouse is {whose} now")

    async def take_picture(self) -> None:
        """Write what is on the screen to a file.

        Raises:
            ClientError: `client.usage`: nothing is kept here, or the disk does not allow it.
        """
        seat = self._seat
        if seat.shell is None or seat.state_dir is None:
            raise ClientError("client.usage", "this run keeps no files")
        picture = seat.shell.picture()
        path = seat.state_dir / _PICTURES / f"skulk-{seat.clock.wall_ms():012x}.svg"
        await run_blocking(replace_file, path, picture)
        seat.tell(f"the picture is {path}", level="good")

    async def show_figures(self) -> None:
        """Show what this program is doing: its link, its rates, what it could not read."""
        seat = self._seat
        if seat.shell is None:
            return
        link, view = seat.link.view, seat.view
        hello = view.hello
        known = (
            f"{len(view.nodes)} nodes, {len(view.instances)} instances,"
            f" {len(view.models)} models, {view.n_unreadable} that cannot be read"
        )
        rows: Sequence[tuple[str, str]] = (
            ("link", f"{link.word} to {link.url}"),
            ("addresses", ", ".join(seat.link.addresses)),
            ("key", f"from {seat.link.target.key_rule}, may {seat.scope or 'nothing'}"),
            ("node", "-" if hello is None else f"{hello.name}, {hello.node_id}"),
            ("feed", view.feed),
            ("rows", known),
            ("glyphs", seat.glyphs.name),
            ("files", str(seat.state_dir or "none are kept")),
            *seat.shell.figures(),
        )
        text = [line(Span(f"{name:<{_NAME_CELLS}} ", "dim"), span(value)) for name, value in rows]
        await seat.shell.show_text("Debug", text)

    async def show_keys(self) -> None:
        """List the cluster's API keys; none of them is ever shown itself.

        Raises:
            SkulkError: The node refuses it, or cannot be asked.
        """
        keys = (await self._seat.link.request("GET", "/v1/keys", KeyList)).items
        text: list[Line] = [
            line(
                span(f"{key.name}  ", "strong"),
                span(f"{key.key_id}  {key.scope}"),
                span(f"  {_bounds_text(key)}"),
                span(f"  made {rfc3339(key.created_at_ms) or '-'}", "dim"),
            )
            for key in keys
        ]
        hint = line(Span("skulk keys create NAME", "accent"), " makes one; it is shown once.")
        if self._seat.shell is not None:
            none = [toned("there is no key: only this machine is served", "dim")]
            await self._seat.shell.show_text("API keys", [*(text or none), EMPTY, hint])


def _bounds_text(key: KeyView) -> str:
    """Say what bounds a key: its end, and how much it may ask of each node."""
    rate, most = key.limits.requests_per_minute, key.limits.concurrent_requests
    until = rfc3339(key.expires_at_ms)
    parts = [
        "expired" if key.is_expired else f"until {until}" if until else "",
        "" if rate is None else f"{format_count(rate)}/min",
        "" if most is None else f"{format_count(most)} at a time",
        "two secrets work" if key.previous_until_ms is not None else "",
    ]
    return ", ".join(part for part in parts if part) or "no limits"
