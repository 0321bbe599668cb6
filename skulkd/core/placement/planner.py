"""The planner: which node can hold a model, with what backend and window; pure.

API previews, dry runs, the TUI and the master's own check all come through here, so that an
operator is never promised what the master then refuses. Every candidate is judged by itself and
answered with a plan or a typed refusal; nothing is summed over nodes.

Nodes are ranked by: the card's preference of backends, GPU before CPU, files already there, free
memory left (in whole GiB, so that a moving reading does not reorder equals), node id.

This build plans one node per instance. A plan carries shards with layer ranges already, so that
further shapes add planners and change no consumer.
"""

import hashlib
import operator
from collections.abc import Mapping, Sequence
from typing import Final

from protocol.cards import BackendTag, ModelCard
from protocol.ids import Digest, NodeId
from protocol.nodes import EngineFacts, Member
from protocol.placements import (
    PlacementOutcome,
    PlacementRequest,
    Plan,
    Refusal,
    Shape,
    ShardAssignment,
)
from protocol.readings import Readings
from protocol.state import ClusterState
from skulkd.core.placement import refusals
from skulkd.core.placement.backends import build_for, preference, usable_tags
from skulkd.core.placement.context import (
    MIN_TOKENS,
    SPARE_RATIO_PERCENT,
    default_cap,
    fitting_window,
    limited_by,
    model_maximum,
)
from skulkd.core.placement.explain import size_text
from skulkd.core.placement.files import download_bytes_on, holders_in, judge_files
from skulkd.core.placement.memory_fit import (
    Claim,
    PoolMemory,
    Share,
    arithmetic,
    claims_by_node,
    compute_of,
    pool_memory,
    share_of,
)
from skulkd.core.placement.question import Candidate, Missing, Question, missing

PLANNED_SHAPES: Final[tuple[Shape, ...]] = ("single",)
_GIB_SHIFT: Final = 30

_Verdict = Plan | Refusal | Missing
_Rank = tuple[int, bool, bool, int, str]


def plan(
    request: PlacementRequest,
    card: ModelCard,
    digest: Digest,
    state: ClusterState,
    readings: Readings,
    *,
    now_s: float | None = None,
    unheard: frozenset[NodeId] = frozenset(),
    holders: frozenset[NodeId] | None = None,
) -> PlacementOutcome:
    """Plan a placement.

    Args:
        request: What is asked; what it leaves out is chosen here.
        card: The model, and what it needs.
        digest: `card_digest(card)`; an argument because it costs more than the planning.
        state: Members, facts, and what is placed already.
        readings: Free memory and disk of each node.
        now_s: Monotonic seconds on the clock of the readings; with it, readings older than
            STALE_READING_S count as missing.
        unheard: Members that are not heard at the moment, as the node that plans sees it; they are
            refused like those that the state calls lost.
        holders: Nodes that have the model's files. None when that is not known: then the files are
            counted as a download, and a file imported in place counts as present. A node that
            lacks them may have them from one of these.

    Returns:
        Plans, best first, all but the first marked `alternative`; a refusal for every other node;
        and, when there is no plan, the facts that are still arriving. With those the answer may be
        another one soon; without, it is final.
    """
    return _plan(
        Question(
            request=request,
            card=card,
            digest=digest,
            state=state,
            readings=readings,
            now_s=now_s,
            unheard=unheard,
            holders=holders,
            pinned=None,
        )
    )


def replan(
    made: Plan,
    request: PlacementRequest,
    card: ModelCard,
    state: ClusterState,
    readings: Readings,
    *,
    now_s: float | None = None,
    unheard: frozenset[NodeId] = frozenset(),
) -> PlacementOutcome:
    """Plan again, restricted to the nodes, backend, window and slots of a plan made before.

    The window may fill the free memory to the last byte: the tenth that the first planning left
    over is what makes its plan still hold on readings that have moved.
    """
    nodes = tuple(
        shard.node_id
        for shard in made.shards
        if not request.nodes or shard.node_id in request.nodes
    )
    restricted = request.model_copy(update={"nodes": nodes, "backend": made.backend})
    # The plan knew whether the files are there; the store itself refuses a transfer that is too
    # large before its first byte.
    held = holders_in(readings, card.model_id)
    held = held | set(nodes) if made.download_bytes == 0 else held - set(nodes)
    if not nodes:
        return PlacementOutcome(
            refusals=tuple(refusals.unknown_node(shard.node_id) for shard in made.shards)
        )
    return _plan(
        Question(
            request=restricted,
            card=card,
            digest=made.card_digest,
            state=state,
            readings=readings,
            now_s=now_s,
            unheard=unheard,
            holders=held,
            pinned=made,
        )
    )


