"""How long a word takes to a peer and back: the last one, the median of some, the worst; pure."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from statistics import median
from typing import Final, final

from protocol.ids import NodeId

N_KEPT: Final = 100
N_OF_MEDIAN: Final = 9
"""A median of so many is not moved by one that waited behind a large frame."""
N_OF_P99: Final = 20
"""With fewer, the longest one says nothing about what is rare."""

N_WAITING: Final = 4
AGAIN_S: Final = 0.1
"""A question that was lost is asked again after so long, if there is a reason to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRtt:
    """To one peer and back."""

    median_ms: float
    last_ms: float
    p99_ms: float | None = None
    """Of the last hundred; None before there are twenty."""


RttOf = Callable[[NodeId], LinkRtt | None]
"""Gives what was measured to a peer; None while that is nothing."""


def no_rtt(_peer: NodeId) -> LinkRtt | None:
    """Nothing is measured."""
    return None


@dataclass(slots=True)
class _Asked:
    number: int = 0
    sent_s: dict[int, float] = field(default_factory=dict[int, float])
    """When each question left that is not answered yet; the newest are the last."""
    kept_ms: deque[float] = field(default_factory=lambda: deque[float](maxlen=N_KEPT))


@final
class LinkRtts:
    """To all peers."""

    def __init__(self) -> None:
        self._peers: dict[NodeId, _Asked] = {}

    def ask(self, peer: NodeId, *, now: float) -> int:
        """Note a question that is sent now; returns the number that its answer repeats."""
        asked = self._peers.setdefault(peer, _Asked())
        asked.number += 1
        asked.sent_s[asked.number] = now
        if len(asked.sent_s) > N_WAITING:
            del asked.sent_s[next(iter(asked.sent_s))]
        return asked.number

    def answer(self, peer: NodeId, number: int, *, now: float) -> None:
        """Note an answer; one that comes twice, or to nothing that was asked, counts not."""
        asked = self._peers.get(peer)
        sent_s = None if asked is None else asked.sent_s.pop(number, None)
        if asked is not None and sent_s is not None:
            asked.kept_ms.append(max(0.0, now - sent_s) * 1000)

    def is_wanted(self, peer: NodeId, *, now: float) -> bool:
        """Say whether nothing is known of a peer, nor was asked just now."""
        asked = self._peers.get(peer)
        if asked is None or asked.kept_ms:
            return asked is None
        return now - max(asked.sent_s.values(), default=float("-inf")) >= AGAIN_S

    def forget(self, peer: NodeId) -> None:
        """Drop what was measured: the way there has broken, and a new one may be another."""
        asked = self._peers.get(peer)
        if asked is not None:
            asked.sent_s.clear()
            asked.kept_ms.clear()

    def keep(self, peers: frozenset[NodeId]) -> None:
        """Drop all but these: others are no members any more."""
        for peer in self._peers.keys() - peers:
            del self._peers[peer]

    def of(self, peer: NodeId) -> LinkRtt | None:
        """Give what was measured; None while that is nothing."""
        asked = self._peers.get(peer)
        if asked is None or not asked.kept_ms:
            return None
        kept_ms = list(asked.kept_ms)
        return LinkRtt(
            median_ms=median(kept_ms[-N_OF_MEDIAN:]), last_ms=kept_ms[-1], p99_ms=_p99(kept_ms)
        )


def _p99(kept_ms: list[float]) -> float | None:
    """Give the nearest rank: at most one in a hundred took longer."""
    if len(kept_ms) < N_OF_P99:
        return None
    return sorted(kept_ms)[ceil(len(kept_ms) * 0.99) - 1]
