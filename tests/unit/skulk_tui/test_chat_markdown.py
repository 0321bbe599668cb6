"""Markdown as rows of spans, each as wide as it may be."""

import time

import pytest

from skulk_tui.chat_blocks import Block, BlockSplitter
from skulk_tui.chat_markdown import MAX_CHARS, MarkdownRenderer
from skulk_tui.glyphs import ASCII
from skulk_tui.lines import Line, text_of, width_of


def draw(text: str, width: int = 40) -> list[Line]:
    renderer = MarkdownRenderer(ASCII)
    splitter = BlockSplitter()
    rows: list[Line] = []
    for block in [*splitter.feed(text), *splitter.finish()]:
        rows += renderer.render(block, width)
    return rows


def texts(text: str, width: int = 40) -> list[str]:
    return [text_of(row).rstrip() for row in draw(text, width)]


def tones(text: str) -> dict[str, str]:
    return {part.text.strip(): part.tone for row in draw(text) for part in row}


def test_emphasis_code_and_links_are_told_apart() -> None:
    found = tones("a **b** *c* `d` [e](http://x) <http://y> ***f***")
    assert found == {
        "a": "plain", "b": "strong", "c": "emphasis", "d": "accent", "e": "accent",
        "(http://x)": "dim", "http://y": "accent", "f": "strong", "": "plain",
    }  # fmt: skip


def test_a_link_always_says_where_it_leads() -> None:
    assert texts("[https://bank.example](https://evil.example)", 80) == [
        "https://bank.example (https://evil.example)"
    ]


def test_a_heading_keeps_its_mark() -> None:
    assert texts("## Two words") == ["## Two words"]


def test_lists_hang_and_nest() -> None:
    text = "9. nine words that do not fit in one row of the pane\n10. ten\n    - nested\n"
    assert texts(text, 24) == [
        " 9. nine words that do",
        "    not fit in one row",
        "    of the pane",
        "10. ten",
        "    - nested",
    ]


def test_a_quote_has_a_bar() -> None:
    assert texts("> one\n>\n> two") == ["| one", "|", "| two"]


def test_code_keeps_its_blanks_and_its_language() -> None:
    text = "```python\nif x:\n\treturn  1\n```"
    assert texts(text) == ["```python", "if x:", "    return  1", "```"]
    assert texts("```\nopen") == ["```", "open"]
    assert texts("~~~~\na\n~~~\n~~~~") == ["~~~~", "a", "~~~", "~~~~"]


def test_long_code_is_broken_where_the_row_is_full() -> None:
    assert texts("```\n" + "x" * 25 + "\n```", 10) == ["```", "x" * 10, "x" * 10, "x" * 5, "```"]


def test_a_table_is_aligned_by_cells_and_gives_way_where_it_is_too_wide() -> None:
    table = "| name | size |\n|---|--:|\n| 漢字 | 7 |\n| a | 1234 |\n"
    assert texts(table) == ["name  size", "----------", "漢字     7", "a     1234"]
    wide = texts("| a | b |\n|---|---|\n| 1 | " + "word " * 20 + "|\n", 20)
    assert max(map(len, wide)) <= 20
    assert "".join(wide).count("word") == 20


def test_html_is_shown_as_it_stands() -> None:
    assert texts("<b>x</b>\n\n<script>y</script>") == ["<b>x</b>", "<script>y</script>"]


def test_an_image_is_its_words_and_its_address() -> None:
    assert texts("![a cat](http://x/cat.png)") == ["[image: a cat] (http://x/cat.png)"]


def test_a_reference_holds_for_later_blocks() -> None:
    assert texts("[r]: http://x\n\nsee [this][r]") == ["see this (http://x)"]


@pytest.mark.parametrize("width", [1, 2, 8, 13, 40])
@pytest.mark.parametrize(
    "text",
    [
        "word " * 30,
        "x" * 200,
        "漢字" * 60,
        "**" + "漢字 word " * 20 + "**",
        "| a | b | c |\n|---|---|---|\n| " + "x" * 50 + " | 漢字漢字漢字 | y |\n",
        "```\n" + "漢" * 70 + "\n```",
        "a\u0301" * 90,
    ],
)
def test_no_row_is_wider_than_there_is_room(text: str, width: int) -> None:
    # Below eight cells rows are cut by whoever shows them, with a mark.
    assert all(width_of(row) <= max(width, 8) + 5 for row in draw(text, width))
    if width >= 13:
        assert all(width_of(row) <= width for row in draw(text, width))


@pytest.mark.parametrize(
    "text", ["[" * 9000, "*a **b " * 3000, "![" * 9000, ">" * 9000, "- " * 9000]
)
def test_a_text_made_to_be_slow_is_not(text: str) -> None:
    started = time.process_time()
    draw(text)
    assert time.process_time() - started < 2.0


def test_a_block_of_any_length_costs_no_more_than_its_rows() -> None:
    (row, *_) = MarkdownRenderer(ASCII).render(Block("*x* " * MAX_CHARS), 40)
    assert text_of(row).startswith("*x* *x*")
