from dataclasses import replace

import pytest

from protocol.peer_messages import LogPosition, TermPair
from skulkd.core.election_effects import (
    Beat,
    HearCommit,
    SaveVote,
)
from skulkd.core.election_inputs import LinkSeen, VoteSaved
from skulkd.core.voting import MAX_NUMBER, TermVote
from tests.support.builders import a_node_id
from tests.support.election_bench import BASE, ElectionBench, kinds, votes

ME, ANN, BOB = a_node_id(1), a_node_id(2), a_node_id(3)
FRESHER = LogPosition(1, 11, 1, 11)
OLDER = LogPosition(1, 9, 1, 9)


# ---- Votes ----


def test_a_vote_leaves_only_once_it_is_durable() -> None:
    bench = ElectionBench()
    bench.saves = False
    effects = bench.ask(2, 2)
    assert kinds(effects) == ["SaveVote"]
    vote = TermVote(term=2, voted_for=ANN)
    assert effects == [SaveVote(vote=vote, replaces_damaged=False)]
    (answer,) = votes(bench.give(VoteSaved(vote=vote, is_durable=True)))
    assert (answer.number, answer.is_trial, answer.denial) == (2, False, "")


def test_a_disk_that_fails_gives_no_vote_and_spends_the_number() -> None:
    bench = ElectionBench()
    bench.saves = False
    bench.ask(2, 2)
    (answer,) = votes(bench.give(VoteSaved(vote=TermVote(term=2, voted_for=ANN), is_durable=False)))
    assert answer.denial == "disk"
    assert bench.denial(3, 2) == "voted"
    assert bench.denial(2, 2) == "voted", "what the disk kept of the first try is not known"
    bench.saves = True
    assert not bench.denial(3, 3)


def test_a_disk_that_hangs_is_said_to_and_keeps_nobody_from_being_elected() -> None:
    bench = ElectionBench()
    bench.saves = False
    bench.ask(2, 2)
    assert votes(bench.wait(1.9)) == []
    (answer,) = votes(bench.wait(0.3))
    assert (answer.number, answer.denial) == (2, "disk")
    assert bench.denial(3, 3) == "disk"
    late = bench.give(VoteSaved(vote=TermVote(term=2, voted_for=ANN), is_durable=True))
    assert votes(late) == []


def test_a_number_is_voted_in_once_and_the_same_candidate_may_ask_again() -> None:
    bench = ElectionBench()
    assert not bench.denial(2, 5)
    assert bench.denial(3, 5) == "voted"
    assert not bench.denial(2, 5)
    assert bench.denial(3, 4) == "term"
    assert not bench.denial(3, 6)


def test_what_was_promised_before_a_restart_holds_after_it() -> None:
    bench = ElectionBench(promise=TermVote(term=5, voted_for=BOB))
    assert bench.denial(2, 5) == "voted"
    assert not bench.denial(3, 5)
    assert bench.denial(2, 4) == "term"


def test_a_master_that_restarts_is_no_master() -> None:
    bench = ElectionBench(promise=TermVote(term=5, voted_for=ME))
    assert bench.machine.role == "resting"
    assert bench.machine.term(now=bench.now) is None
    bench.follow(2, term=6)
    assert not bench.machine.is_master(now=bench.now)


def test_a_trial_promises_nothing_and_its_number_counts_for_nothing() -> None:
    bench = ElectionBench()
    assert not bench.denial(2, 9, is_trial=True)
    assert not bench.denial(3, 9, is_trial=True)
    assert not [effect for effect in bench.effects if isinstance(effect, SaveVote)]
    assert bench.machine.known_number == 1


def test_a_candidate_needs_a_log_as_fresh_as_what_the_voter_has_on_its_disk() -> None:
    bench = ElectionBench()
    assert bench.denial(2, 2, position=OLDER) == "log"
    bench.log = replace(bench.log, head=LogPosition(1, 12, 1, 12))
    assert not bench.denial(2, 2, position=BASE), "what only memory has was never acknowledged"


