from dataclasses import replace

import pytest

from protocol.nodes import NodeHealth
from protocol.readings import Readings
from protocol.state import ClusterSettings, ClusterState
from skulkd.core.cluster_health import (
    ClusterSight,
    DuplicateIdentity,
    ReplacedLog,
    age_text,
)
from skulkd.core.health import node_health
from tests.support.builders import (
    NOW_MS,
    a_member,
    a_node_id,
    a_reading,
    a_state,
    some_readings,
)

SIGHT = ClusterSight(node_id=a_node_id(1), now_ms=NOW_MS, is_open=True, master=a_node_id(1))
QUORUM = ClusterSettings(policy="quorum")


def three(**changes: object) -> ClusterState:
    state = a_state(members=[a_member(number) for number in (1, 2, 3)])
    return state.model_copy(update=changes)


def health(
    sight: ClusterSight = SIGHT,
    state: ClusterState | None = None,
    *,
    number: int = 1,
    readings: Readings | None = None,
) -> NodeHealth:
    every = some_readings(*(a_reading(n) for n in (1, 2, 3)))
    return node_health(
        state or three(), readings or every, a_node_id(number), now_s=0.0, sight=sight
    )


def codes(found: NodeHealth) -> list[str]:
    return [reason.code for reason in found.reasons]


def test_a_cluster_in_which_all_is_well_gives_no_reasons() -> None:
    for number in (1, 2, 3):
        assert health(number=number) == NodeHealth(level="ok")


def test_a_closed_node_misses_nothing() -> None:
    closed = ClusterSight(
        node_id=a_node_id(1), now_ms=NOW_MS, is_open=False, master=None, mdns="off"
    )
    assert health(closed, a_state()) == NodeHealth(level="ok")


def test_a_lost_member_is_an_error_of_that_member_with_its_age_and_link() -> None:
    lost = a_member(2, presence="lost").model_copy(update={"since_ms": NOW_MS - 180_000})
    state = a_state(members=[a_member(1), lost])
    sight = replace(SIGHT, link_reasons={a_node_id(2): "nobody listens there"})
    found = health(sight, state, number=2)
    assert (found.level, codes(found)) == ("error", ["member.lost"])
    assert "box-2 has been lost for 3 min (nobody listens there)" in found.reasons[0].message
    assert health(sight, state).level == "ok"


def test_readings_of_a_member_that_is_away_are_not_missed_as_well() -> None:
    away = a_state(members=[a_member(1), a_member(2, presence="lost")])
    assert codes(health(SIGHT, away, number=2, readings=some_readings(a_reading(1)))) == [
        "member.lost"
    ]
    there = a_state(members=[a_member(1), a_member(2)])
    assert codes(health(SIGHT, there, number=2, readings=some_readings(a_reading(1)))) == [
        "node.reading_missing"
    ]


def test_a_goodbye_is_no_alarm() -> None:
    left = a_member(2, presence="left").model_copy(update={"since_ms": NOW_MS - 7_200_000})
    found = health(SIGHT, a_state(members=[a_member(1), left]), number=2)
    assert (found.level, codes(found)) == ("ok", ["member.left"])
    assert "2 h ago" in found.reasons[0].message


def test_a_member_that_has_not_come_yet_is_a_note_with_why_it_cannot_be_reached() -> None:
    joining = a_member(2, presence="joining").model_copy(update={"since_ms": NOW_MS - 5000})
    sight = replace(SIGHT, link_reasons={a_node_id(2): "no route"})
    found = health(sight, a_state(members=[a_member(1), joining]), number=2)
    assert (found.level, codes(found)) == ("ok", ["member.joining"])
    assert "5 s ago and has not come yet (no route)" in found.reasons[0].message


def test_a_silent_member_is_suspect_and_this_node_never_is() -> None:
    sight = replace(SIGHT, silent_s={a_node_id(2): 3.4, a_node_id(1): 9.0})
    found = health(sight, number=2)
    assert (found.level, codes(found)) == ("warning", ["member.suspect"])
    assert "box-2 has not been heard for 3 s" in found.reasons[0].message
    assert health(sight).level == "ok"


def test_b02_a_copied_identity_is_an_error_that_names_both_addresses_and_the_remedy() -> None:
    seen = DuplicateIdentity(
        node_id=a_node_id(2), addresses=("10.0.0.2:12416", "10.0.0.9:12416"), last_ago_s=4.0
    )
    found = health(replace(SIGHT, duplicates=(seen,)), number=2)
    assert (found.level, codes(found)) == ("error", ["node.duplicate_identity"])
    (reason,) = found.reasons
    assert "box-2: 10.0.0.2:12416 and 10.0.0.9:12416" in reason.message
    assert "--home" in reason.remediation
    assert health(replace(SIGHT, duplicates=(seen,)), number=3).level == "ok"


