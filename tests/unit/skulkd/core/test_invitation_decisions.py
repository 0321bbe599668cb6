import pytest

from protocol.commands import CreateJoinToken, RevokeJoinToken
from protocol.errors import RequestError, SkulkError
from protocol.events import Event, JoinTokenCreated, JoinTokenRevoked
from protocol.readings import Readings
from protocol.state import ClusterState
from skulkd.core.decide import decide
from skulkd.core.invitation_decisions import CLOCK_ALLOWANCE_MS, MAX_JOIN_TOKENS, MAX_VALID_MS
from tests.support.builders import (
    NOW_MS,
    a_command_id,
    a_node_id,
    a_state,
    a_token,
    a_token_id,
    an_invitation,
)


def decided(state: ClusterState, command: CreateJoinToken | RevokeJoinToken) -> list[Event]:
    return list(decide(state, Readings(), command, now_ms=NOW_MS))


def made(state: ClusterState, command: CreateJoinToken) -> JoinTokenCreated:
    *_, event = decided(state, command)
    assert isinstance(event, JoinTokenCreated)
    return event


def test_an_invitation_is_kept_with_its_public_half_uses_and_expiry() -> None:
    token = made(a_state(), an_invitation(uses=3)).token
    assert (token.token_id, token.public_key) == (a_token_id(), a_token().public_key)
    assert (token.inviter, token.uses_left, token.kind) == (a_node_id(), 3, "token")
    assert (token.created_at_ms, token.expires_at_ms) == (NOW_MS, NOW_MS + 60_000)


def test_an_inviter_whose_clock_is_ahead_gets_the_longest_time_and_not_more() -> None:
    for kind, most_ms in MAX_VALID_MS.items():
        ahead = an_invitation(kind=kind, expires_at_ms=NOW_MS + most_ms + CLOCK_ALLOWANCE_MS)
        assert made(a_state(), ahead).token.expires_at_ms == NOW_MS + most_ms


@pytest.mark.parametrize(
    ("state", "command", "words"),
    [
        (a_state(tokens=[a_token()]), an_invitation(), "its id or key"),
        (
            a_state(tokens=[a_token()]),
            an_invitation().model_copy(update={"token_id": a_token_id(2)}),
            "its id or key",
        ),
        (a_state(), an_invitation(inviter=2), "is not a member"),
        (a_state(), an_invitation(expires_at_ms=NOW_MS - 5000), "5 s ago"),
        (a_state(), an_invitation(expires_at_ms=NOW_MS + (30 * 24 * 3_600_000)), "10080 minutes"),
        (a_state(), an_invitation(kind="code", uses=2), "at most 1, not 2"),
        (
            a_state(tokens=[a_token(number) for number in range(2, MAX_JOIN_TOKENS + 2)]),
            an_invitation(),
            "64 that have not expired",
        ),
    ],
)
def test_an_invitation_that_cannot_be_made_says_why(
    state: ClusterState, command: CreateJoinToken, words: str
) -> None:
    with pytest.raises(RequestError) as caught:
        decided(state, command)
    assert caught.value.code == "request.invalid"
    assert words in caught.value.message
    assert caught.value.remediation


def test_expired_invitations_are_forgotten_with_the_next_one() -> None:
    expired = [a_token(number, expires_at_ms=NOW_MS) for number in range(2, MAX_JOIN_TOKENS + 2)]
    *forgotten, created = decided(a_state(tokens=expired), an_invitation())
    assert forgotten == [JoinTokenRevoked(token_id=token.token_id) for token in expired]
    assert isinstance(created, JoinTokenCreated)


def test_an_invitation_is_revoked_while_there_is_one() -> None:
    command = RevokeJoinToken(command_id=a_command_id(), token_id=a_token_id())
    gone = JoinTokenRevoked(token_id=a_token_id())
    assert decided(a_state(tokens=[a_token()]), command) == [gone]
    with pytest.raises(SkulkError) as caught:
        decided(a_state(), command)
    assert caught.value.code == "cluster.token_unknown"
