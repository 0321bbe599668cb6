"""The shape `tensor`: every rank holds an equal part of every layer; pure.

The parts are equal, so the node with the least room decides. Their number divides the heads of the
model; the smallest that fits is taken, since every further rank waits at every layer.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import final

from protocol.cards import ModelCard
from protocol.placements import Refusal
from skulkd.core.placement import refusals
from skulkd.core.placement.context import (
    fitting_below,
    model_maximum,
    widest_fitting,
    windows_to_try,
)
from skulkd.core.placement.groups import MAX_LEADERS, Spread
from skulkd.core.placement.hosts import Host
from skulkd.core.placement.memory_fit import share_of
from skulkd.core.placement.question import Question
from skulkd.core.placement.sharding import MAX_RANKS
from skulkd.core.placement.topology import TYPICAL_DELAY_MS, Topology


@final
class TensorSearch:
    """Looks for the smallest number of equal parts that as many hosts can hold."""

    def __init__(self, question: Question, hosts: Sequence[Host], topology: Topology) -> None:
        self._question = question
        self._hosts = sorted(hosts, key=lambda host: (-host.memory.free_bytes, host.node_id))
        self._topology = topology
        self._slots = question.request.slots or min(host.build.default_slots for host in hosts)
        n_least = max(2, question.request.min_nodes)
        n_most = min(len(hosts), MAX_RANKS)
        self._sizes = [size for size in part_counts(question.card) if n_least <= size <= n_most]

    def spread(self) -> Spread | Refusal | None:
        """Choose window and ranks, or say what is lacking; None when it cannot be cut so."""
        card, asked = self._question.card, self._question.request.context_tokens
        if not self._sizes:
            return None
        if asked is not None and asked > model_maximum(card):
            return refusals.context_too_long(None, card, asked)
        tokens, percent = widest_fitting(
            windows_to_try(card, asked),
            lambda tokens, percent: self._find(tokens, percent) is not None,
        )
        ranks = self._find(tokens, percent)
        if ranks is not None:
            worst = max(
                self._topology.link_class(one.node_id, two.node_id)
                for one, two in combinations(ranks, 2)
            )
            return Spread(
                hosts=tuple(ranks),
                layers=((0, card.n_layers),) * len(ranks),
                tokens=tokens,
                slots=self._slots,
                delay_ms=2 * card.n_layers * TYPICAL_DELAY_MS[worst],
            )
        fits_tokens = None
        if asked is not None:
            fits_tokens = fitting_below(asked, lambda fewer: self._find(fewer, 100) is not None)
        return refusals.parts_too_large(
            n_nodes=len(self._hosts), sizes=self._sizes, tokens=tokens, fits_tokens=fits_tokens
        )

    def _find(self, tokens: int, percent: int) -> list[Host] | None:
        for size in self._sizes:
            able = [
                host
                for host in self._hosts
                if self._needed(host, size, tokens) <= host.memory.free_bytes * percent // 100
            ]
            if len(able) < size:
                continue
            for first in able[:MAX_LEADERS]:
                ranks = self._joined(first, able, size)
                if ranks is not None:
                    return sorted(ranks, key=lambda host: host.lead_rank)
        return None

    def _joined(self, first: Host, able: Sequence[Host], size: int) -> list[Host] | None:
        """Take the hosts with the best links to the first, none of them cut off from another."""
        near = sorted(
            (host for host in able if host is not first),
            key=lambda host: self._topology.link_class(first.node_id, host.node_id),
        )
        ranks = [first]
        for host in near:
            if len(ranks) == size:
                break
            if not any(self._topology.is_cut(host.node_id, one.node_id) for one in ranks):
                ranks.append(host)
        return ranks if len(ranks) == size else None

    def _needed(self, host: Host, size: int, tokens: int) -> int:
        card = self._question.card
        return share_of(card, host.build, slots=self._slots, n_parts=size).needed_bytes(tokens)


def part_counts(card: ModelCard) -> Iterator[int]:
    """Yield the numbers of equal parts that the layers of a model can be cut into, from two on."""
    heads = card.num_key_value_heads
    if not card.supports_tensor or heads is None:
        return
    for size in range(2, heads + 1):
        if heads % size == 0 and card.hidden_size % size == 0:
            yield size
