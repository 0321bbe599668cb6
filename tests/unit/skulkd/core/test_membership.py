from dataclasses import replace

import pytest

from protocol.ids import NodeId, TokenId
from protocol.nodes import Member, Presence
from protocol.state import ClusterState, JoinToken
from skulkd.core.membership import (
    TOKEN_KEPT_MS,
    Action,
    ForgetToken,
    Lose,
    MemberLook,
    NoteGoodbye,
    Renew,
    Settle,
    master_actions,
    own_actions,
)
from tests.support.builders import NOW_MS, a_member, a_node_id, a_state

ME, ANN, BOB, CAT = (a_node_id(number) for number in range(1, 5))
ALIVE = MemberLook(
    is_alive=True, silent_s=0.3, refused_s=None, has_left=False, unheard=(), follows=True
)
SILENT = replace(ALIVE, is_alive=False, silent_s=6.5, follows=False)


def a_cluster(n_nodes: int = 4, **presences: Presence) -> ClusterState:
    """Make a state whose node `n3` and so on has the presence given."""
    members: list[Member] = []
    for number in range(1, n_nodes + 1):
        presence = presences.get(f"n{number}", "present")
        members.append(a_member(number).model_copy(update={"presence": presence}))
    return a_state(members=members)


def actions(
    state: ClusterState,
    looks: dict[NodeId, MemberLook],
    *,
    number: int = 1,
    is_lagging: bool = False,
    now_ms: int = NOW_MS,
) -> tuple[Action, ...]:
    return master_actions(state, ME, looks, number=number, is_lagging=is_lagging, now_ms=now_ms)


def test_all_being_well_nothing_is_submitted() -> None:
    assert actions(a_cluster(), {ANN: ALIVE, BOB: ALIVE, CAT: ALIVE}) == ()


def test_who_is_silent_for_six_seconds_is_lost_when_nobody_that_lives_hears_it() -> None:
    heard = {ANN: SILENT, BOB: replace(ALIVE, unheard=(ANN,)), CAT: ALIVE}
    assert actions(a_cluster(), heard) == ()
    unheard = {**heard, CAT: replace(ALIVE, unheard=(ANN, ME))}
    lost = Lose(node_id=ANN, silent_ms=6500, is_refused=False)
    assert actions(a_cluster(), unheard) == (lost,)
    dead = {**heard, CAT: replace(SILENT, silent_s=3.0, unheard=())}
    assert actions(a_cluster(), dead) == (lost,), "the silent bear no witness"


def test_who_is_silent_for_fifteen_seconds_is_lost_whatever_the_others_say() -> None:
    looks = {ANN: replace(SILENT, silent_s=15.0), BOB: ALIVE, CAT: ALIVE}
    assert actions(a_cluster(), looks) == (Lose(node_id=ANN, silent_ms=15_000, is_refused=False),)


def test_a_master_that_lags_waits_twice_as_long() -> None:
    two = a_cluster(2)
    assert actions(two, {ANN: SILENT})
    assert not actions(two, {ANN: SILENT}, is_lagging=True)
    assert not actions(two, {ANN: replace(SILENT, silent_s=11.9)}, is_lagging=True)
    assert actions(two, {ANN: replace(SILENT, silent_s=12.0)}, is_lagging=True)


def test_where_nobody_listens_any_more_two_seconds_are_enough() -> None:
    look = replace(SILENT, silent_s=2.2, refused_s=1.9)
    assert not actions(a_cluster(2), {ANN: look})
    assert actions(a_cluster(2), {ANN: replace(look, refused_s=2.0)}) == (
        Lose(node_id=ANN, silent_ms=2200, is_refused=True),
    )


@pytest.mark.parametrize("presence", ["lost", "left"])
def test_who_is_not_present_is_not_lost_again(presence: Presence) -> None:
    assert not actions(a_cluster(2, n2=presence), {ANN: replace(SILENT, silent_s=99.0)})


def test_a_goodbye_is_noted_for_whoever_could_not_do_it_itself_and_once() -> None:
    looks = {ANN: replace(SILENT, silent_s=0.5, has_left=True)}
    assert actions(a_cluster(2), looks) == (NoteGoodbye(node_id=ANN),)
    assert actions(a_cluster(2, n2="lost"), looks) == (NoteGoodbye(node_id=ANN),)
    assert not actions(a_cluster(2, n2="left"), looks)


def test_a_minority_term_is_settled_once_a_majority_of_the_voters_follows() -> None:
    state = a_cluster().model_copy(update={"is_minority_term": True})
    stray = replace(ALIVE, follows=False)
    assert not actions(state, {ANN: ALIVE, BOB: stray, CAT: stray})
    assert actions(state, {ANN: ALIVE, BOB: ALIVE, CAT: stray}) == (Settle(term=1),)
    assert not actions(state, {ANN: ALIVE, BOB: ALIVE, CAT: stray}, number=2)
    assert not actions(a_cluster(), {ANN: ALIVE, BOB: ALIVE, CAT: ALIVE})


def test_those_that_left_do_not_count_when_a_term_is_settled() -> None:
    state = a_cluster(n3="left", n4="left").model_copy(update={"is_minority_term": True})
    stray = replace(ALIVE, follows=False)
    assert not actions(state, {ANN: stray, BOB: ALIVE, CAT: ALIVE})
    assert actions(state, {ANN: ALIVE, BOB: stray, CAT: stray}) == (Settle(term=1),)


def a_token(number: int, expires_at_ms: int) -> JoinToken:
    return JoinToken(
        token_id=TokenId(f"join-aaaaaaa{'abcdefg'[number]}"),
        public_key="0" * 64,
        inviter=ME,
        kind="token",
        created_at_ms=0,
        expires_at_ms=expires_at_ms,
        uses_left=1,
    )


def test_invitations_that_ended_long_ago_are_forgotten_one_at_a_time() -> None:
    tokens = [a_token(number, 1000 * number) for number in range(3)]
    state = a_state().model_copy(
        update={"join_tokens": {token.token_id: token for token in tokens}, "at_ms": 0}
    )
    assert not actions(state, {}, now_ms=TOKEN_KEPT_MS)
    assert actions(state, {}, now_ms=TOKEN_KEPT_MS + 1) == (
        ForgetToken(token_id=tokens[0].token_id),
    )
    assert actions(state, {}, now_ms=NOW_MS) == (ForgetToken(token_id=tokens[0].token_id),)
    behind = state.model_copy(update={"at_ms": NOW_MS})
    assert actions(behind, {}, now_ms=0), "the log's own time counts where the clock is behind"


def test_a_node_renews_itself_while_the_cluster_takes_it_for_gone() -> None:
    assert own_actions(a_cluster(2), ME) == ()
    assert own_actions(a_cluster(2, n1="lost"), ME) == (Renew(),)
    assert own_actions(a_cluster(2, n1="left"), ME) == (Renew(),)
    assert own_actions(a_cluster(2), CAT) == (), "a node that is no member needs an invitation"
