"""Markdown as lines of spans: headings, emphasis, lists, quotes, code, tables, links.

Pure. A well-kept parser reads it; what it looks like here is ours. HTML is shown as it stands, and
nothing is fetched.
"""

from collections.abc import Sequence
from typing import Any, Final, final

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from skulk_tui.chat_blocks import Block, ends_fence
from skulk_tui.chat_wrap import clean, wrap, wrap_code
from skulk_tui.glyphs import GlyphSet
from skulk_tui.lines import EMPTY, Align, Line, Span, Tone, fit, line, retoned, toned, width_of

MAX_CHARS: Final = 16_384
"""Of a block that is read as Markdown: longer ones stay plain text, as some texts cost the square
of their length."""
_NARROWEST: Final = 8
_NARROWEST_COLUMN: Final = 3
_GAP: Final = 2
"""Blanks between two columns of a table."""


@final
class MarkdownRenderer:
    """Draws the blocks of one answer; references that one block gives hold in those after it.

    Args:
        glyphs: What rules and quotes are drawn with.
    """

    def __init__(self, glyphs: GlyphSet) -> None:
        self._glyphs = glyphs
        self._parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
        self._environment: dict[str, Any] = {}

    @property
    def has_references(self) -> bool:
        """Whether links were named by reference: those before the reference are still raw."""
        return bool(self._environment.get("references"))

    def render(self, block: Block, width: int) -> list[Line]:
        """Draw a closed block in rows of at most `width` cells."""
        width = max(_NARROWEST, width)
        if block.is_fence:
            return _fence(block.source, width)
        if len(block.source) > MAX_CHARS:
            return plain_rows(block.source, width)
        tokens = self._parser.parse(block.source, self._environment)
        return self._blocks(SyntaxTreeNode(tokens).children, width)

    # ---- Blocks ----

    def _blocks(
        self, nodes: Sequence[SyntaxTreeNode], width: int, *, is_tight: bool = False
    ) -> list[Line]:
        rows: list[Line] = []
        for node in nodes:
            drawn = self._block(node, max(_NARROWEST, width))
            if rows and drawn and not is_tight:
                rows.append(EMPTY)
            rows.extend(drawn)
        return rows

    def _block(self, node: SyntaxTreeNode, width: int) -> list[Line]:
        match node.type:
            case "heading":
                mark = Span("#" * int(node.tag[1:]) + " ", "dim")
                rows = [retoned(row, "title") for row in self._inline_of(node)]
                return [row for text in rows for row in wrap((mark, *text), width)]
            case "paragraph":
                return [row for text in self._inline_of(node) for row in wrap(text, width)]
            case "bullet_list" | "ordered_list":
                return self._list(node, width)
            case "blockquote":
                bar = Span(f"{self._glyphs.wall} ", "dim")
                return [(bar, *row) for row in self._blocks(node.children, width - 2)]
            case "fence" | "code_block":
                return self._code(node, width)
            case "hr":
                return [toned(self._glyphs.rule * width, "dim")]
            case "table":
                return self._table(node, width)
            case _:
                return plain_rows(node.content, width)

    def _list(self, node: SyntaxTreeNode, width: int) -> list[Line]:
        number = int(node.attrs.get("start", 1)) if node.type == "ordered_list" else None
        last = "" if number is None else f"{number + len(node.children) - 1}."
        indent = 2 if number is None else len(last) + 1
        is_tight = all(
            child.hidden or child.type != "paragraph"
            for item in node.children
            for child in item.children
        )
        rows: list[Line] = []
        for index, item in enumerate(node.children):
            mark = "- " if number is None else f"{number + index}.".rjust(indent - 1) + " "
            drawn = self._blocks(item.children, width - indent, is_tight=is_tight) or [EMPTY]
            if rows and not is_tight:
                rows.append(EMPTY)
            rows.append((Span(mark, "accent"), *drawn[0]))
            rows.extend((Span(" " * indent), *row) if row else EMPTY for row in drawn[1:])
        return rows

    @staticmethod
    def _code(node: SyntaxTreeNode, width: int) -> list[Line]:
        content = node.content.removesuffix("\n").split("\n")
        rows = [row for text in content for row in wrap_code(text, width, "strong")]
        if node.type == "code_block":
            return rows
        mark = toned(f"{node.markup}{clean(node.info)}", "dim")
        return [mark, *rows, toned(node.markup, "dim")]

    # ---- Tables ----

    def _table(self, node: SyntaxTreeNode, width: int) -> list[Line]:
        table = [
            [self._cell(cell) for cell in row.children]
            for part in node.children
            for row in part.children
        ]
        aligned: list[Align] = [_alignment(cell) for cell in node.children[0].children[0].children]
        n_columns = len(aligned)
        natural = [
            max(width_of(row[index]) if index < len(row) else 0 for row in table)
            for index in range(n_columns)
        ]
        widths = _shares(natural, width - _GAP * (n_columns - 1))
        head = [retoned(cell, "strong") for cell in table[0]]
        rule = toned(self._glyphs.rule * (sum(widths) + _GAP * (n_columns - 1)), "dim")
        rows = [*_table_row(head, widths, aligned), rule]
        for cells in table[1:]:
            rows.extend(_table_row(cells, widths, aligned))
        return rows

    def _cell(self, node: SyntaxTreeNode) -> Line:
        parts: list[Span] = []
        for text in self._inline_of(node):
            parts.extend(text)
        return tuple(parts)

    # ---- Inlines ----

    def _inline_of(self, node: SyntaxTreeNode) -> list[Line]:
        """Give the text of a block, in as many lines as it has hard breaks."""
        rows: list[list[Span]] = [[]]
        for inline in node.children:
            self._inline(inline, "plain", rows)
        return [tuple(row) for row in rows]

    def _inline(self, node: SyntaxTreeNode, tone: Tone, rows: list[list[Span]]) -> None:
        match node.type:
            case "text":
                rows[-1].append(Span(clean(node.content), tone))
            case "code_inline":
                rows[-1].append(Span(clean(node.content), "accent"))
            case "softbreak":
                rows[-1].append(Span(" ", tone))
            case "hardbreak":
                rows.append([])
            case "image":
                rows[-1].append(Span(f"[image: {clean(node.content)}]", tone))
                self._address(str(node.attrs.get("src", "")), rows)
            case "link":
                self._link(node, rows)
            case "s":
                rows[-1].append(Span("~~", "dim"))
                self._children(node, tone, rows)
                rows[-1].append(Span("~~", "dim"))
            case "strong":
                self._children(node, "strong", rows)
            case "em":
                self._children(node, "emphasis" if tone == "plain" else tone, rows)
            case _:
                self._children(node, tone, rows)

    def _children(self, node: SyntaxTreeNode, tone: Tone, rows: list[list[Span]]) -> None:
        for child in node.children:
            self._inline(child, tone, rows)

    def _link(self, node: SyntaxTreeNode, rows: list[list[Span]]) -> None:
        """Show a link's text, and always where it really leads."""
        first = len(rows[-1])
        self._children(node, "accent", rows)
        shown = "".join(part.text for part in rows[-1][first:])
        target = str(node.attrs.get("href", ""))
        if target != shown:
            self._address(target, rows)

    @staticmethod
    def _address(target: str, rows: list[list[Span]]) -> None:
        rows[-1].append(Span(f" ({clean(target)})", "dim"))


