import pytest

from protocol.commands import (
    ChangeSettings,
    Command,
    RemoveMember,
    ReportDownload,
    ReportLeave,
    ReportLoss,
    SettleTerm,
)
from protocol.errors import ErrorCode, SkulkError
from protocol.events import (
    ClusterFounded,
    Event,
    InstanceRemoved,
    InstanceStopRequested,
    JoinTokenRevoked,
    MemberJoined,
    MemberLeft,
    MemberLost,
    MemberRemoved,
    MemberReturned,
    RunnerPhaseChanged,
    SettingsChanged,
    TermSettled,
)
from protocol.ids import TokenId
from protocol.nodes import Presence
from protocol.peer_messages import MAX_MEMBERS
from protocol.readings import Readings
from protocol.state import ClusterSettings, ClusterState, JoinToken, RemovedMember
from skulkd.core.apply import apply, initial_state
from skulkd.core.decide import decide
from skulkd.core.invariants import event_violations, violations
from skulkd.core.member_decisions import voters_of
from tests.support.builders import (
    MODEL,
    NOW_MS,
    a_cluster_id,
    a_command_id,
    a_facts_report,
    a_failure,
    a_member,
    a_node_id,
    a_plan,
    a_public_key,
    a_runner,
    a_scripted_card,
    a_sequenced,
    a_state,
    a_token,
    a_token_id,
    an_admission,
    an_instance,
    an_instance_id,
)

HOUR_MS = 3_600_000


def decided(state: ClusterState, command: Command, *, now_ms: int = NOW_MS) -> list[Event]:
    events = list(decide(state, Readings(), command, now_ms=now_ms))
    for event in events:
        record = a_sequenced(event, seq=state.seq + 1, term=state.term, at_ms=now_ms)
        assert event_violations(state, record) == ()
        state = apply(state, record)
        assert violations(state) == ()
    return events


def refused(state: ClusterState, command: Command, *, now_ms: int = NOW_MS) -> SkulkError:
    with pytest.raises(SkulkError) as caught:
        decide(state, Readings(), command, now_ms=now_ms)
    assert caught.value.remediation
    return caught.value


def two(presence: Presence = "present") -> ClusterState:
    return a_state(members=[a_member(1), a_member(2, presence=presence)])


def loss(number: int = 2) -> ReportLoss:
    return ReportLoss(
        command_id=a_command_id(), node_id=a_node_id(number), silent_ms=6000, is_refused=True
    )


def leave(number: int = 2) -> ReportLeave:
    return ReportLeave(command_id=a_command_id(), node_id=a_node_id(number))


def removal(number: int = 2) -> RemoveMember:
    return RemoveMember(command_id=a_command_id(), node_id=a_node_id(number))


# ---- Admission ----


def test_the_first_member_of_a_cluster_needs_no_invitation() -> None:
    founded = ClusterFounded(cluster_id=a_cluster_id())
    state = apply(initial_state(a_cluster_id()), a_sequenced(founded, seq=1))
    (event,) = decided(state, an_admission())
    assert isinstance(event, MemberJoined)
    assert (event.member.node_id, event.member.since_ms) == (a_node_id(), NOW_MS)
    assert event.member.presence == "present"


def test_a_second_one_without_an_invitation_is_refused() -> None:
    assert refused(a_state(), an_admission(2)).code == "cluster.not_member"


def test_a_guest_with_an_invitation_joins_and_uses_it_up_by_one() -> None:
    state = a_state(tokens=[a_token(uses_left=2)])
    (event,) = decided(state, an_admission(2, token=1, addresses=("10.0.0.2:12416",)))
    assert isinstance(event, MemberJoined)
    assert event.token_id == a_token_id()
    assert event.member.addresses == ("10.0.0.2:12416",)
    assert event.member.facts is None


