"""The whole table of actions, put together."""

from typing import Final

from skulk_tui.actions import chat, cluster, diagnostics, everywhere, placement, store
from skulk_tui.registry import Action

ALL_ACTIONS: Final[tuple[Action, ...]] = (
    *everywhere.ACTIONS,
    *cluster.ACTIONS,
    *placement.ACTIONS,
    *chat.ACTIONS,
    *store.ACTIONS,
    *diagnostics.ACTIONS,
)
