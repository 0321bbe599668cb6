"""docs/tui.md and the registry of the terminal interface change together."""

from skulk_tui.actions.all_actions import ALL_ACTIONS
from skulk_tui.profiles import TuiSettings
from tests.support.key_table import DOCUMENT, documented, table

TEXT = DOCUMENT.read_text(encoding="utf-8")


def test_the_table_of_keys_is_that_of_the_registry() -> None:
    assert documented() == table(), (
        "keys or commands have changed: renew the table, python -m tests.support.key_table"
    )


def test_the_table_has_every_action() -> None:
    assert [action.id for action in ALL_ACTIONS if f"`{action.id}` |" not in TEXT] == []


def test_every_setting_of_the_interface_is_shown() -> None:
    example = TEXT.partition("[tui]\n")[2].partition("```")[0]
    names = set(TuiSettings.model_fields) - {"keymap"}
    assert sorted(name for name in names if f"\n{name} = " not in f"\n{example}") == []
    assert "[tui.keymap]" in example
