"""Refusals: why one node cannot hold a model, with the numbers and the least change that helps."""

from collections.abc import Mapping, Sequence
from typing import Final

from protocol.cards import BackendTag, ModelCard
from protocol.errors import DetailValue, ErrorBody, ErrorCode
from protocol.nodes import Member, Presence
from protocol.placements import (
    ArithmeticTerm,
    MemoryArithmetic,
    PlacementRequest,
    Refusal,
    SmallestChange,
)
from protocol.readings import NoDownloads
from skulkd.core.placement.context import MIN_TOKENS, STEP_TOKENS, model_maximum, rounded_down
from skulkd.core.placement.explain import FACTS_RETRY_S, size_text, sum_text
from skulkd.core.placement.memory_fit import PoolMemory, Share, arithmetic

GIB: Final = 1 << 30
DISK_RESERVE_BYTES: Final = 2 * GIB
"""Must stay free on the models volume after a download: below it the node's health is an error."""

UNREACHABLE_RETRY_S: Final = 5
"""A node that was cut off for a moment is back by then, as a rule."""


def not_a_candidate(member: Member, why: str) -> Refusal:
    """Refuse a node that was excluded, not asked for, or runs no models."""
    return _refusal(
        member,
        "placement.no_node",
        f"{member.name}: {why}",
        "Name another node with --nodes, or leave it out of --exclude.",
    )


def unreachable(member: Member) -> Refusal:
    """Refuse a node that is not there: what it could hold is not known, and nothing gets to it."""
    words: Mapping[Presence, str] = {
        "joining": "was admitted and has not come yet",
        "lost": "was lost: it has not been heard of for too long",
        "left": "said goodbye and is not back",
        "present": "is not heard at the moment",
    }
    refusal = _refusal(
        member,
        "placement.node_unreachable",
        f"{member.name}: {words[member.presence]}",
        "Wait for it, or choose another node with --nodes; `skulk cluster members` shows since "
        "when it is away.",
    )
    error = refusal.error.model_copy(update={"retry_after_s": UNREACHABLE_RETRY_S})
    return refusal.model_copy(update={"error": error})


def draining(member: Member) -> Refusal:
    """Refuse a node that an operator has drained."""
    return _refusal(
        member,
        "placement.node_draining",
        f"{member.name}: is drained, and takes no models until that ends",
        f"Choose another node, or end its drain: `skulk node undrain {member.name}`.",
    )


def unknown_node(node_id: str) -> Refusal:
    """Refuse a node that the request names and nobody knows."""
    return Refusal(
        node_id=None,
        error=ErrorBody(
            code="placement.no_node",
            message=f"{node_id} is not a member of this cluster",
            remediation="`skulk status` lists the nodes.",
        ),
    )


def unsupported_shape(message: str) -> Refusal:
    """Refuse a shape for all nodes at once."""
    return Refusal(
        node_id=None,
        error=ErrorBody(
            code="placement.unsupported_shape",
            message=message,
            remediation="Leave out --shape and --min-nodes, or choose a smaller model.",
        ),
    )


def no_backend(member: Member, card: ModelCard, asked: BackendTag | None) -> Refusal:
    """Refuse a node none of whose backends can run the model."""
    has = ", ".join(member.capabilities.backends) or "none"
    wants = asked or ", ".join(card.placement.compatible_backends)
    remedy = "Install an engine that the card names, or choose another build of the model."
    if member.capabilities.conflicts:
        remedy = member.capabilities.conflicts[0].remediation
    return _refusal(
        member,
        "placement.no_backend",
        f"{member.name}: the model runs on {wants}; the node offers {has}",
        remedy,
    )


def facts_missing(member: Member, fact: str) -> Refusal:
    """Refuse for now: a fact about the node is still to come."""
    refusal = _refusal(
        member,
        "placement.facts_missing",
        f"{member.name}: {fact} is not known yet",
        "Wait for the node's next reading; `skulk status` shows its age.",
    )
    error = refusal.error.model_copy(update={"retry_after_s": FACTS_RETRY_S})
    return refusal.model_copy(update={"error": error})


