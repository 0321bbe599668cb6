from dataclasses import replace

import pytest

from protocol.cards import (
    ArtifactFile,
    BackendTag,
    CacheGeometry,
    LocalSource,
    ModelCard,
    PackageSource,
    ScriptedSection,
    card_digest,
)
from protocol.ids import NodeId
from protocol.placements import PlacementOutcome, PlacementRequest, Plan, Refusal
from protocol.readings import NoDownloads, PhaseProgress, Readings
from protocol.state import ClusterState
from skulkd.core.placement.explain import outcome_error
from skulkd.core.placement.planner import plan, replan
from tests.support.builders import (
    GIB,
    MIB,
    MODEL,
    a_card,
    a_digest,
    a_failure,
    a_member,
    a_node_id,
    a_reading,
    a_scripted_card,
    a_state,
    an_accelerator,
    an_engine,
    an_instance,
    some_facts,
    some_readings,
)

GEOMETRY = CacheGeometry(n_attention_layers=16, n_kv_heads=8, key_length=64, value_length=64)
KV_BYTES = 16 * 8 * 128 * 2


def outcome_of(
    card: ModelCard,
    state: ClusterState | None = None,
    readings: Readings | None = None,
    *,
    request: PlacementRequest | None = None,
    now_s: float | None = None,
    holders: frozenset[NodeId] | None = None,
) -> PlacementOutcome:
    return plan(
        request or PlacementRequest(model_id=card.model_id),
        card,
        card_digest(card),
        state or a_state(),
        readings or some_readings(),
        now_s=now_s,
        holders=holders,
    )


def a_plan_of(outcome: PlacementOutcome) -> Plan:
    assert outcome.plans, outcome.refusals
    return outcome.plans[0]


def the_refusal(outcome: PlacementOutcome) -> Refusal:
    assert not outcome.plans
    (refusal,) = outcome.refusals
    return refusal


def asks(
    *,
    context_tokens: int | None = None,
    slots: int | None = None,
    backend: BackendTag | None = None,
    nodes: tuple[NodeId, ...] = (),
    excluded: tuple[NodeId, ...] = (),
) -> PlacementRequest:
    return PlacementRequest(
        model_id=MODEL,
        context_tokens=context_tokens,
        slots=slots,
        backend=backend,
        nodes=nodes,
        excluded_nodes=excluded,
    )


def with_memory(available_bytes: int | None) -> Readings:
    return some_readings(a_reading(memory_available_bytes=available_bytes))


def test_the_sum_is_weights_plus_cache_of_the_context_plus_overhead() -> None:
    card = a_card(size_bytes=4 * GIB, geometry=GEOMETRY)
    memory = a_plan_of(outcome_of(card)).shards[0].memory
    assert memory.weights_bytes == 4 * GIB
    assert memory.kv_bytes_per_token == KV_BYTES
    assert memory.kv_cache_bytes == KV_BYTES * 8192
    assert memory.overhead_bytes == 4 * GIB // 10
    assert (memory.available_bytes, memory.reserved_bytes) == (12 * GIB, 0)
    assert memory.pool == "ram"


def test_slots_share_one_cache_and_only_recurrent_state_is_held_by_each() -> None:
    card = a_card(geometry=GEOMETRY.model_copy(update={"recurrent_bytes_per_slot": MIB}))
    one = a_plan_of(outcome_of(card, request=asks(slots=1))).shards[0].memory
    many = a_plan_of(outcome_of(card, request=asks(slots=16))).shards[0].memory
    assert many.kv_cache_bytes - one.kv_cache_bytes == 15 * MIB


def test_slots_default_to_the_builds_own_number() -> None:
    assert a_plan_of(outcome_of(a_card())).slots == 4


