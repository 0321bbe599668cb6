"""Actions of the screen store."""

from typing import Final

from skulk_tui.registry import Action

ACTIONS: Final[tuple[Action, ...]] = ()
