"""Models over several nodes, on fleets of all kinds: each node's own memory is kept."""

from dataclasses import dataclass, replace
from itertools import starmap

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.cards import CacheGeometry, ModelCard, PlacementSection, card_digest
from protocol.nodes import EngineFacts, Member, NodeFacts
from protocol.placements import PlacementOutcome, PlacementRequest, Plan, Shape
from protocol.readings import LinkKind, LinkReading, LinksReading, LinkWord, Readings
from skulkd.core.placement.context import model_maximum
from skulkd.core.placement.planner import plan, replan
from skulkd.core.placement.shapes import talking_pairs
from skulkd.core.placement.topology import Topology
from tests.support.builders import (
    GIB,
    MIB,
    MODEL,
    a_card,
    a_member,
    a_node_id,
    a_reading,
    a_state,
    an_engine,
    some_facts,
    some_readings,
)
from tests.support.fleet import FleetMachine, members_of
from tests.support.fleet import readings_of as fleet_readings_of
from tests.support.fleet_machines import FLEET

TOTAL_BYTES = 64 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Nodes with what they have free, and what is asked of them."""

    members: tuple[Member, ...]
    free_bytes: tuple[int, ...]
    links: dict[int, tuple[LinkReading, ...]]
    card: ModelCard
    request: PlacementRequest

    def readings(self) -> Readings:
        nodes = some_readings(
            *(
                a_reading(number, memory_available_bytes=free, disk_free_bytes=1000 * GIB)
                for number, free in enumerate(self.free_bytes, start=1)
            )
        )
        links = {
            a_node_id(number): LinksReading(node_id=a_node_id(number), at_s=0.0, links=told)
            for number, told in self.links.items()
        }
        return replace(nodes, links=links)

    def outcome(self) -> PlacementOutcome:
        state = a_state(members=self.members)
        return plan(self.request, self.card, card_digest(self.card), state, self.readings())

    def again(self, made: Plan) -> PlacementOutcome:
        state = a_state(members=self.members)
        return replan(made, self.request, self.card, state, self.readings())


@st.composite
def builds(draw: st.DrawFn) -> EngineFacts:
    able = draw(st.sampled_from((True, True, False)))
    overhead_bytes = draw(st.sampled_from((32, 64, 300))) * MIB
    if draw(st.booleans()):
        return an_engine("mlx", computes=("cpu",), overhead_bytes=overhead_bytes, ring=able)
    version = draw(st.sampled_from(("1", "1", "2")))
    return an_engine(version=version, overhead_bytes=overhead_bytes, rpc=able)


words: st.SearchStrategy[LinkWord] = st.sampled_from(("up", "up", "up", "silent"))
kinds: st.SearchStrategy[LinkKind | None] = st.sampled_from(
    ("thunderbolt", "ethernet", "wifi", "vpn", None)
)
shapes: st.SearchStrategy[Shape | None] = st.sampled_from((None, None, "rpc", "pipeline", "tensor"))


@st.composite
def links(draw: st.DrawFn, n_nodes: int) -> dict[int, tuple[LinkReading, ...]]:
    told: dict[int, tuple[LinkReading, ...]] = {}
    for number in range(1, n_nodes + 1):
        peers = draw(st.lists(st.integers(1, n_nodes), max_size=3, unique=True))
        told[number] = tuple(
            LinkReading(peer=a_node_id(peer), state=draw(words), kind=draw(kinds))
            for peer in peers
            if peer != number
        )
    return told


@st.composite
def fleets(draw: st.DrawFn, *, linked: bool = True) -> Fleet:
    n_nodes = draw(st.integers(2, 8))
    members: list[Member] = []
    for number in range(1, n_nodes + 1):
        build = draw(builds())
        facts = some_facts(memory_bytes=TOTAL_BYTES, engines=(build,))
        members.append(a_member(number, facts=facts, backends=(f"{build.engine}-cpu",)))
    n_layers = draw(st.integers(1, 40))
    geometry = CacheGeometry(
        n_attention_layers=draw(st.integers(1, n_layers)),
        n_kv_heads=draw(st.integers(1, 32)),
        key_length=128,
        value_length=128,
        recurrent_bytes_per_slot=draw(st.sampled_from((0, MIB))),
    )
    card = a_card(
        size_bytes=draw(st.integers(MIB, 60 * GIB)),
        n_layers=n_layers,
        context_length=draw(st.sampled_from((0, 2048, 8192, 131_072))),
        geometry=geometry,
        kv_heads=draw(st.sampled_from((2, 4, 6))),
    )
    section = PlacementSection(
        compatible_backends=draw(
            st.sampled_from((("llama_server", "mlx"), ("mlx", "llama_server")))
        ),
        max_pipeline_split_layer=draw(st.none() | st.integers(1, 40)),
    )
    excluded = draw(st.lists(st.integers(1, n_nodes), max_size=2, unique=True))
    request = PlacementRequest(
        model_id=MODEL,
        excluded_nodes=tuple(a_node_id(number) for number in excluded),
        min_nodes=draw(st.sampled_from((1, 1, 2, 3))),
        shape=draw(shapes),
        context_tokens=draw(st.none() | st.integers(256, 16_384)),
        slots=draw(st.none() | st.integers(1, 8)),
    )
    free = st.integers(0, 24 * GIB)
    return Fleet(
        members=tuple(members),
        free_bytes=tuple(draw(free) for _ in range(n_nodes)),
        links=draw(links(n_nodes)) if linked else {},
        card=card.model_copy(update={"placement": section, "supports_tensor": True}),
        request=request,
    )


def check(fleet: Fleet, made: Plan) -> None:
    """Judge a plan by what its nodes have, and by what was asked."""
    card, request = fleet.card, fleet.request
    nodes = [shard.node_id for shard in made.shards]
    assert len(set(nodes)) == len(nodes)
    assert not set(nodes) & set(request.excluded_nodes)
    assert request.shape in {None, made.shape}
    assert len(nodes) >= request.min_nodes
    assert (made.shape == "single") == (len(nodes) == 1)
    assert request.context_tokens in {None, made.context_tokens}
    next_layer = 0
    for rank, shard in enumerate(made.shards):
        assert shard.rank == rank
        assert shard.memory.headroom_bytes >= 0
        assert shard.memory.context_tokens == made.context_tokens
        if made.shape == "tensor":
            assert (shard.layer_start, shard.layer_end) == (0, card.n_layers)
            continue
        assert shard.layer_start == next_layer < shard.layer_end
        next_layer = shard.layer_end
        limit = card.placement.max_pipeline_split_layer
        assert made.shape != "pipeline" or limit is None or shard.layer_start <= limit
    assert made.shape == "tensor" or next_layer == card.n_layers
    topology = Topology(fleet.readings())
    pairs = talking_pairs(made.shape, nodes)
    assert not any(starmap(topology.is_cut, pairs))


@settings(max_examples=300, deadline=None)
@given(fleets())
def test_no_plan_takes_more_than_a_node_has_nor_anything_that_was_not_asked(fleet: Fleet) -> None:
    for made in fleet.outcome().plans:
        check(fleet, made)


@settings(max_examples=150, deadline=None)
@given(fleets())
def test_a_plan_is_made_again_as_it_was(fleet: Fleet) -> None:
    outcome = fleet.outcome()
    assert outcome == fleet.outcome()
    for made in outcome.plans:
        assert [kept.plan_id for kept in fleet.again(made).plans] == [made.plan_id]


@settings(max_examples=200, deadline=None)
@given(fleets())
def test_the_window_that_a_refusal_names_does_fit(fleet: Fleet) -> None:
    outcome, asked = fleet.outcome(), fleet.request.context_tokens
    if outcome.plans or asked is None or asked > model_maximum(fleet.card):
        return  # what the model takes at all is told before what fits
    for refusal in outcome.refusals:
        change = refusal.smallest_change
        if change is None or change.kind != "context_tokens":
            continue
        narrower = fleet.request.model_copy(update={"context_tokens": change.context_tokens})
        assert replace(fleet, request=narrower).outcome().plans


@settings(max_examples=300, deadline=None)
@given(fleets(linked=False), st.integers(0, 7), st.integers(MIB, 24 * GIB))
def test_more_memory_never_turns_a_fit_into_a_refusal(fleet: Fleet, at: int, more: int) -> None:
    if not fleet.outcome().plans:
        return
    place = at % len(fleet.free_bytes)
    grown = list(fleet.free_bytes)
    grown[place] = min(TOTAL_BYTES, grown[place] + more)
    assert replace(fleet, free_bytes=tuple(grown)).outcome().plans


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from(FLEET), min_size=1, max_size=12),
    st.floats(0, 0.95),
    st.integers(GIB, 400 * GIB),
)
def test_real_machines_are_never_asked_for_more_than_they_have(
    machines: list[FleetMachine], used_ratio: float, size_bytes: int
) -> None:
    card = a_card(size_bytes=size_bytes, n_layers=60, backends=("mlx", "llama_server"))
    members = [
        member.model_copy(update={"facts": _sharing(member.facts)})
        for member in members_of(machines)
    ]
    readings = fleet_readings_of(machines, used_ratio=used_ratio)
    request = PlacementRequest(model_id=MODEL)
    outcome = plan(request, card, card_digest(card), a_state(members=members), readings)
    for made in outcome.plans:
        assert all(shard.memory.headroom_bytes >= 0 for shard in made.shards)
        assert len({shard.node_id for shard in made.shards}) == len(made.shards)
    shapes_made = {made.shape for made in outcome.plans}
    assert shapes_made <= {"single"} or len(outcome.plans) == 1


def _sharing(facts: NodeFacts | None) -> NodeFacts:
    assert facts is not None
    engines = tuple(
        build.model_copy(
            update={"rpc": build.engine == "llama_server", "ring": build.engine == "mlx"}
        )
        for build in facts.engines
    )
    return facts.model_copy(update={"engines": engines})
