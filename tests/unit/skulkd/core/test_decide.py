import pytest

from protocol.cards import card_digest
from protocol.commands import (
    AddCard,
    ChangeSettings,
    ClearBreaker,
    Command,
    CreateApiKey,
    RemoveCard,
    ReportDownload,
    RetryInstance,
    RevokeApiKey,
    StopInstance,
)
from protocol.errors import ErrorCode, SkulkError
from protocol.events import (
    ApiKeyCreated,
    BreakerCleared,
    CardAdded,
    Event,
    InstanceFailed,
    InstancePlaced,
    InstanceRemoved,
    InstanceRetried,
    InstanceStopRequested,
    MemberFactsReported,
    MemberJoined,
    RunnerPhaseChanged,
    SettingsChanged,
)
from protocol.instances import Phase
from protocol.placements import PlacementRequest, Plan
from protocol.readings import Readings
from protocol.state import ClusterSettings, ClusterState
from skulkd.core.apply import apply
from skulkd.core.decide import decide
from skulkd.core.placement.planner import plan
from tests.support.builders import (
    GIB,
    MIB,
    MODEL,
    NOW_MS,
    a_card,
    a_command_id,
    a_facts_report,
    a_failure,
    a_failure_report,
    a_key_id,
    a_member,
    a_node_id,
    a_phase_report,
    a_placement,
    a_plan,
    a_public_key,
    a_reading,
    a_request,
    a_scripted_card,
    a_sequenced,
    a_state,
    an_admission,
    an_error,
    an_instance,
    an_instance_id,
    some_arithmetic,
    some_readings,
)

CARD = a_card(size_bytes=GIB)
NO_READINGS = Readings()


def decided(state: ClusterState, command: Command, readings: Readings | None = None) -> list[Event]:
    return list(decide(state, readings or some_readings(), command, now_ms=NOW_MS))


def refused(state: ClusterState, command: Command, readings: Readings | None = None) -> SkulkError:
    with pytest.raises(SkulkError) as caught:
        decided(state, command, readings)
    return caught.value


def after(state: ClusterState, *events: Event) -> ClusterState:
    for event in events:
        state = apply(state, a_sequenced(event, seq=state.seq + 1))
    return state


def planned(
    state: ClusterState | None = None,
    readings: Readings | None = None,
    request: PlacementRequest | None = None,
) -> Plan:
    outcome = plan(
        request or a_request(CARD),
        CARD,
        card_digest(CARD),
        state or a_state(),
        readings or some_readings(),
    )
    return outcome.plans[0]


def test_a_plan_that_still_holds_is_placed_under_the_commands_id() -> None:
    made = planned()
    (event,) = decided(a_state(), a_placement(made, CARD))
    assert isinstance(event, InstancePlaced)
    assert event.instance.instance_id == a_command_id()
    assert event.instance.plan == made
    assert event.instance.placed_at_ms == NOW_MS


def test_a_placement_is_judged_on_the_masters_own_readings() -> None:
    made = planned()
    moved = some_readings(a_reading(memory_available_bytes=11 * GIB))
    (event,) = decided(a_state(), a_placement(made, CARD), moved)
    assert isinstance(event, InstancePlaced)
    assert event.instance.plan.plan_id == made.plan_id
    assert event.instance.plan.shards[0].memory.available_bytes == 11 * GIB


def test_a_plan_that_no_longer_fits_is_refused_with_the_new_plan_and_its_sum() -> None:
    state = a_state(members=[a_member(1), a_member(2)])
    made = planned(state, some_readings(a_reading(1), a_reading(2, memory_available_bytes=2 * GIB)))
    assert made.shards[0].node_id == a_node_id(1)
    tight = some_readings(a_reading(1, memory_available_bytes=GIB), a_reading(2))
    error = refused(state, a_placement(made, CARD), tight)
    assert error.code == "placement.plan_changed"
    assert error.details["plan_id"] == planned(state, tight).plan_id
    assert error.details["available_bytes"] == 12 * GIB
    assert "too little" in error.message


