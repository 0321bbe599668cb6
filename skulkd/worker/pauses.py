"""Which transfers of this node are paused: kept over restarts, and told to all nodes.

A paused transfer stays paused until it is resumed or cancelled, whoever waits for it, and also when
nobody does any more.
"""

import asyncio
from typing import final

from protocol.clock import Clock
from protocol.errors import StoreError
from protocol.ids import ModelId, NodeId
from protocol.readings import PAUSED_PHASE, Paused, TransferReading
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.runtime.choices import MAX_PAUSED, Choices, KeptChoices, PausedTransfer


@final
class Pauses:
    """The paused transfers of this node.

    Args:
        node_id: This node.
        choices: Where they are kept.
        table: Where they are shown.
        clock: Stamps them.
    """

    def __init__(
        self, node_id: NodeId, *, choices: KeptChoices, table: ReadingsTable, clock: Clock
    ) -> None:
        self._node_id = node_id
        self._choices = choices
        self._table = table
        self._clock = clock
        self._ended = {item.model_id: asyncio.Event() for item in choices.now.paused}

    def get(self, model_id: ModelId) -> PausedTransfer | None:
        """Say who has paused a model's transfer; None when nobody has."""
        return next((one for one in self._choices.now.paused if one.model_id == model_id), None)

    def models(self) -> tuple[ModelId, ...]:
        """List whose transfers are paused."""
        return tuple(one.model_id for one in self._choices.now.paused)

    async def put(self, model_id: ModelId, by: str, shown: TransferReading | None) -> None:
        """Keep that a transfer is paused; one that is already keeps who did it first.

        Args:
            model_id: Whose files.
            by: Who wants it.
            shown: How far it is.

        Raises:
            StoreError: `store.in_use`: too many are paused.
            ConfigError: `config.home_unusable`; nothing has changed then.
        """
        new = PausedTransfer(
            model_id=model_id,
            by=by[:200],
            at_ms=self._clock.wall_ms(),
            done_bytes=0 if shown is None else shown.done_bytes,
            total_bytes=None if shown is None else shown.total_bytes,
            source="" if shown is None else shown.source[:500],
        )
        await self._choices.change(lambda choices: _with(choices, new))
        self._ended.setdefault(model_id, asyncio.Event())

    async def drop(self, model_id: ModelId) -> bool:
        """Forget that a transfer is paused, and let go on who waits; False when it is not.

        Raises:
            ConfigError: `config.home_unusable`; it stays paused then.
        """
        if self.get(model_id) is None:
            return False
        await self._choices.change(lambda choices: _without(choices, model_id))
        self._table.drop_transfer(self._node_id, model_id)
        ended = self._ended.pop(model_id, None)
        if ended is not None:
            ended.set()
        return True

    async def wait_dropped(self, model_id: ModelId) -> None:
        """Wait until a transfer is not paused."""
        ended = self._ended.get(model_id)
        if ended is not None:
            await ended.wait()

    def show(self, model_id: ModelId) -> None:
        """Show a paused transfer as such; nothing when it is not."""
        kept = self.get(model_id)
        if kept is None:
            return
        self._table.put_transfer(
            TransferReading(
                node_id=self._node_id,
                model_id=model_id,
                at_s=self._clock.monotonic_s(),
                phase=PAUSED_PHASE,
                done_bytes=kept.done_bytes,
                total_bytes=kept.total_bytes,
                rate_bytes_s=None,
                eta_s=None,
                source=kept.source,
                paused=Paused(by=kept.by, at_ms=kept.at_ms),
            )
        )

    def show_all(self) -> None:
        """Show what an earlier run of the daemon has left paused."""
        for model_id in self.models():
            self.show(model_id)

    def note(self, model_id: ModelId) -> str:
        """Say what a placement waits for, and the way out; changes once a minute."""
        kept = self.get(model_id)
        if kept is None:
            return ""
        minutes = max(0, self._clock.wall_ms() - kept.at_ms) // 60_000
        return (
            f"waiting for a paused transfer (by {kept.by}, {minutes} min ago): "
            f"skulk store resume {model_id}"
        )


def _with(choices: Choices, new: PausedTransfer) -> Choices:
    if any(one.model_id == new.model_id for one in choices.paused):
        return choices
    if len(choices.paused) >= MAX_PAUSED:
        raise StoreError(
            "store.in_use",
            f"{MAX_PAUSED} transfers are paused on this node already",
            remediation="Resume or cancel some of them: `skulk status` lists them.",
        )
    return choices.model_copy(update={"paused": (*choices.paused, new)})


def _without(choices: Choices, model_id: ModelId) -> Choices:
    kept = tuple(one for one in choices.paused if one.model_id != model_id)
    return choices.model_copy(update={"paused": kept})
