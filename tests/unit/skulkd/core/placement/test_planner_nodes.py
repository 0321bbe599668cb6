"""Planning over several nodes: who is a candidate, who is not there, who has the files."""

from dataclasses import replace

import pytest

from protocol.cards import ArtifactFile, LocalSource, ModelCard, PackageSource, card_digest
from protocol.ids import NodeId
from protocol.nodes import Presence
from protocol.placements import PlacementOutcome, PlacementRequest
from protocol.readings import Holding, HoldingsReading, NoDownloads, Readings
from protocol.state import ClusterState
from skulkd.core.placement.explain import outcome_error
from skulkd.core.placement.files import holders_in
from skulkd.core.placement.planner import plan, replan
from skulkd.core.placement.question import STALE_READING_S
from tests.support.builders import (
    GIB,
    MIB,
    MODEL,
    a_card,
    a_digest,
    a_member,
    a_node_id,
    a_reading,
    a_state,
    some_readings,
)

CARD = a_card(size_bytes=GIB)
PACKAGED = a_card(
    source=PackageSource(
        package="llm-tiny",
        version="1.0",
        files=(ArtifactFile(path="model.gguf", size_bytes=GIB, sha256=a_digest("file")),),
    )
)
IN_PLACE = a_card(source=LocalSource(path="/models/a.gguf", size_bytes=100 * MIB))


def three(**presences: Presence) -> ClusterState:
    """Make three nodes; `n2="lost"` says how the second is."""
    return a_state(
        members=[a_member(n, presence=presences.get(f"n{n}", "present")) for n in (1, 2, 3)]
    )


def readings_of_three() -> Readings:
    return some_readings(
        a_reading(1, memory_available_bytes=8 * GIB),
        a_reading(2, memory_available_bytes=12 * GIB),
        a_reading(3, memory_available_bytes=4 * GIB),
    )


def held_by(*numbers: int) -> Readings:
    holding = Holding(model_id=MODEL, digest=a_digest("artifact"), size_bytes=GIB)
    return replace(
        readings_of_three(),
        holdings={
            a_node_id(n): HoldingsReading(node_id=a_node_id(n), at_s=0.0, holdings=(holding,))
            for n in numbers
        },
    )


def outcome_of(
    state: ClusterState,
    readings: Readings | None = None,
    *,
    card: ModelCard = CARD,
    request: PlacementRequest | None = None,
    now_s: float | None = None,
    unheard: tuple[int, ...] = (),
    holders: tuple[int, ...] | None = None,
) -> PlacementOutcome:
    return plan(
        request or PlacementRequest(model_id=card.model_id),
        card,
        card_digest(card),
        state,
        readings or readings_of_three(),
        now_s=now_s,
        unheard=frozenset(a_node_id(number) for number in unheard),
        holders=None if holders is None else frozenset(a_node_id(number) for number in holders),
    )


def nodes_of(outcome: PlacementOutcome) -> list[NodeId]:
    return [made.shards[0].node_id for made in outcome.plans]


def test_each_node_that_fits_has_a_plan_and_all_but_the_best_are_alternatives() -> None:
    outcome = outcome_of(three())
    assert nodes_of(outcome) == [a_node_id(2), a_node_id(1), a_node_id(3)]
    assert [made.alternative for made in outcome.plans] == [False, True, True]


def test_nodes_and_exclusions_leave_the_others() -> None:
    asked = PlacementRequest(model_id=MODEL, nodes=(a_node_id(1), a_node_id(3)))
    assert nodes_of(outcome_of(three(), request=asked)) == [a_node_id(1), a_node_id(3)]
    excluding = PlacementRequest(model_id=MODEL, excluded_nodes=(a_node_id(2),))
    assert nodes_of(outcome_of(three(), request=excluding)) == [a_node_id(1), a_node_id(3)]
    both = asked.model_copy(update={"excluded_nodes": (a_node_id(1),)})
    assert nodes_of(outcome_of(three(), request=both)) == [a_node_id(3)]


def test_a_drained_node_is_refused_and_says_what_ends_that() -> None:
    drained = a_member(2).model_copy(update={"drain_since_ms": 5})
    outcome = outcome_of(a_state(members=[a_member(1), drained, a_member(3)]))
    assert nodes_of(outcome) == [a_node_id(1), a_node_id(3)]
    (refusal,) = outcome.refusals
    assert (refusal.node_id, refusal.error.code) == (a_node_id(2), "placement.node_draining")
    assert "skulk node undrain box-2" in refusal.error.remediation
    alone = outcome_of(a_state(members=[drained]))
    assert outcome_error(alone, MODEL).code == "placement.node_draining"


@pytest.mark.parametrize(
    ("presence", "words"),
    [("lost", "was lost"), ("left", "said goodbye"), ("joining", "not come yet")],
)
def test_b01_a_departed_node_is_no_candidate_and_is_named(presence: Presence, words: str) -> None:
    outcome = outcome_of(three(n2=presence))
    assert nodes_of(outcome) == [a_node_id(1), a_node_id(3)]
    (refusal,) = outcome.refusals
    assert (refusal.node_id, refusal.error.code) == (a_node_id(2), "placement.node_unreachable")
    assert words in refusal.error.message
    assert outcome.missing_facts == ()


def test_b01_a_node_that_is_back_is_planned_onto_again() -> None:
    assert a_node_id(2) in nodes_of(outcome_of(three(n2="present")))


