"""Whoever is away, excluded or told to fetch nothing: each node is answered once, and honestly."""

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.cards import LocalSource, ModelCard, card_digest
from protocol.errors import SkulkError
from protocol.ids import NodeId
from protocol.nodes import Presence, Role
from protocol.placements import PlacementRequest
from protocol.readings import Holding, HoldingsReading, NoDownloads, Readings
from protocol.state import ClusterState
from skulkd.core.apply import apply
from skulkd.core.decide import decide
from skulkd.core.invariants import violations
from skulkd.core.placement.files import holders_in
from skulkd.core.placement.planner import plan
from tests.support.builders import (
    GIB,
    MIB,
    MODEL,
    NOW_MS,
    a_card,
    a_digest,
    a_member,
    a_node_id,
    a_placement,
    a_reading,
    a_sequenced,
    a_state,
    some_readings,
)

N_NODES = 4
NUMBERS = range(1, N_NODES + 1)
NODES = tuple(a_node_id(number) for number in NUMBERS)
CARDS = (
    a_card(size_bytes=GIB),
    a_card(size_bytes=GIB, source=LocalSource(path="/models/a.gguf", size_bytes=GIB)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A cluster as one node sees it, and what is asked of it."""

    state: ClusterState
    readings: Readings
    unheard: frozenset[NodeId]
    request: PlacementRequest
    card: ModelCard

    def may_serve(self, node_id: NodeId) -> bool:
        member = self.state.members[node_id]
        return member.presence == "present" and node_id not in self.unheard


presences: st.SearchStrategy[Presence] = st.sampled_from(
    ("present", "present", "present", "lost", "left", "joining")
)
roles: st.SearchStrategy[Role] = st.sampled_from(("full", "full", "full", "management"))
restraints: st.SearchStrategy[NoDownloads | None] = st.sampled_from((None, "offline", "disabled"))
subsets = st.lists(st.sampled_from(NODES), max_size=2, unique=True).map(tuple)


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    # The first node is there: it is the one that plans.
    members = [
        a_member(n, role=draw(roles), presence="present" if n == 1 else draw(presences))
        for n in NUMBERS
    ]
    readings = some_readings(
        *(
            replace(
                a_reading(n, memory_available_bytes=draw(st.integers(MIB, 16 * GIB))),
                no_downloads=draw(restraints),
            )
            for n in NUMBERS
        )
    )
    holding = Holding(model_id=MODEL, digest=a_digest("artifact"), size_bytes=GIB)
    held = {
        node_id: HoldingsReading(node_id=node_id, at_s=0.0, holdings=(holding,))
        for node_id in draw(subsets)
    }
    return Scene(
        state=a_state(members=members),
        readings=replace(readings, holdings=held),
        unheard=frozenset(draw(subsets)) - {NODES[0]},
        request=PlacementRequest(model_id=MODEL, nodes=draw(subsets), excluded_nodes=draw(subsets)),
        card=draw(st.sampled_from(CARDS)),
    )


@settings(max_examples=200, deadline=None)
@given(scenes())
def test_each_node_has_a_plan_or_a_refusal_and_only_those_that_are_there_have_plans(
    scene: Scene,
) -> None:
    holders = holders_in(scene.readings, MODEL)
    outcome = plan(
        scene.request,
        scene.card,
        card_digest(scene.card),
        scene.state,
        scene.readings,
        unheard=scene.unheard,
        holders=holders,
    )
    planned = [made.shards[0].node_id for made in outcome.plans]
    refused = [refusal.node_id for refusal in outcome.refusals]
    assert sorted((*planned, *(node_id or "" for node_id in refused))) == sorted(NODES)
    assert [made.alternative for made in outcome.plans] == [
        place > 0 for place in range(len(planned))
    ]
    for made in outcome.plans:
        (node_id,) = (shard.node_id for shard in made.shards)
        assert scene.may_serve(node_id)
        assert scene.state.members[node_id].role == "full"
        assert node_id not in scene.request.excluded_nodes
        assert not scene.request.nodes or node_id in scene.request.nodes
        assert (made.download_bytes == 0) == (node_id in holders)
        if made.download_bytes:
            why = scene.readings.nodes[node_id].no_downloads
            others = [other for other in holders - {node_id} if scene.may_serve(other)]
            assert why is None or (why == "offline" and others)
            assert scene.card.source is None or others


@settings(max_examples=150, deadline=None)
@given(scenes())
def test_the_master_takes_every_plan_that_a_preview_with_its_own_sight_gives(scene: Scene) -> None:
    outcome = plan(
        scene.request,
        scene.card,
        card_digest(scene.card),
        scene.state,
        scene.readings,
        unheard=scene.unheard,
        holders=holders_in(scene.readings, MODEL),
    )
    state = scene.state
    for number, made in enumerate(outcome.plans, start=1):
        command = a_placement(made, scene.card, command=number, request=scene.request)
        try:
            events = decide(
                state, scene.readings, command, now_ms=NOW_MS, now_s=1.0, unheard=scene.unheard
            )
        except SkulkError as refusal:
            raise AssertionError(refusal) from refusal
        for event in events:
            state = apply(state, a_sequenced(event, seq=state.seq + 1))
        assert violations(state) == ()
    assert len(state.instances) == len(outcome.plans)