def test_settled_history_outweighs_what_a_minority_added_to_less_of_it() -> None:
    bench = ElectionBench()
    mine = LogPosition(1, 10, 4, 30)
    bench.log = replace(bench.log, durable=mine, head=mine, ends_in_minority=True)
    assert not bench.denial(2, 5, position=LogPosition(1, 11, 1, 11))
    assert bench.denial(3, 6, position=LogPosition(1, 10, 1, 10)) == "log"


def test_who_leads_a_settled_term_needs_no_more_than_the_same_settled_history() -> None:
    bench = ElectionBench()
    mine = LogPosition(1, 10, 4, 30)
    bench.log = replace(bench.log, durable=mine, head=mine, ends_in_minority=True)
    bench.beat(3, term=1, master=3)
    assert bench.machine.role == "resting", "its term is lower than this node's log"
    assert not bench.denial(3, 5, position=LogPosition(1, 10, 1, 10))


def test_a_voter_that_hears_its_master_votes_for_nobody_else() -> None:
    bench = ElectionBench()
    bench.follow(2)
    assert bench.denial(3, 3) == "master"
    assert bench.denial(3, 3, is_trial=True) == "master"
    assert not bench.denial(3, 3, is_handover=True)


def test_a_voter_votes_for_its_own_master() -> None:
    bench = ElectionBench()
    bench.follow(2)
    assert not bench.denial(2, 3)


def test_a_voter_that_has_just_started_deposes_nobody_that_it_may_not_have_heard_yet() -> None:
    bench = ElectionBench(listened_s=1.0)
    assert bench.denial(2, 2) == "master"
    bench.wait(1.1)
    assert not bench.denial(2, 2)


def test_a_minority_master_holds_nobody_against_who_leads_a_settled_term() -> None:
    bench = ElectionBench()
    bench.beat(2, term=4, master=2, is_minority=True)
    assert bench.machine.role == "member"
    assert bench.denial(3, 5) == "master"
    bench.beat(3, term=1, master=3)
    assert bench.machine.term(now=bench.now) == TermPair(4, ANN)
    assert not bench.denial(3, 5)


def test_two_minorities_that_meet_end_in_one_though_the_later_one_has_no_master() -> None:
    bench = ElectionBench(2)
    bench.beat(2, term=4, master=2, is_minority=True)
    later = LogPosition(1, 10, 5, 13)
    assert bench.denial(3, 6, position=LogPosition(1, 10, 4, 13)) == "master"
    assert not bench.denial(3, 6, position=later)


def test_who_votes_stops_to_follow_before_it_begins_to_promise() -> None:
    bench = ElectionBench()
    bench.follow(2)
    effects = bench.ask(3, 3, is_handover=True)
    assert kinds(effects)[:2] == ["Rest", "SaveVote"]
    bench.beat(2, term=2, master=2)
    assert bench.machine.role == "resting", "a lower term is followed no more"
    bench.beat(3, term=3, master=3)
    assert bench.machine.term(now=bench.now) == TermPair(3, BOB)


def test_numbers_that_only_a_bug_can_bring_are_ignored() -> None:
    bench = ElectionBench()
    bench.beat(2, term=MAX_NUMBER + 1, master=2)
    assert bench.ask(2, MAX_NUMBER + 1) == []
    assert bench.machine.known_number == 1


# ---- Whom a node obeys ----


def test_the_highest_pair_is_obeyed_and_a_lower_one_is_not() -> None:
    bench = ElectionBench()
    bench.follow(2, term=3)
    low, high = sorted((2, 3), key=a_node_id)
    bench = ElectionBench()
    bench.follow(low, term=3)
    bench.beat(high, term=3, master=high)
    assert bench.machine.term(now=bench.now) == TermPair(3, a_node_id(high))
    bench.beat(low, term=3, master=low)
    bench.beat(low, term=2, master=low)
    assert bench.machine.term(now=bench.now) == TermPair(3, a_node_id(high))


