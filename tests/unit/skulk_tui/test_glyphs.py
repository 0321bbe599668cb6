from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from skulk_tui.glyphs import (
    ASCII,
    UNICODE,
    GlyphSet,
    bar,
    bar_cells,
    cut_cells,
    level,
    pad_cells,
    plain,
)

RIGHT_TO_LEFT_OVERRIDE = "\u202e"
HOSTILE = (
    "[bold red]node[/]",
    "\x1b[2J\x1b]52;c;aGk=\x07den-01",
    "\x9b31mden-01",
    "节点节点节点节点节点",
    "ノード\uff76\uff9e",
    f"den{RIGHT_TO_LEFT_OVERRIDE}10-",
    "\u05e9\u05b8\u05dc\u05d5\u05b9\u05dd",
    "n" * 300,
    "e" + "\u0301" * 300,
    "\u0301\u0301den",
    "family \U0001f468\u200d\U0001f469\u200d\U0001f467 heart \u2764\ufe0f",
    "a\tb\r\nc\u2028d",
    "half \ud83d pair",
    "",
)


@pytest.mark.parametrize(
    "field", [field.name for field in fields(GlyphSet) if field.name != "name"]
)
def test_both_sets_are_equal_in_width(field: str) -> None:
    in_ascii, in_unicode = getattr(ASCII, field), getattr(UNICODE, field)
    assert in_ascii.isascii()
    assert cell_len(in_ascii) == cell_len(in_unicode) == len(in_unicode)
    assert cell_len(in_ascii) == (
        len(ASCII.ramp) if field == "ramp" else 2 if field.startswith("tree") else 1
    )


def test_states_of_a_node_differ_in_their_glyph() -> None:
    for glyphs in (ASCII, UNICODE):
        states = (glyphs.alive, glyphs.suspect, glyphs.lost, glyphs.left)
        assert len(set(states)) == len(states)


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("width", [0, 1, 2, 7, 40])
def test_a_hostile_name_fills_its_column_and_no_more(text: str, width: int) -> None:
    shown = pad_cells(plain(text), width)
    assert cell_len(shown) == width
    shown.encode()  # half of a surrogate pair would fail here, on its way to the terminal


@pytest.mark.parametrize("text", HOSTILE)
def test_plain_text_holds_nothing_that_a_terminal_acts_on(text: str) -> None:
    shown = plain(text)
    assert not set(shown) & {"\x1b", "\x9b", "\x07", "\n", "\r", "\t", RIGHT_TO_LEFT_OVERRIDE}
    assert plain(shown) == shown


def test_markup_is_shown_as_it_is_written() -> None:
    assert plain("[bold red]node[/]") == "[bold red]node[/]"


def test_letters_written_from_right_to_left_stay() -> None:
    assert plain("\u05e9\u05dc\u05d5\u05dd") == "\u05e9\u05dc\u05d5\u05dd"


def test_marks_do_not_climb_into_the_row_above() -> None:
    assert plain("e" + "\u0301" * 300) == "e" + "\u0301" * 3
    assert plain("\u0301e\u0301") == "e\u0301"


@pytest.mark.parametrize(
    ("text", "width", "cut"),
    [
        ("attic-mini", 10, "attic-mini"),
        ("attic-mini", 9, "attic-mi>"),
        ("attic-mini", 1, ">"),
        ("attic-mini", 0, ""),
        ("attic-mini", -1, ""),
        ("节点", 4, "节点"),
        ("节点", 3, "节>"),
        ("节点", 2, ">"),
        ("e\u0301e\u0301e\u0301", 3, "e\u0301e\u0301e\u0301"),
        ("e\u0301e\u0301e\u0301", 2, "e\u0301>"),
    ],
)
def test_cut_text_says_so_in_its_last_cell(text: str, width: int, cut: str) -> None:
    assert cut_cells(text, width) == cut


def test_numbers_stand_at_the_right_of_their_column() -> None:
    assert pad_cells("43G", 6, "right") == "   43G"
    assert pad_cells("43G", 6) == "43G   "


@given(st.text(max_size=60), st.integers(0, 50), st.sampled_from(["left", "right"]))
def test_any_text_fills_any_width(text: str, width: int, align: str) -> None:
    assert cell_len(pad_cells(plain(text), width, "right" if align == "right" else "left")) == width


RATIO = st.floats(-0.5, 1.5)


@given(st.integers(-1, 80), RATIO, RATIO, RATIO)
def test_the_cells_of_a_bar_add_up(width: int, used: float, added: float, reserve: float) -> None:
    cells = bar_cells(width, used=used, added=added, reserve=reserve)
    parts = (cells.used, cells.used_reserved, cells.added, cells.added_reserved, cells.free)
    assert min(parts) >= 0
    assert sum(parts) == max(0, width)


def test_a_bar_shows_what_is_used_added_and_inside_the_reserve() -> None:
    assert bar(ASCII, 10, used=0.38, added=0.29) == "[####+++...]"
    assert bar(ASCII, 10, used=0.7, added=0.3, reserve=0.1) == "[#######++!]"
    assert bar(ASCII, 10, used=1.0, reserve=0.2) == "[########!!]"


def test_a_little_shows_in_a_bar_and_nothing_does_not() -> None:
    assert bar(ASCII, 10, used=0.0) == "[..........]"
    assert bar(ASCII, 10, used=0.001) == "[#.........]"
    assert bar(ASCII, 10, used=0.5, added=0.001) == "[#####+....]"


def test_a_trace_has_a_level_for_each_ratio() -> None:
    assert "".join(level(ASCII, step / 7) for step in range(8)) == ASCII.ramp
    assert level(ASCII, None) == " "
    assert level(ASCII, 0.001) == "."
    assert level(UNICODE, 9.0) == "█"
