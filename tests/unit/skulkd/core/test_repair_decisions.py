"""What becomes of an instance that cannot go on where it is."""

import pytest

from protocol.commands import Command, RepairInstance, ReportFailure, StopInstance
from protocol.errors import ErrorCode
from protocol.events import (
    DownloadForgotten,
    Event,
    InstanceFailed,
    InstanceRemoved,
    InstanceReplanned,
    PlacementFailed,
)
from protocol.instances import DisconnectPolicy, Instance, Phase
from protocol.nodes import Presence
from protocol.placements import PlacementRequest
from protocol.readings import Readings
from protocol.state import ClusterState, DownloadOutcome
from skulkd.core.apply import apply
from skulkd.core.breaker import n_recent_retries
from skulkd.core.decide import decide
from skulkd.core.invariants import event_violations, violations
from skulkd.core.reconcile import desired_runners
from skulkd.core.repair_decisions import (
    AVOIDED_MS,
    FACTS_WAIT_MS,
    MAX_REPAIRS,
    DueRepair,
    repairs_due,
)
from tests.support.builders import (
    GIB,
    MIB,
    NOW_MS,
    a_card,
    a_command_id,
    a_failure_report,
    a_member,
    a_node_id,
    a_phase_report,
    a_reading,
    a_runner,
    a_sequenced,
    a_state,
    an_engine,
    an_error,
    an_instance,
    an_instance_id,
    some_facts,
    some_readings,
)

CARD = a_card(size_bytes=GIB)
ROOMY = some_readings(a_reading(1), a_reading(2), a_reading(3))
REQUEST = PlacementRequest(model_id=CARD.model_id, context_tokens=4096, slots=2)
DAY_MS = 86_400_000


def placed(
    *,
    node: int = 1,
    phase: Phase = "load",
    request: PlacementRequest | None = REQUEST,
    replace: bool = True,
) -> Instance:
    instance = an_instance(card=CARD, node=node, phase=phase)
    policy = DisconnectPolicy(replace=replace)
    return instance.model_copy(update={"request": request, "disconnect": policy})


def a_cluster(
    *instances: Instance, n_nodes: int = 3, away: int = 0, presence: Presence = "lost"
) -> ClusterState:
    members = [
        a_member(number, presence=presence if number == away else "present")
        for number in range(1, n_nodes + 1)
    ]
    return a_state(members=members, instances=instances or (placed(),))


def then(
    state: ClusterState, command: Command, readings: Readings = ROOMY, *, now_ms: int = NOW_MS
) -> tuple[list[Event], ClusterState]:
    events = list(decide(state, readings, command, now_ms=now_ms))
    for event in events:
        record = a_sequenced(event, seq=state.seq + 1, term=state.term, at_ms=now_ms)
        assert event_violations(state, record) == ()
        state = apply(state, record)
        assert violations(state) == ()
    return events, state


def failing(
    code: ErrorCode = "runner.no_memory", *, node: int = 1, attempt: int = 1, command: int = 50
) -> ReportFailure:
    report = a_failure_report(node=node, attempt=attempt, command=command)
    return report.model_copy(update={"error": an_error(code, "as it was told")})


def repairing(attempt: int = 1) -> RepairInstance:
    return RepairInstance(
        command_id=a_command_id(60), instance_id=an_instance_id(), after_attempt=attempt
    )


def only(state: ClusterState) -> Instance:
    return state.instances[an_instance_id()]


def node_of(instance: Instance) -> int:
    ids = {a_node_id(number): number for number in range(1, 10)}
    return ids[instance.plan.shards[0].node_id]


# ---- After a failure ----


@pytest.mark.parametrize(
    "code",
    [
        "runner.no_memory",
        "runner.exited",
        "runner.load_stalled",
        "runner.probe_failed",
        "engine.unavailable",
        "store.no_space",
        "store.disk_failed",
        "store.offline",
    ],
)
def test_what_failed_for_a_reason_of_its_node_goes_on_elsewhere_under_its_id(
    code: ErrorCode,
) -> None:
    (failed, replanned), state = then(a_cluster(), failing(code))
    assert isinstance(failed, InstanceFailed)
    assert not failed.failure.final
    assert isinstance(replanned, InstanceReplanned)
    assert replanned.repair.error.code == code
    assert replanned.repair.at_fault == (a_node_id(1),)
    instance = only(state)
    assert (instance.attempt, instance.runners, instance.phase) == (2, (), "pending")
    assert node_of(instance) in {2, 3}
    assert (instance.plan.context_tokens, instance.plan.slots) == (4096, 2)
    assert desired_runners(state, a_node_id(1)) == (), "its node gives up what it began"
    assert len(desired_runners(state, instance.plan.shards[0].node_id)) == 1


