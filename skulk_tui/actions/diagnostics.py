"""Actions of the screen diagnostics."""

from typing import Final

from skulk_tui.registry import Action

ACTIONS: Final[tuple[Action, ...]] = ()
