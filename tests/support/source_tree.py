"""The repository as the architecture tests read it: files, syntax trees, resolved names."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("protocol", "engines", "store", "skulkd", "skulk_tui")
"""What is shipped; the tests and the benchmarks are held to fewer rules."""
ALL_CODE: Final = (*PACKAGES, "tests", "bench")


class Reference(NamedTuple):
    """A name that a file uses, as the importing statement spells it in full."""

    path: str
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.name}"


def python_files(*folders: str) -> list[Path]:
    """Every Python file below the folders, sorted."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def relative(path: Path) -> str:
    """Name a file as the repository does."""
    return path.relative_to(ROOT).as_posix()


@cache
def syntax_tree(path: Path) -> ast.Module:
    """Parse a file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """Give each comment of a file with its line."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def documents() -> list[Path]:
    """Every Markdown document that belongs to the repository."""
    return sorted(
        [
            *ROOT.glob("*.md"),
            *(ROOT / "docs").rglob("*.md"),
            *(ROOT / "bench").rglob("*.md"),
        ]
    )


def headings(path: Path, level: int) -> dict[str, str]:
    """Give the text below each heading of a level that consists of one name in backticks."""
    pattern = re.compile(rf"^{'#' * level} `([^`]+)`$", re.MULTILINE)
    text = path.read_text(encoding="utf-8")
    marks = list(pattern.finditer(text))
    found: dict[str, str] = {}
    for mark in marks:
        body = text[mark.end() :]
        end = re.search(r"^#", body, re.MULTILINE)
        assert mark[1] not in found, f"{relative(path)} has two entries for {mark[1]}"
        found[mark[1]] = body[: end.start() if end else None].strip()
    return found


def _aliases(tree: ast.Module) -> dict[str, str]:
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                known[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return known


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value)
        return f"{base}.{node.attr}" if base else None
    return None


@cache
def references(path: Path) -> tuple[Reference, ...]:
    """Find every imported or dotted name that a file uses, with aliases resolved.

    `from time import monotonic as now; now()` is found as `time.monotonic`. A name that is only
    built at run time is not found.
    """
    tree = syntax_tree(path)
    known = _aliases(tree)
    found: set[Reference] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Name | ast.Attribute):
            dotted = _dotted(node)
            if dotted is None:
                continue
            top, dot, rest = dotted.partition(".")
            names = [known.get(top, top) + dot + rest]
        else:
            continue
        found.update(Reference(relative(path), node.lineno, name) for name in names)
    return tuple(sorted(found))


def uses(files: list[Path], *names: str) -> list[Reference]:
    """Find where files use one of the names, or something below one of them."""
    return [
        reference
        for path in files
        for reference in references(path)
        if any(reference.name == name or reference.name.startswith(f"{name}.") for name in names)
    ]
