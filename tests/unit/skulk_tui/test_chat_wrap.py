"""Breaking text into rows."""

from rich.cells import cell_len

from skulk_tui.chat_wrap import PlainFlow, wrap, wrap_text
from skulk_tui.lines import Span, text_of


def test_words_go_to_the_next_row_whole_and_long_ones_are_broken() -> None:
    assert wrap_text("one two three", 8) == ["one two ", "three"]
    assert wrap_text("x" * 10, 4) == ["xxxx", "xxxx", "xx"]
    assert wrap_text("ab " + "x" * 6, 4) == ["ab ", "xxxx", "xx"]


def test_a_wide_character_is_never_cut_in_two() -> None:
    rows = wrap_text("漢字" * 5, 5)
    assert "".join(rows) == "漢字" * 5
    assert max(cell_len(row) for row in rows) <= 5


def test_tones_survive_the_break() -> None:
    rows = wrap((Span("one "), Span("two three", "strong")), 7)
    assert [[(part.text, part.tone) for part in row] for row in rows] == [
        [("one ", "plain"), ("two", "strong")],
        [("three", "strong")],
    ]


def test_blanks_at_the_end_of_a_full_row_make_no_row_of_their_own() -> None:
    assert wrap_text("1234   5", 4) == ["1234", "5"]


def _flow(text: str, step: int, width: int) -> list[str]:
    flow = PlainFlow(width)
    for at in range(0, len(text), step):
        flow.feed(text[at : at + step])
    return [text_of(row).rstrip() for row in flow.rows(0, len(flow))]


def test_it_does_not_matter_in_what_pieces_a_text_comes() -> None:
    text = "one two three four\n\nfive " + "x" * 30 + " six\n  indented\n漢字漢字漢字 end"
    whole = _flow(text, len(text), 12)
    assert whole[:3] == ["one two", "three four", ""]
    for step in (1, 2, 3, 7):
        assert _flow(text, step, 12) == whole


def test_rows_are_given_piecewise() -> None:
    flow = PlainFlow(10)
    flow.feed("a\nb\nc")
    assert len(flow) == 3
    assert [text_of(row) for row in flow.rows(1, 3)] == ["b", "c"]
    assert [text_of(row) for row in flow.rows(0, 2)] == ["a", "b"]
