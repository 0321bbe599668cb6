"""What the actions about one node do: its settings, starting it anew, draining; from any view.

What they need is loaded when one of them is done: the first paint does without.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

from skulk_tui.changes import Sent
from skulk_tui.screens.asking import Desk
from skulk_tui.screens.view import Handler, Values
from skulk_tui.seat import Seat


def node_handlers(seat: Seat, desk: Desk) -> Mapping[str, Handler]:
    """Give what they do, by action id."""
    asking = _NodeAsking(seat, desk)
    return {
        "node.settings": asking.open_settings,
        "node.edit_setting": lambda _: asking.edit(),
        "node.set": lambda values: asking.change(values, changes=[values["change"]]),
        "node.unset": lambda values: asking.change(values, unset=[values["key"]]),
        "node.restart": asking.restart,
        "node.drain": asking.drain,
        "node.undrain": asking.undrain,
    }


@final
class _NodeAsking:
    def __init__(self, seat: Seat, desk: Desk) -> None:
        self._seat = seat
        self._desk = desk

    async def open_settings(self, values: Values) -> None:
        """Open the settings of a node."""
        from skulk_tui.screens.node_changes import node_meant, ref_of_settings

        node = node_meant(self._seat, values.get("node", ""), self._desk.situation.selection)
        await self._seat.open_ref(ref_of_settings(node))

    def edit(self) -> None:
        """Begin the command that sets what the cursor is on."""
        for ref in self._desk.situation.selection[:1]:
            self._desk.open_prompt("command", f"set {ref.shown}=")

    async def change(
        self, values: Values, *, changes: Sequence[str] = (), unset: Sequence[str] = ()
    ) -> None:
        """Have a change checked by its node, and show it."""
        from skulk_tui.screens.node_changes import node_meant, settings_change

        node = node_meant(self._seat, values.get("node", ""), self._desk.situation.selection)
        change = await settings_change(self._seat, node, list(changes), list(unset))

        async def send(option: str) -> Sent:
            sent = await change.send(option)
            if self._desk.situation.view == "settings":  # it shows them as they were asked for
                await self._desk.perform(self._seat.registry.get("view.resync"), {})
            return sent

        self._seat.confirm(replace(change, send=send))

    async def restart(self, values: Values) -> None:
        """Have a node say what a restart interrupts, and show it."""
        from skulk_tui.screens.node_changes import node_meant, restart

        node = node_meant(self._seat, values.get("node", ""), self._desk.situation.selection)
        self._seat.confirm(await restart(self._seat, node))

    async def drain(self, values: Values) -> None:
        """Have the cluster say what a drain stops, and show it."""
        from skulk_tui.screens.drain_changes import drain
        from skulk_tui.screens.node_changes import node_meant

        node = node_meant(self._seat, values.get("node", ""), self._desk.situation.selection)
        self._seat.confirm(await drain(self._seat, node))

    def undrain(self, values: Values) -> None:
        """Show what the end of a drain means."""
        from skulk_tui.screens.drain_changes import undrain
        from skulk_tui.screens.node_changes import node_meant

        node = node_meant(self._seat, values.get("node", ""), self._desk.situation.selection)
        self._seat.confirm(undrain(self._seat, node))
