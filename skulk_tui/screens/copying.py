"""What `y` copies of an object: its name, its id, its row, its JSON, the `skulk` line. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from skulk_tui.changes import Option
from skulk_tui.table_model import Ref
from skulk_tui.view_state import ViewState

_LINES: Final[Mapping[str, str]] = {
    "node": "skulk nodes --json",
    "instance": "skulk instance show {id}",
    "model": "skulk models show {id}",
    "transfer": "skulk models status {id}",
}

_SHOWN: Final = 40
"""Characters of a text that the choice shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copyable:
    """One text that can be copied."""

    option: Option
    text: str


def copyables(ref: Ref, view: ViewState, *, row: str) -> Sequence[Copyable]:
    """Give the texts of an object; `row` is its row as shown, empty where it has none."""
    found: list[Copyable] = []

    def add(key: str, title: str, text: str) -> None:
        if text:
            shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
            option = Option(key=key, title=f"{title}  {' '.join(shown.split())}")
            found.append(Copyable(option=option, text=text))

    add("n", "name   ", ref.shown)
    add("i", "id     ", ref.id if ref.id != ref.shown else "")
    add("r", "row    ", row)
    kept = view.row(f"{ref.kind}/{ref.id}")
    document = kept.document if kept is not None else None
    add("j", "JSON   ", "" if document is None else document.model_dump_json(indent=2))
    form = _LINES.get(ref.kind, "")
    add("c", "command", form.format(id=ref.id))
    return found