def test_a_plan_for_which_nothing_fits_any_more_is_refused_with_the_reason() -> None:
    tight = some_readings(a_reading(memory_available_bytes=GIB))
    assert refused(a_state(), a_placement(planned(), CARD), tight).code == "placement.no_fit"


def test_a_plan_whose_id_is_not_its_assignments_is_refused() -> None:
    forged = planned().model_copy(update={"plan_id": "0" * 64})
    error = refused(a_state(), a_placement(forged, CARD))
    assert (error.code, error.details["plan_id"]) == ("placement.plan_changed", planned().plan_id)


def test_while_facts_are_missing_the_refusal_says_which_and_may_be_retried() -> None:
    error = refused(a_state(), a_placement(planned(), CARD), NO_READINGS)
    assert error.code == "placement.facts_missing"
    assert "memory of box-1" in error.message
    assert error.retry_after_s is not None


def test_a_card_that_is_not_the_plans_or_not_the_catalogues_is_refused() -> None:
    other = a_card(size_bytes=GIB, n_layers=31)
    assert refused(a_state(), a_placement(planned(), other)).code == "placement.card_changed"
    state = a_state().model_copy(update={"cards": {MODEL: other}})
    assert refused(state, a_placement(planned(), CARD)).code == "placement.card_changed"


@pytest.mark.parametrize(
    "request_",
    [
        PlacementRequest(model_id=MODEL, context_tokens=4096),
        PlacementRequest(model_id=MODEL, slots=7),
        a_request(a_card(model_id="test/other")),
    ],
)
def test_a_placement_that_contradicts_itself_is_invalid(request_: PlacementRequest) -> None:
    command = a_placement(planned(), CARD, request=request_)
    assert refused(a_state(), command).code == "request.invalid"


@pytest.mark.parametrize("update", [{"slots": 0}, {"slots": 257}, {"context_tokens": 0}])
def test_a_plan_beyond_what_a_request_may_ask_is_invalid(update: dict[str, int]) -> None:
    forged = planned().model_copy(update=update)
    assert refused(a_state(), a_placement(forged, CARD)).code == "request.invalid"


def test_a_node_that_the_request_excludes_is_not_placed_onto() -> None:
    request = a_request(CARD).model_copy(update={"excluded_nodes": (a_node_id(),)})
    error = refused(a_state(), a_placement(planned(), CARD, request=request))
    assert error.code == "placement.no_node"


def test_a_node_that_left_is_not_placed_onto() -> None:
    state = a_state(members=[a_member(2, backends=())])
    assert refused(state, a_placement(planned(), CARD)).code == "placement.no_backend"


@pytest.mark.parametrize("phase", [None, "load", "ready"])
def test_a_model_runs_once_on_a_node(phase: str | None) -> None:
    live = an_instance(9, card=CARD).model_copy(
        update={"runners": () if phase is None else an_instance(9).runners}
    )
    error = refused(a_state(instances=[live]), a_placement(planned(), CARD))
    assert error.code == "placement.already_live"
    assert error.details["instance_id"] == live.instance_id


def test_a_second_copy_may_run_on_another_node() -> None:
    state = a_state(
        members=[a_member(1), a_member(2)], instances=[an_instance(9, card=CARD, node=2)]
    )
    readings = some_readings(a_reading(1), a_reading(2))
    only_first = a_request(CARD).model_copy(update={"nodes": (a_node_id(1),)})
    made = planned(state, readings, only_first)
    (event,) = decided(state, a_placement(made, CARD, request=only_first), readings)
    assert isinstance(event, InstancePlaced)


def test_a_failed_instance_gives_way_and_a_stopping_one_does_not_stand_in_it() -> None:
    failed = an_instance(8, card=CARD, failure=a_failure(8))
    stopping = an_instance(9, card=CARD, stopping=True)
    events = decided(a_state(instances=[failed, stopping]), a_placement(planned(), CARD))
    assert events[0] == InstanceRemoved(instance_id=an_instance_id(8))
    assert isinstance(events[1], InstancePlaced)


