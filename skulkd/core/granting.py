"""Whether a node votes for another one; pure."""

from typing import Literal

from protocol.ids import NodeId
from protocol.peer_messages import Campaign, Denial
from skulkd.core.promises import Promises
from skulkd.core.sight import SUSPICION_S, Sight
from skulkd.core.tenure import Tenure
from skulkd.core.voting import Candidate, is_fresh, outranks, standard_of


def denial_of(
    sender: NodeId,
    campaign: Campaign,
    *,
    tenure: Tenure,
    sight: Sight,
    promises: Promises,
    is_new: bool,
    now: float,
) -> Denial:
    """Say why a node does not vote for another one; empty when it does.

    Args:
        sender: Who asks.
        campaign: What for.
        tenure: The voter's role.
        sight: What it sees.
        promises: What it has promised.
        is_new: It has not listened for long enough to miss anybody.
        now: Boot time in seconds.
    """
    number, log = campaign.number, sight.log
    followed = 0 if tenure.claim is None else tenure.claim.pair.number
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
        held = _held_by_master(candidate, tenure, sight, is_new=is_new, now=now)
        if held:
            return held
    if not is_fresh(candidate, log):
        return "log"
    return "disk" if is_stuck or promises.kept is None else ""


def _held_by_master(
    candidate: Candidate, tenure: Tenure, sight: Sight, *, is_new: bool, now: float
) -> Literal["", "master", "lagging"]:
    """Say whether a voter hears a master that keeps its place."""
    claim = tenure.claim
    if claim is None:
        return "master" if is_new else ""
    if outranks(candidate, claim, standard_of(claim, sight.log)):
        return ""
    if is_new or tenure.is_leading(now=now):
        return "master"
    if tenure.role == "master":
        return ""  # its lease has run out: it keeps nobody from being elected
    if sight.peers.is_alive(claim.pair.master, suspicion_s=SUSPICION_S, now=now):
        return "master"
    return "lagging" if sight.is_alive(claim.pair.master, now=now) else ""
