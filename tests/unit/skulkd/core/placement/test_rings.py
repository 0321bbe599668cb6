"""An MLX model over a ring of nodes: uneven layers in a row, or equal parts of every layer."""

import pytest

from protocol.cards import ModelCard, PlacementSection
from protocol.nodes import Member
from protocol.placements import PlacementRequest, Plan, Shape
from skulkd.core.placement.memory_fit import share_of
from tests.support.builders import (
    GIB,
    MODEL,
    a_card,
    a_member,
    a_node_id,
    an_engine,
    some_facts,
)
from tests.unit.skulkd.core.placement.test_groups import counts, outcome_of, the_plan

CARD = a_card(size_bytes=12 * GIB, backends=("mlx",), kv_heads=8).model_copy(
    update={"supports_tensor": True}
)
BUILD = an_engine("mlx", computes=("cpu",), ring=True)


def a_ring_member(number: int, *, version: str = "1") -> Member:
    build = BUILD.model_copy(update={"version": version})
    facts = some_facts(memory_bytes=32 * GIB, engines=(build,))
    return a_member(number, facts=facts, backends=("mlx-cpu",))


def made_of(
    *free_gib: float, shape: Shape | None = None, min_nodes: int = 1, card: ModelCard = CARD
) -> Plan:
    request = PlacementRequest(model_id=MODEL, shape=shape, min_nodes=min_nodes)
    members = [a_ring_member(n) for n in range(1, len(free_gib) + 1)]
    return the_plan(outcome_of(*free_gib, members=members, request=request, card=card))


def test_a_model_too_large_for_one_is_put_into_a_row_of_uneven_parts() -> None:
    made = made_of(14, 7)
    assert (made.shape, made.engine, made.backend) == ("pipeline", "mlx", "mlx-cpu")
    assert min(counts(made)) in range(7, 11)
    assert sum(counts(made)) == 30
    assert all(shard.memory.headroom_bytes >= 0 for shard in made.shards)


def test_every_rank_of_a_ring_has_the_ends_and_fetches_the_files() -> None:
    made = made_of(11, 11)
    assert made.download_bytes == 2 * CARD.storage_size.in_bytes
    for shard in made.shards:
        layers = (shard.layer_start, shard.layer_end)
        alone = share_of(CARD, BUILD, slots=made.slots, layers=layers, has_ends=False)
        assert shard.memory.weights_bytes > alone.weights_bytes


def test_one_node_is_preferred_to_a_ring() -> None:
    assert made_of(24).shape == "single"


@pytest.mark.parametrize("limit", [4, 10, 20])
def test_no_rank_begins_behind_the_last_layer_that_a_split_may_be_at(limit: int) -> None:
    card = CARD.model_copy(
        update={
            "placement": PlacementSection(
                compatible_backends=("mlx",), max_pipeline_split_layer=limit
            )
        }
    )
    made = made_of(15, 15, 18, shape="pipeline", min_nodes=2, card=card)
    assert made.shards[-1].layer_start <= limit
    assert sum(counts(made)) == 30


def test_equal_parts_have_all_layers_and_a_number_that_divides_the_heads() -> None:
    made = made_of(10, 10, 10, 10, 10, shape="tensor")
    assert made.shape == "tensor"
    assert len(made.shards) == 2
    assert {(shard.layer_start, shard.layer_end) for shard in made.shards} == {(0, 30)}
    assert len(made_of(6, 6, 6, 6, 6, shape="tensor").shards) == 4


def test_equal_parts_share_weights_and_cache() -> None:
    whole = share_of(CARD, BUILD, slots=1)
    part = share_of(CARD, BUILD, slots=1, n_parts=4, has_ends=False)
    assert (part.weights_bytes, part.kv_bytes_per_token) == (
        whole.weights_bytes // 4,
        whole.kv_bytes_per_token // 4,
    )


def test_a_model_that_cannot_be_cut_is_not_asked_for_in_equal_parts() -> None:
    card = CARD.model_copy(update={"supports_tensor": False})
    members = [a_ring_member(1), a_ring_member(2)]
    request = PlacementRequest(model_id=MODEL, shape="tensor")
    outcome = outcome_of(11, 11, members=members, request=request, card=card)
    assert outcome.plans == ()
    assert [one.error.code for one in outcome.refusals] == ["placement.unsupported_shape"]


def test_a_part_that_is_too_large_for_the_nodes_is_told_with_what_would_do() -> None:
    members = [a_ring_member(1), a_ring_member(2)]
    request = PlacementRequest(model_id=MODEL, shape="tensor")
    outcome = outcome_of(5, 20, members=members, request=request, card=CARD)
    (refusal,) = outcome.refusals
    assert (outcome.plans, refusal.error.code) == ((), "placement.no_fit")
    assert "too few hold one of 2 parts" in refusal.error.message


def test_a_row_is_preferred_to_equal_parts_unless_the_links_are_as_fast_as_buses() -> None:
    assert made_of(11, 11).shape == "pipeline"


def test_a_build_that_is_in_no_ring_is_planned_alone_only() -> None:
    alone = BUILD.model_copy(update={"ring": False})
    facts = some_facts(memory_bytes=32 * GIB, engines=(alone,))
    members = [a_member(n, facts=facts, backends=("mlx-cpu",)) for n in (1, 2)]
    assert outcome_of(11, 11, members=members, card=CARD).plans == ()


def test_who_cannot_get_the_files_is_in_no_ring() -> None:
    members = [a_ring_member(n) for n in (1, 2, 3)]
    request = PlacementRequest(model_id=MODEL, excluded_nodes=(a_node_id(3),))
    made = the_plan(outcome_of(11, 11, 11, members=members, request=request, card=CARD))
    assert {shard.node_id for shard in made.shards} == {a_node_id(1), a_node_id(2)}