def plain_rows(text: str, width: int) -> list[Line]:
    """Draw text as it stands."""
    return [row for part in text.split("\n") for row in wrap((Span(clean(part)),), width)]


def _fence(source: str, width: int) -> list[Line]:
    """Draw a fence that stands by itself; no parser is needed, and no length is too much."""
    head, *rest = source.split("\n")
    bare = head.lstrip(" ")
    mark = bare[: len(bare) - len(bare.lstrip(bare[0]))]
    has_end = bool(rest) and ends_fence(rest[-1], mark)
    indent = len(head) - len(head.lstrip(" "))
    content = rest[:-1] if has_end else rest
    rows = [toned(clean(head.strip()), "dim")]
    for text in content:
        n_blanks = len(text) - len(text.lstrip(" "))
        rows.extend(wrap_code(text[min(indent, n_blanks) :], width, "strong"))
    if has_end:
        rows.append(toned(rest[-1].strip(), "dim"))
    return rows


def _shares(natural: Sequence[int], room: int) -> list[int]:
    """Share the room out: what is narrow keeps its width, the widest give way."""
    widths = [max(1, width) for width in natural]
    while sum(widths) > room:
        widest = max(widths)
        if widest <= _NARROWEST_COLUMN:
            break
        others = max((width for width in widths if width < widest), default=_NARROWEST_COLUMN)
        n_widest = widths.count(widest)
        surplus = sum(widths) - room
        step = max(1, min(widest - max(others, _NARROWEST_COLUMN), -(-surplus // n_widest)))
        widths = [width - step if width == widest else width for width in widths]
    return widths


def _alignment(cell: SyntaxTreeNode) -> Align:
    return "right" if "right" in str(cell.attrs.get("style", "")) else "left"


def _table_row(
    cells: Sequence[Line], widths: Sequence[int], aligned: Sequence[Align]
) -> list[Line]:
    columns = [
        wrap(cells[index], width) if index < len(cells) else [EMPTY]
        for index, width in enumerate(widths)
    ]
    rows: list[Line] = []
    for at in range(max(len(column) for column in columns)):
        parts: list[Span] = []
        for index, (column, width) in enumerate(zip(columns, widths, strict=True)):
            if index:
                parts.append(Span(" " * _GAP))
            content = column[at] if at < len(column) else EMPTY
            parts.extend(fit(content, width, align=aligned[index]))
        rows.append(line(*parts))
    return rows
