"""The shape `single`: one node holds the whole model; pure."""

from typing import Final

from protocol.cards import BackendTag, ModelCard
from protocol.nodes import EngineFacts
from protocol.placements import Plan, Refusal, ShardAssignment
from skulkd.core.placement import refusals
from skulkd.core.placement.backends import build_for
from skulkd.core.placement.context import (
    MIN_TOKENS,
    SPARE_RATIO_PERCENT,
    default_cap,
    fitting_window,
    limited_by,
    model_maximum,
)
from skulkd.core.placement.explain import size_text
from skulkd.core.placement.files import download_bytes_on, judge_files
from skulkd.core.placement.identity import identified
from skulkd.core.placement.measured import estimate
from skulkd.core.placement.memory_fit import (
    PoolMemory,
    Share,
    arithmetic,
    compute_of,
    pool_memory,
)
from skulkd.core.placement.question import Candidate, Missing, Question, missing

_GIB: Final = 1 << 30


def on_one_node(question: Question, candidate: Candidate) -> Plan | Refusal | Missing:
    """Find the best plan on one node, or why there is none.

    Takes the first backend that fits; else answers for the one that came nearest.
    """
    files = judge_files(question, candidate)
    if files is not None:
        return files
    nearest: Refusal | None = None
    unknown: Missing | None = None
    for tag in candidate.tags:
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


def _judge_backend(
    question: Question, candidate: Candidate, tag: BackendTag
) -> Plan | Refusal | Missing:
    engine = build_for(candidate.facts, tag)
    if engine is None:
        return refusals.no_backend(candidate.member, question.card, tag)
    slots = question.request.slots or engine.default_slots
    if question.pinned is not None:
        slots = question.pinned.slots
    share = estimate(
        question.card,
        engine,
        candidate.facts,
        compute=compute_of(tag),
        slots=slots,
        measurements=question.measurements,
    )
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
    if asked is not None and share.fits(asked, memory.free_bytes):
        return asked
    if asked is None:
        spared = memory.free_bytes * SPARE_RATIO_PERCENT // 100
        window = fitting_window(cap, lambda tokens: share.fits(tokens, spared))
        least = min(MIN_TOKENS, cap)
        if window is not None or share.fits(least, memory.free_bytes):
            return window or least
        wanted = least
    if memory.settling_bytes and share.fits(wanted, memory.free_bytes + memory.settling_bytes):
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
        plan_id=question.digest,  # replaced by `identified`: the id is a digest of the rest
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
    return identified(made)


def _below_min_vram(card: ModelCard, memory: PoolMemory) -> bool:
    wanted = card.placement.min_vram_gib
    if wanted is None or memory.pool == "ram" or memory.total_bytes is None:
        return False
    return memory.total_bytes < wanted * _GIB


def _headroom(refusal: Refusal) -> float:
    return float("-inf") if refusal.memory is None else refusal.memory.headroom_bytes
