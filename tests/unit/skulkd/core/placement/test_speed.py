"""A speed is predicted from what a token reads, how fast, and how far its ranks are apart."""

from dataclasses import replace

import pytest

from protocol.cards import ModelCard, card_digest
from protocol.nodes import Member
from protocol.placements import PlacementRequest, Plan, PredictedSpeed
from protocol.readings import InstanceReading, Readings
from skulkd.core.placement.planner import plan
from skulkd.core.placement.speed import typical_rate
from tests.support.builders import (
    GIB,
    MODEL,
    a_card,
    a_member,
    a_node_id,
    a_plan,
    a_scripted_card,
    a_state,
    an_accelerator,
    an_instance,
    an_instance_id,
    some_facts,
)
from tests.unit.skulkd.core.placement.test_groups import CARD, a_pooling_member, readings_of
from tests.unit.skulkd.core.placement.test_topology import a_link, with_links

RUNNING = a_card(model_id="test/other", size_bytes=100 << 20)


def seen_at(readings: Readings, tokens_per_s: float | None) -> Readings:
    reading = InstanceReading(
        instance_id=an_instance_id(),
        node_id=a_node_id(1),
        at_s=0.0,
        in_flight=0,
        queued=0,
        slots=1,
        answer_tokens_per_s=tokens_per_s,
    )
    return replace(readings, instances={an_instance_id(): reading})


def best_of(
    readings: Readings, members: list[Member], card: ModelCard, *, runs: bool = False
) -> Plan:
    running = an_instance(card=RUNNING, plan=a_plan(RUNNING, context_tokens=512))
    state = a_state(members=members, instances=[running] if runs else [])
    request = PlacementRequest(model_id=card.model_id)
    return plan(request, card, card_digest(card), state, readings).plans[0]


def speed_of(made: Plan) -> PredictedSpeed:
    assert made.speed is not None
    return made.speed


def test_a_plan_says_what_is_typical_of_its_hardware_and_that_it_is_no_more() -> None:
    card = a_card(size_bytes=2400 * 1000 * 1000)
    speed = speed_of(best_of(readings_of(12), [a_member(1)], card))
    assert speed.tokens_per_s == pytest.approx(10, rel=0.01)  # 2.4 GB at 60 % of 40 GB/s
    assert not speed.is_measured


def test_what_ran_on_the_node_tells_how_fast_its_memory_is_read() -> None:
    readings = seen_at(readings_of(12), 50.0)
    card = a_card(size_bytes=200 << 20)
    speed = speed_of(best_of(readings, [a_member(1)], card, runs=True))
    assert speed.tokens_per_s == pytest.approx(25, rel=0.01)  # twice the weights, half the rate
    assert speed.is_measured


def test_what_has_not_answered_yet_measures_nothing() -> None:
    readings = seen_at(readings_of(12), None)
    made = best_of(readings, [a_member(1)], a_card(), runs=True)
    assert not speed_of(made).is_measured


def test_ranks_in_a_row_add_up_and_each_hop_costs_its_round_trip() -> None:
    members = [a_pooling_member(n) for n in (1, 2)]
    near = with_links(readings_of(9, 9), {1: [a_link(2, rtt_ms=0.5)]})
    far = with_links(readings_of(9, 9), {1: [a_link(2, rtt_ms=7.5)]})
    fast, slow = (speed_of(best_of(readings, members, CARD)) for readings in (near, far))
    assert (fast.link_us, slow.link_us) == (500, 7500)
    assert fast.links_measured
    assert fast.compute_us == sum(
        rank.read_bytes * 1_000_000 // rank.rate_bytes_s for rank in fast.ranks
    )
    assert fast.tokens_per_s > slow.tokens_per_s


def test_a_delay_that_is_not_known_is_told_as_typical() -> None:
    members = [a_pooling_member(n) for n in (1, 2)]
    speed = speed_of(best_of(readings_of(9, 9), members, CARD))
    assert (speed.link_us, speed.links_measured, speed.is_measured) == (500, False, False)


def test_of_a_mixture_of_experts_only_some_weights_are_read() -> None:
    whole = a_card(model_id="test/big-30b", size_bytes=4 * GIB)
    some = a_card(model_id="test/big-30b-a3b", size_bytes=4 * GIB)
    all_read, few_read = (
        speed_of(best_of(readings_of(12), [a_member(1)], card)) for card in (whole, some)
    )
    assert few_read.tokens_per_s == pytest.approx(10 * all_read.tokens_per_s, rel=0.01)


def test_a_script_has_no_speed_and_an_unknown_gpu_has_none_either() -> None:
    assert best_of(readings_of(12), [a_member(1)], a_scripted_card()).speed is None
    unknown = some_facts(accelerators=(an_accelerator(),))
    assert typical_rate(unknown, "llama_server-cuda") is None


@pytest.mark.parametrize(
    ("name", "compute", "gigabytes_s"),
    [
        ("NVIDIA GeForce RTX 4090", "cuda", 1008),
        ("NVIDIA RTX A6000", "cuda", 768),
        ("Apple M4 Max", "metal", 546),
        ("Apple M4", "metal", 120),
        ("AMD Radeon RX 7900 XTX", "rocm", 960),
        ("NVIDIA GB10", "cuda", 273),
    ],
)
def test_devices_are_known_by_their_names(name: str, compute: str, gigabytes_s: int) -> None:
    device = an_accelerator().model_copy(update={"name": name, "compute": compute})
    facts = some_facts(accelerators=(device,))
    assert typical_rate(facts, f"llama_server-{compute}") == gigabytes_s * 10**9 * 60 // 100


def test_a_small_board_reads_slower_than_a_desktop() -> None:
    board = some_facts().model_copy(update={"cpu_model": "Raspberry Pi 5 (Cortex-A76)"})
    slow, usual = (typical_rate(facts, "llama_server-cpu") for facts in (board, some_facts()))
    assert slow is not None
    assert usual is not None
    assert slow < usual


def test_a_prediction_is_no_part_of_a_plans_id() -> None:
    made = best_of(seen_at(readings_of(12), 50.0), [a_member(1)], a_card(), runs=True)
    other = best_of(seen_at(readings_of(12), 80.0), [a_member(1)], a_card(), runs=True)
    assert (made.plan_id, made.model_id) == (other.plan_id, MODEL)
    assert speed_of(made) != speed_of(other)
