"""The question being written."""

import pytest

from skulk_tui.chat_draft import MAX_CHARS, Draft
from skulk_tui.lines import text_of


def shown(draft: Draft, width: int = 20) -> list[str]:
    return [text_of(row).rstrip() for row in draft.rows(width)[0]]


def press(draft: Draft, *keys: str, width: int = 20) -> None:
    for key in keys:
        assert draft.press(key, width)


def test_it_is_written_where_the_cursor_is() -> None:
    draft = Draft("ac")
    press(draft, "left")
    draft.type("b")
    press(draft, "end", "backspace", "home", "delete")
    assert draft.text == "b"
    assert not draft.press("f5", 20)


def test_long_lines_are_broken_and_the_arrows_follow_what_is_seen() -> None:
    draft = Draft("abcdefgh")
    assert shown(draft, 4) == ["abcd", "efgh", ""]
    press(draft, "up", "up", width=4)
    draft.type("X")
    assert draft.text == "Xabcdefgh"


def test_home_and_end_stay_within_the_line() -> None:
    draft = Draft("one\ntwo")
    press(draft, "home")
    draft.type(">")
    assert draft.text == "one\n>two"
    press(draft, "up", "end")
    draft.type("!")
    assert draft.text == "one!\n>two"


@pytest.mark.parametrize(
    ("pasted", "label"),
    [("a\n" * 213 + "a", "[pasted 214 lines]"), ("x" * 1001, "[pasted 1001 characters]")],
)
def test_a_long_paste_is_one_thing(pasted: str, label: str) -> None:
    draft = Draft()
    draft.type("see ")
    assert draft.paste(pasted) == 0
    assert shown(draft, 60) == [f"see {label}"]
    assert draft.text == "see " + pasted
    press(draft, "backspace")
    assert draft.text == "see "


def test_a_short_paste_is_as_typed() -> None:
    draft = Draft()
    draft.paste("a\r\nb\rc")
    assert draft.text == "a\nb\nc"
    assert shown(draft) == ["a", "b", "c"]


def test_what_a_terminal_would_act_on_never_gets_in() -> None:
    draft = Draft()
    draft.paste("a\x1b[2Jb\x07\u202e\x9bc")
    assert draft.text == "a[2Jbc"


def test_there_is_a_longest_question_and_what_is_lost_is_counted() -> None:
    draft = Draft("abc")
    assert draft.paste("x" * MAX_CHARS) == 3
    draft.type("more")
    assert len(draft.text) == MAX_CHARS
    press(draft, "backspace")
    assert draft.text == "abc"


def test_the_arrows_at_the_ends_bring_earlier_questions_back() -> None:
    draft = Draft()
    draft.remember(["first", "second"])
    draft.type("new")
    press(draft, "up")
    assert draft.text == "second"
    press(draft, "up", "up")
    assert draft.text == "first"
    press(draft, "down", "down", "down")
    assert draft.text == "new"


def test_a_tab_and_a_character_of_no_width_are_still_something_to_stand_on() -> None:
    draft = Draft("\t\u200b")
    assert shown(draft) == ["    ?"]
