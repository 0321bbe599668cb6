"""Decisions about invitations: made, used, revoked, forgotten.

State holds the public half of an invitation's one-time key, never the secret. One that is used up
or has expired is kept for a while, so that a guest who comes late hears why; it is forgotten when
the next one is made, so that an idle cluster writes nothing.
"""

from collections.abc import Mapping
from typing import Final

from protocol.commands import CreateJoinToken, RevokeJoinToken
from protocol.errors import ClusterError, RequestError
from protocol.events import Event, JoinTokenCreated, JoinTokenRevoked
from protocol.ids import NodeId, TokenId
from protocol.state import ClusterState, InvitationKind, JoinToken

MAX_JOIN_TOKENS: Final = 64
MAX_VALID_MS: Final[Mapping[InvitationKind, int]] = {
    "token": 7 * 24 * 3600 * 1000,
    "code": 10 * 60 * 1000,
}
"""A code is short enough to be read out, and so must not be worth guessing for long."""
MAX_USES: Final[Mapping[InvitationKind, int]] = {"token": 1000, "code": 1}
CLOCK_ALLOWANCE_MS: Final = 3600 * 1000
"""The inviter's clock names the expiry and the master's judges it; so far may they be apart."""
_INVITE: Final = "Make a new one on a member: `skulk cluster invite`."


def create(state: ClusterState, command: CreateJoinToken, *, now_ms: int) -> tuple[Event, ...]:
    """Make an invitation valid, at most for as long as its kind allows; forget expired ones.

    Raises:
        RequestError: `request.invalid`: an id or key in use, an inviter that is no member, an
            expiry in the past or beyond the limit, a code for several guests, too many invitations.
    """
    problem = _problem(state, command, now_ms)
    if problem is not None:
        raise RequestError(
            "request.invalid",
            f"the invitation cannot be made: {problem[0]}",
            remediation=problem[1],
        )
    token = JoinToken(
        token_id=command.token_id,
        public_key=command.public_key,
        inviter=command.inviter,
        kind=command.token_kind,
        created_at_ms=now_ms,
        expires_at_ms=min(command.expires_at_ms, now_ms + MAX_VALID_MS[command.token_kind]),
        uses_left=command.uses,
    )
    forgotten = tuple(
        JoinTokenRevoked(token_id=known.token_id)
        for known in state.join_tokens.values()
        if known.expires_at_ms <= now_ms
    )
    return (*forgotten, JoinTokenCreated(token=token))


def revoke(state: ClusterState, command: RevokeJoinToken) -> tuple[Event, ...]:
    """Make an invitation invalid.

    Raises:
        ClusterError: `cluster.token_unknown`.
    """
    if command.token_id not in state.join_tokens:
        raise _unknown(command.token_id)
    return (JoinTokenRevoked(token_id=command.token_id),)


def check_invitation(state: ClusterState, token_id: TokenId, guest: NodeId, *, now_ms: int) -> None:
    """Refuse a guest whose invitation does not let it in.

    Raises:
        ClusterError: `cluster.token_unknown`, `cluster.token_expired`, `cluster.token_used`,
            `cluster.removed`.
    """
    token = state.join_tokens.get(token_id)
    if token is None:
        raise _unknown(token_id)
    over = invitation_over(token, now_ms=max(now_ms, state.at_ms))
    if over is not None:
        raise over
    removed = state.removed.get(guest)
    if removed is not None and token.created_at_ms <= removed.at_ms:
        raise ClusterError(
            "cluster.removed",
            f"{removed.name} ({guest}) was removed after invitation {token_id} had been made",
            remediation=_INVITE,
            details={"node_id": guest, "token_id": token_id},
        )


def invitation_over(token: JoinToken, *, now_ms: int) -> ClusterError | None:
    """Say why an invitation lets nobody in any more; None while it does."""
    token_id = token.token_id
    if token.expires_at_ms <= now_ms:
        return ClusterError(
            "cluster.token_expired",
            f"invitation {token_id} expired {(now_ms - token.expires_at_ms) // 1000} s ago",
            remediation=_INVITE,
            details={"token_id": token_id, "expires_at_ms": token.expires_at_ms},
        )
    if token.uses_left == 0:
        return ClusterError(
            "cluster.token_used",
            f"invitation {token_id} is used up",
            remediation=_INVITE,
            details={"token_id": token_id},
        )
    return None


def _problem(state: ClusterState, command: CreateJoinToken, now_ms: int) -> tuple[str, str] | None:
    """Say what is wrong with an invitation, and what helps."""
    known = state.join_tokens.values()
    most_ms, most_uses = MAX_VALID_MS[command.token_kind], MAX_USES[command.token_kind]
    if any(
        token.token_id == command.token_id or token.public_key == command.public_key
        for token in known
    ):
        return "there is one with its id or key", "Make it again; both are drawn anew each time."
    if command.inviter not in state.members:
        return f"{command.inviter} is not a member", "Make it on a member."
    if command.expires_at_ms <= now_ms:
        late_s = (now_ms - command.expires_at_ms) // 1000
        return (
            f"it would have expired {late_s} s ago",
            "Compare the clocks of the machines; the master's decides.",
        )
    if command.expires_at_ms > now_ms + most_ms + CLOCK_ALLOWANCE_MS:
        return (
            f"a {command.token_kind} is valid for at most {most_ms // 60_000} minutes",
            "Ask for less, or compare the clocks of the machines.",
        )
    if command.uses > most_uses:
        return (
            f"a {command.token_kind} lets in at most {most_uses}, not {command.uses}",
            "Use a token for several guests.",
        )
    if sum(token.expires_at_ms > now_ms for token in known) >= MAX_JOIN_TOKENS:
        return (
            f"there are {MAX_JOIN_TOKENS} that have not expired",
            "Revoke one that is not needed.",
        )
    return None


def _unknown(token_id: TokenId) -> ClusterError:
    return ClusterError(
        "cluster.token_unknown",
        f"this cluster knows no invitation {token_id}",
        remediation="It was revoked, has long expired, or belongs to another cluster. " + _INVITE,
        details={"token_id": token_id},
    )
