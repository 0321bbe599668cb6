from dataclasses import replace
from itertools import pairwise

from protocol.peer_messages import LogPosition, TermPair, Vote
from skulkd.core.election import BEAT_GRACE_S, HEARTBEAT_S, PULSE_S
from skulkd.core.election_effects import (
    Beat,
    Effect,
    Follow,
    Journalled,
    Lead,
    Rest,
    SaveVote,
)
from skulkd.core.election_inputs import BeginLeaving
from skulkd.core.sight import SUSPICION_S
from skulkd.core.voting import TermVote
from tests.support.builders import a_node_id
from tests.support.election_bench import BASE, ElectionBench, a_master, campaigns, kinds

ME, ANN, BOB = a_node_id(1), a_node_id(2), a_node_id(3)
FRESHER = LogPosition(1, 11, 1, 11)
OLDER = LogPosition(1, 9, 1, 9)


# ---- Campaigns ----


def test_a_lone_node_with_fellows_waits_ten_seconds_and_leads_as_a_minority() -> None:
    bench = ElectionBench(2, listened_s=0.0)
    assert "Lead" not in kinds(bench.wait(9.9))
    (lead,) = [e for e in bench.wait(1.0) if isinstance(e, Lead)]
    assert lead.is_minority


def test_in_quorum_a_minority_never_campaigns() -> None:
    bench = ElectionBench(4, policy="quorum", listened_s=0.0)
    for _ in range(60):
        bench.beat(2)
        assert campaigns(bench.wait(0.5)) == []


def test_in_availability_every_voter_that_is_alive_is_needed() -> None:
    bench = ElectionBench(5)
    for number in (2, 3, 4):
        bench.beat(number)
    (asked,) = campaigns(bench.wait(0.3))
    for number in (2, 3):
        vote = Vote(number=asked.number, is_trial=True, denial="", known_number=1)
        assert kinds(bench.answer(number, vote)) == []
    vote = Vote(number=asked.number, is_trial=True, denial="master", known_number=1)
    bench.answer(4, vote)
    assert "Lead" not in kinds(bench.wait(0.05))
    assert bench.machine.role == "resting"


def test_a_denial_of_one_that_is_needed_ends_the_campaign_at_once() -> None:
    bench = ElectionBench(3)
    bench.beat(2)
    bench.beat(3)
    (asked,) = campaigns(bench.wait(0.3))
    bench.answer(2, Vote(asked.number, True, "voted", 1))
    assert campaigns(bench.wait(0.5)), "and the next one does not wait for its end"


def test_voters_that_do_not_hear_this_node_are_not_waited_for() -> None:
    bench = ElectionBench(3)
    bench.beat(2)
    bench.beat(3, unheard=(ME,))
    effects = bench.wait(0.3)
    for is_trial in (True, False):
        asked = campaigns(effects)[-1]
        effects = bench.answer(2, Vote(asked.number, is_trial, "", 1))
    assert bench.machine.role == "master"


def test_a_number_that_was_campaigned_for_is_not_tried_again() -> None:
    bench = ElectionBench(3)
    assert bench.denial(2, 7, position=OLDER) == "log"
    bench.beat(2)
    bench.beat(3)
    assert campaigns(bench.wait(1.0))[0].number == 8


def test_a_voter_whose_disk_fails_does_not_keep_the_others_from_electing() -> None:
    bench = ElectionBench(3)
    bench.beat(2)
    bench.beat(3)
    effects = bench.wait(0.4)
    for is_trial in (True, False):
        asked = campaigns(effects)[-1]
        bench.answer(2, Vote(asked.number, is_trial, "", 1))
        effects = bench.answer(3, Vote(asked.number, is_trial, "" if is_trial else "disk", 1))
        effects += bench.wait(0.01)
    assert bench.machine.role == "master"


