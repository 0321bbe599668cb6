"""Shapes over several nodes: whom to spread a model over when no node alone can hold it; pure.

`rpc`: one llama-server drives, and keeps what is no layer; the others lend it memory for layers.
Driver and donors run builds of one version. Only the driver needs the files.

The search is greedy. The nodes that can hold most layers come first, and the group is the smallest
whose numbers add up to the model; each number is of one node by itself. Among drivers with which
the group is equally small, the one that would be the best single node drives. A node is looked at
a fixed number of times, so a thousand of them cost milliseconds.
"""

import operator
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, final

from protocol.cards import BackendTag
from protocol.nodes import EngineFacts
from protocol.placements import Plan, Refusal, Shape, ShardAssignment
from skulkd.core.placement import refusals
from skulkd.core.placement.backends import pooling_build_for, preference
from skulkd.core.placement.context import (
    LADDER,
    MIN_TOKENS,
    SPARE_RATIO_PERCENT,
    STEP_TOKENS,
    default_cap,
    limited_by,
    model_maximum,
)
from skulkd.core.placement.files import download_bytes_on, judge_files
from skulkd.core.placement.identity import identified
from skulkd.core.placement.memory_fit import (
    Layers,
    PoolMemory,
    arithmetic,
    compute_of,
    pool_memory,
    share_of,
)
from skulkd.core.placement.question import Candidate, Question
from skulkd.core.placement.sharding import (
    MAX_RANKS,
    LayerTables,
    Room,
    ranges,
    split_layers,
)