def test_a_minority_master_does_not_displace_a_settled_one_that_lives() -> None:
    bench = ElectionBench()
    bench.follow(2, term=3)
    bench.beat(3, term=4, master=3, is_minority=True)
    assert bench.machine.term(now=bench.now) == TermPair(3, ANN)
    bench.beat(3, term=5, master=3, is_minority=False)
    assert bench.machine.term(now=bench.now) == TermPair(5, BOB)


def test_a_minority_master_is_not_followed_into_less_of_the_settled_history() -> None:
    bench = ElectionBench()
    bench.beat(2, term=4, master=2, is_minority=True, position=OLDER)
    assert bench.machine.role == "resting"
    bench.beat(2, term=4, master=2, is_minority=True, position=BASE)
    assert bench.machine.role == "member"


def test_a_minority_master_that_does_not_hear_this_node_is_not_followed() -> None:
    bench = ElectionBench()
    bench.beat(2, term=4, master=2, is_minority=True, unheard=(ME,))
    assert bench.machine.role == "resting"
    bench.beat(2, term=4, master=2, is_minority=False, unheard=(ME,))
    assert bench.machine.role == "member"


def test_no_term_below_the_own_log_is_followed() -> None:
    bench = ElectionBench()
    mine = LogPosition(5, 20, 5, 20)
    bench.log = replace(bench.log, durable=mine, head=mine)
    bench.beat(2, term=4, master=2)
    assert bench.machine.role == "resting"
    assert bench.machine.claimed(now=bench.now) == (5, None), "so that the master learns of it"


def test_a_member_hears_what_its_master_has_committed_and_only_its_master() -> None:
    bench = ElectionBench()
    bench.follow(2)
    (heard,) = [e for e in bench.beat(2, term=2, master=2) if isinstance(e, HearCommit)]
    assert heard.term == TermPair(2, ANN)
    assert not [e for e in bench.beat(3, term=2, master=2) if isinstance(e, HearCommit)]


def test_a_master_that_claims_nothing_any_more_is_followed_no_more() -> None:
    bench = ElectionBench()
    bench.follow(2)
    assert "Rest" in kinds(bench.beat(2, term=2))


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_master_is_missed_when_it_is_silent_and_at_once_when_its_process_has_ended(
    is_refused: bool,
) -> None:
    bench = ElectionBench()
    bench.follow(2)
    if is_refused:
        assert "Rest" in kinds(bench.refuse(2))
        return
    assert "Rest" not in kinds(bench.wait(1.99))
    assert "Rest" in kinds(bench.wait(0.02))


def test_heartbeats_that_were_on_their_way_when_a_process_ended_do_not_revive_it() -> None:
    bench = ElectionBench()
    bench.follow(2)
    bench.refuse(2)
    bench.beat(2, term=2, master=2)
    assert bench.machine.term(now=bench.now) is None
    bench.beat(2, term=2, master=2, boot="b" * 16)
    assert bench.machine.term(now=bench.now) == TermPair(2, ANN)


def test_a_node_that_lives_behind_a_closed_port_is_alive_again_after_a_moment() -> None:
    bench = ElectionBench()
    bench.follow(2)
    bench.refuse(2)
    bench.wait(1.1)
    bench.beat(2, term=2, master=2)
    assert bench.machine.sight.is_alive(ANN, now=bench.now)


def test_a_link_that_opens_again_does_not_make_the_former_process_alive() -> None:
    bench = ElectionBench()
    bench.beat(2)
    bench.refuse(2)
    bench.give(LinkSeen(peer=ANN, is_refused=False))
    assert not bench.machine.sight.is_alive(ANN, now=bench.now)


def test_a_peer_newly_heard_gets_a_heartbeat_at_once() -> None:
    bench = ElectionBench()
    assert Beat(to=ANN) in bench.beat(2)
    assert Beat(to=ANN) not in bench.beat(2), "once is enough"
    bench.refuse(2)
    bench.wait(1.1)
    assert Beat(to=ANN) in bench.beat(2)
