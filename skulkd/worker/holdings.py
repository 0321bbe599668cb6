"""Tells the cluster which models' files lie complete on this node."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol, final

from protocol.clock import Clock
from protocol.events import CardAdded, CardRemoved, DownloadEnded, SequencedEvent
from protocol.ids import Digest, ModelId, NodeId
from protocol.readings import MAX_HOLDINGS, Holding, HoldingsReading
from protocol.state import ClusterState
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.eventlog.gateway import StateView
from skulkd.runtime.tasks import run_blocking, timeout

LOOK_INTERVAL_S: Final = 30.0
"""Files may come and go without an event: deleted here, imported in place, by hand."""


class Held(Protocol):
    """An artifact that is complete here; `store.offers.HeldArtifact`."""

    @property
    def key(self) -> Digest:
        """Its digest."""
        ...

    @property
    def model_id(self) -> ModelId:
        """Of which model."""
        ...

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        ...


@final
class HoldingsReport:
    """Keeps this node's reading of what it holds up to date.

    Args:
        node_id: This node.
        held: Lists the artifacts; blocks.
        table: Where the reading goes.
        view: Its events tell when files have come or gone.
        clock: Stamps the reading.
    """

    def __init__(
        self,
        *,
        node_id: NodeId,
        held: "Callable[[], tuple[Held, ...]]",
        table: ReadingsTable,
        view: StateView,
        clock: Clock,
    ) -> None:
        self._node_id = node_id
        self._held = held
        self._table = table
        self._view = view
        self._clock = clock
        self._has_changed = asyncio.Event()

    async def run(self) -> None:
        """Look again and again until cancelled."""
        unsubscribe = self._view.subscribe(self._on_event, self._on_reset)
        try:
            while True:
                self._has_changed.clear()
                self._tell(await run_blocking(self._held))
                with suppress(TimeoutError):
                    async with timeout(LOOK_INTERVAL_S):
                        await self._has_changed.wait()
        finally:
            unsubscribe()

    def _on_event(self, sequenced: SequencedEvent, state: ClusterState) -> None:
        del state
        match sequenced.event:
            case DownloadEnded(outcome=outcome) if outcome.node_id == self._node_id:
                self._has_changed.set()
            case CardAdded() | CardRemoved():
                self._has_changed.set()
            case _:
                pass

    def _on_reset(self, state: ClusterState) -> None:
        del state
        self._has_changed.set()

    def _tell(self, held: "tuple[Held, ...]") -> None:
        holdings = tuple(
            Holding(model_id=one.model_id, digest=one.key, size_bytes=one.size_bytes)
            for one in held[:MAX_HOLDINGS]
        )
        known = self._table.readings.holdings.get(self._node_id)
        if known is None or known.holdings != holdings:
            self._table.put_holdings(
                HoldingsReading(
                    node_id=self._node_id, at_s=self._clock.monotonic_s(), holdings=holdings
                )
            )
