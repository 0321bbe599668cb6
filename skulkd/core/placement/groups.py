"""The smallest group of nodes that holds a model layer by layer: shapes `rpc` and `pipeline`; pure.

`rpc`: one llama-server drives, and keeps what is no layer; the others lend it memory for layers.
`pipeline`: a ring of ranks, each with some of the layers and with what is no layer.

The search is greedy. The nodes that can hold most layers come first, and a group is the smallest
whose numbers add up to the model; each number is of one node by itself. Of the groups that are
found, with one rank 0 or another and over good links or any, the one with the least delay a token
is taken. A node is looked at a fixed number of times, so a thousand of them cost milliseconds.
"""

import operator
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, final

from protocol.placements import Refusal, Shape
from skulkd.core.placement import refusals
from skulkd.core.placement.context import (
    fitting_below,
    model_maximum,
    widest_fitting,
    windows_to_try,
)
from skulkd.core.placement.hosts import Host
from skulkd.core.placement.memory_fit import Layers
from skulkd.core.placement.question import Question
from skulkd.core.placement.sharding import MAX_RANKS, LayerTables, Room, ranges, split_layers
from skulkd.core.placement.topology import TYPICAL_DELAY_MS, Topology

MAX_LEADERS: Final = 8
"""Of the nodes with which a group was found, so many are compared for their links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Who takes what of a model, and with which window."""

    hosts: tuple[Host, ...]
    """In the order of their ranks."""
    layers: tuple[Layers, ...]
    tokens: int
    slots: int
    delay_ms: float
    """Of a token on its way between the nodes, by the class of the worst link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    hosts: tuple[Host, ...]
    most: tuple[int, ...]
    """Layers that each could hold."""
    delay_ms: float


@final
class LayerSearch:
    """Looks for the smallest group of some hosts, for one window after the other."""

    def __init__(
        self, question: Question, shape: Shape, hosts: Sequence[Host], topology: Topology
    ) -> None:
        self._question = question
        self._all_have_ends = shape == "pipeline"
        self._hosts = hosts
        self._topology = topology
        card = question.card
        self._n_layers = card.n_layers
        self._last_start = card.n_layers
        if shape == "pipeline" and card.placement.max_pipeline_split_layer is not None:
            self._last_start = min(card.n_layers, card.placement.max_pipeline_split_layer)
        self._slots = question.request.slots or min(host.build.default_slots for host in hosts)
        self._tables = LayerTables(card, self._slots)
        self._leaders = sorted(
            (host for host in hosts if host.can_lead), key=lambda host: host.lead_rank
        )
        self._n_least = max(2, question.request.min_nodes)
        self._n_most = min(len(hosts), MAX_RANKS, self._n_layers)

    def spread(self) -> Spread | Refusal | None:
        """Choose window and group, or say what is lacking; None when too few could take part."""
        card, asked = self._question.card, self._question.request.context_tokens
        if not self._leaders or self._n_least > self._n_most:
            return None
        if asked is not None and asked > model_maximum(card):
            return refusals.context_too_long(None, card, asked)
        tokens, percent = widest_fitting(
            windows_to_try(card, asked),
            lambda tokens, percent: self._find(tokens, percent, n_compared=1) is not None,
        )
        group = self._find(tokens, percent, n_compared=MAX_LEADERS)
        if group is None:
            return self._too_small(tokens)
        rooms = [
            Room(free_bytes=max(1, host.memory.free_bytes), most=most)
            for host, most in zip(group.hosts, group.most, strict=True)
        ]
        counts = split_layers(self._n_layers, rooms, last_start=self._last_start)
        return Spread(
            hosts=group.hosts,
            layers=ranges(counts),
            tokens=tokens,
            slots=self._slots,
            delay_ms=group.delay_ms,
        )

    def _find(self, tokens: int, percent: int, *, n_compared: int) -> _Group | None:
        """Find the best of the first groups that hold the model with so much context."""
        rooms = self._rooms(tokens, percent)
        sums = list(accumulate((most for most, _ in rooms), initial=0))
        places = {host.node_id: place for place, (_, host) in enumerate(rooms)}
        best: _Group | None = None
        n_found = 0
        for leader in self._leaders:
            led = self._most(leader, tokens, percent, has_ends=True)
            place = places.get(leader.node_id, len(rooms))
            if led < 1 or 1 + _fewest(sums, place, self._n_layers - led) > self._n_most:
                continue
            group = self._led_by(leader, led, rooms)
            if group is not None and (best is None or _is_better(group, best)):
                best = group
            n_found += group is not None
            if n_found == n_compared:
                break
        return best

    def _led_by(self, leader: Host, led: int, rooms: Sequence[tuple[int, Host]]) -> _Group | None:
        """Find the best group with this rank 0: over its good links alone, or over any."""
        best: _Group | None = None
        known = [
            (self._topology.link_class(leader.node_id, host.node_id), most, host)
            for most, host in self._near(leader, rooms)
        ]
        for allowed in sorted({named for named, _, _ in known}):
            held, chosen, worst = led, list[tuple[int, Host]](), 0
            for named, most, host in known:
                if held >= self._n_layers and len(chosen) + 1 >= self._n_least:
                    break
                if named <= allowed:
                    chosen.append((most, host))
                    held += most
                    worst = max(worst, named)
            n_ranks = len(chosen) + 1
            if held < self._n_layers or not self._n_least <= n_ranks <= self._n_most:
                continue
            group = self._in_order(leader, led, chosen, len(chosen) * TYPICAL_DELAY_MS[worst])
            if group is not None and (best is None or _is_better(group, best)):
                best = group
        return best

    def _near(self, leader: Host, rooms: Sequence[tuple[int, Host]]) -> list[tuple[int, Host]]:
        """List the donors that a leader reaches, most room first, and no more than may be needed.

        Of each class of links, as many as a group may have.
        """
        found: list[tuple[int, Host]] = []
        n_of_class: dict[int, int] = {}
        if not self._topology.knows(leader.node_id):
            others = [room for room in rooms[: self._n_most] if room[1] is not leader]
            return others[: self._n_most - 1]
        for most, host in rooms:
            if host is leader or self._topology.is_cut(leader.node_id, host.node_id):
                continue
            named = self._topology.link_class(leader.node_id, host.node_id)
            n_of_class[named] = n_of_class.get(named, 0) + 1
            if n_of_class[named] < self._n_most:
                found.append((most, host))
        return found

    def _in_order(
        self, leader: Host, led: int, chosen: Sequence[tuple[int, Host]], delay_ms: float
    ) -> _Group | None:
        """Put the ranks into order: in a ring, who has most room last, where it may be bound."""
        donors = sorted(chosen, key=operator.itemgetter(0)) if self._all_have_ends else chosen
        hosts = (leader, *(host for _, host in donors))
        most = (led, *(room for room, _ in donors))
        if self._all_have_ends:
            ring = pairwise((*hosts, leader))
            if any(self._topology.is_cut(one.node_id, two.node_id) for one, two in ring):
                return None
            n_before = len(hosts) - 1
            if self._n_layers - most[-1] > self._last_start or n_before > self._last_start:
                return None
        return _Group(hosts=hosts, most=most, delay_ms=delay_ms)

    def _rooms(self, tokens: int, percent: int) -> list[tuple[int, Host]]:
        """Say how many layers each host could take as a later rank, most first."""
        has_ends = self._all_have_ends
        rooms = (
            (self._most(host, tokens, percent, has_ends=has_ends), host) for host in self._hosts
        )
        return sorted(
            (room for room in rooms if room[0] > 0), key=lambda room: (-room[0], room[1].node_id)
        )

    def _most(self, host: Host, tokens: int, percent: int, *, has_ends: bool) -> int:
        free_bytes = host.memory.free_bytes * percent // 100
        return self._tables.most(host.build, free_bytes, tokens, has_ends=has_ends)

    def _too_small(self, tokens: int) -> Refusal:
        """Say how many layers the best group could hold, and what would do."""
        asked = self._question.request.context_tokens
        rooms = self._rooms(tokens, 100)
        held = 0
        for leader in self._leaders[:MAX_LEADERS]:
            donors = [most for most, host in rooms if host is not leader][: self._n_most - 1]
            led = self._most(leader, tokens, 100, has_ends=True)
            held = max(held, led + sum(donors))
        fits_tokens = None
        if asked is not None:
            fits_tokens = fitting_below(
                asked, lambda fewer: self._find(fewer, 100, n_compared=1) is not None
            )
        return refusals.group_too_small(
            n_nodes=len(self._hosts),
            n_layers=self._n_layers,
            n_held=min(held, self._n_layers),
            tokens=tokens,
            fits_tokens=fits_tokens,
        )


def _is_better(one: _Group, other: _Group) -> bool:
    """Say whether a group is better than one whose rank 0 comes before its own."""
    return (one.delay_ms, len(one.hosts)) < (other.delay_ms, len(other.hosts))


def _fewest(sums: Sequence[int], leader_place: int, lacking: int) -> int:
    """Count the donors that hold what the leader lacks, most first, without the leader itself.

    Args:
        sums: Of the rooms before each place.
        leader_place: Where the leader stands among them.
        lacking: Layers that the leader does not hold.
    """
    n_first = bisect_left(sums, lacking)
    if n_first <= leader_place:
        return n_first
    own = sums[leader_place + 1] - sums[leader_place]
    return bisect_left(sums, lacking + own) - 1
