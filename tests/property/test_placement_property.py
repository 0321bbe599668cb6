"""Plans fit, are the same for the same facts, and survive readings that move."""

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.cards import CacheGeometry, ModelCard, card_digest
from protocol.placements import PlacementOutcome, PlacementRequest
from protocol.readings import Readings
from skulkd.core.placement.planner import plan, replan
from tests.support.builders import (
    GIB,
    MIB,
    MODEL,
    a_card,
    a_member,
    a_reading,
    a_state,
    some_facts,
    some_readings,
)

N_NODES = 4


@st.composite
def geometries(draw: st.DrawFn) -> CacheGeometry:
    return CacheGeometry(
        n_attention_layers=draw(st.integers(1, 100)),
        n_kv_heads=draw(st.integers(1, 64)),
        key_length=draw(st.sampled_from((64, 128, 256))),
        value_length=draw(st.sampled_from((64, 128, 256))),
        recurrent_bytes_per_slot=draw(st.sampled_from((0, MIB))),
    )


@st.composite
def cards(draw: st.DrawFn) -> ModelCard:
    return a_card(
        size_bytes=draw(st.integers(1, 40 * GIB)),
        context_length=draw(st.integers(0, 1 << 20)),
        geometry=draw(st.none() | geometries()),
    )


memories = st.lists(st.integers(0, 64 * GIB), min_size=N_NODES, max_size=N_NODES)


@st.composite
def requests(draw: st.DrawFn) -> PlacementRequest:
    return PlacementRequest(
        model_id=MODEL,
        context_tokens=draw(st.none() | st.integers(256, 1 << 17)),
        slots=draw(st.none() | st.integers(1, 64)),
    )


MEMBERS = a_state(
    members=[
        a_member(number, facts=some_facts(memory_bytes=64 * GIB))
        for number in range(1, N_NODES + 1)
    ]
)


def readings_of(memory: list[int]) -> Readings:
    return some_readings(
        *(
            a_reading(number, memory_available_bytes=available, disk_free_bytes=1000 * GIB)
            for number, available in enumerate(memory, start=1)
        )
    )


def outcome_of(card: ModelCard, request: PlacementRequest, memory: list[int]) -> PlacementOutcome:
    return plan(request, card, card_digest(card), MEMBERS, readings_of(memory))


@settings(max_examples=200, deadline=None)
@given(cards(), requests(), memories)
def test_every_plan_fits_and_every_node_is_answered(
    card: ModelCard, request: PlacementRequest, memory: list[int]
) -> None:
    outcome = outcome_of(card, request, memory)
    assert len(outcome.plans) + len(outcome.refusals) == N_NODES
    for made in outcome.plans:
        (shard,) = made.shards
        assert shard.memory.headroom_bytes >= 0
        assert (shard.layer_start, shard.layer_end) == (0, card.n_layers)
        assert made.context_tokens == shard.memory.context_tokens
        assert request.context_tokens in {None, made.context_tokens}
        assert card.context_length == 0 or made.context_tokens <= card.context_length
    for refusal in outcome.refusals:
        assert refusal.error.message
        assert refusal.error.remediation
        if refusal.memory is not None and refusal.term != "available":
            assert refusal.memory.headroom_bytes < 0


@settings(max_examples=150, deadline=None)
@given(cards(), requests(), memories)
def test_the_smallest_change_of_a_refusal_does_make_it_fit(
    card: ModelCard, request: PlacementRequest, memory: list[int]
) -> None:
    for refusal in outcome_of(card, request, memory).refusals:
        change = refusal.smallest_change
        if change is None or refusal.memory is None or refusal.node_id is None:
            continue
        changed, more = request, list(memory)
        if change.kind == "context_tokens":
            changed = request.model_copy(update={"context_tokens": change.context_tokens})
        else:
            assert change.free_bytes is not None
            # What a node has in all bounds what freeing can give.
            place = list(MEMBERS.members).index(refusal.node_id)
            more[place] += change.free_bytes
            if more[place] > 64 * GIB:
                continue
        only = changed.model_copy(update={"nodes": (refusal.node_id,)})
        again = outcome_of(card, only, more)
        assert again.plans, (refusal, again.refusals)


@settings(max_examples=150, deadline=None)
@given(
    cards(),
    st.none() | st.integers(256, 1 << 15),
    memories,
    st.lists(st.floats(-0.05, 0.05), min_size=N_NODES, max_size=N_NODES),
)
def test_an_accepted_plan_survives_readings_that_move(
    card: ModelCard, context_tokens: int | None, memory: list[int], jitter: list[float]
) -> None:
    request = PlacementRequest(model_id=MODEL, context_tokens=context_tokens)
    moved = [int(free * (1 + by)) for free, by in zip(memory, jitter, strict=True)]
    for made in outcome_of(card, request, memory).plans:
        place = list(MEMBERS.members).index(made.shards[0].node_id)
        needed = made.shards[0].memory.needed_bytes
        if needed > moved[place]:
            continue  # nothing planned to the last byte survives a loss
        again = replan(made, request, card, MEMBERS, readings_of(moved))
        assert [kept.plan_id for kept in again.plans] == [made.plan_id]


@settings(max_examples=100, deadline=None)
@given(cards(), requests(), memories)
def test_planning_is_a_function_of_its_arguments(
    card: ModelCard, request: PlacementRequest, memory: list[int]
) -> None:
    assert outcome_of(card, request, memory) == outcome_of(card, request, memory)


@settings(max_examples=100, deadline=None)
@given(cards(), st.lists(st.integers(0, 63), min_size=N_NODES, max_size=N_NODES))
def test_an_unasked_plan_keeps_its_window_when_readings_move_by_a_page(
    card: ModelCard, gibibytes: list[int]
) -> None:
    request = PlacementRequest(model_id=MODEL)
    memory = [GIB * whole + GIB // 2 for whole in gibibytes]
    near = [free - 4096 for free in memory]
    first = {made.plan_id for made in outcome_of(card, request, memory).plans}
    second = {made.plan_id for made in outcome_of(card, request, near).plans}
    assert first == second