def test_a_guest_has_no_vote_until_it_comes_and_speaks_for_itself() -> None:
    state = a_state(tokens=[a_token(uses_left=2)])
    (joined,) = decided(state, an_admission(2, token=1))
    state = apply(state, a_sequenced(joined, seq=state.seq + 1))
    assert state.members[a_node_id(2)].presence == "joining"
    assert voters_of(state) == {a_node_id(1)}
    # Asking again by the invitation is the inviter's word, not the node's.
    assert decided(state, an_admission(2, token=1, command=4)) == []
    assert decided(state, an_admission(2, command=5)) == [MemberReturned(node_id=a_node_id(2))]


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (a_state(), "cluster.token_unknown"),
        (a_state(tokens=[a_token(uses_left=0)]), "cluster.token_used"),
        (a_state(tokens=[a_token(expires_at_ms=NOW_MS)]), "cluster.token_expired"),
    ],
)
def test_an_invitation_that_does_not_hold_says_why(state: ClusterState, code: ErrorCode) -> None:
    assert refused(state, an_admission(2, token=1)).code == code


def test_an_invitation_expires_by_the_newest_stamp_in_the_log_too() -> None:
    state = a_state(tokens=[a_token(expires_at_ms=NOW_MS)])
    stepped_back_ms = NOW_MS - HOUR_MS
    error = refused(state, an_admission(2, token=1), now_ms=stepped_back_ms)
    assert error.code == "cluster.token_expired"


def test_a_guest_whose_answer_was_lost_asks_again_and_uses_nothing_up() -> None:
    state = two("joining").model_copy(update={"join_tokens": {a_token_id(): a_token(uses_left=0)}})
    assert decided(state, an_admission(2, token=1, command=9)) == []


@pytest.mark.parametrize("presence", ["present", "lost", "left"])
def test_a_member_that_comes_as_a_guest_has_no_vote_until_it_is_back(presence: Presence) -> None:
    state = two(presence).model_copy(update={"join_tokens": {a_token_id(): a_token(uses_left=1)}})
    (joined,) = decided(state, an_admission(2, token=1))
    assert isinstance(joined, MemberJoined)
    assert (joined.member.presence, joined.token_id) == ("joining", a_token_id())
    used_up = two(presence).model_copy(update={"join_tokens": {a_token_id(): a_token(uses_left=0)}})
    assert refused(used_up, an_admission(2, token=1)).code == "cluster.token_used"


def test_neither_the_master_nor_the_last_voter_loses_its_vote_by_an_invitation() -> None:
    tokens = {a_token_id(): a_token()}
    assert decided(two().model_copy(update={"join_tokens": tokens}), an_admission(1, token=1)) == []
    alone = two("left").model_copy(update={"join_tokens": tokens, "master": a_node_id(2)})
    assert decided(alone, an_admission(1, token=1)) == []


@pytest.mark.parametrize(
    ("tokens", "code"),
    [
        ({}, "cluster.token_unknown"),
        ({a_token_id(): a_token(uses_left=0)}, "cluster.token_used"),
        ({a_token_id(): a_token(expires_at_ms=NOW_MS)}, "cluster.token_expired"),
    ],
)
@pytest.mark.parametrize("presence", ["present", "left"])
def test_who_holds_an_invitation_that_is_over_cannot_speak_for_the_master_or_the_last_voter(
    tokens: dict[TokenId, JoinToken], code: ErrorCode, presence: Presence
) -> None:
    state = two(presence).model_copy(update={"join_tokens": tokens})
    forged = an_admission(1, token=1, addresses=("203.0.113.9:22",), role="management")
    assert refused(state, forged).code == code


def test_an_invitation_that_nobody_made_says_nothing_of_who_is_still_to_come() -> None:
    forged = an_admission(2, token=1, addresses=("203.0.113.9:22",))
    assert refused(two("joining"), forged).code == "cluster.token_unknown"


def test_a_key_that_the_id_does_not_follow_from_is_refused() -> None:
    forged = an_admission(1).model_copy(update={"public_key": a_public_key(2)})
    assert refused(initial_state(a_cluster_id()), forged).code == "request.invalid"


def test_a_full_cluster_lets_nobody_in() -> None:
    members = [a_member(number, has_facts=False) for number in range(1, MAX_MEMBERS + 1)]
    state = a_state(members=members, tokens=[a_token()])
    assert refused(state, an_admission(MAX_MEMBERS + 1, token=1)).code == "cluster.full"
    assert decided(state, an_admission(MAX_MEMBERS)) == []


