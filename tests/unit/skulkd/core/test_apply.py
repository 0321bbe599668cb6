from protocol.events import (
    ApiKeyCreated,
    ApiKeyRevoked,
    CardAdded,
    CardRemoved,
    ClusterFounded,
    DownloadEnded,
    Event,
    InstanceFailed,
    InstancePlaced,
    InstanceRemoved,
    InstanceRetried,
    InstanceStopRequested,
    JoinTokenCreated,
    JoinTokenRevoked,
    MasterElected,
    MemberFactsReported,
    MemberJoined,
    MemberLeft,
    MemberLost,
    MemberRemoved,
    MemberReturned,
    PlacementFailed,
    RunnerPhaseChanged,
    SettingsChanged,
    TermSettled,
)
from protocol.instances import LaunchRecord
from protocol.state import (
    DEDUPE_WINDOW,
    FAILURES_KEPT,
    RECENT_RESULTS,
    REMOVED_KEPT,
    ApiKey,
    ClusterSettings,
    ClusterState,
    DownloadOutcome,
    PlacementFailure,
)
from skulkd.core.apply import apply, initial_state, repeated, state_hash
from tests.support.builders import (
    MODEL,
    NOW_MS,
    a_card,
    a_cluster_id,
    a_command_id,
    a_digest,
    a_failure,
    a_key_id,
    a_member,
    a_node_id,
    a_runner,
    a_sequenced,
    a_state,
    a_token,
    a_token_id,
    an_error,
    an_instance,
    an_instance_id,
    some_facts,
)

LAUNCH = LaunchRecord(
    context_tokens=8192, slots=1, argv_digest=a_digest("argv"), ready_at_ms=NOW_MS, load_ms=900
)


def after(state: ClusterState, *events: Event) -> ClusterState:
    for event in events:
        state = apply(state, a_sequenced(event, seq=state.seq + 1))
    return state


def test_every_event_moves_the_position_and_never_the_stamp_back() -> None:
    state = apply(a_state(), a_sequenced(ClusterFounded(cluster_id=a_cluster_id()), at_ms=5))
    assert (state.term, state.seq, state.at_ms) == (1, 11, NOW_MS)


def test_the_old_state_stays_as_it_was() -> None:
    old = a_state(instances=[an_instance(phase="load")])
    before = state_hash(old)
    new = after(old, RunnerPhaseChanged(instance_id=an_instance_id(), runner=a_runner("probe")))
    assert state_hash(old) == before
    assert state_hash(new) != before


def test_founding_electing_and_joining_make_a_cluster() -> None:
    state = after(
        initial_state(a_cluster_id(2)),
        ClusterFounded(cluster_id=a_cluster_id()),
        MemberJoined(member=a_member(has_facts=False)),
        MasterElected(master=a_node_id()),
    )
    assert state.cluster_id == a_cluster_id()
    assert state.master == a_node_id()
    assert state.members[a_node_id()].facts is None


def test_facts_are_kept_with_their_member() -> None:
    member = a_member()
    state = after(
        a_state(members=[a_member(has_facts=False)]),
        MemberFactsReported(
            node_id=a_node_id(), facts=some_facts(), capabilities=member.capabilities
        ),
    )
    assert state.members[a_node_id()] == member


def test_what_a_member_does_is_its_presence_since_the_events_stamp() -> None:
    state = a_state(members=[a_member(1), a_member(2)])
    node_id = a_node_id(2)
    story = (
        (MemberLost(node_id=node_id, silent_ms=6000, is_refused=False), "lost"),
        (MemberReturned(node_id=node_id), "present"),
        (MemberLeft(node_id=node_id), "left"),
        (MemberReturned(node_id=node_id), "present"),
    )
    for step, (event, presence) in enumerate(story, start=1):
        record = a_sequenced(event, seq=state.seq + 1, at_ms=NOW_MS + step)
        state = apply(state, record)
        member = state.members[node_id]
        assert (member.presence, member.since_ms) == (presence, NOW_MS + step)
    assert state.members[a_node_id(1)] == a_member(1)


def test_joining_uses_an_invitation_up_and_keeps_it() -> None:
    state = after(a_state(), JoinTokenCreated(token=a_token(uses_left=1)))
    state = after(state, MemberJoined(member=a_member(2), token_id=a_token_id()))
    assert state.join_tokens[a_token_id()].uses_left == 0
    state = after(state, MemberJoined(member=a_member(3), token_id=a_token_id()))
    assert state.join_tokens[a_token_id()].uses_left == 0
    assert after(state, JoinTokenRevoked(token_id=a_token_id())).join_tokens == {}


