"""A model that no node alone can hold is pooled over several, each judged by its own memory."""

from dataclasses import replace

from protocol.cards import CacheGeometry, ModelCard, card_digest
from protocol.nodes import Member
from protocol.placements import PlacementOutcome, PlacementRequest, Plan
from protocol.readings import Readings
from skulkd.core.apply import apply
from skulkd.core.decide import decide
from skulkd.core.invariants import violations
from skulkd.core.placement.planner import plan, replan
from tests.support.builders import (
    GIB,
    MODEL,
    NOW_MS,
    a_card,
    a_member,
    a_node_id,
    a_placement,
    a_reading,
    a_sequenced,
    a_state,
    an_accelerator,
    an_engine,
    some_facts,
    some_readings,
)

CARD = a_card(
    size_bytes=12 * GIB,
    geometry=CacheGeometry(n_attention_layers=30, n_kv_heads=4, key_length=64, value_length=64),
)
"""12 GiB in 30 layers; 60 KiB of cache a token."""


def a_pooling_member(number: int, *, version: str = "1", memory_bytes: int = 16 * GIB) -> Member:
    engine = an_engine(rpc=True, version=version)
    return a_member(number, facts=some_facts(memory_bytes=memory_bytes, engines=(engine,)))


def readings_of(*free_gib: float) -> Readings:
    return some_readings(
        *(
            a_reading(number, memory_available_bytes=int(gib * GIB))
            for number, gib in enumerate(free_gib, start=1)
        )
    )


def outcome_of(
    *free_gib: float,
    members: list[Member] | None = None,
    request: PlacementRequest | None = None,
    card: ModelCard = CARD,
) -> PlacementOutcome:
    known = members or [a_pooling_member(n) for n in range(1, len(free_gib) + 1)]
    return plan(
        request or PlacementRequest(model_id=MODEL),
        card,
        card_digest(card),
        a_state(members=known),
        readings_of(*free_gib),
    )


def the_plan(outcome: PlacementOutcome) -> Plan:
    (made,) = outcome.plans
    return made


def counts(made: Plan) -> list[int]:
    return [shard.layer_end - shard.layer_start for shard in made.shards]


def test_a_model_too_large_for_each_node_is_pooled_over_two() -> None:
    made = the_plan(outcome_of(9, 9))
    assert (made.shape, made.engine, made.backend) == ("rpc", "llama_server", "llama_server-cpu")
    assert [shard.rank for shard in made.shards] == [0, 1]
    assert {shard.node_id for shard in made.shards} == {a_node_id(1), a_node_id(2)}
    assert (made.shards[0].layer_start, made.shards[1].layer_end) == (0, 30)
    assert made.shards[0].layer_end == made.shards[1].layer_start
    assert all(shard.memory.headroom_bytes >= 0 for shard in made.shards)


def test_one_node_is_preferred_whenever_it_fits() -> None:
    outcome = outcome_of(9, 9, 16)
    assert [made.shape for made in outcome.plans] == ["single"]
    assert outcome.plans[0].shards[0].node_id == a_node_id(3)


def test_two_nodes_are_asked_for_though_one_would_do() -> None:
    for wish in (
        PlacementRequest(model_id=MODEL, min_nodes=2),
        PlacementRequest(model_id=MODEL, shape="rpc"),
    ):
        made = the_plan(outcome_of(15, 15, 15, request=wish))
        assert (made.shape, len(made.shards)) == ("rpc", 2)


def test_as_few_nodes_as_can_hold_it_take_part() -> None:
    assert len(the_plan(outcome_of(4, 5, 8, 9, 6)).shards) == 2
    assert len(the_plan(outcome_of(5, 5, 5, 5, 5)).shards) == 4


def test_layers_are_shared_in_proportion_to_free_memory() -> None:
    assert counts(the_plan(outcome_of(8, 8))) == [15, 15]
    uneven = counts(the_plan(outcome_of(12, 4)))
    assert sum(uneven) == 30
    assert uneven[0] in range(20, 25)


def test_only_the_driver_keeps_what_is_no_layer() -> None:
    driver, donor = the_plan(outcome_of(8, 8)).shards
    assert driver.memory.weights_bytes > donor.memory.weights_bytes
    assert donor.memory.weights_bytes == 6 * GIB


def test_each_share_has_the_cache_of_its_own_layers() -> None:
    made = the_plan(outcome_of(12, 4))
    for shard, n_layers in zip(made.shards, counts(made), strict=True):
        assert shard.memory.kv_bytes_per_token == n_layers * 4 * 128 * 2


def test_builds_of_unlike_versions_are_not_pooled() -> None:
    members = [a_pooling_member(1), a_pooling_member(2, version="2")]
    outcome = outcome_of(9, 9, members=members)
    assert outcome.plans == ()
    assert {refusal.error.code for refusal in outcome.refusals} == {"placement.no_fit"}
    third = a_pooling_member(3, version="2")
    made = the_plan(outcome_of(9, 9, 9, members=[*members, third]))
    assert {shard.node_id for shard in made.shards} == {a_node_id(2), a_node_id(3)}