_GIB_SHIFT: Final = 30
_LeadRank = tuple[int, bool, bool, int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A node that could take some of the layers, with one of its backends."""

    candidate: Candidate
    tag: BackendTag
    build: EngineFacts
    memory: PoolMemory
    can_lead: bool
    """It has the files, or can get them."""
    lead_rank: _LeadRank
    """How gladly it is made rank 0; less is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Hosts in the order of their ranks, and how many layers each could hold."""

    hosts: tuple[Host, ...]
    most: tuple[int, ...]


def group_plan(question: Question, candidates: Sequence[Candidate]) -> Plan | Refusal | None:
    """Find the best plan over several nodes, or say by how much the nodes together fall short.

    Args:
        question: What is planned. Its `min_nodes` is kept, at least two.
        candidates: The nodes that may be planned onto.

    Returns:
        None when there are not two nodes that could share a model.
    """
    nearest: Refusal | None = None
    for by_version in _grouped(_hosts(question, candidates)):
        # The backend that a node would rather use comes first; what has most memory, after it.
        preferred = [options[0] for options in by_version]
        roomiest = [max(options, key=lambda one: one.memory.free_bytes) for options in by_version]
        if len(by_version) < max(2, question.request.min_nodes):
            continue
        for hosts in (preferred, roomiest):
            search = _Search(question, hosts)
            verdict = search.plan()
            if isinstance(verdict, Plan):
                return verdict
            nearest = nearest or verdict
    return nearest


def group_again(question: Question, made: Plan, candidates: Sequence[Candidate]) -> Plan | None:
    """Make a plan over several nodes again, share by share; None if one does not fit any more."""
    known = {candidate.member.node_id: candidate for candidate in candidates}
    chosen: list[Host] = []
    for shard in made.shards:
        candidate = known.get(shard.node_id)
        if candidate is None:
            return None
        wanted = shard.backend or made.backend
        options = _options(question, candidate)
        host = next((one for one in options if one.tag == wanted), None)
        if host is None or (shard.rank == 0 and not host.can_lead):
            return None
        chosen.append(host)
    if len({host.build.version for host in chosen}) > 1:
        return None
    layers = [(shard.layer_start, shard.layer_end) for shard in made.shards]
    again = _assign(question, chosen, layers, made.context_tokens, made.slots)
    return again if _is_held(again) else None


@final
class _Search:
    """Looks for the smallest group of some hosts, for one window after the other."""

    def __init__(self, question: Question, hosts: Sequence[Host]) -> None:
        self._question = question
        self._hosts = hosts
        self._n_layers = question.card.n_layers
        self._slots = question.request.slots or min(host.build.default_slots for host in hosts)
        self._tables = LayerTables(question.card, self._slots)
        self._leaders = sorted(
            (host for host in hosts if host.can_lead), key=lambda host: host.lead_rank
        )
        self._n_least = max(2, question.request.min_nodes)
        self._n_most = min(len(hosts), MAX_RANKS, self._n_layers)

    def plan(self) -> Plan | Refusal:
        """Choose window and group, or say what is lacking."""
        card, asked = self._question.card, self._question.request.context_tokens
        if asked is not None and asked > model_maximum(card):
            return refusals.context_too_long(None, card, asked)
        if not self._leaders or self._n_least > self._n_most:
            return refusals.no_group(self._question.request, len(self._hosts))
        tokens, percent = self._widest(self._windows())
        group = self._find(tokens, percent)
        if group is None:
            return self._too_small(tokens)
        rooms = [
            Room(free_bytes=max(1, host.memory.free_bytes), most=most)
            for host, most in zip(group.hosts, group.most, strict=True)
        ]
        layers = ranges(split_layers(self._n_layers, rooms))
        return _assign(self._question, group.hosts, layers, tokens, self._slots)

    def _windows(self) -> list[tuple[int, int]]:
        """List the windows to consider, widest first, each with the part of memory it may fill."""
        asked = self._question.request.context_tokens
        if asked is not None:
            return [(asked, 100)]
        cap = default_cap(self._question.card).tokens
        spared = [cap, *(step for step in reversed(LADDER) if step < cap)]
        least = min(MIN_TOKENS, cap)
        return [*((step, SPARE_RATIO_PERCENT) for step in spared), (least, 100)]

    def _widest(self, windows: list[tuple[int, int]]) -> tuple[int, int]:
        """Give the widest window for which there is a group; the last when there is none."""
        place = bisect_left(
            windows, 1, hi=len(windows) - 1, key=lambda window: int(self._find(*window) is not None)
        )
        return windows[place]

    def _find(self, tokens: int, percent: int = 100) -> Group | None:
        """Find the smallest group that holds the model with so much context."""
        rooms = self._rooms(tokens, percent)
        sums = list(accumulate((most for most, _ in rooms), initial=0))
        places = {host.candidate.member.node_id: place for place, (_, host) in enumerate(rooms)}
        best: tuple[int, Host, int] | None = None
        for leader in self._leaders:
            led = self._most(leader, tokens, percent, leads=True)
            if led < 1:
                continue
            place = places.get(leader.candidate.member.node_id, len(rooms))
            n_donors = _fewest(sums, place, self._n_layers - led)
            n_ranks = max(self._n_least, 1 + n_donors)
            n_there = 1 + len(rooms) - (place < len(rooms))
            if n_ranks <= min(self._n_most, n_there) and (best is None or n_ranks < best[0]):
                best = n_ranks, leader, led
        if best is None:
            return None
        n_ranks, leader, led = best
        donors = [(most, host) for most, host in rooms if host is not leader][: n_ranks - 1]
        return Group(
            hosts=(leader, *(host for _, host in donors)),
            most=(led, *(most for most, _ in donors)),
        )

    def _rooms(self, tokens: int, percent: int) -> list[tuple[int, Host]]:
        """Say how many layers each host could lend room for, most first."""
        rooms = ((self._most(host, tokens, percent, leads=False), host) for host in self._hosts)
        return sorted(
            (room for room in rooms if room[0] > 0),
            key=lambda room: (-room[0], room[1].candidate.member.node_id),
        )

    def _most(self, host: Host, tokens: int, percent: int, *, leads: bool) -> int:
        free_bytes = host.memory.free_bytes * percent // 100
        return self._tables.most(host.build, free_bytes, tokens, has_ends=leads)

    def _too_small(self, tokens: int) -> Refusal:
        """Say how many layers the best group could hold, and what would do."""
        rooms = self._rooms(tokens, 100)
        held, leader = max(
            ((self._most(host, tokens, 100, leads=True), host) for host in self._leaders),
            key=operator.itemgetter(0),
        )
        donors = [(most, host) for most, host in rooms if host is not leader]
        held += sum(most for most, _ in donors[: self._n_most - 1])
        return refusals.group_too_small(
            n_nodes=len(self._hosts),
            n_layers=self._n_layers,
            n_held=min(held, self._n_layers),
            tokens=tokens,
            fits_tokens=self._fitting_tokens(tokens),
        )

    def _fitting_tokens(self, tokens: int) -> int | None:
        """Give the widest window below the asked one that a group could hold."""
        if self._question.request.context_tokens is None:
            return None
        steps = range(1, tokens // STEP_TOKENS + 1)
        n_fitting = bisect_left(steps, 1, key=lambda n: int(self._find(n * STEP_TOKENS) is None))
        return n_fitting * STEP_TOKENS or None


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


def _hosts(question: Question, candidates: Iterable[Candidate]) -> list[list[Host]]:
    options = (_options(question, candidate) for candidate in candidates)
    return [hosts for hosts in options if hosts]


def _options(question: Question, candidate: Candidate) -> list[Host]:
    """List what a node could take layers with, best first."""
    card, node_id = question.card, candidate.member.node_id
    can_lead = judge_files(question, candidate) is None
    found: list[Host] = []
    for tag in candidate.tags:
        build = pooling_build_for(candidate.facts, tag)
        compute = compute_of(tag)
        memory = pool_memory(candidate.facts, compute, candidate.reading, candidate.claims)
        if build is None or memory is None:
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


def _grouped(hosts: Iterable[list[Host]]) -> Iterable[list[list[Host]]]:
    """Part nodes by the version of their builds, the largest part first."""
    parts: dict[str, list[list[Host]]] = {}
    for options in hosts:
        for version in {host.build.version for host in options}:
            same = [host for host in options if host.build.version == version]
            parts.setdefault(version, []).append(same)
    return (parts[version] for version in sorted(parts, key=lambda v: (-len(parts[v]), v)))


def _assign(
    question: Question, hosts: Sequence[Host], layers: Sequence[Layers], tokens: int, slots: int
) -> Plan:
    card, leader = question.card, hosts[0]
    shards: list[ShardAssignment] = []
    for rank, (host, held) in enumerate(zip(hosts, layers, strict=True)):
        share = share_of(card, host.build, slots=slots, layers=held, has_ends=rank == 0)
        shard = ShardAssignment(
            rank=rank,
            node_id=host.candidate.member.node_id,
            layer_start=held[0],
            layer_end=held[1],
            memory=arithmetic(share, host.memory, tokens),
            backend=None if host.tag == leader.tag else host.tag,
        )
        shards.append(shard)
    names = " and ".join(host.candidate.member.name for host in hosts)
    shape: Shape = "rpc"
    return identified(
        Plan(
            plan_id=question.digest,  # replaced by `identified`
            model_id=card.model_id,
            card_digest=question.digest,
            shape=shape,
            engine=leader.build.engine,
            backend=leader.tag,
            context_tokens=tokens,
            slots=slots,
            shards=tuple(shards),
            context_limited_by=limited_by(card, tokens, question.request.context_tokens, names),
            download_bytes=download_bytes_on(question, leader.candidate.member.node_id),
        )
    )


def _is_held(made: Plan) -> bool:
    return all(shard.memory.headroom_bytes >= 0 for shard in made.shards)
