"""The rows of the table of link states, in time that the test makes."""

import random
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skulk_tui.link_machine import (
    BACKOFF_S,
    JITTER_RATIO,
    AttachTo,
    Barred,
    Broken,
    Dial,
    GoTo,
    HangUp,
    Heard,
    LinkEffect,
    LinkInput,
    LinkMachine,
    Opened,
    Probe,
    RetryNow,
    Synced,
    WallTime,
)

A = "http://den-01:52415"
B = "http://den-02:52415"
REFUSED = Broken(reason="connection refused", remedy="start skulkd")


@dataclass
class Story:
    """A machine with its time; `done` is every effect with the time it came at."""

    addresses: tuple[str, ...] = (A,)
    seed: int = 1
    now: float = 100.0
    done: list[tuple[float, LinkEffect]] = field(default_factory=list[tuple[float, LinkEffect]])

    def __post_init__(self) -> None:
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable retries
        self.machine = LinkMachine(
            self.addresses, randomness=random.Random(self.seed), now=self.now
        )
        self._note(self.machine.start(self.now))

    @property
    def word(self) -> str:
        return self.machine.view.word

    @property
    def dialled(self) -> list[str]:
        return [effect.url for _, effect in self.done if isinstance(effect, Dial)]

    def tell(self, *what: LinkInput) -> None:
        for one in what:
            self._note(self.machine.handle(one, self.now))

    def live(self) -> None:
        self.tell(Opened(node_name="den-01"), Synced(ratio=1.0))
        assert self.word == "live"

    def advance(self, seconds: float) -> None:
        """Let time pass, ticking exactly when the machine asks for it."""
        end = self.now + seconds
        while (at := self.machine.deadline) is not None and at <= end:
            self.now = max(self.now, at)
            self._note(self.machine.tick(self.now))
        self.now = end

    def fail_every_dial(self, seconds: float) -> None:
        """Let every attempt be refused at once."""
        end = self.now + seconds
        while True:
            if self.machine.view.retry_at is None:
                self.tell(REFUSED)
            at = self.machine.deadline
            if at is None or at > end:
                break
            self.now = max(self.now, at)
            self._note(self.machine.tick(self.now))
        self.now = end

    def _note(self, effects: tuple[LinkEffect, ...]) -> None:
        self.done += [(self.now, effect) for effect in effects]


def test_a_link_connects_from_its_start_and_dials_at_once() -> None:
    story = Story()
    assert story.word == "connecting"
    assert story.done == [(100.0, Dial(url=A))]
    assert not story.machine.view.may_change


def test_an_open_session_syncs_and_a_complete_snapshot_is_live() -> None:
    story = Story()
    story.tell(Opened(node_name="den-01"))
    assert (story.word, story.machine.view.progress_ratio) == ("syncing", 0.0)
    story.tell(Synced(ratio=0.4))
    assert (story.word, story.machine.view.progress_ratio) == ("syncing", 0.4)
    assert not story.machine.view.may_change
    story.tell(Synced(ratio=1.0))
    assert (story.word, story.machine.view.progress_ratio) == ("live", None)
    assert story.machine.view.may_change


def test_frames_within_three_seconds_keep_it_live() -> None:
    story = Story()
    story.live()
    for _ in range(30):
        story.advance(2.9)
        story.tell(Heard())
        assert story.word == "live"
    assert story.machine.view.since == pytest.approx(100)


def test_three_seconds_of_silence_are_stale_and_a_frame_makes_it_live_again() -> None:
    story = Story()
    story.live()
    story.advance(2.999)
    assert story.word == "live"
    story.advance(0.001)
    assert (story.word, story.machine.view.since) == ("stale", 103.0)
    assert story.machine.view.may_change
    assert story.machine.view.age_s(story.now) == pytest.approx(3.0)
    story.advance(5)
    story.tell(Heard())
    assert story.word == "live"


def test_silence_while_syncing_is_stale_and_a_frame_goes_on_syncing() -> None:
    story = Story()
    story.tell(Opened(node_name="den-01"))
    story.advance(3)
    assert story.word == "stale"
    story.tell(Heard())
    assert story.word == "syncing"


def test_ten_seconds_of_silence_are_lost_and_the_socket_is_given_up() -> None:
    story = Story()
    story.live()
    story.advance(9.999)
    assert story.word == "stale"
    story.advance(0.001)
    assert story.word == "lost"
    assert story.done[-1] == (110.0, HangUp())
    view = story.machine.view
    assert "den-01 has said nothing for 10 s" in view.reason
    assert view.last_frame_at == pytest.approx(100)
    assert view.retry_at == pytest.approx(110.5, abs=0.5 * JITTER_RATIO)
    assert not view.may_change


def test_a_closed_socket_is_lost_at_once_and_says_why() -> None:
    story = Story()
    story.live()
    story.tell(Broken(reason="den-01 closed the connection"))
    assert (story.word, story.machine.view.reason) == ("lost", "den-01 closed the connection")
    assert story.machine.view.attempt == 0