@pytest.mark.parametrize("code", ["store.digest_mismatch", "store.cancelled", "store.not_found"])
def test_what_would_end_the_same_everywhere_stays_failed(code: ErrorCode) -> None:
    (failed,), state = then(a_cluster(), failing(code))
    assert isinstance(failed, InstanceFailed)
    assert failed.failure.final
    assert state.placement_failures == ()


def test_what_is_not_to_be_replaced_stays_failed() -> None:
    (failed,), _ = then(a_cluster(placed(replace=False)), failing())
    assert isinstance(failed, InstanceFailed)
    assert failed.failure.final


def test_exclusions_nodes_and_backend_of_the_request_are_kept() -> None:
    wished = REQUEST.model_copy(update={"excluded_nodes": (a_node_id(2),)})
    _, state = then(a_cluster(placed(request=wished)), failing())
    assert node_of(only(state)) == 3
    wished = REQUEST.model_copy(update={"nodes": (a_node_id(1), a_node_id(2))})
    _, state = then(a_cluster(placed(request=wished)), failing())
    assert node_of(only(state)) == 2
    wished = REQUEST.model_copy(update={"backend": "llama_server-cuda"})
    _, state = then(a_cluster(placed(request=wished)), failing())
    assert only(state).phase == "failed"


def test_an_instance_without_a_request_keeps_window_and_slots_of_its_plan() -> None:
    _, state = then(a_cluster(placed(request=None)), failing())
    made = only(state).plan
    assert (made.context_tokens, made.slots) == (8192, 1)
    assert node_of(only(state)) != 1


def test_where_no_other_node_fits_it_stays_failed_and_each_one_says_why() -> None:
    tight = some_readings(
        a_reading(1), a_reading(2, memory_available_bytes=64 * MIB), a_reading(3, disk_free_bytes=1)
    )
    (failed, told), state = then(a_cluster(), failing("store.no_space"), tight)
    assert isinstance(failed, InstanceFailed)
    assert failed.failure.final
    assert failed.failure.error.message == "as it was told"
    assert isinstance(told, PlacementFailed)
    assert told.failure.instance_id == an_instance_id()
    error = told.failure.error
    assert "as it was told" in error.message
    assert "box-2: " in error.message
    assert "box-3: " in error.message
    assert f"skulk retry {an_instance_id()}" in error.remediation
    assert only(state).phase == "failed"


def test_a_node_alone_has_nothing_to_say_of_other_places() -> None:
    (failed,), state = then(a_cluster(n_nodes=1), failing())
    assert isinstance(failed, InstanceFailed)
    assert failed.failure.final
    assert state.placement_failures == ()


def test_a_failed_download_is_forgotten_with_the_place_it_was_for() -> None:
    key = f"{a_node_id(1)}/{CARD.model_id}"
    ended = DownloadOutcome(
        node_id=a_node_id(1),
        model_id=CARD.model_id,
        at_ms=NOW_MS,
        size_bytes=GIB,
        error=an_error("store.no_space"),
    )
    state = a_cluster().changed({"downloads": {key: ended}})
    events, after = then(state, failing("store.no_space"))
    assert DownloadForgotten(node_id=a_node_id(1), model_id=CARD.model_id) in events
    assert after.downloads == {}


def test_no_second_copy_comes_to_a_node() -> None:
    copy = an_instance(2, card=CARD, node=2)
    _, state = then(a_cluster(placed(), copy), failing())
    assert node_of(only(state)) == 3


def test_a_transient_failure_is_tried_again_where_it_was_until_the_breaker_is_final() -> None:
    state = a_cluster()
    for attempt in range(1, 4):
        command = failing("store.stalled", attempt=attempt, command=50 + attempt)
        _, state = then(state, command)
        assert node_of(only(state)) == 1
    _, state = then(state, failing("store.stalled", attempt=4, command=54))
    assert node_of(only(state)) != 1
    assert n_recent_retries(state, an_instance_id(), NOW_MS) == 0, "the new place begins anew"


def pooling_cluster(*instances: Instance) -> ClusterState:
    engine = an_engine(rpc=True)
    members = [a_member(number, facts=some_facts(engines=(engine,))) for number in (1, 2, 3)]
    return a_state(members=members, instances=instances)


