"""What the master tells the log about members, and what a node tells it about itself; pure.

Commands, never events: each is decided on the newest state like any other, so that one that comes
late, or twice, changes nothing.

A member counts as lost when its master has not heard it for six seconds and no other member that
is alive hears it either, or for fifteen whatever the others say; when nobody listens there any
more, after two. A master whose own loop lags waits twice as long.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from protocol.ids import NodeId, TokenId
from protocol.state import ClusterState
from skulkd.core.member_decisions import voters_of
from skulkd.core.voting import is_majority

LOST_S: Final = 6.0
LOST_ANYWAY_S: Final = 15.0
REFUSED_S: Final = 2.0
TOKEN_KEPT_MS: Final = 600_000
"""So long after its end an invitation is kept, for guests that come late to hear why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLook:
    """A member as the master sees it."""

    is_alive: bool
    silent_s: float
    """Since it was heard, or since this node began to listen."""
    refused_s: float | None
    """Since when nobody listens there; None when somebody does."""
    has_left: bool
    """It said goodbye."""
    unheard: tuple[NodeId, ...]
    """Whom it does not hear."""
    follows: bool
    """It follows this master's term."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lose:
    """Submit `ReportLoss`."""

    node_id: NodeId
    silent_ms: int
    is_refused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteGoodbye:
    """Submit `ReportLeave` for a member that could not do it itself."""

    node_id: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """Submit `SettleTerm`."""

    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetToken:
    """Submit `RevokeJoinToken` for an invitation that ended long ago."""

    token_id: TokenId


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """Submit `AdmitMember` for this node itself: the cluster thinks that it is not there."""


Action = Lose | NoteGoodbye | Settle | ForgetToken | Renew


def master_actions(
    state: ClusterState,
    node_id: NodeId,
    looks: Mapping[NodeId, MemberLook],
    *,
    number: int,
    is_lagging: bool,
    now_ms: int,
) -> tuple[Action, ...]:
    """Say what the master should submit now.

    Args:
        state: After the last appended event.
        node_id: The master.
        looks: How it sees each other member.
        number: Of its term.
        is_lagging: Its own loop was late of late.
        now_ms: Wall clock, for invitations.
    """
    actions = list(_goings(state, node_id, looks, patience=2 if is_lagging else 1))
    if _is_settled_now(state, node_id, looks, number):
        actions.append(Settle(term=number))
    ended = [
        token
        for token in state.join_tokens.values()
        if token.expires_at_ms + TOKEN_KEPT_MS < max(now_ms, state.at_ms)
    ]
    actions.extend(ForgetToken(token_id=token.token_id) for token in ended[:1])
    return tuple(actions)


def own_actions(state: ClusterState, node_id: NodeId) -> tuple[Action, ...]:
    """Say what a node that hears its master should submit for itself."""
    member = state.members.get(node_id)
    return (Renew(),) if member is not None and member.presence != "present" else ()


def _goings(
    state: ClusterState, node_id: NodeId, looks: Mapping[NodeId, MemberLook], *, patience: int
) -> Iterator[Action]:
    for member in state.members.values():
        look = looks.get(member.node_id)
        if look is None or look.is_alive or member.node_id == node_id:
            continue
        if look.has_left and member.presence != "left":
            yield NoteGoodbye(node_id=member.node_id)
        elif member.presence == "present" and not look.has_left:
            is_refused = look.refused_s is not None and look.refused_s >= REFUSED_S
            if is_refused or _is_lost(member.node_id, look, looks, patience):
                yield Lose(
                    node_id=member.node_id,
                    silent_ms=int(look.silent_s * 1000),
                    is_refused=is_refused,
                )


def _is_lost(
    node_id: NodeId, look: MemberLook, looks: Mapping[NodeId, MemberLook], patience: int
) -> bool:
    if look.silent_s >= LOST_ANYWAY_S * patience:
        return True
    if look.silent_s < LOST_S * patience:
        return False
    return all(node_id in other.unheard for other in looks.values() if other.is_alive)


def _is_settled_now(
    state: ClusterState, node_id: NodeId, looks: Mapping[NodeId, MemberLook], number: int
) -> bool:
    """Say whether a majority follows the master that a minority had elected."""
    if not state.is_minority_term or (state.term, state.master) != (number, node_id):
        return False
    voters = voters_of(state)
    followers = {node_id} | {peer for peer, look in looks.items() if look.follows}
    return is_majority(len(followers & voters), len(voters))