def test_a_placement_that_is_there_already_changes_nothing() -> None:
    command = a_placement(planned(), CARD)
    state = after(a_state(), *decided(a_state(), command))
    assert decided(state, command) == []


def test_stop_asks_the_runners_to_go_once() -> None:
    stop = StopInstance(command_id=a_command_id(5), instance_id=an_instance_id())
    state = a_state(instances=[an_instance()])
    assert decided(state, stop) == [InstanceStopRequested(instance_id=an_instance_id())]
    assert decided(after(state, *decided(state, stop)), stop) == []


def test_stop_forgets_a_failed_instance_and_refuses_an_unknown_one() -> None:
    stop = StopInstance(command_id=a_command_id(5), instance_id=an_instance_id())
    failed = a_state(instances=[an_instance(failure=a_failure())])
    assert decided(failed, stop) == [InstanceRemoved(instance_id=an_instance_id())]
    assert refused(a_state(), stop).code == "placement.not_live"


def test_an_unwanted_instance_is_removed_when_its_runner_is_gone_and_not_when_it_fails() -> None:
    state = a_state(instances=[an_instance(stopping=True)])
    removed = [InstanceRemoved(instance_id=an_instance_id())]
    assert decided(state, a_phase_report("stopped")) == removed
    assert decided(state, a_failure_report(phase="stopping")) == []


def test_a_phase_is_reported_once() -> None:
    state = a_state(instances=[an_instance(phase="load")])
    report = a_phase_report("probe")
    (event,) = decided(state, report)
    assert isinstance(event, RunnerPhaseChanged)
    assert (event.runner.phase, event.runner.pid) == ("probe", 4711)
    assert decided(after(state, event), report) == []


@pytest.mark.parametrize("phase", ["pending", "download", "load"])
def test_a_phase_does_not_go_backwards_within_an_attempt(phase: str) -> None:
    state = a_state(instances=[an_instance(phase="ready")])
    report = a_phase_report("load").model_copy(update={"phase": phase})
    assert decided(state, report) == []


def test_reports_of_another_attempt_or_of_a_forgotten_instance_are_late() -> None:
    state = a_state(instances=[an_instance(attempt=2, phase="load")])
    for report in (a_phase_report("ready", attempt=1), a_failure_report(attempt=1)):
        assert decided(state, report) == []
        assert decided(a_state(), report) == []


def test_a_report_from_a_node_that_the_plan_does_not_name_is_invalid() -> None:
    state = a_state(instances=[an_instance(node=1)])
    assert refused(state, a_phase_report("ready", node=2)).code == "request.invalid"


def test_a_failure_is_not_reported_as_a_phase() -> None:
    state = a_state(instances=[an_instance(phase="load")])
    assert refused(state, a_phase_report("failed")).code == "request.invalid"


def test_a_bad_exit_during_load_is_final() -> None:
    state = a_state(instances=[an_instance(phase="load")])
    (event,) = decided(state, a_failure_report())
    assert isinstance(event, InstanceFailed)
    failure = event.failure
    assert (failure.final, failure.exit_code, failure.log_tail) == (
        True,
        1,
        ("something broke",),
    )


def test_a_ready_runner_that_died_begins_another_attempt() -> None:
    state = a_state(instances=[an_instance(phase="ready")])
    events = decided(state, a_failure_report(phase="ready", was_ready=True))
    assert isinstance(events[0], InstanceFailed)
    assert not events[0].failure.final
    assert events[1:] == [InstanceRetried(instance_id=an_instance_id(), attempt=2)]


