"""Whether a node votes for another one; pure."""

from dataclasses import dataclass
from typing import Literal

from protocol.ids import NodeId
from protocol.peer_messages import Campaign, Denial
from skulkd.core.promises import Promises
from skulkd.core.sight import SUSPICION_S, Sight
from skulkd.core.voting import (
    Candidate,
    Claim,
    is_fresh,
    outranks,
    standard_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a voter stands."""

    term: Claim | None
    """Which it leads or follows."""
    is_own: bool
    """It leads that term itself."""
    is_leading: bool
    """It may decide now."""
    is_new: bool
    """It has not listened for long enough to miss anybody."""


def denial_of(
    sender: NodeId,
    campaign: Campaign,
    *,
    standing: Standing,
    sight: Sight,
    promises: Promises,
    now: float,
) -> Denial:
    """Say why a node does not vote for another one; empty when it does.

    Args:
        sender: Who asks.
        campaign: What for.
        standing: The voter's role.
        sight: What it sees.
        promises: What it has promised.
        now: Boot time in seconds.
    """
    number, log = campaign.number, sight.log
    followed = 0 if standing.term is None else standing.term.pair.number
    if number <= max(followed, log.head.term) or number < promises.spent:
        return "term"
    is_stuck = number > promises.spent and promises.is_stuck(now=now)
    if not promises.is_free(number, sender) and not is_stuck:
        return "voted"
    candidate = Candidate(
        node_id=sender,
        position=campaign.position,
        leads_settled=sight.leads_settled(sender, now=now),
    )
    if not campaign.is_handover:
        held = _held_by_master(candidate, standing, sight, now)
        if held:
            return held
    if not is_fresh(candidate, log):
        return "log"
    return "disk" if is_stuck or promises.kept is None else ""


def _held_by_master(
    candidate: Candidate, standing: Standing, sight: Sight, now: float
) -> Literal["", "master", "lagging"]:
    """Say whether a voter hears a master that keeps its place."""
    if standing.term is None:
        return "master" if standing.is_new else ""
    if outranks(candidate, standing.term, standard_of(standing.term, sight.log)):
        return ""
    if standing.is_new or standing.is_leading:
        return "master"
    if standing.is_own:
        return ""  # its lease has run out: it keeps nobody from being elected
    master = standing.term.pair.master
    if sight.peers.is_alive(master, suspicion_s=SUSPICION_S, now=now):
        return "master"
    return "lagging" if sight.is_alive(master, now=now) else ""
