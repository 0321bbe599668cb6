"""What was measured is found again by who plans, and by nobody else."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from protocol.cards import weights_digest
from protocol.events import MemoryMeasured, SequencedEvent
from protocol.measurements import BOOTS_KEPT, MEASUREMENTS_KEPT, BootKey, MemoryMeasurement
from protocol.nodes import EngineFacts, NodeFacts
from protocol.placements import PlacementRequest, Plan
from protocol.state import ClusterState
from skulkd.core.apply import apply
from skulkd.core.invariants import event_violations, violations
from skulkd.core.placement.measured import estimate, held_by_process, of_card
from skulkd.core.placement.planner import plan
from tests.support.builders import (
    GIB,
    MIB,
    NOW_MS,
    a_card,
    a_member,
    a_reading,
    a_state,
    an_engine,
    an_instance,
    some_arithmetic,
    some_facts,
    some_readings,
)
from tests.support.measured_boots import a_boot_key, some_memory

CARD = a_card()


def planned(
    state: ClusterState, *, context_tokens: int | None = 4096, available_bytes: int = 12 * GIB
) -> Plan | None:
    request = PlacementRequest(model_id=CARD.model_id, context_tokens=context_tokens)
    readings = some_readings(a_reading(memory_available_bytes=available_bytes))
    outcome = plan(request, CARD, weights_digest(CARD), state, readings)
    return outcome.plans[0] if outcome.plans else None


def booted(state: ClusterState, made: Plan, *, total_bytes: int, attempt: int = 1) -> ClusterState:
    """Have a plan's instance run, and be measured."""
    instance = an_instance(card=CARD, plan=made, attempt=attempt)
    running = state.model_copy(update={"instances": {instance.instance_id: instance}})
    event = MemoryMeasured(
        instance_id=instance.instance_id,
        rank=0,
        attempt=attempt,
        key=a_boot_key(instance),
        memory=some_memory(total_bytes),
    )
    sequenced = SequencedEvent(state.term, state.seq + 1, NOW_MS, None, event)
    assert event_violations(running, sequenced) == ()
    return apply(running, sequenced)


def stopped(state: ClusterState) -> ClusterState:
    return state.model_copy(update={"instances": {}})


def a_cluster() -> ClusterState:
    return a_state(members=[a_member()])


def test_what_was_measured_under_a_key_is_what_the_next_plan_with_it_needs() -> None:
    state = a_cluster()
    first = planned(state)
    assert first is not None
    for total_bytes in (300 * MIB, 700 * MIB):
        after = stopped(booted(state, first, total_bytes=total_bytes))
        second = planned(after)
        assert second is not None
        assert second.shards[0].memory.needed_bytes == total_bytes
        assert second.plan_id == first.plan_id


def test_a_boot_with_another_window_lifts_the_overhead_and_never_lowers_it() -> None:
    state = a_cluster()
    first = planned(state)
    assert first is not None
    cheap, dear = (
        planned(stopped(booted(state, first, total_bytes=n_bytes)), context_tokens=2048)
        for n_bytes in (300 * MIB, 700 * MIB)
    )
    before = planned(state, context_tokens=2048)
    assert before is not None
    assert cheap is not None
    assert dear is not None
    assert cheap.shards[0].memory == before.shards[0].memory
    assert dear.shards[0].memory.overhead_bytes > before.shards[0].memory.overhead_bytes


def test_what_was_measured_decides_whether_it_fits() -> None:
    state = a_cluster()
    first = planned(state)
    assert first is not None
    needed_bytes = first.shards[0].memory.needed_bytes
    dear = stopped(booted(state, first, total_bytes=needed_bytes + 50 * MIB))
    assert planned(state, available_bytes=needed_bytes) is not None
    assert planned(dear, available_bytes=needed_bytes + 49 * MIB) is None
    assert planned(dear, available_bytes=needed_bytes + 50 * MIB) is not None
    cheap = stopped(booted(state, first, total_bytes=needed_bytes - 20 * MIB))
    assert planned(cheap, available_bytes=needed_bytes - 20 * MIB) is not None