def test_a_ready_runner_that_keeps_dying_is_given_up_after_three_relaunches() -> None:
    state = a_state(instances=[an_instance(phase="ready")])
    for attempt in range(1, 5):
        report = a_failure_report(attempt=attempt, phase="ready", was_ready=True)
        events = decided(state, report)
        assert len(events) == (2 if attempt < 4 else 1)
        state = after(state, *events)
    assert state.instances[an_instance_id()].phase == "failed"
    assert len(state.failures) == 4


def test_a_failure_is_reported_once() -> None:
    state = a_state(instances=[an_instance(phase="load")])
    report = a_failure_report()
    assert decided(after(state, *decided(state, report)), report) == []


@pytest.mark.parametrize("known", [None, "load"])
def test_a_report_that_comes_after_the_failure_of_its_attempt_changes_nothing(
    known: Phase | None,
) -> None:
    state = a_state(instances=[an_instance(phase=known)])
    state = after(state, *decided(state, a_failure_report()))
    assert decided(state, a_phase_report("ready")) == []
    assert state.instances[an_instance_id()].phase == "failed"


def test_an_operator_may_retry_what_failed_for_good() -> None:
    state = a_state(instances=[an_instance(failure=a_failure())])
    command = RetryInstance(
        command_id=a_command_id(7), instance_id=an_instance_id(), after_attempt=1
    )
    events = decided(state, command)
    assert events == [InstanceRetried(instance_id=an_instance_id(), attempt=2)]
    moved_on = after(state, *events)
    assert moved_on.instances[an_instance_id()].phase == "pending"
    assert refused(moved_on, command).code == "placement.busy"


def test_a_retry_does_not_take_what_others_were_given_meanwhile() -> None:
    memory = some_arithmetic(weights_bytes=10 * GIB)
    failed_card, other_card = a_scripted_card(), a_scripted_card(model_id="test/other")
    failed = an_instance(plan=a_plan(failed_card, memory=memory), failure=a_failure())
    other = an_instance(2, card=other_card, plan=a_plan(other_card, memory=memory))
    command = RetryInstance(
        command_id=a_command_id(7), instance_id=an_instance_id(), after_attempt=1
    )
    error = refused(a_state(instances=[failed, other]), command)
    assert error.code == "placement.no_fit"
    assert "4.1 GiB too little" in error.message
    settling = an_instance(2, card=other_card, plan=other.plan, stopping=True)
    assert decided(a_state(instances=[failed, settling]), command) != []


def test_what_is_stopping_or_unknown_is_not_retried() -> None:
    command = RetryInstance(
        command_id=a_command_id(7), instance_id=an_instance_id(), after_attempt=1
    )
    stopping = a_state(instances=[an_instance(stopping=True)])
    assert refused(stopping, command).code == "placement.not_live"
    assert refused(a_state(), command).code == "placement.not_live"


def test_an_admission_keeps_facts_and_says_nothing_new_twice() -> None:
    state = a_state(members=[])
    (joined,) = decided(state, an_admission())
    assert isinstance(joined, MemberJoined)
    state = after(state, joined)
    (reported,) = decided(state, a_facts_report())
    assert isinstance(reported, MemberFactsReported)
    state = after(state, reported)
    assert decided(state, an_admission()) == []
    assert decided(state, a_facts_report()) == []
    renamed = an_admission().model_copy(update={"name": "attic"})
    (event,) = decided(state, renamed)
    assert isinstance(event, MemberJoined)
    assert event.member.facts is not None


def test_a_member_does_not_change_its_key() -> None:
    known = a_member().model_copy(update={"public_key": a_public_key(2)})
    error = refused(a_state(members=[known]), an_admission())
    assert error.code == "request.invalid"
    assert "with another public key" in error.message


def test_facts_of_a_stranger_are_refused() -> None:
    assert refused(a_state(), a_facts_report(9)).code == "cluster.not_member"