# ---- Renewal ----


def test_a_member_that_says_what_is_known_changes_nothing() -> None:
    assert decided(two(), an_admission(2)) == []


def test_a_member_renews_its_addresses_and_keeps_its_facts() -> None:
    (event,) = decided(two(), an_admission(2, addresses=("10.0.0.7:12416",), role="management"))
    assert isinstance(event, MemberJoined)
    assert event.member.facts == a_member(2).facts
    assert (event.member.addresses, event.member.role) == (("10.0.0.7:12416",), "management")


@pytest.mark.parametrize("presence", ["joining", "lost", "left"])
def test_a_member_that_comes_back_has_returned(presence: Presence) -> None:
    assert decided(two(presence), an_admission(2)) == [MemberReturned(node_id=a_node_id(2))]


def test_a_member_that_comes_back_from_elsewhere_has_returned_and_changed() -> None:
    returned, joined = decided(two("lost"), an_admission(2, addresses=("10.0.0.7:12416",)))
    assert returned == MemberReturned(node_id=a_node_id(2))
    assert isinstance(joined, MemberJoined)
    assert (joined.member.presence, joined.member.since_ms) == ("present", NOW_MS)


# ---- Lost and left ----


def test_a_loss_is_noted_once() -> None:
    lost = MemberLost(node_id=a_node_id(2), silent_ms=6000, is_refused=True)
    assert decided(two(), loss()) == [lost]
    assert decided(two("lost"), loss()) == []


@pytest.mark.parametrize("presence", ["joining", "left"])
def test_one_that_is_not_there_by_its_own_word_is_not_lost_as_well(presence: Presence) -> None:
    assert decided(two(presence), loss()) == []


def test_the_master_who_decides_it_cannot_be_lost() -> None:
    with pytest.raises(SkulkError) as caught:
        decided(two(), loss(1))
    assert caught.value.code == "request.invalid"


def test_a_goodbye_is_noted_once_and_also_of_one_that_was_lost() -> None:
    left = MemberLeft(node_id=a_node_id(2))
    assert decided(two(), leave()) == [left]
    assert decided(two("lost"), leave()) == [left]
    assert decided(two("left"), leave()) == []


@pytest.mark.parametrize("presence", ["joining", "lost", "left"])
def test_the_last_one_present_keeps_its_vote(presence: Presence) -> None:
    assert decided(two(presence), leave(1)) == []
    assert decided(a_state(), leave(1)) == []


def test_the_lost_keep_their_vote_and_those_who_left_or_have_not_come_have_none() -> None:
    every: tuple[Presence, ...] = ("present", "lost", "left", "joining")
    members = [a_member(n, presence=presence) for n, presence in enumerate(every, start=1)]
    assert voters_of(a_state(members=members)) == {a_node_id(1), a_node_id(2)}


# ---- Removal ----


def test_a_removed_member_takes_its_instances_and_invitations_along() -> None:
    failed = an_instance(3, node=2, failure=a_failure(3, node=2), phase="failed")
    stopping = an_instance(4, node=2, stopping=True, card=a_scripted_card(model_id="test/four"))
    state = a_state(
        members=[a_member(1), a_member(2)],
        instances=[an_instance(1), an_instance(2, node=2), failed, stopping],
        tokens=[a_token(1), a_token(2, inviter=2)],
    )
    assert decided(state, removal()) == [
        *(InstanceRemoved(instance_id=an_instance_id(number)) for number in (2, 3, 4)),
        JoinTokenRevoked(token_id=a_token_id(2)),
        MemberRemoved(node_id=a_node_id(2)),
    ]


def test_an_instance_that_runs_elsewhere_too_is_stopped_there() -> None:
    whole = a_plan(node=1)
    first = whole.shards[0].model_copy(update={"layer_end": 0})
    second = whole.shards[0].model_copy(update={"rank": 1, "node_id": a_node_id(2)})
    split = an_instance(plan=whole.model_copy(update={"shards": (first, second)}))
    state = a_state(members=[a_member(1), a_member(2)], instances=[split])
    stopped = a_runner("stopped", node=2, rank=1)
    assert decided(state, removal()) == [
        InstanceStopRequested(instance_id=an_instance_id()),
        RunnerPhaseChanged(instance_id=an_instance_id(), runner=stopped),
        MemberRemoved(node_id=a_node_id(2)),
    ]