def test_memory_that_was_refused_is_looked_for_on_more_nodes_first() -> None:
    (_, wider), state = then(pooling_cluster(placed()), failing("runner.no_memory"))
    assert isinstance(wider, InstanceReplanned)
    assert len(wider.plan.shards) == 2
    again = failing("runner.no_memory", attempt=2, command=51)
    driver = wider.plan.shards[0].node_id
    (_, next_one), state = then(state, again.model_copy(update={"node_id": driver}))
    assert isinstance(next_one, InstanceReplanned)
    used = {shard.node_id for shard in next_one.plan.shards}
    assert len(used) in {1, 3}
    assert a_node_id(1) not in used, "it was at fault the first time"


def test_one_that_is_to_be_alone_is_never_spread_for_want_of_memory() -> None:
    alone = REQUEST.model_copy(update={"shape": "single"})
    (_, elsewhere), _ = then(pooling_cluster(placed(request=alone)), failing("runner.no_memory"))
    assert isinstance(elsewhere, InstanceReplanned)
    (shard,) = elsewhere.plan.shards
    assert shard.node_id != a_node_id(1)


# ---- While facts are missing ----


def test_missing_facts_are_waited_for_and_the_failure_is_shown_at_once() -> None:
    unknown = some_readings(a_reading(1))
    (failed,), state = then(a_cluster(), failing(), unknown)
    assert isinstance(failed, InstanceFailed)
    assert not failed.failure.final
    assert only(state).failure == failed.failure
    assert only(state).phase == "pending"
    due = DueRepair(instance_id=an_instance_id(), after_attempt=1)
    assert list(repairs_due(state, {})) == [due]
    assert then(state, repairing(), unknown, now_ms=NOW_MS + 1000)[0] == []
    events, healed = then(state, repairing(), ROOMY, now_ms=NOW_MS + 2000)
    assert [event.kind for event in events] == ["instance_replanned"]
    assert len(healed.failures) == 1
    assert list(repairs_due(healed, {})) == []


def test_missing_facts_are_not_waited_for_without_end() -> None:
    unknown = some_readings(a_reading(1))
    _, state = then(a_cluster(), failing(), unknown)
    (failed, _), state = then(state, repairing(), unknown, now_ms=NOW_MS + FACTS_WAIT_MS)
    assert isinstance(failed, InstanceFailed)
    assert only(state).phase == "failed"
    assert len(state.failures) == 1, "it is one failure, told twice"


def test_one_that_waits_can_be_stopped_and_is_gone_once_its_node_says_so() -> None:
    _, state = then(a_cluster(), failing(), some_readings(a_reading(1)))
    stop = StopInstance(command_id=a_command_id(70), instance_id=an_instance_id())
    _, state = then(state, stop)
    gone = a_phase_report("stopped", command=71)
    (event,), state = then(state, gone)
    assert event == InstanceRemoved(instance_id=an_instance_id())


# ---- Nodes that are away ----


@pytest.mark.parametrize("presence", ["lost", "left"])
def test_one_whose_node_is_away_goes_on_elsewhere(presence: Presence) -> None:
    state = a_cluster(placed(phase="ready"), away=1, presence=presence)
    (replanned,), after = then(state, repairing())
    assert isinstance(replanned, InstanceReplanned)
    assert replanned.repair.error.code == "placement.node_unreachable"
    assert "box-1" in replanned.repair.error.message
    assert node_of(only(after)) in {2, 3}


def pooled(*nodes: int, phase: Phase = "ready") -> Instance:
    """Make one over several nodes; the first drives."""
    instance = placed(phase=phase)
    (whole,) = instance.plan.shards
    step = CARD.n_layers // len(nodes)
    shards = tuple(
        whole.model_copy(
            update={
                "rank": rank,
                "node_id": a_node_id(node),
                "layer_start": rank * step,
                "layer_end": CARD.n_layers if rank == len(nodes) - 1 else (rank + 1) * step,
            }
        )
        for rank, node in enumerate(nodes)
    )
    made = instance.plan.model_copy(update={"shape": "rpc", "shards": shards})
    runners = tuple(
        a_runner(phase, node=node).model_copy(update={"rank": rank})
        for rank, node in enumerate(nodes)
    )
    return instance.model_copy(update={"plan": made, "runners": runners})


def test_b32_one_whose_donor_is_lost_is_put_elsewhere_as_a_whole() -> None:
    state = a_cluster(pooled(1, 2), away=2)
    assert len(list(repairs_due(state, {a_node_id(2): 30_000}))) == 1
    (replanned,), after = then(state, repairing())
    assert isinstance(replanned, InstanceReplanned)
    assert replanned.repair.at_fault == (a_node_id(2),)
    assert "box-2 is away" in replanned.repair.error.message
    assert a_node_id(2) not in replanned.repair.to_nodes
    assert only(after).runners == (), "what is left of the old attempt serves nobody"


