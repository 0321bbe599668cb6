"""Choosing the columns of a table: what is left out stays left out, for each cluster."""

from collections.abc import Sequence
from typing import Final, final

from protocol.errors import ClientError, SkulkError
from skulk_tui.column_choices import ColumnChoices, LeftOut
from skulk_tui.lines import EMPTY, Line, Span, line, span, toned
from skulk_tui.screens.asking import Desk
from skulk_tui.screens.view import Values, View
from skulk_tui.seat import Seat
from skulk_tui.table_columns import Column, ColumnSet
from skulk_tui.tasks import run_blocking
from skulk_tui.widgets.pane import Pane, TablePane

_ALL: Final = "all"
_FORM: Final = ":columns NAME,NAME, or +NAME -NAME, or all"


@final
class ChosenColumns:
    """What `:columns` does, and where its choices are known.

    Args:
        seat: The run.
        desk: What knows the pane that holds the keyboard.
    """

    def __init__(self, seat: Seat, desk: Desk) -> None:
        self._seat = seat
        self._desk = desk
        self._files = ColumnChoices(seat.state_dir)
        self._left_out: LeftOut = {}

    async def load(self, view: View | None) -> None:
        """Read what was chosen for the cluster, and have the view in front show that."""
        try:
            self._left_out = await run_blocking(self._files.load, self._seat.profile)
        except SkulkError as error:
            self._left_out = {}
            self._seat.tell_error(error)
        if view is not None:
            self.apply(view)

    def apply(self, view: View) -> None:
        """Leave out of a view's tables what was left out before."""
        for pane in view.query(TablePane):
            pane.model.columns.leave_out(self._left_out.get(_name(view.view_id, pane), ()))
            pane.redraw()

    def proposals(self, command: str) -> Sequence[str]:
        """Give what the pane's columns are called behind a command."""
        pane = self._desk.pane
        if not isinstance(pane, TablePane):
            return ()
        columns = pane.model.columns
        if command == "sort":
            return [column.name for column in columns.all if column.is_sortable]
        signed = [
            f"{'+' if column.key in columns.left_out else '-'}{column.name}"
            for column in columns.all[1:]
        ]
        return [*(column.name for column in columns.all), _ALL, *signed]

    async def choose(self, values: Values) -> None:
        """Show the columns that are named, or say which there are.

        Raises:
            ClientError: `client.usage`: the pane has no such column, or the choice cannot be kept.
        """
        pane = self._desk.pane
        if not isinstance(pane, TablePane):
            self._seat.tell("this pane has no columns to choose")
            return
        columns, words = pane.model.columns, values.get("names", "")
        if not words:
            await self._list(pane)
            return
        columns.leave_out(left_out(columns, words))
        table = _name(self._desk.situation.view, pane)
        self._left_out = {**self._left_out, table: columns.left_out}
        pane.redraw()
        await run_blocking(self._files.keep, self._seat.profile, table, columns.left_out)

    async def _list(self, pane: TablePane) -> None:
        columns = pane.model.columns
        text: list[Line] = [
            line(
                Span("[ ] " if column.key in columns.left_out else "[x] ", "accent"),
                span(column.name),
            )
            for column in columns.all
        ]
        hint = toned("The first one stays. Where there is no room, some are not drawn.", "dim")
        if self._seat.shell is not None:
            title = f"Columns: {pane.noun}"
            await self._seat.shell.show_text(title, [*text, EMPTY, toned(_FORM, "accent"), hint])


def left_out(columns: ColumnSet, words: str) -> frozenset[str]:
    """Read which columns are left out, of `node,mem`, `+cpu -gpu` or `all`.

    Names stand alone, or with `+` and `-` change what is chosen now; both in one line do not mix.

    Raises:
        ClientError: `client.usage`: there is no such column, or some names have a sign, others not.
    """
    names = words.replace(",", " ").split()
    if names == [_ALL]:
        return frozenset()
    signed = [name for name in names if name[0] in "+-"]
    if signed and len(signed) < len(names):
        raise ClientError(
            "client.usage", "some of the names have a sign, others have none", remediation=_FORM
        )
    if not signed:
        wanted = {_named(columns, name).key for name in names}
        return frozenset(column.key for column in columns.all if column.key not in wanted)
    found = set(columns.left_out)
    for name in signed:
        key = _named(columns, name[1:]).key
        (found.add if name[0] == "-" else found.discard)(key)
    return frozenset(found)


def _named(columns: ColumnSet, name: str) -> Column:
    for column in columns.all:
        if column.name == name.lower():
            return column
    known = ", ".join(column.name for column in columns.all)
    raise ClientError(
        "client.usage", f"there is no column {name[:40]!r}", remediation=f"There are {known}."
    )


def _name(view_id: str, pane: Pane) -> str:
    return f"{view_id}.{pane.pane_name}"
