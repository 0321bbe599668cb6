"""Shapes over several nodes: which, over whom, and the plan that comes of it; pure."""

from collections.abc import Sequence
from itertools import starmap

from protocol.placements import Plan, Refusal, Shape, ShardAssignment
from skulkd.core.placement.backends import preference
from skulkd.core.placement.context import limited_by
from skulkd.core.placement.files import download_bytes_on
from skulkd.core.placement.groups import LayerSearch, Spread
from skulkd.core.placement.hosts import Host, host_choices, host_options
from skulkd.core.placement.identity import identified
from skulkd.core.placement.memory_fit import arithmetic, share_of
from skulkd.core.placement.question import Candidate, Question
from skulkd.core.placement.shapes import SPREAD_SHAPES, talking_pairs
from skulkd.core.placement.tensor import TensorSearch
from skulkd.core.placement.topology import Topology


def spread_plan(question: Question, candidates: Sequence[Candidate]) -> Plan | Refusal | None:
    """Find the best plan over several nodes, or say by how much the nodes together fall short.

    The card's preference of backends comes first, then the least delay on the links.

    Args:
        question: What is planned. Its `min_nodes` is kept, at least two.
        candidates: The nodes that may be planned onto.

    Returns:
        None when there are not as many nodes that could share the model.
    """
    shape = question.request.shape
    topology = Topology(question.readings)
    nearest: Refusal | None = None
    best: tuple[tuple[int, float], Plan] | None = None
    for tried in SPREAD_SHAPES if shape is None else (shape,):
        verdict = _in_shape(question, tried, candidates, topology)
        if isinstance(verdict, Refusal):
            nearest = nearest or verdict
        elif verdict is not None:
            rank = preference(question.card, verdict.hosts[0].tag), verdict.delay_ms
            if best is None or rank < best[0]:
                best = rank, _assign(question, tried, verdict)
    return nearest if best is None else best[1]


def spread_again(question: Question, made: Plan, candidates: Sequence[Candidate]) -> Plan | None:
    """Make a plan over several nodes again, share by share; None if one does not fit any more."""
    known = {candidate.member.node_id: candidate for candidate in candidates}
    chosen: list[Host] = []
    for shard in made.shards:
        candidate = known.get(shard.node_id)
        if candidate is None:
            return None
        wanted = shard.backend or made.backend
        options = host_options(question, made.shape, candidate)
        host = next((one for one in options if one.tag == wanted), None)
        if host is None or not (host.can_lead or (made.shape == "rpc" and shard.rank > 0)):
            return None
        chosen.append(host)
    if len({host.build.version for host in chosen}) > 1 or _is_cut(question, made.shape, chosen):
        return None
    again = Spread(
        hosts=tuple(chosen),
        layers=tuple((shard.layer_start, shard.layer_end) for shard in made.shards),
        tokens=made.context_tokens,
        slots=made.slots,
        delay_ms=0.0,
    )
    plan = _assign(question, made.shape, again)
    fits = all(shard.memory.headroom_bytes >= 0 for shard in plan.shards)
    return plan if fits else None


def _is_cut(question: Question, shape: Shape, chosen: Sequence[Host]) -> bool:
    topology = Topology(question.readings)
    pairs = talking_pairs(shape, [host.node_id for host in chosen])
    return any(starmap(topology.is_cut, pairs))


def _in_shape(
    question: Question, shape: Shape, candidates: Sequence[Candidate], topology: Topology
) -> Spread | Refusal | None:
    nearest: Refusal | None = None
    for hosts in host_choices(question, shape, candidates):
        if shape == "tensor":
            verdict = TensorSearch(question, hosts, topology).spread()
        else:
            verdict = LayerSearch(question, shape, hosts, topology).spread()
        if isinstance(verdict, Spread):
            return verdict
        nearest = nearest or verdict
    return nearest


def _assign(question: Question, shape: Shape, spread: Spread) -> Plan:
    card, leader = question.card, spread.hosts[0]
    n_parts = len(spread.hosts) if shape == "tensor" else 1
    shards: list[ShardAssignment] = []
    for rank, (host, layers) in enumerate(zip(spread.hosts, spread.layers, strict=True)):
        share = share_of(
            card,
            host.build,
            slots=spread.slots,
            layers=layers,
            has_ends=rank == 0 or shape != "rpc",
            n_parts=n_parts,
        )
        shard = ShardAssignment(
            rank=rank,
            node_id=host.node_id,
            layer_start=layers[0],
            layer_end=layers[1],
            memory=arithmetic(share, host.memory, spread.tokens),
            backend=None if host.tag == leader.tag else host.tag,
        )
        shards.append(shard)
    names = " and ".join(host.candidate.member.name for host in spread.hosts)
    readers = spread.hosts[:1] if shape == "rpc" else spread.hosts
    asked = question.request.context_tokens
    return identified(
        Plan(
            plan_id=question.digest,  # replaced by `identified`
            model_id=card.model_id,
            card_digest=question.digest,
            shape=shape,
            engine=leader.build.engine,
            backend=leader.tag,
            context_tokens=spread.tokens,
            slots=spread.slots,
            shards=tuple(shards),
            context_limited_by=limited_by(card, spread.tokens, asked, names),
            download_bytes=sum(download_bytes_on(question, host.node_id) for host in readers),
        )
    )