def test_an_old_answer_counts_for_nothing() -> None:
    bench = ElectionBench(3, policy="quorum")
    bench.beat(2)
    (asked,) = campaigns(bench.wait(0.4))
    bench.answer(2, Vote(asked.number - 1, True, "", 1))
    bench.answer(2, Vote(asked.number, False, "", 1))
    assert not [e for e in bench.effects if isinstance(e, SaveVote)]
    bench.answer(2, Vote(asked.number, True, "", 1))
    assert [e for e in bench.effects if isinstance(e, SaveVote)]


def test_whoever_encourages_another_lets_it_go_first() -> None:
    bench = ElectionBench(3)
    bench.beat(2)
    bench.beat(3)
    bench.ask(2, 2, is_trial=True)
    assert campaigns(bench.wait(0.45)) == []


def test_higher_rank_starts_earlier() -> None:
    starts: list[float] = []
    for priority in (100, 50, 0):
        bench = ElectionBench(3, priority=priority)
        bench.beat(2)
        began_s = bench.now
        while not campaigns(bench.effects):
            bench.wait(0.005)
        starts.append(bench.now - began_s)
    assert starts == sorted(starts)
    assert starts[0] < 0.11
    assert 0.2 <= starts[2] < 0.31


def test_a_node_that_lags_suspects_more_slowly_and_does_not_campaign() -> None:
    bench = ElectionBench(3)
    bench.follow(2)
    bench.beat(3)
    bench.jump(1.0)
    bench.beat(3)
    assert bench.machine.sight.is_lagging(now=bench.now)
    bench.wait(1.5)
    bench.beat(3)
    assert bench.machine.term(now=bench.now) == TermPair(2, ANN), "its own stall accuses nobody"
    bench.wait(2.0)
    bench.beat(3)
    bench.wait(0.6)
    assert bench.machine.term(now=bench.now) is None
    bench.beat(3)
    assert campaigns(bench.wait(0.5)) == []


def test_time_in_which_this_node_did_not_look_is_nobodys_silence() -> None:
    bench = ElectionBench(3)
    bench.follow(2)
    bench.wait(1.0)
    bench.jump(30.0)
    bench.wait(2.5)
    assert bench.machine.term(now=bench.now) == TermPair(2, ANN)
    silent_s = bench.machine.peers.silent_s(ANN, now=bench.now)
    assert silent_s is not None
    assert silent_s > 33.0, "what was really heard is not made up"
    bench.wait(1.5)
    assert bench.machine.term(now=bench.now) is None


def test_a_node_that_lags_campaigns_when_another_misses_the_master_and_has_an_older_log() -> None:
    bench = ElectionBench(3)
    bench.jump(1.0)
    bench.beat(2)
    assert bench.denial(2, 2, is_trial=True, position=OLDER) == "log"
    assert campaigns(bench.wait(0.5))


def test_a_node_that_lags_campaigns_at_once_when_the_masters_process_has_ended() -> None:
    bench = ElectionBench(3)
    bench.follow(2)
    bench.jump(1.0)
    bench.beat(3)
    assert bench.machine.sight.is_lagging(now=bench.now)
    bench.refuse(2)
    assert campaigns(bench.wait(0.4))


def test_where_all_that_hear_one_another_lag_somebody_campaigns_all_the_same() -> None:
    for others_lag in (False, True):
        bench = ElectionBench(3)
        bench.follow(2)
        bench.jump(1.0)
        asked: list[object] = []
        for _ in range(10):
            bench.beat(3, is_lagging=others_lag)
            asked += campaigns(bench.wait(0.45))
        assert bool(asked) == others_lag


def test_a_node_that_leaves_campaigns_no_more() -> None:
    bench = ElectionBench(3)
    bench.give(BeginLeaving())
    bench.beat(2)
    bench.beat(3)
    assert campaigns(bench.wait(5.0)) == []


def test_a_node_whose_promises_are_unreadable_votes_once_it_has_heard_every_voter() -> None:
    bench = ElectionBench(3, is_damaged=True)
    bench.beat(2, term=7)
    assert bench.denial(2, 8) == "disk"
    assert bench.denial(2, 8, position=OLDER) == "log"
    bench.beat(3, term=9)
    assert bench.denial(2, 9) == "voted", "nobody knows of a higher number than nine"
    (saved,) = [e for e in bench.ask(2, 10) if isinstance(e, SaveVote)]
    assert saved == SaveVote(vote=TermVote(term=10, voted_for=ANN), replaces_damaged=True)
    (saved,) = [e for e in bench.ask(3, 11) if isinstance(e, SaveVote)]
    assert not saved.replaces_damaged


