import asyncio

import pytest

from protocol.cards import card_digest
from protocol.errors import PlacementError
from protocol.ids import ModelId
from protocol.placements import PlacementOutcome, PlacementRequest
from protocol.state import ClusterState
from skulkd.api.previews import PreviewService
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.eventlog.replica import Replica
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.virtual_time import run_virtual
from tests.support.builders import a_node_id, a_reading, a_scripted_card, a_state
from tests.support.fake_ports import FakeModels

CARD = a_scripted_card()


def a_service(table: ReadingsTable, state: ClusterState) -> PreviewService:
    return PreviewService(
        node_id=a_node_id(),
        state=Replica(state),
        readings=table,
        models=FakeModels(CARD),
        clock=LoopClock(asyncio.get_running_loop()),
    )


def preview(
    table: ReadingsTable, request: PlacementRequest, *, reading_after_s: float | None = None
) -> tuple[PlacementOutcome, float]:
    """Plan in virtual time; returns the outcome and how long it took."""

    async def run() -> tuple[PlacementOutcome, float]:
        loop = asyncio.get_running_loop()
        service = a_service(table, a_state())
        if reading_after_s is not None:
            loop.call_later(
                reading_after_s,
                lambda: table.put_node(a_reading(at_s=loop.time())),
            )
        outcome = await service.preview(request, wait_s=15)
        return outcome, loop.time()

    return run_virtual(run)


def test_a_plan_is_given_at_once_when_the_facts_are_there() -> None:
    table = ReadingsTable()
    table.put_node(a_reading())
    outcome, took_s = preview(table, PlacementRequest(model_id=CARD.model_id))
    assert [plan.card_digest for plan in outcome.plans] == [card_digest(CARD)]
    assert took_s < 0.5


def test_a_late_fact_is_waited_for() -> None:
    outcome, took_s = preview(
        ReadingsTable(), PlacementRequest(model_id=CARD.model_id), reading_after_s=7
    )
    assert outcome.plans
    assert 6.9 < took_s < 7.5


def test_after_fifteen_seconds_the_missing_fact_is_named() -> None:
    outcome, took_s = preview(ReadingsTable(), PlacementRequest(model_id=CARD.model_id))
    assert not outcome.plans
    assert any(a_node_id() in fact or "memory" in fact for fact in outcome.missing_facts)
    assert 14.9 < took_s < 15.5


def test_an_unknown_model_is_refused_at_once() -> None:
    with pytest.raises(PlacementError) as refused:
        preview(ReadingsTable(), PlacementRequest(model_id=ModelId("no/such")))
    assert refused.value.code == "placement.unknown_model"