def test_without_a_header_the_cache_is_estimated_from_layers_and_heads() -> None:
    made = a_plan_of(outcome_of(a_card(n_layers=30, kv_heads=3)))
    assert made.shards[0].memory.kv_bytes_per_token == 30 * 2 * 384 * 2
    no_heads = a_plan_of(outcome_of(a_card(n_layers=30, kv_heads=None)))
    assert no_heads.shards[0].memory.kv_bytes_per_token == 30 * 2 * 576 * 2


def test_a_measured_overhead_is_the_floor_and_an_unmeasured_one_has_a_default() -> None:
    assert a_plan_of(outcome_of(a_card())).shards[0].memory.overhead_bytes == 64 * MIB
    bare = a_member(facts=some_facts(engines=(an_engine(overhead_bytes=0),)))
    made = a_plan_of(outcome_of(a_card(), a_state(members=[bare])))
    assert made.shards[0].memory.overhead_bytes == 256 * MIB


def test_a_model_as_large_as_the_free_memory_does_not_fit() -> None:
    card = a_card(size_bytes=4 * GIB, geometry=GEOMETRY)
    refusal = the_refusal(outcome_of(card, readings=with_memory(4 * GIB)))
    assert (refusal.error.code, refusal.term) == ("placement.no_fit", "overhead")
    assert refusal.memory is not None
    assert refusal.memory.headroom_bytes < 0
    assert refusal.smallest_change is not None
    assert refusal.smallest_change.free_bytes == -refusal.memory.headroom_bytes
    assert "box-1" in refusal.error.message


def test_an_asked_context_is_taken_to_the_last_byte_or_refused_with_the_largest_that_fits() -> None:
    card = a_card(size_bytes=GIB, geometry=GEOMETRY, context_length=131_072)
    fixed = GIB + GIB // 10
    exact = with_memory(fixed + 65_536 * KV_BYTES)
    taken = a_plan_of(outcome_of(card, readings=exact, request=asks(context_tokens=65_536)))
    assert taken.context_tokens == 65_536
    short = with_memory(fixed + 65_536 * KV_BYTES - 1)
    refusal = the_refusal(outcome_of(card, readings=short, request=asks(context_tokens=65_536)))
    assert refusal.term == "kv_cache"
    assert refusal.smallest_change is not None
    assert refusal.smallest_change.kind == "context_tokens"
    assert refusal.smallest_change.context_tokens == 65_536 - 256
    proposed = asks(context_tokens=refusal.smallest_change.context_tokens)
    assert outcome_of(card, readings=short, request=proposed).plans


def test_a_context_beyond_the_model_is_refused_with_the_models_own() -> None:
    refusal = the_refusal(
        outcome_of(a_card(context_length=8192), request=asks(context_tokens=8448))
    )
    assert refusal.error.code == "placement.no_fit"
    assert refusal.smallest_change is not None
    assert refusal.smallest_change.context_tokens == 8192


@pytest.mark.parametrize(
    ("card", "tokens", "words"),
    [
        (a_card(context_length=8192), 8192, ""),
        (a_card(context_length=1 << 20, geometry=GEOMETRY), 32_768, "default served context"),
        (a_card(context_length=8192, max_context_tokens=4096), 4096, "max_context_tokens"),
        (a_card(context_length=0), 8192, "names no context length"),
    ],
)
def test_an_unasked_context_is_capped_and_says_by_what(
    card: ModelCard, tokens: int, words: str
) -> None:
    made = a_plan_of(outcome_of(card))
    assert made.context_tokens == tokens
    assert words in made.context_limited_by
    assert bool(words) == bool(made.context_limited_by)


def test_an_unasked_context_shrinks_to_what_fits_with_a_tenth_to_spare() -> None:
    card = a_card(size_bytes=GIB, geometry=GEOMETRY, context_length=32_768)
    available = GIB + GIB // 10 + 20_000 * KV_BYTES
    made = a_plan_of(outcome_of(card, readings=with_memory(available)))
    assert made.context_tokens == 12_288
    assert made.context_limited_by == "the free memory of box-1"
    assert made.shards[0].memory.needed_bytes <= available * 9 // 10


