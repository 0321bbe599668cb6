"""What a pane of events leaves out when the operator looks back for some time only."""

from typing import Any

from protocol.session import Lines
from skulk_tui.lines import line, text_of
from skulk_tui.view_state import LineBuffer
from skulk_tui.widgets.log_pane import LogPane


def _event(seq: int, at_ms: int | None) -> dict[str, Any]:
    return {"seq": seq} if at_ms is None else {"seq": seq, "at_ms": at_ms}


def _frame(*items: dict[str, Any], gap: str = "") -> Lines:
    return Lines(id=1, cursor="c", items=items, gap=gap, at_ms=0)


def _pane(*frames: Lines) -> LogPane:
    buffer = LineBuffer()
    for frame in frames:
        buffer.take(frame)
    pane = LogPane("events", "Events", form=lambda item: line(f"seq {item['seq']}"))
    pane.show(buffer)
    return pane


def _shown(pane: LogPane) -> list[str]:
    return [text_of(one).strip() for one in pane.body(80, 20)]


def test_what_is_older_is_left_out_until_all_is_shown_again() -> None:
    pane = _pane(_frame(_event(1, 1_000), _event(2, 2_000), _event(3, 3_000)))
    pane.look_back(2_000, "10m")
    assert _shown(pane) == ["seq 2", "seq 3"]
    assert pane.state == "last 10m   follow ON"
    assert pane.unfilter()
    assert _shown(pane) == ["seq 1", "seq 2", "seq 3"]
    assert not pane.unfilter()
    assert pane.state == "follow ON"


def test_a_gap_is_shown_with_what_follows_it_and_what_has_no_time_stays() -> None:
    pane = _pane(
        _frame(_event(1, 1_000), gap="lost early"),
        _frame(_event(2, 3_000), _event(3, None), gap="lost late"),
        _frame(gap="lost just now"),
    )
    pane.look_back(2_000, "10m")
    assert _shown(pane) == ["-- gap: lost late --", "seq 2", "seq 3", "-- gap: lost just now --"]


def test_where_all_that_came_is_within_the_time_there_may_be_more() -> None:
    pane = _pane(_frame(_event(7, 5_000), _event(8, 6_000)))
    pane.look_back(2_000, "2h")
    assert pane.state == "last 2h, all that is here   follow ON"


def test_where_nothing_came_within_the_time_the_way_back_is_named() -> None:
    pane = _pane(_frame(_event(1, 1_000)))
    pane.look_back(2_000, "5m")
    assert _shown(pane) == ["nothing within the last 5m; esc shows all"]
    assert pane.state == "last 5m   follow ON"


def test_what_comes_later_is_held_against_the_same_time() -> None:
    pane = _pane(_frame(_event(1, 1_000)))
    pane.look_back(2_000, "5m")
    buffer = LineBuffer()
    buffer.take(_frame(_event(1, 1_000), _event(2, 2_500)))
    pane.show(buffer)
    assert _shown(pane) == ["seq 2"]
