"""Cancels that overtook their tasks: the task ends when it arrives. Pure."""

from typing import Final, final

from protocol.ids import CommandId

KEPT_S: Final = 60.0
MAX_KEPT: Final = 4096


@final
class Tombstones:
    """Ids whose tasks are to end on arrival, at most `MAX_KEPT`, oldest first."""

    def __init__(self) -> None:
        self._until_s: dict[CommandId, float] = {}

    def add(self, command_id: CommandId, *, now: float) -> None:
        """Keep an id for `KEPT_S`."""
        self._until_s.pop(command_id, None)
        self._until_s[command_id] = now + KEPT_S
        while self._until_s and (
            len(self._until_s) > MAX_KEPT or next(iter(self._until_s.values())) <= now
        ):
            del self._until_s[next(iter(self._until_s))]

    def take(self, command_id: CommandId, *, now: float) -> bool:
        """Tell whether an id was kept and still is; it is no longer afterwards."""
        until_s = self._until_s.pop(command_id, None)
        return until_s is not None and until_s > now
