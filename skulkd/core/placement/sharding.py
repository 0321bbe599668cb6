"""How a model's layers are shared out over ranks; pure.

Each rank is judged by its own memory alone: it can hold so many layers, whatever the others have.
A model fits when those numbers add up to its layers, and then each rank is given its part in
proportion to its free memory, never more than it can hold, and at least one layer.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from protocol.cards import ModelCard
from protocol.nodes import EngineFacts
from skulkd.core.placement.memory_fit import Share, share_of

MAX_RANKS: Final = 16
"""Nodes that one model is spread over at most; each adds its delay to every token."""

_Kind = tuple[str, int, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What one rank has for layers."""

    free_bytes: int
    most: int
    """Layers that it can hold; at least one."""


@final
class LayerTables:
    """Says how many layers of one model fit into so much memory, with so much context.

    What a build needs for 1, 2, … layers is computed once for each kind of build and window: a
    fleet of a thousand nodes has few kinds of builds.
    """

    def __init__(self, card: ModelCard, slots: int) -> None:
        self._card = card
        self._slots = slots
        self._shares: dict[_Kind, tuple[Share, ...]] = {}
        self._needs: dict[tuple[_Kind, int], tuple[int, ...]] = {}

    def most(self, build: EngineFacts, free_bytes: int, tokens: int, *, has_ends: bool) -> int:
        """Give the number of layers that fit; 0 if not even one does."""
        kind = (build.engine, build.overhead_bytes, has_ends)
        needs = self._needs.get((kind, tokens))
        if needs is None:
            shares = self._shares.get(kind)
            if shares is None:
                shares = self._shares[kind] = self._shares_of(build, has_ends=has_ends)
            needs = tuple(share.needed_bytes(tokens) for share in shares)
            self._needs[kind, tokens] = needs
        return bisect_right(needs, free_bytes)

    def _shares_of(self, build: EngineFacts, *, has_ends: bool) -> tuple[Share, ...]:
        return tuple(
            share_of(self._card, build, slots=self._slots, layers=(0, n), has_ends=has_ends)
            for n in range(1, self._card.n_layers + 1)
        )


def split_layers(
    n_layers: int, rooms: Sequence[Room], *, last_start: int | None = None
) -> tuple[int, ...]:
    """Share layers out in proportion to free memory, each rank between one and what it can hold.

    Args:
        n_layers: All layers of the model.
        rooms: One for each rank. Invariant: together they can hold the layers, and there are no
            more of them than layers.
        last_start: Where the last rank begins at the latest; it can hold what follows.
    """
    total_bytes = max(1, sum(room.free_bytes for room in rooms))
    least = [1] * len(rooms)
    if last_start is not None:
        least[-1] = max(1, n_layers - last_start)
    counts = [
        min(room.most, max(few, n_layers * room.free_bytes // total_bytes))
        for few, room in zip(least, rooms, strict=True)
    ]
    ranks = range(len(rooms))
    while sum(counts) < n_layers:
        growing = [rank for rank in ranks if counts[rank] < rooms[rank].most]
        counts[max(growing, key=lambda rank: rooms[rank].free_bytes / (counts[rank] + 1))] += 1
    while sum(counts) > n_layers:
        shrinking = [rank for rank in ranks if counts[rank] > least[rank]]
        counts[min(shrinking, key=lambda rank: rooms[rank].free_bytes / counts[rank])] -= 1
    return tuple(counts)


def ranges(counts: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Turn numbers of layers into half-open ranges, one after the other."""
    made: list[tuple[int, int]] = []
    start = 0
    for count in counts:
        made.append((start, start + count))
        start += count
    return tuple(made)
