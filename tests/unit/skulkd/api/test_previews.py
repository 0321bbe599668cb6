import asyncio

import pytest

from protocol.cards import ModelCard, card_digest
from protocol.errors import PlacementError
from protocol.ids import ModelId, NodeId
from protocol.placements import PlacementOutcome, PlacementRequest
from protocol.readings import Holding, HoldingsReading
from protocol.state import ClusterState, DownloadOutcome
from skulkd.api.previews import PreviewService
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.eventlog.replica import Replica
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.virtual_time import run_virtual
from tests.support.builders import (
    MIB,
    NOW_MS,
    a_card,
    a_digest,
    a_member,
    a_node_id,
    a_reading,
    a_scripted_card,
    a_state,
)
from tests.support.fake_models import FakeModels
from tests.support.fake_ports import NODE

CARD = a_scripted_card()


def preview(
    table: ReadingsTable,
    request: PlacementRequest,
    *,
    reading_after_s: float | None = None,
    state: ClusterState | None = None,
    card: ModelCard = CARD,
    unheard: frozenset[NodeId] = frozenset(),
) -> tuple[PlacementOutcome, float]:
    """Plan in virtual time; returns the outcome and how long it took."""

    async def run() -> tuple[PlacementOutcome, float]:
        loop = asyncio.get_running_loop()
        service = PreviewService(
            node_id=a_node_id(),
            state=Replica(state or a_state()),
            readings=table,
            models=FakeModels(NODE, card),
            clock=LoopClock(loop),
            unheard=lambda: unheard,
        )
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


def test_a_node_that_is_not_heard_is_refused_at_once_and_not_waited_for() -> None:
    table = ReadingsTable()
    table.put_node(a_reading())
    unheard = frozenset({a_node_id()})
    outcome, took_s = preview(table, PlacementRequest(model_id=CARD.model_id), unheard=unheard)
    assert [refusal.error.code for refusal in outcome.refusals] == ["placement.node_unreachable"]
    assert took_s < 0.5


def test_a_node_holds_what_it_says_and_until_then_what_it_fetched_last() -> None:
    card = a_card()
    fetched = {
        f"{a_node_id(n)}/{card.model_id}": DownloadOutcome(
            node_id=a_node_id(n), model_id=card.model_id, at_ms=NOW_MS, size_bytes=100 * MIB
        )
        for n in (2, 3)
    }
    state = a_state(members=[a_member(n) for n in (1, 2, 3, 4)])
    state = state.model_copy(update={"downloads": fetched})
    table = ReadingsTable()
    for number in (1, 2, 3, 4):
        table.put_node(a_reading(number))
    holding = Holding(model_id=card.model_id, digest=a_digest("a"), size_bytes=100 * MIB)
    table.put_holdings(HoldingsReading(node_id=a_node_id(2), at_s=0.0, holdings=()))
    table.put_holdings(HoldingsReading(node_id=a_node_id(4), at_s=0.0, holdings=(holding,)))
    outcome, _ = preview(table, PlacementRequest(model_id=card.model_id), state=state, card=card)
    to_fetch = {made.shards[0].node_id: made.download_bytes for made in outcome.plans}
    # Node 2 has removed its files since it fetched them.
    assert to_fetch == {
        a_node_id(1): 0,
        a_node_id(2): 100 * MIB,
        a_node_id(3): 0,
        a_node_id(4): 0,
    }