def no_space(member: Member, download_bytes: int, free_bytes: int) -> Refusal:
    """Refuse a node whose disk cannot take the files."""
    missing = download_bytes + DISK_RESERVE_BYTES - free_bytes
    return _refusal(
        member,
        "placement.no_space",
        f"{member.name}: the files take {size_text(download_bytes)} and "
        f"{size_text(DISK_RESERVE_BYTES)} must stay free; the models volume has "
        f"{size_text(free_bytes)}, {size_text(missing)} too little",
        "Remove a model (`skulk models rm`), or put the models on a larger volume.",
        details={
            "download_bytes": download_bytes,
            "disk_free_bytes": free_bytes,
            "missing_bytes": missing,
        },
    )


def not_fetched(member: Member, card: ModelCard, why: NoDownloads) -> Refusal:
    """Refuse a node that does not have the files and is told to fetch none."""
    flag = "--offline" if why == "offline" else "--no-downloads"
    return _refusal(
        member,
        "store.offline" if why == "offline" else "store.downloads_disabled",
        f"{member.name}: {card.model_id} is not there, and nothing is fetched ({flag})",
        f"Start it without {flag}, or import a file there (`skulk models import`).",
    )


def elsewhere(member: Member, card: ModelCard, path: str) -> Refusal:
    """Refuse a node that does not have a file which is only used where it lies.

    Whether it never was there, has gone or was changed is not known to the planner.
    """
    return _refusal(
        member,
        "placement.no_node",
        f"{member.name}: {card.model_id} is used in place from {path}, which is not there as it "
        "was when it was imported",
        "Place it on the node that has the file, or, where it was moved or changed, import it "
        "again (`skulk models import`).",
    )


def context_too_long(member: Member | None, card: ModelCard, asked: int) -> Refusal:
    """Refuse a window that the model was not made for, on one node or on all together."""
    most = model_maximum(card)
    where = "" if member is None else f"{member.name}: "
    refusal = _refusal(
        member,
        "placement.no_fit",
        f"{where}a context of {asked} tokens was asked for, the model takes {most}",
        f"Ask for --context {most} or less.",
        details={"context_tokens": asked, "max_context_tokens": most},
    )
    change = SmallestChange(kind="context_tokens", context_tokens=most, text=f"--context {most}")
    return refusal.model_copy(update={"smallest_change": change})


def too_little_vram(
    member: Member, card: ModelCard, share: Share, memory: PoolMemory, tokens: int
) -> Refusal:
    """Refuse a GPU smaller than the card's own minimum."""
    wanted = card.placement.min_vram_gib or 0.0
    refusal = _refusal(
        member,
        "placement.no_fit",
        f"{member.name}: the card asks for a GPU of {wanted:g} GiB, this one has "
        f"{size_text(memory.total_bytes or 0)}",
        "Choose a smaller quantization, or a node with a larger GPU.",
    )
    return refusal.model_copy(
        update={
            "term": "available",
            "memory": arithmetic(share, memory, tokens),
            "smallest_change": SmallestChange(kind="none", text="the GPU cannot grow"),
        }
    )


def no_fit(
    member: Member, request: PlacementRequest, share: Share, memory: PoolMemory, tokens: int
) -> Refusal:
    """Refuse a node whose memory does not do for `tokens` of context."""
    figures = arithmetic(share, memory, tokens)
    change = _smallest_change(request, share, memory, figures, member.name)
    refusal = _refusal(
        member,
        "placement.no_fit",
        f"{member.name}: {sum_text(figures)}; {size_text(-figures.headroom_bytes)} too little",
        change.text,
        details={
            "needed_bytes": figures.needed_bytes,
            "available_bytes": figures.available_bytes,
            "reserved_bytes": figures.reserved_bytes,
            "short_bytes": -figures.headroom_bytes,
        },
    )
    return refusal.model_copy(
        update={"term": _broken_term(figures), "memory": figures, "smallest_change": change}
    )