def test_a_session_that_is_reopened_resumes_and_is_then_live() -> None:
    story = Story()
    story.live()
    story.tell(REFUSED)
    story.advance(1)
    assert story.word == "lost"
    story.tell(Opened(node_name="den-01"))
    assert story.word == "resuming"
    assert not story.machine.view.may_change
    story.tell(Synced(ratio=1.0))
    assert (story.word, story.machine.view.reason) == ("live", "")


@pytest.mark.parametrize("seed", range(20))
def test_retries_back_off_to_eight_seconds_with_a_fifth_of_jitter_for_ever(seed: int) -> None:
    story = Story(seed=seed)
    story.fail_every_dial(600)
    times = [at for at, effect in story.done if isinstance(effect, Dial)]
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert len(waits) > 60
    for n, wait in enumerate(waits):
        expected = BACKOFF_S[min(n, len(BACKOFF_S) - 1)]
        assert expected * 0.8 - 1e-6 <= wait <= expected * 1.2 + 1e-6
    assert len({round(wait, 6) for wait in waits[5:]}) > 10
    assert story.machine.view.attempt == len(times)


def test_before_anything_was_ever_open_a_failed_attempt_stays_connecting_and_says_why() -> None:
    story = Story()
    story.tell(REFUSED)
    view = story.machine.view
    assert (view.word, view.reason, view.remedy) == (
        "connecting", "connection refused", "start skulkd",
    )  # fmt: skip
    assert view.retry_at is not None
    assert view.since == pytest.approx(100)


def test_an_attempt_is_given_up_after_three_seconds() -> None:
    story = Story()
    story.advance(2.999)
    assert story.machine.view.attempt == 0
    story.advance(0.001)
    assert story.done[-1] == (103.0, HangUp())
    assert f"{A} did not answer within 3 s" in story.machine.view.reason
    assert story.machine.view.attempt == 1


def test_after_two_failures_the_next_address_is_tried_and_then_the_first_again() -> None:
    story = Story(addresses=(A, B))
    story.fail_every_dial(40)
    assert story.dialled[:6] == [A, A, B, B, A, A]


def test_the_loss_of_a_live_session_is_no_failure_of_its_address() -> None:
    story = Story(addresses=(A, B))
    story.live()
    story.tell(Broken(reason="gone"))
    story.fail_every_dial(1.0)
    story.fail_every_dial(20.0)
    assert story.dialled[:4] == [A, A, A, B]


def test_a_session_that_ends_before_it_is_complete_backs_off_further() -> None:
    story = Story()
    waits: list[float] = []
    for _ in range(5):
        story.tell(Opened(node_name="den-01"), Broken(reason="64 sessions are open"))
        retry_at = story.machine.view.retry_at
        assert retry_at is not None
        waits.append(retry_at - story.now)
        story.advance(10)
        assert isinstance(story.done[-1][1], Dial | HangUp)
        story.advance(0)
    assert waits == sorted(waits)
    assert waits[-1] > 6


def test_retry_now_dials_at_once_and_begins_the_backoff_anew() -> None:
    story = Story()
    story.fail_every_dial(60)
    before = len(story.dialled)
    story.tell(RetryNow())
    assert len(story.dialled) == before + 1
    assert story.machine.view.retry_at is None
    story.tell(REFUSED)
    retry_at = story.machine.view.retry_at
    assert retry_at is not None
    assert retry_at - story.now <= 0.6


def test_retry_now_leaves_a_live_session_alone_and_replaces_a_stale_one() -> None:
    story = Story()
    story.live()
    story.tell(RetryNow())
    assert (story.word, story.dialled) == ("live", [A])
    story.advance(4)
    story.tell(RetryNow())
    assert (story.word, story.dialled) == ("lost", [A, A])


def test_attaching_to_another_node_connects_anew_and_keeps_the_old_address_behind_it() -> None:
    story = Story()
    story.live()
    story.tell(AttachTo(url=B))
    assert (story.word, story.dialled) == ("connecting", [A, B])
    assert story.machine.addresses == (B, A)
    story.tell(Opened(node_name="den-02"))
    assert story.word == "syncing"


def test_a_node_that_cannot_be_attached_to_is_left_for_the_old_one_after_two_failures() -> None:
    story = Story()
    story.live()
    story.tell(AttachTo(url=B))
    story.fail_every_dial(5)
    assert story.dialled[:4] == [A, B, B, A]


@pytest.mark.parametrize("word", ["incompatible", "denied"])
def test_a_node_that_bars_the_way_is_not_asked_again_by_itself(
    word: Literal["incompatible", "denied"],
) -> None:
    story = Story()
    story.tell(Barred(word=word, reason="no", remedy="do this"))
    assert story.word == word
    assert story.machine.deadline is None
    story.advance(3600)
    assert story.dialled == [A]
    assert (story.machine.view.reason, story.machine.view.remedy) == ("no", "do this")
    assert not story.machine.view.may_change