def test_a_removed_member_leaves_its_key_and_nothing_else() -> None:
    outcomes = {
        f"{a_node_id(n)}/{MODEL}": DownloadOutcome(
            node_id=a_node_id(n), model_id=MODEL, at_ms=NOW_MS, size_bytes=5
        )
        for n in (1, 2)
    }
    state = a_state(members=[a_member(1), a_member(2)]).model_copy(update={"downloads": outcomes})
    state = after(state, MemberRemoved(node_id=a_node_id(2)))
    assert set(state.members) == {a_node_id(1)}
    assert set(state.downloads) == {f"{a_node_id(1)}/{MODEL}"}
    gone = state.removed[a_node_id(2)]
    assert (gone.public_key, gone.name, gone.at_ms) == (a_member(2).public_key, "box-2", NOW_MS)
    back = after(state, MemberJoined(member=a_member(2)))
    assert (back.removed, set(back.members)) == ({}, {a_node_id(1), a_node_id(2)})


def test_the_oldest_removed_members_are_forgotten_first() -> None:
    state = a_state()
    for number in range(2, REMOVED_KEPT + 5):
        state = after(
            state,
            MemberJoined(member=a_member(number, has_facts=False)),
            MemberRemoved(node_id=a_node_id(number)),
        )
    assert len(state.removed) == REMOVED_KEPT
    assert a_node_id(4) not in state.removed
    assert list(state.removed) == [a_node_id(number) for number in range(5, REMOVED_KEPT + 5)]


def test_what_a_minority_decides_is_settled_only_with_its_term() -> None:
    state = a_state(seq=10)
    assert (state.settled_term, state.settled_seq) == (1, 10)

    def then(event: Event, term: int) -> tuple[bool, int, int]:
        nonlocal state
        state = apply(state, a_sequenced(event, seq=state.seq + 1, term=term))
        return state.is_minority_term, state.settled_term, state.settled_seq

    minority = MasterElected(master=a_node_id(), is_minority=True)
    assert then(minority, 2) == (True, 1, 10)
    assert then(CardAdded(card=a_card()), 2) == (True, 1, 10)
    assert then(TermSettled(), 2) == (False, 2, 13)
    assert then(CardRemoved(model_id=MODEL), 2) == (False, 2, 14)
    assert then(minority, 3) == (True, 2, 14)
    assert then(MasterElected(master=a_node_id(), is_minority=False), 4) == (False, 4, 16)


def test_ready_clears_the_failure_and_keeps_the_launch_for_the_model() -> None:
    failed = an_instance(phase="probe", attempt=2, failure=a_failure(final=False))
    state = after(
        a_state(instances=[failed]),
        RunnerPhaseChanged(
            instance_id=an_instance_id(), runner=a_runner("ready", attempt=2), launch=LAUNCH
        ),
    )
    instance = state.instances[an_instance_id()]
    assert (instance.phase, instance.failure, instance.launch) == ("ready", None, LAUNCH)
    assert state.launches == {MODEL: LAUNCH}


def test_runners_are_kept_in_order_of_rank() -> None:
    state = a_state(instances=[an_instance(phase=None)])
    for rank in (2, 0, 1, 0):
        state = after(
            state,
            RunnerPhaseChanged(instance_id=an_instance_id(), runner=a_runner("load", rank=rank)),
        )
    assert [runner.rank for runner in state.instances[an_instance_id()].runners] == [0, 1, 2]


def test_a_final_failure_fails_the_instance_until_it_is_retried() -> None:
    state = after(a_state(instances=[an_instance()]), InstanceFailed(failure=a_failure()))
    failed = state.instances[an_instance_id()]
    assert (failed.phase, failed.runners[0].phase) == ("failed", "failed")
    assert state.failures == (a_failure(),)
    retried = after(state, InstanceRetried(instance_id=an_instance_id(), attempt=2))
    instance = retried.instances[an_instance_id()]
    assert (instance.phase, instance.attempt, instance.runners) == ("pending", 2, ())
    assert instance.failure is not None
    assert instance.failure.error == a_failure().error
    assert retried.failures[0].final


def test_only_the_last_failures_are_kept() -> None:
    state = a_state(instances=[an_instance()])
    for attempt in range(FAILURES_KEPT + 5):
        state = after(state, InstanceFailed(failure=a_failure(attempt=attempt, final=False)))
    assert len(state.failures) == FAILURES_KEPT
    assert state.failures[0].attempt == 5