def test_no_master_is_an_error_of_the_node_that_sees_none() -> None:
    masterless = replace(SIGHT, master=None, masterless_s=12.0)
    found = health(masterless)
    assert (found.level, codes(found)) == ("error", ["cluster.no_master"])
    assert "for 12 s" in found.reasons[0].message
    assert "the last one was box-1" in found.reasons[0].message
    assert health(masterless, number=2).level == "ok"
    just_now = health(replace(masterless, masterless_s=1.5))
    assert (just_now.level, codes(just_now)) == ("warning", ["cluster.no_master"])


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (three(settings=QUORUM), "cluster.no_quorum"),
        (three(), "cluster.no_master"),
    ],
)
def test_too_few_voters_are_named_where_the_policy_needs_a_majority(
    state: ClusterState, code: str
) -> None:
    silent = {a_node_id(2): 9.0, a_node_id(3): 9.0}
    alone = replace(SIGHT, master=None, masterless_s=9.0, silent_s=silent)
    found = health(alone, state)
    assert codes(found) == [code]
    if code == "cluster.no_quorum":
        assert "1 of 3 voters are heard and 2 are needed" in found.reasons[0].message
    one_silent = replace(alone, silent_s={a_node_id(2): 9.0})
    assert codes(health(one_silent, state)) == ["cluster.no_master"]


def test_a_minority_term_is_a_warning_while_it_lasts() -> None:
    found = health(SIGHT, three(is_minority_term=True))
    assert (found.level, codes(found)) == ("warning", ["cluster.minority"])
    assert "box-1" in found.reasons[0].message


def test_decisions_on_one_disk_are_a_warning_only_where_others_have_a_vote() -> None:
    alone = replace(SIGHT, is_durable_elsewhere=False)
    assert codes(health(alone)) == ["journal.local_only"]
    left = a_state(members=[a_member(1), a_member(2, presence="left")])
    assert codes(health(alone, left)) == []


def test_a_divergence_of_states_is_not_called_one_of_logs() -> None:
    lost = ReplacedLog(at_ms=NOW_MS, term=4, seq=120, n_discarded=0, is_of_states=True)
    (reason,) = health(replace(SIGHT, replaced_log=lost)).reasons
    assert reason.code == "cluster.diverged"
    assert "another state" in reason.message
    assert "log did not agree" not in reason.message


def test_a_divergence_says_from_where_on_and_how_much_is_gone() -> None:
    lost = ReplacedLog(at_ms=NOW_MS - 60_000, term=4, seq=120, n_discarded=7)
    (reason,) = health(replace(SIGHT, replaced_log=lost)).reasons
    assert (reason.code, reason.level) == ("cluster.diverged", "warning")
    assert "60 s ago" in reason.message
    assert "term 4, seq 120" in reason.message
    assert "7 events were discarded" in reason.message


def test_mdns_that_fails_is_a_warning_and_one_that_is_off_is_a_note() -> None:
    failed = health(replace(SIGHT, mdns="failed", mdns_reason="port 5353 is taken"))
    assert (failed.level, codes(failed)) == ("warning", ["mdns.failed"])
    assert "port 5353 is taken" in failed.reasons[0].message
    off = health(replace(SIGHT, mdns="off"))
    assert (off.level, codes(off)) == ("ok", ["mdns.off"])


def test_every_reason_says_what_to_do() -> None:
    worst = replace(
        SIGHT,
        master=None,
        masterless_s=99.0,
        is_durable_elsewhere=False,
        mdns="failed",
        replaced_log=ReplacedLog(at_ms=NOW_MS, term=1, seq=1, n_discarded=1),
        duplicates=(DuplicateIdentity(node_id=a_node_id(1), addresses=(), last_ago_s=1.0),),
    )
    found = health(worst)
    assert len(found.reasons) == 5
    assert all(reason.remediation for reason in found.reasons)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (119.0, "119 s"), (120.0, "2 min"), (7200.0, "2 h"), (200_000.0, "2 days")],
)
def test_an_age_is_written_in_the_largest_unit_that_fits_twice(seconds: float, text: str) -> None:
    assert age_text(seconds) == text