def test_a_node_whose_promises_are_unreadable_still_follows() -> None:
    bench = ElectionBench(3, is_damaged=True)
    bench.follow(2, term=7)


# ---- The master ----


def test_a_master_whose_clock_jumped_drops_its_role_before_anything_else() -> None:
    bench = a_master()
    bench.jump(1.9)
    assert bench.machine.is_master(now=bench.now)
    bench.jump(0.2)
    assert not bench.machine.is_master(now=bench.now), "seen by whoever asks, before any look"
    assert bench.machine.term(now=bench.now) is None
    effects = bench.beat(2, term=2, master=1)
    assert isinstance(effects[0], Rest)
    assert not [e for e in effects if isinstance(e, Journalled)]


def test_in_quorum_a_master_decides_nothing_once_its_lease_has_run_out() -> None:
    bench = a_master(5, policy="quorum")
    for number in (2, 3):
        bench.beat(number, term=2, master=1)
    bench.wait(1.9)
    assert bench.machine.is_master(now=bench.now)
    bench.wait(0.2)
    assert not bench.machine.is_master(now=bench.now)
    assert bench.machine.claimed(now=bench.now) == (2, None)
    assert not bench.denial(3, 3, is_trial=True)


def test_in_quorum_a_master_goes_on_in_its_term_when_it_is_heard_again() -> None:
    bench = a_master(policy="quorum")
    bench.wait(4.0)
    bench.beat(2, term=2)
    bench.wait(0.3)
    assert bench.machine.is_master(now=bench.now)
    assert bench.machine.claimed(now=bench.now) == (2, ME)
    assert not [e for e in bench.effects if isinstance(e, Lead | Rest)]


def test_in_quorum_voters_that_have_followed_a_higher_term_keep_no_master_of_a_lower_one() -> None:
    bench = a_master(policy="quorum")
    bench.wait(4.0)
    bench.beat(2, term=3, master=3)
    assert not bench.machine.is_master(now=bench.now), "it follows another"
    bench.wait(0.3)
    bench.beat(2, term=3, position=LogPosition(3, 12, 3, 12))
    assert not bench.machine.is_master(now=bench.now), "it has its events, and can go back no more"
    bench.wait(0.3)
    bench.beat(2, term=3)
    assert bench.machine.is_master(now=bench.now), "it only knows of a higher number"


def test_in_quorum_a_master_that_asks_in_vain_is_known_to_hear_by_the_trial_that_it_gets() -> None:
    bench = a_master(policy="quorum")
    bench.wait(4.0)
    bench.beat(2, term=2, unheard=(ME,))
    assert not bench.machine.is_master(now=bench.now)
    assert bench.denial(2, 3, is_trial=True) == "master"


def test_a_master_counts_only_what_its_own_followers_have() -> None:
    bench = a_master()
    (noted,) = [e for e in bench.beat(2, term=2, master=1) if isinstance(e, Journalled)]
    assert (noted.member, noted.number, noted.seq) == (ANN, 2, BASE.seq)
    assert not [e for e in bench.beat(3, term=2) if isinstance(e, Journalled)]


def test_a_settled_master_outbids_a_minoritys_number_and_leads_on_meanwhile() -> None:
    bench = a_master()
    bench.beat(2, term=2, master=1)
    effects = bench.beat(3, term=5, master=3, is_minority=True)
    assert campaigns(effects)[0].number == 6, "at once"
    assert campaigns(effects)[0].is_trial
    assert bench.machine.is_master(now=bench.now)
    assert not [e for e in effects if isinstance(e, Rest)]