def plan_id_of(made: Plan) -> Digest:
    """Digest an assignment: what would run where, whoever asked and whatever the readings say."""
    parts = [made.model_id, made.card_digest, made.backend, made.shape]
    parts.extend((str(made.context_tokens), str(made.slots)))
    parts.extend(f"{s.rank}:{s.node_id}:{s.layer_start}:{s.layer_end}" for s in made.shards)
    return Digest(hashlib.sha256(b"skulk plan\0" + "\0".join(parts).encode()).hexdigest())


def _plan(question: Question) -> PlacementOutcome:
    shape_refusal = _refuse_shape(question)
    if shape_refusal is not None:
        return PlacementOutcome(refusals=(shape_refusal,))
    ranked: list[tuple[_Rank, Plan]] = []
    refused = [
        refusals.unknown_node(node_id)
        for node_id in question.request.nodes
        if node_id not in question.state.members
    ]
    unknown: list[str] = []
    claims = claims_by_node(question.state, question.readings)
    for member in question.state.members.values():
        verdict = _judge(question, member, claims)
        if isinstance(verdict, Plan):
            ranked.append((_rank(question, verdict), verdict))
        elif isinstance(verdict, Missing):
            unknown.append(verdict.fact)
            refused.append(verdict.refusal)
        else:
            refused.append(verdict)
    ranked.sort(key=operator.itemgetter(0))
    plans = tuple(
        made if place == 0 else made.model_copy(update={"alternative": True})
        for place, (_, made) in enumerate(ranked)
    )
    return PlacementOutcome(
        plans=plans, refusals=tuple(refused), missing_facts=() if plans else tuple(unknown)
    )


def _refuse_shape(question: Question) -> Refusal | None:
    request = question.request
    if request.shape is not None and request.shape not in PLANNED_SHAPES:
        return refusals.unsupported_shape(
            f"shape {request.shape} was asked for; this build plans: {', '.join(PLANNED_SHAPES)}"
        )
    if request.min_nodes > 1:
        return refusals.unsupported_shape(
            f"at least {request.min_nodes} nodes were asked for and {_n_candidates(question)} may "
            "be planned onto now; shape single takes one, and this build plans no other"
        )
    return None


def _n_candidates(question: Question) -> int:
    """Count the nodes whose facts and readings matter: none of the others can take a shard."""
    return sum(_refuse_node(question, member) is None for member in question.state.members.values())


def _refuse_node(question: Question, member: Member) -> Refusal | None:
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


def _judge(
    question: Question, member: Member, claims: Mapping[NodeId, Sequence[Claim]]
) -> _Verdict:
    """Find the best plan on one node, or why there is none."""
    refusal = _refuse_node(question, member)
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
    candidate = Candidate(
        member=member,
        facts=member.facts,
        reading=reading,
        claims=tuple(claims.get(member.node_id, ())),
    )
    files = judge_files(question, candidate)
    if files is not None:
        return files
    return _best_backend(question, candidate, tags)


def _best_backend(
    question: Question, candidate: Candidate, tags: tuple[BackendTag, ...]
) -> _Verdict:
    """Take the first backend that fits; else the answer of the one that came nearest."""
    nearest: Refusal | None = None
    unknown: Missing | None = None
    for tag in tags:
        verdict = _judge_backend(question, candidate, tag)
        if isinstance(verdict, Plan):
            return verdict
        if isinstance(verdict, Missing):
            unknown = unknown or verdict
        elif nearest is None or _headroom(verdict) > _headroom(nearest):
            nearest = verdict
    if unknown is not None:
        return unknown
    if nearest is None:
        return refusals.no_backend(candidate.member, question.card, question.request.backend)
    return nearest