def test_the_smallest_window_may_use_the_spare_tenth() -> None:
    card = a_card(size_bytes=GIB, geometry=GEOMETRY, context_length=32_768)
    available = GIB + GIB // 10 + 600 * KV_BYTES
    assert a_plan_of(outcome_of(card, readings=with_memory(available))).context_tokens == 512


def test_unknown_memory_is_missing_not_zero() -> None:
    outcome = outcome_of(a_card(), readings=with_memory(None))
    assert outcome.missing_facts == ("memory of box-1",)
    assert the_refusal(outcome).error.code == "placement.facts_missing"


def test_missing_readings_and_facts_are_named_with_their_node() -> None:
    assert outcome_of(a_card(), readings=Readings()).missing_facts == ("memory of box-1",)
    unprobed = a_state(members=[a_member(has_facts=False)])
    assert outcome_of(a_card(), unprobed).missing_facts == ("what it can run of box-1",)


def test_a_stale_reading_counts_as_missing() -> None:
    assert outcome_of(a_card(), now_s=29.0).plans
    assert outcome_of(a_card(), now_s=31.0).missing_facts == ("memory of box-1",)


def test_nodes_that_answer_do_not_wait_for_those_that_do_not() -> None:
    state = a_state(members=[a_member(1), a_member(2, has_facts=False)])
    outcome = outcome_of(a_card(), state)
    assert outcome.missing_facts == ()
    assert [refusal.error.code for refusal in outcome.refusals] == ["placement.facts_missing"]


def test_a_loading_placement_reserves_what_readings_cannot_show() -> None:
    loading = an_instance(5, card=a_scripted_card(model_id="test/other"), phase="load")
    needed = loading.plan.shards[0].memory.needed_bytes
    memory = a_plan_of(outcome_of(a_card(), a_state(instances=[loading]))).shards[0].memory
    assert memory.reserved_bytes == needed