def test_other_weights_builds_and_devices_learn_nothing_from_it() -> None:
    state = a_cluster()
    first = planned(state)
    assert first is not None
    measured = booted(state, first, total_bytes=700 * MIB).measurements
    facts, engine = some_facts(), an_engine()

    def overhead(build: EngineFacts = engine, machine: NodeFacts = facts) -> int:
        kept = tuple(measured.values())
        share = estimate(CARD, build, machine, compute="cpu", slots=4, measurements=kept)
        return share.overhead_with(4096)

    plain = estimate(CARD, engine, facts, compute="cpu", slots=4).overhead_bytes
    assert overhead() > plain
    assert overhead(build=engine.model_copy(update={"version": "2"})) == plain
    assert overhead(machine=facts.model_copy(update={"arch": "aarch64"})) == plain
    assert of_card(measured, a_card(size_bytes=CARD.storage_size.in_bytes)) != ()
    assert of_card(measured, a_card(model_id="test/other")) == ()
    worded = CARD.model_copy(update={"family": "said otherwise"})
    assert of_card(measured, worded) != ()


def test_a_measurement_without_a_window_is_refused() -> None:
    values = a_boot_key().model_dump()
    for nothing in (None, 0):
        with pytest.raises(ValidationError):
            BootKey.model_validate({**values, "context_tokens": nothing})


def test_the_most_of_the_last_boots_counts_and_older_ones_are_forgotten() -> None:
    state = a_cluster()
    first = planned(state)
    assert first is not None
    sizes = [900, 300, 310, 320, 330]
    for attempt, size in enumerate(sizes, start=1):
        state = booted(state, first, total_bytes=size * MIB, attempt=attempt)
        (kept,) = state.measurements.values()
        assert len(kept.boots) == min(attempt, BOOTS_KEPT)
    (kept,) = state.measurements.values()
    assert kept.total_bytes == 330 * MIB
    (runner,) = next(iter(state.instances.values())).runners
    assert runner.memory == some_memory(330 * MIB)


def test_the_measurement_that_was_renewed_the_longest_time_ago_goes_first() -> None:
    state = a_cluster()
    first = planned(state)
    assert first is not None
    keys = [
        a_boot_key().model_copy(update={"context_tokens": 256 + number})
        for number in range(MEASUREMENTS_KEPT)
    ]
    boots = next(iter(booted(state, first, total_bytes=MIB).measurements.values())).boots
    known = {key.digest(): MemoryMeasurement(key=key, boots=boots, at_ms=1) for key in keys}
    full = booted(state.model_copy(update={"measurements": known}), first, total_bytes=400 * MIB)
    assert len(full.measurements) == MEASUREMENTS_KEPT
    assert keys[0].digest() not in full.measurements
    assert keys[1].digest() in full.measurements
    assert violations(stopped(full)) == ()


def test_weights_that_an_engine_laid_out_anew_are_not_counted_twice() -> None:
    planned_memory = some_arithmetic(weights_bytes=1000 * MIB, context_tokens=1024)
    plain = held_by_process(planned_memory, mapped_bytes=1000 * MIB, private_bytes=100 * MIB)
    assert (plain.total_bytes, plain.mapped_bytes) == (1100 * MIB, 1000 * MIB)
    anew = held_by_process(planned_memory, mapped_bytes=1000 * MIB, private_bytes=1090 * MIB)
    assert (anew.total_bytes, anew.mapped_bytes) == (1090 * MIB, 0)


def test_a_window_that_was_measured_to_fit_is_named_as_the_widest() -> None:
    share = estimate(CARD, an_engine(), some_facts(), compute="cpu", slots=4)
    free_bytes = share.needed_bytes(2048)
    assert share.max_context(free_bytes) == 2048
    lean = replace(share, measured_overhead_bytes={4096: 0})
    assert lean.fits(4096, lean.needed_bytes(4096))
    assert lean.max_context(lean.needed_bytes(4096)) >= 4096