def test_a_member_is_removed_once() -> None:
    gone = RemovedMember(
        node_id=a_node_id(2), public_key=a_public_key(2), name="box-2", at_ms=NOW_MS
    )
    state = a_state().model_copy(update={"removed": {gone.node_id: gone}})
    assert decided(state, removal()) == []
    assert refused(a_state(), removal()).code == "cluster.not_member"


@pytest.mark.parametrize("presence", ["joining", "present", "lost", "left"])
def test_a_member_may_be_removed_however_it_is(presence: Presence) -> None:
    assert decided(two(presence), removal()) == [MemberRemoved(node_id=a_node_id(2))]


def test_neither_the_last_voter_nor_the_master_is_removed() -> None:
    assert refused(a_state(), removal(1)).code == "cluster.last_voter"
    assert refused(two("left"), removal(1)).code == "cluster.last_voter"
    assert refused(two("joining"), removal(1)).code == "cluster.last_voter"
    assert refused(two(), removal(1)).code == "cluster.is_master"


def test_a_removed_node_comes_back_only_by_an_invitation_made_after_it() -> None:
    gone = RemovedMember(
        node_id=a_node_id(2), public_key=a_public_key(2), name="box-2", at_ms=NOW_MS
    )
    before, later = a_token(1), a_token(2, created_at_ms=NOW_MS + 1)
    state = a_state(tokens=[before, later]).model_copy(update={"removed": {gone.node_id: gone}})
    assert refused(state, an_admission(2)).code == "cluster.removed"
    assert refused(state, an_admission(2, token=1)).code == "cluster.removed"
    (event,) = decided(state, an_admission(2, token=2))
    assert isinstance(event, MemberJoined)


@pytest.mark.parametrize(
    "command",
    [
        a_facts_report(2),
        ReportDownload(
            command_id=a_command_id(), node_id=a_node_id(2), model_id=MODEL, size_bytes=5
        ),
        loss(),
        leave(),
    ],
)
def test_what_a_removed_node_reports_is_refused_by_name(command: Command) -> None:
    gone = RemovedMember(node_id=a_node_id(2), public_key=a_public_key(2), name="den", at_ms=1)
    state = a_state().model_copy(update={"removed": {gone.node_id: gone}})
    error = refused(state, command)
    assert error.code == "cluster.removed"
    assert "den" in error.message
    assert refused(a_state(), command).code == "cluster.not_member"


# ---- Terms and policy ----


def test_a_term_is_settled_once_and_only_while_it_lasts() -> None:
    state = two().model_copy(update={"is_minority_term": True, "settled_seq": 9, "term": 2})
    assert decided(state, SettleTerm(command_id=a_command_id(), term=2)) == [TermSettled()]
    assert decided(state, SettleTerm(command_id=a_command_id(), term=1)) == []
    assert decided(two(), SettleTerm(command_id=a_command_id(), term=1)) == []


def test_the_policy_changes_but_not_to_quorum_while_a_minority_rules() -> None:
    quorum = ChangeSettings(command_id=a_command_id(), settings=ClusterSettings(policy="quorum"))
    assert decided(two(), quorum) == [SettingsChanged(settings=quorum.settings)]
    minority = two().model_copy(update={"is_minority_term": True, "settled_seq": 9})
    assert refused(minority, quorum).code == "cluster.minority_term"
    half = a_state(members=[a_member(1), a_member(2, presence="lost")])
    assert "1 of 2 voters are present" in refused(half, quorum).message
    left = a_state(members=[a_member(1), a_member(2, presence="left")])
    assert decided(left, quorum) == [SettingsChanged(settings=quorum.settings)]
    keyed = ChangeSettings(command_id=a_command_id(), settings=ClusterSettings(loopback="keyed"))
    assert decided(minority, keyed) == [SettingsChanged(settings=keyed.settings)]
