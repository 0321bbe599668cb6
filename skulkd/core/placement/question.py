"""What is planned, against what, and what is known of one node: the planner's values."""

from dataclasses import dataclass
from typing import Final

from protocol.cards import BackendTag, ModelCard
from protocol.ids import Digest, NodeId
from protocol.measurements import MemoryMeasurement
from protocol.nodes import Member, NodeFacts
from protocol.placements import PlacementRequest, Plan, Refusal
from protocol.readings import NodeReading, Readings
from protocol.state import ClusterState
from skulkd.core.placement import refusals
from skulkd.core.placement.memory_fit import Claim

STALE_READING_S: Final = 30.0
"""A reading older than this says nothing about now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is planned, against what: the arguments of `plan`, once."""

    request: PlacementRequest
    card: ModelCard
    digest: Digest
    state: ClusterState
    readings: Readings
    now_s: float | None
    unheard: frozenset[NodeId]
    holders: frozenset[NodeId] | None
    pinned: Plan | None
    """A plan made before whose window and slots are to be kept."""
    measurements: tuple[MemoryMeasurement, ...] = ()
    """What boots of this card's files have taken."""

    def is_reachable(self, member: Member) -> bool:
        """Say whether a member is there, as the cluster has agreed and the planning node hears."""
        return member.presence == "present" and member.node_id not in self.unheard

    def is_stale(self, reading: NodeReading) -> bool:
        """Say whether a reading is too old to plan with."""
        return self.now_s is not None and self.now_s - reading.at_s > STALE_READING_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A fact that is still to come, in words, and the refusal that stands until then."""

    fact: str
    refusal: Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A node that may be planned onto, with all that is known of it."""

    member: Member
    facts: NodeFacts
    reading: NodeReading
    claims: tuple[Claim, ...]
    tags: tuple[BackendTag, ...]
    """The backends that the model may use there, best first; at least one."""


def missing(member: Member, fact: str) -> Missing:
    """Name a fact about a node that is still to come."""
    return Missing(fact=f"{fact} of {member.name}", refusal=refusals.facts_missing(member, fact))