def parts_too_large(
    *, n_nodes: int, sizes: Sequence[int], tokens: int, fits_tokens: int | None
) -> Refusal:
    """Refuse a model whose equal parts are too large for enough nodes.

    Args:
        n_nodes: Nodes that can share the model.
        sizes: Numbers of parts that were tried.
        tokens: The window that was tried.
        fits_tokens: The widest window that would fit, where a narrower one would.
    """
    change = _narrower(fits_tokens) or SmallestChange(
        kind="other_node",
        text="Add nodes, free memory, or choose --shape pipeline, whose parts may be uneven.",
    )
    tried = ", ".join(str(size) for size in sizes)
    refusal = _refusal(
        None,
        "placement.no_fit",
        f"in equal parts over nodes: of {n_nodes} that can share this model, too few hold one of "
        f"{tried} parts with a context of {tokens} tokens",
        change.text,
        details={"n_nodes": n_nodes},
    )
    return refusal.model_copy(update={"smallest_change": change})


def _narrower(fits_tokens: int | None) -> SmallestChange | None:
    if fits_tokens is None:
        return None
    return SmallestChange(
        kind="context_tokens",
        context_tokens=fits_tokens,
        text=f"Ask for --context {fits_tokens} or less.",
    )


def group_too_small(
    *,
    n_nodes: int,
    n_layers: int,
    n_held: int,
    tokens: int,
    fits_tokens: int | None,
) -> Refusal:
    """Refuse a model that is too large for the nodes together, each taken by itself.

    Args:
        n_nodes: Nodes that can share the model.
        n_layers: Layers of the model.
        n_held: Layers that those nodes can hold.
        tokens: The window that was tried.
        fits_tokens: The widest window that would fit, where a narrower one would.
    """
    change = _narrower(fits_tokens) or SmallestChange(
        kind="other_node",
        text=f"Add a node, or free memory, for {max(1, n_layers - n_held)} more layers; or choose "
        "a smaller quantization.",
    )
    refusal = _refusal(
        None,
        "placement.no_fit",
        f"spread over nodes: the {n_nodes} that can share this model hold {n_held} of its "
        f"{n_layers} layers with a context of {tokens} tokens, each judged by its own memory",
        change.text,
        details={"n_nodes": n_nodes, "n_layers": n_layers, "n_held": n_held},
    )
    return refusal.model_copy(update={"smallest_change": change})


def _broken_term(figures: MemoryArithmetic) -> ArithmeticTerm:
    """Name the first term at which the sum goes over; `reserved` if it fits without that."""
    if figures.needed_bytes <= figures.available_bytes:
        return "reserved"
    free = figures.available_bytes - figures.reserved_bytes
    if figures.weights_bytes > free:
        return "weights"
    if figures.weights_bytes + figures.overhead_bytes > free:
        return "overhead"
    return "kv_cache"


def _smallest_change(
    request: PlacementRequest,
    share: Share,
    memory: PoolMemory,
    figures: MemoryArithmetic,
    node_name: str,
) -> SmallestChange:
    fits = rounded_down(share.max_context(memory.free_bytes))
    if request.context_tokens is not None and fits >= STEP_TOKENS:
        return SmallestChange(
            kind="context_tokens", context_tokens=fits, text=f"Ask for --context {fits} or less."
        )
    least = figures.context_tokens
    if request.context_tokens is None:
        least = min(least, MIN_TOKENS)
    short = share.needed_bytes(least) - memory.free_bytes
    return SmallestChange(
        kind="free_memory",
        free_bytes=short,
        text=f"Free {size_text(short)} on {node_name}, or choose a smaller quantization.",
    )


def _refusal(
    member: Member | None,
    code: ErrorCode,
    message: str,
    remediation: str,
    *,
    details: dict[str, DetailValue] | None = None,
) -> Refusal:
    return Refusal(
        node_id=None if member is None else member.node_id,
        error=ErrorBody(code=code, message=message, remediation=remediation, details=details or {}),
    )