def test_b01_min_nodes_counts_only_live_nodes_in_its_honest_refusal() -> None:
    two = PlacementRequest(model_id=MODEL, min_nodes=2)
    for state, unheard, count in (
        (three(), (), "3"),
        (three(n2="lost"), (), "2"),
        (three(n2="lost"), (3,), "1"),
    ):
        outcome = outcome_of(state, request=two, unheard=unheard)
        (refusal,) = (one for one in outcome.refusals if one.node_id is None)
        assert (outcome.plans, refusal.error.code) == ((), "placement.unsupported_shape")
        assert f"{count} may be planned onto now" in refusal.error.message


def test_a_node_that_is_not_heard_is_refused_before_the_cluster_calls_it_lost() -> None:
    outcome = outcome_of(three(), unheard=(2,))
    assert nodes_of(outcome) == [a_node_id(1), a_node_id(3)]
    assert "not heard at the moment" in outcome.refusals[0].error.message


def test_a_management_node_is_no_candidate_however_well_it_is_heard() -> None:
    state = a_state(members=[a_member(1, role="management"), a_member(2)])
    assert nodes_of(outcome_of(state)) == [a_node_id(2)]


def test_only_the_unreachable_left_is_said_so_and_may_be_tried_again() -> None:
    asked = PlacementRequest(model_id=MODEL, nodes=(a_node_id(2),))
    outcome = outcome_of(three(n2="lost"), request=asked)
    error = outcome_error(outcome, MODEL)
    assert (error.code, error.retry_after_s) == ("placement.node_unreachable", 5)


def test_an_old_reading_of_another_node_says_nothing_about_now() -> None:
    readings = some_readings(a_reading(1, at_s=100.0), a_reading(2, at_s=60.0))
    state = a_state(members=[a_member(1), a_member(2)])
    now_s = 60.0 + STALE_READING_S + 1
    assert nodes_of(outcome_of(state, readings, now_s=now_s)) == [a_node_id(1)]


def test_a_plan_made_before_does_not_hold_on_a_node_that_is_gone() -> None:
    made = outcome_of(three()).plans[0]
    request = PlacementRequest(model_id=MODEL)
    lost = replan(made, request, CARD, three(n2="lost"), readings_of_three())
    assert [refusal.error.code for refusal in lost.refusals if refusal.node_id == a_node_id(2)] == [
        "placement.node_unreachable"
    ]
    unheard = replan(
        made, request, CARD, three(), readings_of_three(), unheard=frozenset({a_node_id(2)})
    )
    assert (lost.plans, unheard.plans) == ((), ())
    stale = replan(made, request, CARD, three(), readings_of_three(), now_s=100.0)
    assert (stale.plans, stale.missing_facts) == ((), ("memory of box-2",))


def test_who_holds_the_files_is_what_the_nodes_say() -> None:
    readings = held_by(1, 3)
    assert holders_in(readings, MODEL) == {a_node_id(1), a_node_id(3)}
    assert holders_in(readings, a_card(model_id="test/other").model_id) == frozenset()


def test_a_node_with_the_files_comes_first_and_the_others_would_fetch_them() -> None:
    outcome = outcome_of(three(), card=PACKAGED, holders=(3,))
    assert nodes_of(outcome) == [a_node_id(3), a_node_id(2), a_node_id(1)]
    assert [made.download_bytes for made in outcome.plans] == [0, GIB, GIB]


def test_a_file_imported_in_place_is_fetched_from_the_node_that_has_it() -> None:
    outcome = outcome_of(three(), card=IN_PLACE, holders=(3,))
    assert nodes_of(outcome)[0] == a_node_id(3)
    assert [made.download_bytes for made in outcome.plans] == [0, 100 * MIB, 100 * MIB]


def test_what_only_a_lost_node_holds_cannot_be_had_from_it() -> None:
    outcome = outcome_of(three(n3="lost"), card=IN_PLACE, holders=(3,))
    assert outcome.plans == ()
    assert {refusal.error.code for refusal in outcome.refusals} == {
        "placement.no_node",
        "placement.node_unreachable",
    }


@pytest.mark.parametrize(("why", "is_planned"), [("offline", True), ("disabled", False)])
def test_offline_a_node_fetches_from_its_peers_and_without_downloads_from_nobody(
    why: NoDownloads, is_planned: bool
) -> None:
    readings = some_readings(replace(a_reading(1), no_downloads=why), a_reading(2))
    state = a_state(members=[a_member(1), a_member(2)])
    outcome = outcome_of(state, readings, card=PACKAGED, holders=(2,))
    assert (a_node_id(1) in nodes_of(outcome)) is is_planned
    alone = outcome_of(state, readings, card=PACKAGED, holders=(2,), unheard=(2,))
    assert nodes_of(alone) == []


def test_the_master_takes_a_plan_that_fetches_from_a_peer_on_its_own_readings() -> None:
    offline = {a_node_id(1): replace(a_reading(1), no_downloads="offline")}
    readings = held_by(2)
    readings = replace(readings, nodes={**readings.nodes, **offline})
    made = next(
        made
        for made in outcome_of(three(), readings, card=PACKAGED, holders=(2,)).plans
        if made.shards[0].node_id == a_node_id(1)
    )
    request = PlacementRequest(model_id=MODEL)
    assert replan(made, request, PACKAGED, three(), readings).plans[0].plan_id == made.plan_id
    forgotten = replace(readings, holdings={})
    again = replan(made, request, PACKAGED, three(), forgotten)
    assert "store.offline" in {refusal.error.code for refusal in again.refusals}
