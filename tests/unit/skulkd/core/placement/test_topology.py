"""Links decide who is in a group: what is cut off is not, and measured counts before declared."""

from dataclasses import replace

import pytest

from protocol.cards import card_digest
from protocol.placements import PlacementRequest, Plan
from protocol.readings import LinkKind, LinkReading, LinksReading, LinkWord, Readings
from skulkd.core.placement.planner import plan, replan
from skulkd.core.placement.topology import UNKNOWN_CLASS, Topology
from tests.support.builders import MODEL, a_node_id, a_state
from tests.unit.skulkd.core.placement.test_groups import CARD, a_pooling_member, readings_of


def a_link(
    peer: int,
    *,
    state: LinkWord = "up",
    kind: LinkKind | None = "ethernet",
    rtt_ms: float | None = None,
    rate_bytes_s: float | None = None,
) -> LinkReading:
    return LinkReading(
        peer=a_node_id(peer),
        state=state,
        kind=kind,
        rtt_median_ms=rtt_ms,
        rate_bytes_s=rate_bytes_s,
    )


def with_links(readings: Readings, links: dict[int, list[LinkReading]]) -> Readings:
    told = {
        a_node_id(number): LinksReading(node_id=a_node_id(number), at_s=0.0, links=tuple(some))
        for number, some in links.items()
    }
    return replace(readings, links=told)


def class_of(*links: LinkReading) -> int:
    return Topology(with_links(Readings(), {1: list(links)})).link_class(a_node_id(1), a_node_id(2))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("thunderbolt", 0), ("ethernet", 1), (None, UNKNOWN_CLASS), ("wifi", 3), ("vpn", 4)],
)
def test_links_are_ranked_by_what_they_are(kind: LinkKind | None, expected: int) -> None:
    assert class_of(a_link(2, kind=kind)) == expected


def test_what_was_measured_counts_before_what_is_declared() -> None:
    assert class_of(a_link(2, kind="wifi", rate_bytes_s=110e6)) == 1
    assert class_of(a_link(2, kind="thunderbolt", rate_bytes_s=110e6)) == 1
    assert class_of(a_link(2, kind="ethernet", rate_bytes_s=10e6)) == 3
    assert class_of(a_link(2, kind="ethernet", rtt_ms=30.0)) == 4
    assert class_of(a_link(2, kind="ethernet", rtt_ms=0.4)) == 1


def test_the_worse_end_of_a_link_counts() -> None:
    topology = Topology(
        with_links(Readings(), {1: [a_link(2, kind="ethernet")], 2: [a_link(1, kind="wifi")]})
    )
    assert topology.link_class(a_node_id(1), a_node_id(2)) == 3


def test_a_measured_delay_is_told_from_a_typical_one() -> None:
    topology = Topology(with_links(Readings(), {1: [a_link(2, rtt_ms=0.7), a_link(3)]}))
    assert topology.delay_ms(a_node_id(1), a_node_id(2)) == (0.7, True)
    assert topology.delay_ms(a_node_id(3), a_node_id(1)) == (0.3, False)


def made_with(
    links: dict[int, list[LinkReading]], *free_gib: float, wish: PlacementRequest | None = None
) -> Plan | None:
    members = [a_pooling_member(n) for n in range(1, len(free_gib) + 1)]
    readings = with_links(readings_of(*free_gib), links)
    request = wish or PlacementRequest(model_id=MODEL)
    plans = plan(request, CARD, card_digest(CARD), a_state(members=members), readings).plans
    return plans[0] if plans else None


def nodes_of(made: Plan | None) -> set[str]:
    assert made is not None
    return {shard.node_id for shard in made.shards}


def test_a_node_that_another_cannot_reach_is_not_in_its_group() -> None:
    cut = {1: [a_link(2, state="silent"), a_link(3)], 2: [a_link(3)]}
    assert made_with(cut, 9, 9) is None
    made = made_with(cut, 9, 9, 9)
    assert nodes_of(made) in ({a_node_id(1), a_node_id(3)}, {a_node_id(2), a_node_id(3)})


def test_a_group_over_good_links_is_preferred_to_one_over_wifi() -> None:
    links = {
        1: [a_link(2, kind="wifi"), a_link(3), a_link(4, kind="wifi")],
        2: [a_link(3, kind="wifi"), a_link(4, kind="wifi")],
        3: [a_link(4, kind="wifi")],
    }
    assert nodes_of(made_with(links, 9, 12, 9, 12)) == {a_node_id(1), a_node_id(3)}


def test_a_further_node_on_a_wire_is_better_than_few_over_a_vpn() -> None:
    vpn = "vpn"
    links = {
        1: [a_link(2, kind=vpn), a_link(3), a_link(4)],
        2: [a_link(3, kind=vpn), a_link(4, kind=vpn)],
        3: [a_link(4)],
    }
    assert nodes_of(made_with(links, 7, 13, 6, 6)) == {a_node_id(1), a_node_id(3), a_node_id(4)}


def test_a_plan_whose_nodes_have_lost_one_another_is_not_made_again() -> None:
    made = made_with({1: [a_link(2)]}, 9, 9)
    assert made is not None
    members = [a_pooling_member(1), a_pooling_member(2)]
    request = PlacementRequest(model_id=MODEL)
    lost = with_links(readings_of(9, 9), {1: [a_link(2, state="refused")]})
    assert replan(made, request, CARD, a_state(members=members), lost).plans == ()
