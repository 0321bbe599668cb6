"""Lines: widths in cells, cuts that say so."""

import pytest

from skulk_tui.lines import Span, cut, fit, line, rule, spread, text_of, toned, width_of, wrapped
from skulk_tui.widgets.line_widget import changed_cells


@pytest.mark.parametrize(
    ("width", "text"),
    [(0, ""), (1, ">"), (3, "ab>"), (4, "abc>"), (5, "abcd>"), (6, "abcdef"), (9, "abcdef")],
)
def test_what_is_cut_ends_in_a_mark_wherever_the_spans_part(width: int, text: str) -> None:
    assert text_of(cut((Span("abc"), Span("def", "bad")), width)) == text


@pytest.mark.parametrize("width", range(12))
def test_a_fitted_line_has_its_width_with_wide_characters_too(width: int) -> None:
    assert width_of(fit(line("日本", Span("語x", "good")), width)) == width


def test_the_right_side_stays_and_the_left_one_gives_way() -> None:
    shown = spread(line("a long title"), line("LIVE"), 10)
    assert text_of(shown) == "a lo> LIVE"
    assert text_of(spread(line("ab"), line("LIVE"), 10, fill="-")) == "ab----LIVE"


def test_a_rule_names_its_pane_and_state() -> None:
    shown = rule("Nodes 4", "sort: name ^", 40)
    assert text_of(shown) == "- Nodes 4 --------------- sort: name ^ -"


def test_only_the_stretch_that_changed_is_drawn_again() -> None:
    old = (Span("abc"), Span("12"), Span("xyz"))
    assert changed_cells(old, (Span("abc"), Span("13"), Span("xyz")), 8) == (3, 5)
    assert changed_cells(old, (Span("abd"), Span("12"), Span("xyz")), 8) == (0, 3)
    assert changed_cells(old, toned("abc12xyz", "dim"), 8) == (0, 8)


@pytest.mark.parametrize("width", [4, 7, 12, 40])
def test_a_wrapped_line_loses_no_text_and_is_never_too_wide(width: int) -> None:
    content = (
        Span("skulk place "),
        Span("org/a-long-model-name:q4", "accent"),
        Span(" 日本語 x"),
    )
    rows = wrapped(content, width)
    assert "".join(text_of(row) for row in rows) == text_of(content)
    assert all(len(text_of(row).rstrip()) <= width and width_of(row) <= width + 1 for row in rows)


def test_a_state_that_is_too_long_gives_way_before_the_title_of_its_rule() -> None:
    drawn = text_of(rule("Models 31", "filter: " + "x" * 100, 60))
    assert drawn.startswith("- Models 31 ")
    assert drawn.endswith("> -")
    assert len(drawn) == 60
    long_title = text_of(rule("t" * 100, "sort: name ^", 60))
    assert long_title.endswith(" sort: name ^ -")