def test_the_same_outcome_of_a_download_is_an_event_once() -> None:
    failed = ReportDownload(
        command_id=a_command_id(3),
        node_id=a_node_id(),
        model_id=MODEL,
        size_bytes=0,
        error=an_error("store.stalled"),
    )
    state = after(a_state(), *decided(a_state(), failed))
    assert decided(state, failed) == []
    done = failed.model_copy(update={"error": None, "size_bytes": 100 * MIB})
    state = after(state, *decided(state, done))
    assert state.downloads[f"{a_node_id()}/{MODEL}"].error is None


def test_cards_are_added_changed_and_removed_once() -> None:
    add = AddCard(command_id=a_command_id(3), card=CARD)
    remove = RemoveCard(command_id=a_command_id(4), model_id=MODEL)
    assert refused(a_state(), remove).code == "store.not_found"
    state = after(a_state(), *decided(a_state(), add))
    assert decided(state, add) == []
    changed = a_scripted_card()
    assert decided(state, add.model_copy(update={"card": changed})) == [CardAdded(card=changed)]
    assert after(state, *decided(state, remove)).cards == {}


def a_key_command(*, expires_at_ms: int | None = None) -> CreateApiKey:
    return CreateApiKey(
        command_id=a_command_id(3),
        key_id=a_key_id(),
        name="laptop",
        secret_sha256="0" * 64,
        scope="infer",
        expires_at_ms=expires_at_ms,
    )


def test_keys_are_made_once_and_revoked_once() -> None:
    revoke = RevokeApiKey(command_id=a_command_id(4), key_id=a_key_id())
    assert refused(a_state(), revoke).code == "request.not_found"
    (event,) = decided(a_state(), a_key_command())
    assert isinstance(event, ApiKeyCreated)
    assert event.key.created_at_ms == NOW_MS
    state = after(a_state(), event)
    assert refused(state, a_key_command()).code == "request.invalid"
    assert after(state, *decided(state, revoke)).api_keys == {}


def test_a_key_that_has_expired_already_is_invalid() -> None:
    assert refused(a_state(), a_key_command(expires_at_ms=NOW_MS)).code == "request.invalid"


def test_settings_change_only_when_they_differ() -> None:
    same = ChangeSettings(command_id=a_command_id(3), settings=ClusterSettings())
    assert decided(a_state(), same) == []
    keyed = ClusterSettings(loopback="keyed")
    changed = same.model_copy(update={"settings": keyed})
    assert decided(a_state(), changed) == [SettingsChanged(settings=keyed)]


@pytest.mark.parametrize("code", ["runner.no_memory", "engine.cpu_unsupported"])
def test_a_cause_that_stays_is_final_however_often_it_was_tried(code: ErrorCode) -> None:
    state = a_state(instances=[an_instance(phase="stage")])
    (event,) = decided(state, a_failure_report(phase="stage", error=an_error(code)))
    assert isinstance(event, InstanceFailed)
    assert event.failure.final


def test_clearing_the_breaker_is_decided_where_there_is_something_to_forget() -> None:
    clear = ClearBreaker(command_id=a_command_id(5), instance_id=an_instance_id())
    again = a_failure(phase="ready", at_ms=NOW_MS - 1000, final=False)
    relaunched = an_instance(attempt=2, failure=again)
    state = a_state(instances=[relaunched], failures=(again,))
    assert decided(state, clear) == [BreakerCleared(instance_id=an_instance_id())]
    assert decided(after(state, *decided(state, clear)), clear) == []
    assert decided(a_state(instances=[an_instance()]), clear) == []


def test_clearing_the_breaker_of_what_failed_for_good_tries_it_again() -> None:
    clear = ClearBreaker(command_id=a_command_id(5), instance_id=an_instance_id())
    failed = a_state(instances=[an_instance(failure=a_failure())])
    assert decided(failed, clear) == [InstanceRetried(instance_id=an_instance_id(), attempt=2)]
    stopping = a_state(instances=[an_instance(stopping=True)])
    assert refused(stopping, clear).code == "placement.not_live"
    assert refused(a_state(), clear).code == "placement.not_live"
