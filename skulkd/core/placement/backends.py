"""Which backends of a node a model may use, in which order, and which build serves each; pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from protocol.cards import BackendTag, ModelCard
from protocol.nodes import EngineFacts, Member, NodeFacts
from protocol.placements import Shape
from skulkd.core.placement.memory_fit import compute_of

_BUILTIN_SCRIPTED: Final = EngineFacts(engine="scripted", provider="builtin", usable=True)


def usable_tags(card: ModelCard, member: Member, asked: BackendTag | None) -> Iterator[BackendTag]:
    """Yield the node's backends that the model may use, best first."""
    allowed = [
        (preference(card, tag), compute_of(tag) == "cpu", place, tag)
        for place, tag in enumerate(member.capabilities.backends)
        if any(_matches(tag, wanted) for wanted in card.placement.compatible_backends)
        and (asked is None or _matches(tag, asked))
    ]
    for _, _, _, tag in sorted(allowed):
        yield tag


def preference(card: ModelCard, tag: BackendTag) -> int:
    """Rank a backend as the card prefers; less is better."""
    order = (*card.placement.backend_preference, *card.placement.compatible_backends)
    return next((place for place, wanted in enumerate(order) if _matches(tag, wanted)), len(order))


def build_for(facts: NodeFacts, tag: BackendTag) -> EngineFacts | None:
    """Find the build that serves a backend: one that lists its compute before one that does not."""
    return _serving(tag, [build for build in facts.engines if build.usable])


def sharing_build_for(facts: NodeFacts, tag: BackendTag, shape: Shape) -> EngineFacts | None:
    """Find the build with which a backend can share a model with other nodes in this shape."""
    builds = [
        build
        for build in facts.engines
        if build.usable and (build.rpc if shape == "rpc" else build.ring)
    ]
    return _serving(tag, builds) if builds else None


def _serving(tag: BackendTag, usable: Sequence[EngineFacts]) -> EngineFacts | None:
    name = tag.partition("-")[0]
    builds = [build for build in usable if build.engine == name]
    compute = compute_of(tag)
    listed = next((build for build in builds if compute in build.computes), None)
    if listed is None and not builds and name == "scripted":
        return _BUILTIN_SCRIPTED
    return listed or (builds[0] if builds else None)


def _matches(tag: BackendTag, wanted: BackendTag) -> bool:
    """Say whether a full tag is what a card or request names; a bare engine matches any compute."""
    return tag == wanted or ("-" not in wanted and tag.partition("-")[0] == wanted)