def test_b32_a_donor_that_fails_for_good_is_left_out_and_the_driver_is_not() -> None:
    report = failing("runner.exited", node=2).model_copy(update={"rank": 1})
    (_, replanned), after = then(a_cluster(pooled(1, 2, phase="load")), report)
    assert isinstance(replanned, InstanceReplanned)
    assert replanned.repair.at_fault == (a_node_id(2),)
    assert node_of(only(after)) in {1, 3}


def test_b32_a_donor_that_ends_begins_a_new_attempt_of_all_ranks() -> None:
    report = failing("runner.exited", node=2).model_copy(update={"rank": 1, "was_ready": True})
    events, after = then(a_cluster(pooled(1, 2)), report)
    assert [event.kind for event in events] == ["instance_failed", "instance_retried"]
    instance = only(after)
    assert (instance.attempt, instance.runners) == (2, ())
    assert instance.failure is not None
    assert instance.failure.node_id == a_node_id(2)


def test_it_is_due_only_once_its_node_is_silent_for_as_long_as_it_may_be() -> None:
    state = a_cluster(placed(phase="ready"), away=1)
    assert list(repairs_due(state, {a_node_id(1): 29_999})) == []
    assert len(list(repairs_due(state, {a_node_id(1): 30_000}))) == 1
    assert list(repairs_due(state, {})) == [], "it is heard again"
    present = a_cluster(placed(phase="ready"))
    assert list(repairs_due(present, {a_node_id(1): DAY_MS})) == []
    stays = a_cluster(placed(phase="ready", replace=False), away=1)
    assert list(repairs_due(stays, {a_node_id(1): DAY_MS})) == []


def test_where_nothing_fits_it_waits_for_its_node_and_says_once_why() -> None:
    full = some_readings(*(a_reading(number, memory_available_bytes=MIB) for number in (2, 3)))
    state = a_cluster(placed(phase="ready"), away=1)
    (told,), waiting = then(state, repairing(), full)
    assert isinstance(told, PlacementFailed)
    assert "once its node is back" in told.failure.error.remediation
    assert only(waiting).phase == "ready"
    assert then(waiting, repairing(), full, now_ms=NOW_MS + 5000)[0] == []
    events, healed = then(waiting, repairing(), ROOMY, now_ms=NOW_MS + 9000)
    assert [event.kind for event in events] == ["instance_replanned"]
    assert healed.placement_failures == (), "it has a place now"


def test_a_sleeping_one_gets_another_place_and_sleeps_on() -> None:
    asleep = placed(phase="ready").model_copy(
        update={"desired": "asleep", "ttl_ms": 60_000, "runners": ()}
    )
    _, state = then(a_cluster(asleep, away=1), repairing())
    assert only(state).phase == "asleep"
    assert node_of(only(state)) in {2, 3}


@pytest.mark.parametrize("attempt", [2, 7])
def test_a_word_about_another_attempt_changes_nothing(attempt: int) -> None:
    state = a_cluster(placed(phase="ready"), away=1)
    assert then(state, repairing(attempt))[0] == []


def test_a_node_that_is_back_in_time_keeps_what_it_has() -> None:
    assert then(a_cluster(placed(phase="ready")), repairing())[0] == []


# ---- Bounds ----


def test_a_node_at_fault_is_avoided_and_comes_into_question_again_later() -> None:
    _, state = then(a_cluster(n_nodes=2), failing("runner.exited"))
    assert node_of(only(state)) == 2
    again = failing("runner.exited", node=2, attempt=2, command=51)
    _, ended = then(state, again, now_ms=NOW_MS + 1000)
    assert only(ended).phase == "failed", "not to and fro"
    (told,) = ended.placement_failures
    assert "box-1: it could not go on there" in told.error.message
    _, healed = then(state, again, now_ms=NOW_MS + AVOIDED_MS)
    assert node_of(only(healed)) == 1


def test_an_instance_is_put_elsewhere_so_often_and_no_more() -> None:
    n_nodes = MAX_REPAIRS + 3
    roomy = some_readings(*(a_reading(number) for number in range(1, n_nodes + 1)))
    state = a_cluster(n_nodes=n_nodes)
    visited = [1]
    for attempt in range(1, MAX_REPAIRS + 1):
        command = failing("runner.exited", node=visited[-1], attempt=attempt, command=50 + attempt)
        _, state = then(state, command, roomy)
        visited.append(node_of(only(state)))
    assert len(set(visited)) == MAX_REPAIRS + 1
    last = failing("runner.exited", node=visited[-1], attempt=MAX_REPAIRS + 1, command=70)
    _, state = then(state, last, roomy)
    assert only(state).phase == "failed"
    assert "3 times within 10 minutes" in state.placement_failures[-1].error.message
