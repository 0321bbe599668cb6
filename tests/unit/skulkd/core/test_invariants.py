import pytest

from protocol.events import (
    ApiKeyRevoked,
    CardAdded,
    Event,
    InstanceRemoved,
    JoinTokenRevoked,
    MasterElected,
    MemberJoined,
    MemberLeft,
    MemberLost,
    MemberRemoved,
    MemberReturned,
    RunnerPhaseChanged,
    TermSettled,
)
from protocol.peer_messages import MAX_MEMBERS
from protocol.state import ClusterState, RemovedMember
from skulkd.core.invariants import event_violations, violations
from tests.support.builders import (
    NOW_MS,
    a_card,
    a_failure,
    a_key_id,
    a_member,
    a_node_id,
    a_plan,
    a_public_key,
    a_runner,
    a_sequenced,
    a_state,
    a_token,
    a_token_id,
    an_instance,
    an_instance_id,
    some_arithmetic,
)

GONE = RemovedMember(node_id=a_node_id(1), public_key=a_public_key(1), name="box", at_ms=NOW_MS)


def test_a_sound_state_violates_nothing() -> None:
    assert violations(a_state(instances=[an_instance()])) == ()


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (a_state(failures=tuple(a_failure() for _ in range(65))), "65 failures"),
        (a_state(instances=[an_instance(1), an_instance(2)]), "copies"),
        (a_state(instances=[an_instance(attempt=2, failure=a_failure())]), "failed for good"),
        (
            a_state(instances=[an_instance().model_copy(update={"attempt": 2})]),
            "runner of attempt 1",
        ),
        (
            a_state(instances=[an_instance().model_copy(update={"runners": (a_runner(node=2),)})]),
            "plan does not say",
        ),
        (
            a_state(
                instances=[an_instance(plan=a_plan(memory=some_arithmetic(available_bytes=1)))]
            ),
            "too large",
        ),
        (
            a_state(members=[a_member(n, has_facts=False) for n in range(1, MAX_MEMBERS + 2)]),
            "257 members",
        ),
        (a_state(members=[a_member(1, presence="left")]), "no member has a vote"),
        (a_state(tokens=[a_token(inviter=2)]), "who is no member"),
        (a_state(tokens=[a_token(number) for number in range(65)]), "65 invitations"),
        (a_state(instances=[an_instance(node=2)]), "who is no member"),
        (a_state().model_copy(update={"removed": {a_node_id(1): GONE}}), "and removed"),
        (a_state().model_copy(update={"settled_seq": 11}), "settled at (1, 11)"),
        (a_state().model_copy(update={"is_minority_term": True}), "settled at (1, 10)"),
    ],
)
def test_what_does_not_hold_is_named(state: ClusterState, words: str) -> None:
    (found,) = violations(state)
    assert words in found


@pytest.mark.parametrize(
    "event",
    [
        InstanceRemoved(instance_id=an_instance_id(9)),
        RunnerPhaseChanged(instance_id=an_instance_id(9), runner=a_runner()),
        ApiKeyRevoked(key_id=a_key_id(9)),
        MemberLost(node_id=a_node_id(9), silent_ms=6000, is_refused=False),
        MemberLeft(node_id=a_node_id(9)),
        MemberReturned(node_id=a_node_id(9)),
        MemberRemoved(node_id=a_node_id(9)),
        MemberJoined(member=a_member(2), token_id=a_token_id(9)),
        JoinTokenRevoked(token_id=a_token_id(9)),
        TermSettled(),
    ],
)
def test_an_event_about_the_unknown_cannot_be_next(event: Event) -> None:
    assert len(event_violations(a_state(), a_sequenced(event))) == 1


def test_the_position_only_goes_forward() -> None:
    added = CardAdded(card=a_card())
    assert event_violations(a_state(), a_sequenced(added)) == ()
    assert len(event_violations(a_state(), a_sequenced(added, seq=12))) == 1
    assert len(event_violations(a_state(), a_sequenced(added, term=0))) == 1
    assert len(event_violations(a_state(), a_sequenced(added, at_ms=0))) == 1


def test_a_term_begins_with_its_election_and_has_one() -> None:
    elected = MasterElected(master=a_node_id())
    assert event_violations(a_state(), a_sequenced(elected, term=2)) == ()
    assert len(event_violations(a_state(), a_sequenced(elected, term=1))) == 1
    assert len(event_violations(a_state(), a_sequenced(CardAdded(card=a_card()), term=2))) == 1