@pytest.mark.parametrize("word", ["incompatible", "denied"])
def test_a_barred_way_is_tried_again_when_asked_or_at_another_node(
    word: Literal["incompatible", "denied"],
) -> None:
    story = Story()
    story.tell(Barred(word=word, reason="no"), RetryNow())
    assert (story.word, story.dialled) == ("connecting", [A, A])
    story.tell(Barred(word=word, reason="no"), AttachTo(url=B))
    assert (story.word, story.dialled) == ("connecting", [A, A, B])


def test_a_machine_that_slept_retries_at_once() -> None:
    story = Story()
    story.fail_every_dial(60)
    story.tell(WallTime(wall_ms=1_000_000))
    before = len(story.dialled)
    story.now += 0.5
    story.tell(WallTime(wall_ms=1_000_500 + 5_000))
    assert len(story.dialled) == before, "five seconds are no jump yet"
    story.now += 0.5
    story.tell(WallTime(wall_ms=1_006_000 + 5_100))
    assert len(story.dialled) == before + 1


def test_the_wall_clock_is_looked_at_each_second_while_a_retry_is_waited_for() -> None:
    story = Story()
    story.fail_every_dial(60)
    deadline = story.machine.deadline
    assert deadline is not None
    assert deadline - story.now <= 1.0


def test_a_session_that_was_open_through_a_sleep_is_asked_and_given_three_seconds() -> None:
    story = Story()
    story.live()
    story.tell(WallTime(wall_ms=0))
    story.tell(WallTime(wall_ms=3_600_000))
    assert story.word == "stale"
    assert story.done[-1] == (100.0, Probe())
    story.advance(3)
    assert story.word == "lost"

    story = Story()
    story.live()
    story.tell(WallTime(wall_ms=0), WallTime(wall_ms=3_600_000), Heard())
    story.advance(2.9)
    assert story.word == "live"


def test_a_wall_clock_that_is_set_back_changes_nothing() -> None:
    story = Story()
    story.live()
    story.tell(WallTime(wall_ms=3_600_000), WallTime(wall_ms=0))
    assert story.word == "live"


def test_a_node_that_is_back_after_ten_minutes_is_dialled_within_ten_seconds() -> None:
    story = Story()
    story.live()
    story.tell(Broken(reason="gone"))
    story.fail_every_dial(600)
    before = len(story.dialled)
    story.advance(9.7)
    assert len(story.dialled) == before + 1


INPUTS = st.one_of(
    st.builds(Opened, node_name=st.just("den-01")),
    st.builds(Heard),
    st.builds(Synced, ratio=st.sampled_from([0.0, 0.5, 1.0])),
    st.just(REFUSED),
    st.builds(Barred, word=st.sampled_from(["denied", "incompatible"]), reason=st.just("no")),
    st.builds(RetryNow),
    st.builds(AttachTo, url=st.sampled_from([A, B])),
    st.builds(WallTime, wall_ms=st.integers(0, 10**7)),
)


@example(steps=[(0.0, Opened(node_name="den-01")), (3.0, Synced(ratio=1.0))], seed=0)
@given(st.lists(st.tuples(st.floats(0, 20), INPUTS), max_size=30), st.integers(0, 99))
def test_whatever_happens_a_link_is_never_forgotten(
    steps: list[tuple[float, LinkInput]], seed: int
) -> None:
    story = Story(addresses=(A, B), seed=seed)
    is_connected = True  # an attempt, or a session
    for seconds, what in steps:
        n = len(story.done)
        story.advance(seconds)
        for _, effect in story.done[n:]:
            is_connected = isinstance(effect, Dial | Probe)
        if isinstance(what, Broken | Opened | Heard | Synced | Barred) and not is_connected:
            continue  # nothing can come from a connection that is not there
        n = len(story.done)
        story.tell(what)
        if isinstance(what, Broken):
            is_connected = False
        for _, effect in story.done[n:]:
            is_connected = isinstance(effect, Dial | Probe)
        view = story.machine.view
        if view.word not in {"denied", "incompatible"}:
            assert story.machine.deadline is not None
        if view.word in {"live", "stale", "syncing", "resuming"}:
            assert view.retry_at is None
        assert view.url in {A, B}
        if view.word == "live":
            assert story.now - (view.last_frame_at or 0) < 3.0


def test_going_to_another_cluster_leaves_no_address_and_no_age_of_the_one_before() -> None:
    story = Story()
    story.live()
    story.tell(GoTo(addresses=(B, "http://c:1")))
    assert (story.word, story.dialled) == ("connecting", [A, B])
    assert story.machine.addresses == (B, "http://c:1")
    assert story.machine.view.age_s(story.now) is None
    assert not story.machine.view.node_name
    story.fail_every_dial(5)
    assert A not in story.dialled[1:]