def _judge_backend(question: Question, candidate: Candidate, tag: BackendTag) -> _Verdict:
    engine = build_for(candidate.facts, tag)
    if engine is None:
        return refusals.no_backend(candidate.member, question.card, tag)
    slots = question.request.slots or engine.default_slots
    if question.pinned is not None:
        slots = question.pinned.slots
    share = share_of(question.card, engine, slots=slots)
    memory = pool_memory(candidate.facts, compute_of(tag), candidate.reading, candidate.claims)
    if memory is None:
        return missing(candidate.member, "memory")
    window = _window(question, candidate, share, memory)
    if not isinstance(window, int):
        return window
    return _assign(question, candidate, tag, engine, slots, share, memory, window)


def _window(
    question: Question, candidate: Candidate, share: Share, memory: PoolMemory
) -> int | Refusal | Missing:
    """Choose the context, or say why none fits."""
    card, member, request = question.card, candidate.member, question.request
    asked = request.context_tokens if question.pinned is None else question.pinned.context_tokens
    if asked is not None and asked > model_maximum(card):
        return refusals.context_too_long(member, card, asked)
    cap = default_cap(card).tokens
    wanted = cap if asked is None else asked
    if _below_min_vram(card, memory):
        return refusals.too_little_vram(member, card, share, memory, wanted)
    most = share.max_context(memory.free_bytes)
    if asked is not None and asked <= most:
        return asked
    if asked is None:
        spared = share.max_context(memory.free_bytes * SPARE_RATIO_PERCENT // 100)
        window = fitting_window(cap, spared) or (min(MIN_TOKENS, cap))
        if window <= most:
            return window
        wanted = min(MIN_TOKENS, cap)
    if memory.settling_bytes and wanted <= share.max_context(
        memory.free_bytes + memory.settling_bytes
    ):
        held = size_text(memory.settling_bytes)
        return missing(member, f"memory ({held} of a stopping instance still to come back)")
    return refusals.no_fit(member, request, share, memory, wanted)


def _assign(
    question: Question,
    candidate: Candidate,
    tag: BackendTag,
    engine: EngineFacts,
    slots: int,
    share: Share,
    memory: PoolMemory,
    window: int,
) -> Plan:
    card, member = question.card, candidate.member
    shard = ShardAssignment(
        rank=0,
        node_id=member.node_id,
        layer_start=0,
        layer_end=card.n_layers,
        memory=arithmetic(share, memory, window),
    )
    made = Plan(
        plan_id=question.digest,  # replaced below: the id is a digest of the rest
        model_id=card.model_id,
        card_digest=question.digest,
        shape="single",
        engine=engine.engine,
        backend=tag,
        context_tokens=window,
        slots=slots,
        shards=(shard,),
        context_limited_by=limited_by(card, window, question.request.context_tokens, member.name),
        download_bytes=download_bytes_on(question, member.node_id),
    )
    return made.model_copy(update={"plan_id": plan_id_of(made)})


def _rank(question: Question, made: Plan) -> _Rank:
    node_id = made.shards[0].node_id
    headroom = sum(shard.memory.headroom_bytes for shard in made.shards)
    return (
        preference(question.card, made.backend),
        compute_of(made.backend) == "cpu",
        question.holders is not None and node_id not in question.holders,
        -(headroom >> _GIB_SHIFT),
        node_id,
    )


def _below_min_vram(card: ModelCard, memory: PoolMemory) -> bool:
    wanted = card.placement.min_vram_gib
    if wanted is None or memory.pool == "ram" or memory.total_bytes is None:
        return False
    return memory.total_bytes < wanted * (1 << _GIB_SHIFT)


def _headroom(refusal: Refusal) -> float:
    return float("-inf") if refusal.memory is None else refusal.memory.headroom_bytes
