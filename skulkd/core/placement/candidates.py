"""Which nodes may be planned onto at all, and what is known of them; pure."""

from collections.abc import Mapping, Sequence

from protocol.ids import NodeId
from protocol.nodes import Member
from protocol.placements import Refusal
from skulkd.core.placement import refusals
from skulkd.core.placement.backends import usable_tags
from skulkd.core.placement.memory_fit import Claim
from skulkd.core.placement.question import Candidate, Missing, Question, missing


def refuse_node(question: Question, member: Member) -> Refusal | None:
    """Refuse a node that is no candidate, whatever it could hold."""
    request = question.request
    if member.role == "management":
        return refusals.not_a_candidate(member, "runs no models (--no-worker)")
    if member.node_id in request.excluded_nodes:
        return refusals.not_a_candidate(member, "was excluded")
    if request.nodes and member.node_id not in request.nodes:
        return refusals.not_a_candidate(member, "is not among the nodes asked for")
    if member.drain_since_ms is not None:
        return refusals.draining(member)
    if not question.is_reachable(member):
        return refusals.unreachable(member)
    return None


def look_at(
    question: Question, member: Member, claims: Mapping[NodeId, Sequence[Claim]]
) -> Candidate | Refusal | Missing:
    """Collect what is known of a node that may take a share, or say why it may not."""
    refusal = refuse_node(question, member)
    if refusal is not None:
        return refusal
    if member.facts is None:
        return missing(member, "what it can run")
    tags = tuple(usable_tags(question.card, member, question.request.backend))
    if not tags:
        return refusals.no_backend(member, question.card, question.request.backend)
    reading = question.readings.nodes.get(member.node_id)
    if reading is None or question.is_stale(reading):
        return missing(member, "memory")
    return Candidate(
        member=member,
        facts=member.facts,
        reading=reading,
        claims=tuple(claims.get(member.node_id, ())),
        tags=tags,
    )
