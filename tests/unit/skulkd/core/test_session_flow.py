"""What a client of a session gets, by how fast it reads."""

from skulkd.core.session_flow import SessionFlow


def test_a_client_that_takes_what_it_gets_has_all_of_it() -> None:
    flow = SessionFlow(10_000)
    for second in range(100):
        flow.sent(9_000)
        flow.taken(9_000)
        flow.look(float(second), is_writable=True)
        assert flow.feed == "full"
        assert flow.has_credit


def test_one_message_may_be_larger_than_the_credit_and_the_next_waits() -> None:
    flow = SessionFlow(4096)
    assert flow.has_credit
    flow.sent(100_000)
    assert not flow.has_credit
    flow.taken(90_000)
    assert not flow.has_credit
    flow.taken(10_000)
    assert flow.has_credit


def test_credit_for_more_than_was_sent_is_worth_no_more_than_the_window() -> None:
    flow = SessionFlow(4096)
    flow.taken(1 << 20)
    flow.sent(4096)
    assert not flow.has_credit


def test_a_client_that_takes_nothing_gets_less_and_less_and_is_let_go() -> None:
    flow = SessionFlow(4096)
    flow.sent(5000)
    flow.blocked(100.0)
    seen: list[tuple[float, str]] = []
    for tenth in range(700):
        now = 100.0 + tenth / 10
        flow.blocked(now)
        before = flow.feed
        flow.look(now, is_writable=False)
        if flow.feed != before:
            seen.append((round(now - 100.0, 1), flow.feed))
        assert flow.is_hopeless == (now - 100.0 >= 60.0)
    assert seen == [(2.0, "latest"), (10.0, "summary")]


def test_who_has_caught_up_gets_everything_again() -> None:
    flow = SessionFlow(4096)
    flow.sent(5000)
    flow.blocked(0.0)
    flow.look(11.0, is_writable=False)
    assert flow.feed == "summary"
    flow.taken(1000)
    flow.sent(50)
    flow.look(12.0, is_writable=True)
    assert flow.feed == "summary", "half of the window is still under way"
    flow.taken(4000)
    flow.look(13.0, is_writable=False)
    assert flow.feed == "summary", "its connection is still full"
    flow.look(13.0, is_writable=True)
    assert flow.feed == "full"


def test_small_talk_is_no_sign_of_reading() -> None:
    flow = SessionFlow(4096)
    flow.sent(5000)
    flow.blocked(0.0)
    flow.sent(50, is_small_talk=True)
    flow.look(2.0, is_writable=True)
    assert flow.feed == "latest"


def test_a_session_without_news_is_not_a_slow_one() -> None:
    flow = SessionFlow(4096)
    flow.blocked(0.0)
    flow.idle()
    flow.look(100.0, is_writable=True)
    assert flow.feed == "full"
    assert not flow.is_hopeless
