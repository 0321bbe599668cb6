"""Placements planned on this node's own replica and readings, waiting for facts that are late."""

from collections.abc import Callable
from typing import Final, final

from protocol.cards import card_digest
from protocol.clock import Clock
from protocol.errors import PlacementError
from protocol.ids import NodeId
from protocol.placements import PlacementOutcome, PlacementRequest
from skulkd.api.catalog import find_model
from skulkd.api.ports import CatalogModel, Models, ReadingsView
from skulkd.core.placement.files import holders_in
from skulkd.core.placement.planner import plan
from skulkd.eventlog.gateway import StateView
from skulkd.runtime.tasks import sleep

FACTS_POLL_S: Final = 0.1
"""How often a plan is tried again while facts are missing; readings wake nobody."""


@final
class PreviewService:
    """Implements `Placements`.

    Args:
        node_id: This node.
        state: The replica.
        readings: The last value of every reading.
        models: This node's catalogue and files.
        clock: Of the readings.
        unheard: Names the members that this node does not hear at the moment.
    """

    def __init__(
        self,
        *,
        node_id: NodeId,
        state: StateView,
        readings: ReadingsView,
        models: Models,
        clock: Clock,
        unheard: Callable[[], frozenset[NodeId]] = frozenset,
    ) -> None:
        self._node_id = node_id
        self._state = state
        self._readings = readings
        self._models = models
        self._clock = clock
        self._unheard = unheard

    async def preview(self, request: PlacementRequest, *, wait_s: float) -> PlacementOutcome:
        """Plan; while facts are missing, wait for them up to `wait_s` seconds.

        Raises:
            PlacementError: `placement.unknown_model`.
        """
        give_up_s = self._clock.monotonic_s() + wait_s
        while True:
            outcome = await self._plan(request)
            is_final = outcome.plans or not outcome.missing_facts
            if is_final or self._clock.monotonic_s() >= give_up_s:
                return outcome
            await sleep(FACTS_POLL_S)

    async def _plan(self, request: PlacementRequest) -> PlacementOutcome:
        model = await self._model(request)
        return plan(
            request,
            model.card,
            card_digest(model.card),
            self._state.state,
            self._readings.readings,
            now_s=self._clock.monotonic_s(),
            unheard=self._unheard(),
            holders=self._holders(model),
        )

    async def _model(self, request: PlacementRequest) -> CatalogModel:
        model = await find_model(self._models, self._state.state, request.model_id)
        if model is None:
            raise PlacementError(
                "placement.unknown_model",
                f"no card names {request.model_id}",
                remediation="`skulk models list` shows what can be placed; "
                "`skulk models import PATH` adds a file of your own.",
                details={"model_id": request.model_id},
            )
        return model

    def _holders(self, model: CatalogModel) -> frozenset[NodeId]:
        """Say which nodes have the files.

        This one knows. Others say so in a reading; until one has come, their last download counts.
        """
        readings, model_id = self._readings.readings, model.card.model_id
        key = f"/{model_id}"
        fetched = {
            outcome.node_id
            for name, outcome in self._state.state.downloads.items()
            if name.endswith(key)
            and outcome.error is None
            and outcome.node_id not in readings.holdings
        }
        others = (holders_in(readings, model_id) | fetched) - {self._node_id}
        return others | {self._node_id} if model.installed else others