def test_an_instance_is_stopped_then_removed() -> None:
    state = after(a_state(), InstancePlaced(instance=an_instance(phase=None)))
    assert state.instances[an_instance_id()].phase == "pending"
    state = after(state, InstanceStopRequested(instance_id=an_instance_id()))
    assert state.instances[an_instance_id()].phase == "stopping"
    state = after(state, InstanceRemoved(instance_id=an_instance_id()))
    assert state.instances == {}


def test_outcomes_cards_keys_and_settings_are_replaced_by_id() -> None:
    outcome = DownloadOutcome(node_id=a_node_id(), model_id=MODEL, at_ms=NOW_MS, size_bytes=5)
    key = ApiKey(
        key_id=a_key_id(),
        name="laptop",
        secret_sha256="0" * 64,
        scope="infer",
        created_at_ms=NOW_MS,
    )
    failure = PlacementFailure(
        instance_id=an_instance_id(), model_id=MODEL, at_ms=NOW_MS, error=an_error()
    )
    state = after(
        a_state(),
        DownloadEnded(outcome=outcome),
        CardAdded(card=a_card()),
        ApiKeyCreated(key=key),
        SettingsChanged(settings=ClusterSettings(loopback="keyed")),
        PlacementFailed(failure=failure),
    )
    assert state.downloads == {f"{a_node_id()}/{MODEL}": outcome}
    assert state.cards == {MODEL: a_card()}
    assert state.api_keys == {a_key_id(): key}
    assert state.settings.loopback == "keyed"
    assert state.placement_failures == (failure,)
    state = after(state, CardRemoved(model_id=MODEL), ApiKeyRevoked(key_id=a_key_id()))
    assert (state.cards, state.api_keys) == ({}, {})


def test_events_about_the_unknown_change_only_the_position() -> None:
    state = a_state()
    for event in (
        RunnerPhaseChanged(instance_id=an_instance_id(), runner=a_runner()),
        InstanceRetried(instance_id=an_instance_id(), attempt=2),
        InstanceStopRequested(instance_id=an_instance_id()),
        InstanceRemoved(instance_id=an_instance_id()),
        MemberFactsReported(
            node_id=a_node_id(9), facts=some_facts(), capabilities=a_member().capabilities
        ),
        MemberLost(node_id=a_node_id(9), silent_ms=6000, is_refused=False),
        MemberRemoved(node_id=a_node_id(9)),
        JoinTokenRevoked(token_id=a_token_id(9)),
    ):
        seq = state.seq + 1
        assert after(state, event) == state.model_copy(update={"seq": seq, "settled_seq": seq})


def test_a_command_is_remembered_with_its_last_event() -> None:
    state = a_state(instances=[an_instance()])
    for seq, event in enumerate(
        (
            InstanceFailed(failure=a_failure(final=False)),
            InstanceRetried(instance_id=an_instance_id(), attempt=2),
        ),
        start=11,
    ):
        state = apply(state, a_sequenced(event, seq=seq, command_id=a_command_id(7)))
    result = repeated(state, a_command_id(7))
    assert result is not None
    assert result.seq == 12
    assert repeated(state, a_command_id(8)) is None


def test_events_without_a_command_are_not_remembered() -> None:
    state = after(a_state(), ClusterFounded(cluster_id=a_cluster_id()))
    assert (state.results, state.recent_results) == ({}, ())


def test_the_window_forgets_the_oldest_commands_only() -> None:
    n_commands = DEDUPE_WINDOW + 3 * RECENT_RESULTS + 5
    state = a_state()
    event = ClusterFounded(cluster_id=a_cluster_id())
    for number in range(n_commands):
        sequenced = a_sequenced(event, seq=state.seq + 1, command_id=a_command_id(number))
        state = apply(state, sequenced)
    for number in range(n_commands - DEDUPE_WINDOW, n_commands):
        assert repeated(state, a_command_id(number)) is not None
    assert repeated(state, a_command_id(0)) is None
    assert len(state.results) == DEDUPE_WINDOW
    assert len(state.recent_results) < RECENT_RESULTS


def test_the_hash_does_not_depend_on_the_order_of_keys() -> None:
    one, two = a_member(1), a_member(2)
    assert state_hash(a_state(members=[one, two])) == state_hash(a_state(members=[two, one]))
    assert state_hash(a_state(members=[one])) != state_hash(a_state(members=[one, two]))


def test_the_hash_survives_a_round_trip_through_json() -> None:
    state = a_state(instances=[an_instance()], failures=(a_failure(),))
    again = ClusterState.model_validate_json(state.model_dump_json())
    assert state_hash(again) == state_hash(state)
