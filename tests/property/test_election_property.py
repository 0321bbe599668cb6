"""What holds for any claims, logs and answers: whom nodes obey does not depend on the order."""

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.ids import NodeId
from protocol.peer_messages import LogPosition, TermPair
from skulkd.core.promises import Promises
from skulkd.core.voting import Claim, TermVote, displaces, is_majority
from tests.support.builders import a_node_id

NODES = [a_node_id(number) for number in range(1, 5)]
numbers = st.integers(1, 4)
nodes = st.sampled_from(NODES)


def _claim(drawn: tuple[int, NodeId, bool, tuple[int, int]]) -> Claim:
    number, master, is_minority, settled = drawn
    return Claim(pair=TermPair(number, master), is_minority=is_minority, settled=settled)


claims = st.tuples(numbers, nodes, st.booleans(), st.tuples(numbers, st.integers(0, 5))).map(_claim)


@settings(max_examples=500)
@given(claims, claims)
def test_of_two_masters_at_most_one_displaces_the_other(one: Claim, other: Claim) -> None:
    assert not (displaces(one, other) and displaces(other, one))


@settings(max_examples=300)
@given(st.lists(claims, min_size=2, max_size=5))
def test_masters_never_displace_one_another_in_a_circle(story: list[Claim]) -> None:
    for earlier, later in zip(story, [*story[1:], story[0]], strict=True):
        if not displaces(later, earlier):
            return
    raise AssertionError(story)


@settings(max_examples=300)
@given(claims, claims)
def test_a_minority_never_displaces_a_master_with_more_of_the_settled_history(
    one: Claim, other: Claim
) -> None:
    if one.is_minority and one.settled < other.settled:
        assert not displaces(one, other)
    if one.is_minority and not other.is_minority and one.settled == other.settled:
        assert not displaces(one, other)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), numbers, nodes),
        st.tuples(st.sampled_from(("saved", "failed", "restart")), st.just(0), nodes),
    ),
    max_size=30,
)


@settings(max_examples=500)
@given(steps)
def test_no_history_of_asking_saving_failing_and_restarting_votes_twice_in_a_number(
    story: list[tuple[str, int, str]],
) -> None:
    disk, promises = TermVote(), Promises(TermVote())
    waiting: TermVote | None = None
    given_votes: dict[int, str] = {}
    for what, number, node in story:
        candidate = next(known for known in NODES if known == node)
        if what == "ask" and promises.is_free(number, candidate):
            if promises.has_voted(number, candidate):
                assert given_votes.setdefault(number, candidate) == candidate
                continue
            waiting = promises.save(TermVote(term=number, voted_for=candidate), now=0.0).vote
        elif what in {"saved", "failed"} and waiting is not None:
            if what == "saved":
                disk = waiting
            promises.saved(waiting, is_durable=what == "saved")
            if what == "saved" and waiting.voted_for is not None:
                assert given_votes.setdefault(waiting.term, waiting.voted_for) == waiting.voted_for
            waiting = None
        elif what == "restart":
            promises, waiting = Promises(disk), None


@given(st.sets(st.integers(0, 6)), st.sets(st.integers(0, 6)))
def test_two_majorities_of_the_same_voters_share_one(one: set[int], other: set[int]) -> None:
    if is_majority(len(one), 7) and is_majority(len(other), 7):
        assert one & other


@given(st.integers(1, 9), st.sets(st.integers(0, 8)), st.sets(st.integers(0, 8)))
def test_a_majority_of_the_voters_and_one_that_is_back_shares_one_with_any_of_the_voters(
    n_voters: int, one: set[int], other: set[int]
) -> None:
    voters = set(range(n_voters))
    with_me = (one & voters) | {99}
    if is_majority(len(with_me), n_voters + 1) and is_majority(len(other & voters), n_voters):
        assert with_me & other


@given(st.tuples(*[st.integers(0, 5)] * 4), st.tuples(*[st.integers(0, 5)] * 4))
def test_positions_compare_by_what_is_settled_first(
    one: tuple[int, int, int, int], other: tuple[int, int, int, int]
) -> None:
    first, second = LogPosition(*one), LogPosition(*other)
    if first[:2] != second[:2]:
        assert (first > second) == (first[:2] > second[:2])
