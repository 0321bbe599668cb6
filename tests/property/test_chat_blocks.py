"""Cutting an answer into blocks while it is written changes nothing of what it says."""

from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from skulk_tui.chat_blocks import Block, BlockSplitter

_LINES = st.sampled_from([
    "", "", "", "text", "more **text**", "# head", "## head", "- item", "* other", "1. one",
    "2. two", "  indented", "    deeper", "\tcode", "> quote", "```python", "```", "~~~", "````",
    "| a | b |", "|---|---|", "| 1 | 2 |", "---", "===", "  - nested", "   ```", "- ```",
    "<div>", "`` ` ``", "***", "[a](b)", "+ plus", "10) ten", " # head", "    ```", "> ```",
])  # fmt: skip
_TEXTS = st.lists(_LINES, max_size=24).map("\n".join)
_CUTS = st.lists(st.integers(1, 12), max_size=40)


def _blocks(text: str, cuts: list[int]) -> list[Block]:
    splitter = BlockSplitter()
    blocks: list[Block] = []
    at = 0
    for cut in cuts:
        blocks += splitter.feed(text[at : at + cut])
        at += cut
    blocks += splitter.feed(text[at:])
    return [*blocks, *splitter.finish()]


def _structure(tokens: list[Token]) -> list[tuple[str, str, str, bool]]:
    return [
        (token.type, token.content.rstrip("\n"), token.info.strip(), token.hidden)
        for token in tokens
    ]


@given(_TEXTS, _CUTS)
def test_how_a_text_arrives_does_not_matter(text: str, cuts: list[int]) -> None:
    assert _blocks(text, cuts) == _blocks(text, [])


@given(_TEXTS)
def test_the_blocks_say_what_the_whole_says(text: str) -> None:
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    parts = [
        row for block in _blocks(text, []) for row in _structure(parser.parse(block.source))
    ]  # fmt: skip
    assert parts == _structure(parser.parse(text))


@given(_TEXTS)
def test_no_line_with_text_is_lost(text: str) -> None:
    kept = "\n".join(block.source for block in _blocks(text, []))
    assert [row for row in kept.split("\n") if row.strip()] == [
        row for row in text.split("\n") if row.strip()
    ]


@given(_TEXTS)
def test_a_block_that_is_a_fence_begins_and_ends_with_its_marks(text: str) -> None:
    for block in _blocks(text, []):
        if block.is_fence:
            (*_, last) = tokens = MarkdownIt("commonmark").parse(block.source)
            assert [token.type for token in tokens] == ["fence"]
            assert last.markup[0] in "`~"