def test_a_build_that_cannot_pool_takes_no_part() -> None:
    assert outcome_of(9, 9, members=[a_pooling_member(1), a_member(2)]).plans == ()


def test_a_gpu_is_taken_before_ram_and_ram_when_the_gpus_do_not_do() -> None:
    members = [
        a_member(
            number,
            facts=some_facts(
                engines=(an_engine(rpc=True, computes=("cuda", "cpu")),),
                accelerators=(an_accelerator(memory_bytes=24 * GIB),),
            ),
            backends=("llama_server-cuda", "llama_server-cpu"),
        )
        for number in (1, 2)
    ]

    def backends_of(free_gib: int) -> set[str]:
        readings = some_readings(
            *(
                a_reading(
                    number,
                    memory_available_bytes=10 * GIB,
                    accelerator_free_bytes=(free_gib * GIB,),
                )
                for number in (1, 2)
            )
        )
        request = PlacementRequest(model_id=MODEL)
        state = a_state(members=members)
        made = the_plan(plan(request, CARD, card_digest(CARD), state, readings))
        return {shard.backend or made.backend for shard in made.shards}

    assert backends_of(9) == {"llama_server-cuda"}
    assert backends_of(2) == {"llama_server-cpu"}


def test_a_donor_needs_no_files_and_no_disk() -> None:
    request = PlacementRequest(model_id=MODEL)
    readings = readings_of(9, 9)
    nodes = readings.nodes
    nodes[a_node_id(1)] = replace(nodes[a_node_id(1)], disk_free_bytes=0)
    state = a_state(members=[a_pooling_member(1), a_pooling_member(2)])
    made = the_plan(plan(request, CARD, card_digest(CARD), state, readings))
    assert [shard.node_id for shard in made.shards] == [a_node_id(2), a_node_id(1)]


def test_nodes_that_are_too_small_together_are_told_by_layers() -> None:
    outcome = outcome_of(6, 6)
    refusal = next(one for one in outcome.refusals if one.node_id is None)
    assert refusal.error.code == "placement.no_fit"
    assert "of its 30 layers" in refusal.error.message
    assert refusal.smallest_change is not None
    assert refusal.smallest_change.kind == "other_node"


def test_the_window_that_a_refused_group_names_does_fit() -> None:
    asked = PlacementRequest(model_id=MODEL, context_tokens=8192)
    card = CARD.model_copy(
        update={
            "gguf_cache_geometry": CacheGeometry(
                n_attention_layers=30, n_kv_heads=64, key_length=128, value_length=128
            )
        }
    )
    outcome = outcome_of(9, 9, request=asked, card=card)
    refusal = next(one for one in outcome.refusals if one.node_id is None)
    assert refusal.smallest_change is not None
    tokens = refusal.smallest_change.context_tokens
    assert tokens is not None
    narrower = asked.model_copy(update={"context_tokens": tokens})
    assert the_plan(outcome_of(9, 9, request=narrower, card=card)).context_tokens == tokens
    wider = asked.model_copy(update={"context_tokens": tokens + 256})
    assert outcome_of(9, 9, request=wider, card=card).plans == ()


def test_an_excluded_node_is_in_no_group() -> None:
    request = PlacementRequest(model_id=MODEL, excluded_nodes=(a_node_id(2),))
    made = the_plan(outcome_of(9, 9, 9, request=request))
    assert a_node_id(2) not in {shard.node_id for shard in made.shards}


def test_a_made_plan_is_kept_share_by_share_when_readings_move() -> None:
    made = the_plan(outcome_of(9, 9))
    state = a_state(members=[a_pooling_member(1), a_pooling_member(2)])
    request = PlacementRequest(model_id=MODEL)
    again = replan(made, request, CARD, state, readings_of(8.5, 12))
    assert [kept.plan_id for kept in again.plans] == [made.plan_id]
    assert replan(made, request, CARD, state, readings_of(1, 16)).plans == ()


def test_the_master_takes_the_plan_and_its_shares_are_claimed_on_each_node() -> None:
    made = the_plan(outcome_of(9, 9))
    state = a_state(members=[a_pooling_member(1), a_pooling_member(2)])
    command = a_placement(made, CARD, request=PlacementRequest(model_id=MODEL))
    events = decide(state, readings_of(9, 9), command, now_ms=NOW_MS)
    for event in events:
        state = apply(state, a_sequenced(event))
    assert violations(state) == ()
    small = a_card(model_id="test/other", size_bytes=4 * GIB)
    later = plan(
        PlacementRequest(model_id=small.model_id),
        small,
        card_digest(small),
        state,
        readings_of(9, 9),
    )
    assert later.plans == ()
    assert {refusal.term for refusal in later.refusals if refusal.memory} == {"reserved"}


def test_a_group_has_no_more_ranks_than_each_token_can_pay_for() -> None:
    outcome = outcome_of(*([0.8] * 40))
    assert outcome.plans == ()
    assert any("hold 16 of its 30 layers" in one.error.message for one in outcome.refusals)
