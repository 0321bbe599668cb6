"""The nodes that could share a model, by shape, and what each has for it; pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.cards import BackendTag
from protocol.ids import NodeId
from protocol.nodes import EngineFacts
from protocol.placements import Shape
from skulkd.core.placement.backends import preference, sharing_build_for
from skulkd.core.placement.files import judge_files
from skulkd.core.placement.memory_fit import PoolMemory, compute_of, pool_memory
from skulkd.core.placement.question import Candidate, Question

LeadRank = tuple[int, bool, bool, int, str]
_GIB_SHIFT: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A node that could take some of a model, with one of its backends."""

    candidate: Candidate
    tag: BackendTag
    build: EngineFacts
    memory: PoolMemory
    can_lead: bool
    """It has the files, or can get them."""
    lead_rank: LeadRank
    """How gladly it is made rank 0; less is better."""

    @property
    def node_id(self) -> NodeId:
        """The node."""
        return self.candidate.member.node_id


def host_choices(
    question: Question, shape: Shape, candidates: Iterable[Candidate]
) -> list[list[Host]]:
    """List the sets of nodes that could share a model, the one to try first first.

    All hosts of a set run builds of one version. The backend that each node would rather use is
    tried before the one that has most memory. In a ring every rank reads its layers from its own
    files, so that who cannot get them is in no set.
    """
    parts: dict[str, list[list[Host]]] = {}
    for candidate in candidates:
        options = host_options(question, shape, candidate)
        if shape != "rpc":
            options = [host for host in options if host.can_lead]
        for version in {host.build.version for host in options}:
            same = [host for host in options if host.build.version == version]
            parts.setdefault(version, []).append(same)
    chosen: list[list[Host]] = []
    for _, nodes in sorted(parts.items(), key=lambda part: (-len(part[1]), part[0])):
        preferred = [options[0] for options in nodes]
        roomiest = [_roomiest(options) for options in nodes]
        chosen.append(preferred)
        if [host.tag for host in roomiest] != [host.tag for host in preferred]:
            chosen.append(roomiest)
    return chosen


def host_options(question: Question, shape: Shape, candidate: Candidate) -> list[Host]:
    """List what a node could take a share with, best first."""
    card, node_id = question.card, candidate.member.node_id
    builds = [(tag, sharing_build_for(candidate.facts, tag, shape)) for tag in candidate.tags]
    if all(build is None for _, build in builds):
        return []
    can_lead = judge_files(question, candidate) is None
    found: list[Host] = []
    for tag, build in builds:
        if build is None:
            continue
        compute = compute_of(tag)
        memory = pool_memory(candidate.facts, compute, candidate.reading, candidate.claims)
        if memory is None:
            continue
        rank = (
            preference(card, tag),
            compute == "cpu",
            question.holders is not None and node_id not in question.holders,
            -(memory.free_bytes >> _GIB_SHIFT),
            node_id,
        )
        host = Host(
            candidate=candidate,
            tag=tag,
            build=build,
            memory=memory,
            can_lead=can_lead,
            lead_rank=rank,
        )
        found.append(host)
    return found


def _roomiest(options: Sequence[Host]) -> Host:
    return max(options, key=lambda host: host.memory.free_bytes)