def test_what_a_load_has_reached_is_in_the_reading_and_not_reserved_any_more() -> None:
    loading = an_instance(5, card=a_scripted_card(model_id="test/other"), phase="load")
    needed = loading.plan.shards[0].memory.needed_bytes
    progress = PhaseProgress(
        instance_id=loading.instance_id,
        node_id=a_node_id(),
        rank=0,
        attempt=1,
        phase="load",
        since_s=0.0,
        at_s=0.0,
        done_bytes=needed // 2,
    )
    for attempt, reserved in ((1, needed - needed // 2), (2, needed)):
        readings = some_readings()
        readings.progress[loading.instance_id, 0] = replace(progress, attempt=attempt)
        state = a_state(instances=[loading])
        memory = a_plan_of(outcome_of(a_card(), state, readings)).shards[0].memory
        assert memory.reserved_bytes == reserved


def test_a_ready_placement_is_not_subtracted_twice() -> None:
    ready = an_instance(5, card=a_scripted_card(model_id="test/other"), phase="ready")
    memory = a_plan_of(outcome_of(a_card(), a_state(instances=[ready]))).shards[0].memory
    assert memory.reserved_bytes == 0


def test_mapped_weights_that_stay_reclaimable_still_count_against_the_pool() -> None:
    ready = an_instance(5, card=a_scripted_card(model_id="test/other"), phase="ready")
    needed = ready.plan.shards[0].memory.needed_bytes
    unmoved = with_memory(16 * GIB)
    memory = a_plan_of(outcome_of(a_card(), a_state(instances=[ready]), unmoved)).shards[0].memory
    assert memory.reserved_bytes == needed


def test_a_failed_placement_reserves_nothing_and_other_nodes_placements_do_not_count() -> None:
    other = a_scripted_card(model_id="test/other")
    elsewhere = an_instance(5, card=other, phase="load", node=2)
    failed = an_instance(6, card=other, phase="load", failure=a_failure(6))
    state = a_state(instances=[elsewhere, failed])
    memory = a_plan_of(outcome_of(a_card(), state)).shards[0].memory
    assert memory.reserved_bytes == 0


def test_memory_that_a_stopping_instance_still_holds_is_waited_for() -> None:
    card = a_card(size_bytes=4 * GIB, geometry=GEOMETRY)
    large = a_plan_of(outcome_of(card))
    stopping = an_instance(5, card=card, plan=large, stopping=True)
    outcome = outcome_of(card, a_state(instances=[stopping]), with_memory(2 * GIB))
    assert outcome.plans == ()
    assert "stopping instance" in outcome.missing_facts[0]


GPU_ENGINE = an_engine(computes=("cuda", "cpu"))


def gpu_state(*, memory_bytes: int | None = 24 * GIB, unified: bool = False) -> ClusterState:
    facts = some_facts(
        memory_bytes=64 * GIB,
        engines=(GPU_ENGINE,),
        accelerators=(an_accelerator(memory_bytes=memory_bytes, unified=unified),),
    )
    backends: tuple[BackendTag, ...] = ("llama_server-cuda", "llama_server-cpu")
    return a_state(members=[a_member(facts=facts, backends=backends)])


def gpu_reading(free: int | None, ram: int = 44 * GIB) -> Readings:
    return some_readings(a_reading(memory_available_bytes=ram, accelerator_free_bytes=(free,)))


def test_a_discrete_gpu_is_judged_by_its_own_memory() -> None:
    card = a_card(size_bytes=10 * GIB, geometry=GEOMETRY)
    made = a_plan_of(outcome_of(card, gpu_state(), gpu_reading(20 * GIB)))
    assert (made.backend, made.shards[0].memory.pool) == ("llama_server-cuda", "vram")
    assert made.shards[0].memory.available_bytes == 20 * GIB


def test_what_does_not_fit_the_gpu_is_planned_on_the_cpu() -> None:
    card = a_card(size_bytes=22 * GIB, geometry=GEOMETRY)
    made = a_plan_of(outcome_of(card, gpu_state(), gpu_reading(20 * GIB)))
    assert made.backend == "llama_server-cpu"


def test_devices_are_never_summed() -> None:
    facts = some_facts(
        engines=(an_engine(computes=("cuda",)),),
        accelerators=(an_accelerator(index=0), an_accelerator(index=1)),
    )
    state = a_state(members=[a_member(facts=facts, backends=("llama_server-cuda",))])
    readings = some_readings(a_reading(accelerator_free_bytes=(8 * GIB, 10 * GIB)))
    card = a_card(size_bytes=12 * GIB, geometry=GEOMETRY)
    refusal = the_refusal(outcome_of(card, state, readings))
    assert refusal.memory is not None
    assert refusal.memory.available_bytes == 10 * GIB


def test_a_gpu_whose_free_memory_is_unknown_is_a_missing_fact() -> None:
    request = asks(backend="llama_server-cuda")
    outcome = outcome_of(a_card(), gpu_state(), gpu_reading(None), request=request)
    assert outcome.missing_facts == ("memory of box-1",)


def test_unified_memory_is_bound_by_its_limit_and_by_the_ram_that_is_free() -> None:
    limit = gpu_state(memory_bytes=48 * GIB, unified=True)
    card = a_card(size_bytes=10 * GIB, geometry=GEOMETRY)
    memory = a_plan_of(outcome_of(card, limit, gpu_reading(None))).shards[0].memory
    assert (memory.pool, memory.available_bytes) == ("unified", 44 * GIB)
    free = a_plan_of(outcome_of(card, limit, gpu_reading(None, ram=60 * GIB))).shards[0].memory
    assert free.available_bytes == 48 * GIB


def test_a_gpu_without_a_memory_of_its_own_takes_the_ram_not_zero() -> None:
    unnamed = gpu_state(memory_bytes=None)
    memory = a_plan_of(outcome_of(a_card(), unnamed, gpu_reading(None))).shards[0].memory
    assert (memory.pool, memory.available_bytes) == ("unified", 44 * GIB)


def test_a_gpu_below_the_cards_minimum_is_refused() -> None:
    card = a_card(size_bytes=GIB, geometry=GEOMETRY)
    demanding = card.model_copy(
        update={"placement": card.placement.model_copy(update={"min_vram_gib": 48.0})}
    )
    request = asks(backend="llama_server-cuda")
    refusal = the_refusal(
        outcome_of(demanding, gpu_state(), gpu_reading(20 * GIB), request=request)
    )
    assert (refusal.error.code, refusal.term) == ("placement.no_fit", "available")


def test_a_node_without_a_compatible_backend_says_what_it_has_and_what_is_wanted() -> None:
    refusal = the_refusal(outcome_of(a_card(backends=("mlx",))))
    assert refusal.error.code == "placement.no_backend"
    assert "mlx" in refusal.error.message
    assert "llama_server-cpu" in refusal.error.message


@pytest.mark.parametrize(
    ("state", "request_", "words"),
    [
        (a_state(members=[a_member(role="management")]), asks(), "--no-worker"),
        (a_state(), asks(excluded=(a_node_id(),)), "excluded"),
        (a_state(), asks(nodes=(a_node_id(7),)), "not a member"),
    ],
)
def test_nodes_that_may_not_be_used_are_refused_by_name(
    state: ClusterState, request_: PlacementRequest, words: str
) -> None:
    outcome = outcome_of(a_card(), state, request=request_)
    assert outcome.plans == ()
    assert outcome.refusals[0].error.code == "placement.no_node"
    assert words in outcome.refusals[0].error.message


@pytest.mark.parametrize(
    ("update", "words"),
    [
        ({"shape": "pipeline"}, "no two of them"),
        ({"shape": "single", "min_nodes": 2}, "single takes one"),
        ({"shape": "rpc"}, "no two of them"),
        ({"min_nodes": 2}, "no two of them"),
    ],
)
def test_other_shapes_are_refused_with_the_ones_this_build_plans(
    update: dict[str, object], words: str
) -> None:
    refusal = the_refusal(outcome_of(a_card(), request=asks().model_copy(update=update)))
    assert (refusal.error.code, refusal.node_id) == ("placement.unsupported_shape", None)
    assert words in refusal.error.message


PACKAGE = PackageSource(
    package="llm-tiny",
    version="1.0",
    files=(ArtifactFile(path="model.gguf", size_bytes=5 * GIB, sha256=a_digest("file")),),
)


def test_b14_a_node_without_disk_space_is_no_candidate_and_one_that_has_the_files_is() -> None:
    card = a_card(source=PACKAGE)
    state = a_state(members=[a_member(1), a_member(2)])
    readings = some_readings(a_reading(1, disk_free_bytes=GIB), a_reading(2))
    outcome = outcome_of(card, state, readings, holders=frozenset())
    assert a_plan_of(outcome).shards[0].node_id == a_node_id(2)
    assert a_plan_of(outcome).download_bytes == 5 * GIB
    (refusal,) = outcome.refusals
    assert refusal.error.code == "placement.no_space"
    assert refusal.error.details["missing_bytes"] == 6 * GIB
    held = outcome_of(card, state, readings, holders=frozenset({a_node_id(1)}))
    assert a_plan_of(held).shards[0].node_id == a_node_id(1)
    assert a_plan_of(held).download_bytes == 0


@pytest.mark.parametrize(
    ("why", "code", "flag"),
    [
        ("offline", "store.offline", "--offline"),
        ("disabled", "store.downloads_disabled", "--no-downloads"),
    ],
)
def test_a_node_that_fetches_nothing_is_a_candidate_for_what_it_has_only(
    why: NoDownloads, code: str, flag: str
) -> None:
    card = a_card(source=PACKAGE)
    readings = some_readings(replace(a_reading(), no_downloads=why))
    outcome = outcome_of(card, readings=readings, holders=frozenset())
    refusal = the_refusal(outcome)
    assert refusal.error.code == code
    assert flag in refusal.error.message
    assert outcome_error(outcome, card.model_id).code == code
    assert outcome_of(card, readings=readings, holders=frozenset({a_node_id(1)})).plans
    assert outcome_of(a_scripted_card(), readings=readings, holders=frozenset()).plans


def test_an_unknown_free_space_is_missing_only_when_something_has_to_be_fetched() -> None:
    readings = some_readings(a_reading(disk_free_bytes=None))
    outcome = outcome_of(a_card(source=PACKAGE), readings=readings, holders=frozenset())
    assert outcome.missing_facts == ("free disk space of box-1",)
    assert outcome_of(a_scripted_card(), readings=readings, holders=frozenset()).plans


def test_a_file_imported_in_place_is_planned_where_it_lies() -> None:
    card = a_card(source=LocalSource(path="/models/a.gguf", size_bytes=100 * MIB))
    assert outcome_of(card, holders=frozenset({a_node_id(1)})).plans
    refusal = the_refusal(outcome_of(card, holders=frozenset()))
    assert refusal.error.code == "placement.no_node"
    assert "/models/a.gguf" in refusal.error.message


def test_scripted_models_take_the_memory_their_card_says() -> None:
    card = a_scripted_card(scripted=ScriptedSection(memory_bytes=2 * GIB))
    memory = a_plan_of(outcome_of(card)).shards[0].memory
    assert (memory.weights_bytes, memory.kv_cache_bytes) == (2 * GIB, 0)


def test_the_most_headroom_wins_and_the_others_are_alternatives() -> None:
    state = a_state(members=[a_member(number) for number in (1, 2, 3)])
    readings = some_readings(
        a_reading(1, memory_available_bytes=6 * GIB),
        a_reading(2, memory_available_bytes=12 * GIB),
        a_reading(3, memory_available_bytes=9 * GIB),
    )
    outcome = outcome_of(a_card(), state, readings)
    order = [made.shards[0].node_id for made in outcome.plans]
    assert order == [a_node_id(2), a_node_id(3), a_node_id(1)]
    assert [made.alternative for made in outcome.plans] == [False, True, True]


def test_preference_outranks_headroom_and_a_gpu_a_cpu() -> None:
    cpu = a_member(1)
    gpu = a_member(2, facts=gpu_state().members[a_node_id()].facts, backends=("llama_server-cuda",))
    state = a_state(members=[cpu, gpu])
    readings = some_readings(a_reading(1), a_reading(2, accelerator_free_bytes=(4 * GIB,)))
    best = a_plan_of(outcome_of(a_card(), state, readings))
    assert best.backend == "llama_server-cuda"
    preferring = a_card(preference=("llama_server-cpu",))
    best = a_plan_of(outcome_of(preferring, state, readings))
    assert best.backend == "llama_server-cpu"


def test_the_plan_id_is_of_the_assignment_and_not_of_the_readings() -> None:
    first = a_plan_of(outcome_of(a_card()))
    moved = a_plan_of(outcome_of(a_card(), readings=with_memory(11 * GIB)))
    assert first.plan_id == moved.plan_id
    other = a_plan_of(outcome_of(a_card(), request=asks(context_tokens=4096)))
    assert other.plan_id != first.plan_id


def test_a_plan_holds_when_the_free_memory_shrinks_by_a_tenth() -> None:
    card = a_card(size_bytes=GIB, geometry=GEOMETRY, context_length=32_768)
    available = GIB + GIB // 10 + 20_000 * KV_BYTES
    made = a_plan_of(outcome_of(card, readings=with_memory(available)))
    request = PlacementRequest(model_id=MODEL)
    shrunk = with_memory(available * 91 // 100)
    again = replan(made, request, card, a_state(), shrunk)
    assert again.plans[0].plan_id == made.plan_id
    assert again.plans[0].context_limited_by == made.context_limited_by