def test_a_settled_master_outbids_a_minority_of_its_own_number_too() -> None:
    bench = a_master()
    rival = max((2, 3), key=a_node_id)
    assert a_node_id(rival) > ME
    effects = bench.beat(rival, term=2, master=rival, is_minority=True)
    assert campaigns(effects)[0].number == 3
    assert bench.machine.is_master(now=bench.now)


def test_a_settled_master_that_hears_few_outbids_only_after_long() -> None:
    bench = a_master(4)
    bench.wait(2.1)
    for _ in range(18):
        assert not campaigns(bench.beat(3, term=5, master=3, is_minority=True))
        assert not campaigns(bench.wait(0.5))
    asked = [bench.beat(3, term=5, master=3, is_minority=True) + bench.wait(0.5) for _ in range(8)]
    assert campaigns([effect for effects in asked for effect in effects])


def test_a_master_gives_way_to_a_higher_settled_term() -> None:
    bench = a_master()
    effects = bench.beat(3, term=3, master=3)
    assert Follow(term=TermPair(3, BOB)) in effects
    assert not bench.machine.is_master(now=bench.now)


def test_a_master_knows_that_its_minority_term_was_settled_from_its_log() -> None:
    bench = ElectionBench(2)
    bench.wait(10.0)
    assert bench.machine.tenure.is_minority
    head = LogPosition(1, 10, 2, 11)
    bench.log = replace(bench.log, head=head, ends_in_minority=True)
    bench.wait(0.3)
    assert bench.machine.tenure.is_minority
    bench.log = replace(bench.log, head=LogPosition(2, 12, 2, 12), ends_in_minority=False)
    bench.wait(0.3)
    assert not bench.machine.tenure.is_minority


# ---- Odd nodes ----


def test_a_removed_node_takes_no_part() -> None:
    bench = a_master()
    bench.log = replace(bench.log, removed=frozenset({ME}))
    assert "Rest" in kinds(bench.wait(0.3))
    assert bench.ask(2, 9) == []
    assert not [e for e in bench.wait(5.0) if not isinstance(e, Rest)]


def test_what_a_removed_node_says_is_ignored() -> None:
    bench = ElectionBench()
    bench.log = replace(bench.log, removed=frozenset({BOB}))
    bench.beat(3, term=9, master=3)
    assert bench.ask(3, 10) == []
    assert bench.machine.known_number == 1
    assert not bench.machine.sight.is_alive(BOB, now=bench.now)


def test_a_guest_whose_log_names_no_members_waits_for_a_master() -> None:
    bench = ElectionBench(1, listened_s=0.0)
    bench.log = replace(bench.log, members=frozenset(), voters=frozenset())
    assert campaigns(bench.wait(30.0)) == []
    assert not [e for e in bench.effects if isinstance(e, SaveVote)]
    bench.follow(2, term=4)


def test_a_node_that_had_left_and_is_alone_may_lead_in_the_end() -> None:
    bench = ElectionBench(3, listened_s=0.0)
    bench.log = replace(bench.log, voters=frozenset({ANN, BOB}))
    assert [e for e in bench.wait(11.0) if isinstance(e, Lead)]


def test_where_all_have_left_whoever_is_back_may_lead() -> None:
    bench = ElectionBench(3, listened_s=0.0)
    bench.log = replace(bench.log, voters=frozenset())
    assert [e for e in bench.wait(11.0) if isinstance(e, Lead)]


def test_two_processes_on_one_key_are_told_apart_from_a_restart() -> None:
    bench = ElectionBench()
    bench.beat(2, boot="a" * 16)
    bench.beat(2, boot="b" * 16)
    assert bench.machine.peers.duplicates(now=bench.now) == ()
    bench.beat(2, boot="a" * 16)
    (found,) = bench.machine.peers.duplicates(now=bench.now)
    assert (found.node_id, found.boot_ids) == (ANN, ("a" * 16, "b" * 16))
    bench.wait(10.1)
    assert bench.machine.peers.duplicates(now=bench.now) == ()


