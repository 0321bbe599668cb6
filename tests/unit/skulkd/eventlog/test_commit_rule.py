from hypothesis import given
from hypothesis import strategies as st

from protocol.state import Policy
from skulkd.eventlog.commit_rule import OtherCopy, OwnCopy, committed_seq, durable_of


def own(
    durable: int,
    *,
    head: int = 20,
    failing: bool = False,
    voter: bool = True,
    alone: bool = False,
) -> OwnCopy:
    return OwnCopy(
        head_seq=head,
        durable_seq=durable,
        is_failing=failing,
        is_voter=voter,
        is_alone=alone,
    )


def others(*durable: int, waited_for: bool = True) -> list[OtherCopy]:
    return [OtherCopy(durable_seq=seq, is_waited_for=waited_for) for seq in durable]


def seq_of(policy: Policy, mine: OwnCopy, theirs: list[OtherCopy], *, first_seq: int = 1) -> int:
    return committed_seq(policy, mine, theirs, first_seq=first_seq)


def test_a_cluster_of_one_commits_what_its_disk_holds() -> None:
    for policy in ("availability", "quorum"):
        assert seq_of(policy, own(7, alone=True), []) == 7
        assert seq_of(policy, own(7, failing=True, alone=True), []) == 20


def test_the_last_voter_of_a_quorum_needs_a_disk_that_works() -> None:
    assert seq_of("quorum", own(7), []) == 7
    assert seq_of("quorum", own(7, failing=True), []) == 7
    assert seq_of("availability", own(7, failing=True), []) == 20


def test_availability_asks_for_one_other_that_is_alive() -> None:
    assert seq_of("availability", own(9), others(3, 6)) == 6
    assert seq_of("availability", own(4), others(3, 6)) == 4
    assert seq_of("availability", own(9), others(3, 6, waited_for=False)) == 9


def test_a_copy_of_a_dead_voter_is_no_second_copy() -> None:
    theirs = [*others(2), *others(8, waited_for=False)]
    assert seq_of("availability", own(9), theirs) == 2


def test_a_failing_disk_leaves_it_to_the_others() -> None:
    assert seq_of("availability", own(2, failing=True), others(11, 3)) == 11
    assert seq_of("quorum", own(2, failing=True), others(11, 3)) == 3


def test_quorum_counts_the_dead_and_asks_for_more_than_half() -> None:
    assert seq_of("quorum", own(9), others(5, waited_for=False)) == 5
    assert seq_of("quorum", own(9), others(5, 0)) == 5
    assert seq_of("quorum", own(9), others(5, 4, 0)) == 4
    assert seq_of("quorum", own(9), others(5, 4, 0, 0)) == 4


def test_a_master_without_a_vote_does_not_count_itself() -> None:
    assert seq_of("quorum", own(9, voter=False), others(5)) == 5
    assert seq_of("quorum", own(9, voter=False), others(5, 3)) == 3
    assert seq_of("quorum", own(9, voter=False), []) == 0


def test_in_quorum_nothing_of_an_earlier_term_is_committed_by_itself() -> None:
    assert seq_of("quorum", own(9), others(5, 5), first_seq=6) == 0
    assert seq_of("quorum", own(9), others(6, 5), first_seq=6) == 6
    assert seq_of("availability", own(9), others(5, 5), first_seq=6) == 5


def test_a_reply_says_what_it_rests_on() -> None:
    assert durable_of(5, own(5), others(5)) == "member"
    assert durable_of(5, own(5), others(4)) == "local"
    assert durable_of(5, own(4), others(4)) == "memory"


@given(
    policy=st.sampled_from(("availability", "quorum")),
    durable=st.integers(0, 10),
    failing=st.booleans(),
    theirs=st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=4),
    first_seq=st.integers(1, 10),
)
def test_what_is_committed_is_there_and_survives_one_death_where_it_can(
    policy: Policy,
    durable: int,
    failing: bool,
    theirs: list[tuple[int, bool]],
    first_seq: int,
) -> None:
    mine = own(durable, head=10, failing=failing)
    copies = [OtherCopy(durable_seq=seq, is_waited_for=alive) for seq, alive in theirs]
    seq = seq_of(policy, mine, copies, first_seq=first_seq)
    assert 0 <= seq <= 10
    n_copies = sum(copy.durable_seq >= seq for copy in copies) + (durable >= seq)
    alive = [copy for copy in copies if copy.is_waited_for]
    if policy == "quorum" and copies and seq:
        assert 2 * n_copies > len(copies) + 1
        assert seq >= first_seq
    if policy == "availability" and alive:
        assert any(copy.durable_seq >= seq for copy in alive)
        assert failing or n_copies >= 2
    if policy == "availability" and not failing:
        assert seq <= durable