def test_another_process_on_this_nodes_own_key_is_noticed_and_otherwise_ignored() -> None:
    bench = ElectionBench()
    bench.beat(1, term=9, master=1, boot="f" * 16)
    (found,) = bench.machine.peers.duplicates(now=bench.now)
    assert found.node_id == ME
    assert bench.machine.known_number == 1
    assert bench.ask(1, 9) == []


def test_a_heartbeat_goes_out_twice_a_second() -> None:
    bench = ElectionBench()
    beats = [e for e in bench.wait(10.0) if isinstance(e, Beat) and e.to is None]
    assert 19 <= len(beats) <= 21


def beats(effects: list[Effect]) -> int:
    return sum(1 for effect in effects if isinstance(effect, Beat) and effect.to is None)


def test_a_member_says_its_heartbeat_with_the_masters() -> None:
    bench = ElectionBench()
    bench.follow(2)
    bench.wait(0.5)
    bench.beat(2, term=2, master=2)
    alone = with_the_master = 0
    for _ in range(20):
        alone += beats(bench.wait(0.5))
        with_the_master += beats(bench.beat(2, term=2, master=2))
    assert (alone, with_the_master) == (0, 20)


def test_a_member_whose_master_is_late_says_its_heartbeat_alone() -> None:
    bench = ElectionBench()
    bench.follow(2)
    bench.wait(0.5)
    bench.beat(2, term=2, master=2)
    assert beats(bench.wait(BEAT_GRACE_S + 0.5)) == 1
    assert beats(bench.wait(0.5)) == 1


def test_a_calm_master_looks_with_each_of_its_heartbeats_and_at_no_other_time() -> None:
    bench = a_master(3)
    for _ in range(4):
        bench.beat(2, term=bench.machine.known_number, master=1)
        bench.beat(3, term=bench.machine.known_number, master=1)
        bench.wait(0.5)
    n_looks = bench.machine.n_looks
    n_beats = 0
    for _ in range(20):
        bench.beat(2, term=bench.machine.known_number, master=1)
        bench.beat(3, term=bench.machine.known_number, master=1)
        n_beats += beats(bench.wait(0.5))
    assert 19 <= n_beats <= bench.machine.n_looks - n_looks <= 21


def test_a_calm_member_needs_no_time_of_its_own_to_look() -> None:
    bench = ElectionBench()
    bench.follow(2)
    n_looks_alone = 0
    for number in range(24):
        before = bench.machine.n_looks
        while bench.machine.deadline < bench.now + 0.5:
            bench.wait(bench.machine.deadline - bench.now)
            n_looks_alone += number > 3
        bench.jump(0.5)
        bench.beat(3, term=2, master=2)
        bench.beat(2, term=2, master=2)
        assert bench.machine.n_looks > before, "it looks with the heartbeats"
    assert n_looks_alone == 0


def test_silence_is_noticed_on_time_however_calm_it_was_before() -> None:
    bench = a_master(3)
    for _ in range(8):
        bench.wait(0.5)
        bench.beat(2, term=bench.machine.known_number, master=1)
        bench.beat(3, term=bench.machine.known_number, master=1)
    heard_s = bench.now
    bench.wait(0.7)
    bench.beat(3, term=bench.machine.known_number, master=1)
    looked_s: list[float] = []
    while bench.now < heard_s + 2.6:
        bench.wait(max(0.001, bench.machine.deadline - bench.now))
        looked_s.append(bench.now - heard_s)
    assert any(SUSPICION_S < at_s < SUSPICION_S + 0.01 for at_s in looked_s)
    troubled = [at_s for at_s in looked_s if at_s > SUSPICION_S]
    gaps_s = [later - at_s for at_s, later in pairwise(troubled)]
    assert max(gaps_s) <= PULSE_S + 0.002


def test_a_master_that_hurries_hurries_nobody_beyond_four_heartbeats_a_second() -> None:
    bench = ElectionBench()
    bench.follow(2)
    n_beats = 0
    for _ in range(1000):
        n_beats += beats(bench.wait(0.01)) + beats(bench.beat(2, term=2, master=2))
    assert n_beats <= 10 * 2 / HEARTBEAT_S
