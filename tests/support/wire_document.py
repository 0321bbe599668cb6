"""What ties docs/wire.md to the modules of the wire: a digest for each.

Renew the digests, once the document says what has changed:

    python -m tests.support.wire_document
"""

import ast
import hashlib
import re
from collections.abc import Iterator
from typing import Final, cast

from tests.support.source_tree import ROOT, syntax_tree

WIRE: Final = ROOT / "docs" / "wire.md"
NOT_ON_THE_WIRE: Final = frozenset(
    {
        "__init__",
        "chat_reading",
        "clock",
        "cluster_api",
        "control_api",
        "storage_api",
        "keys_api",
        "drain_api",
        "verify_api",
        "link_api",
        "models_api",
        "move_api",
        "session",
    }
)
"""Modules of protocol/ that no node sends to another: HTTP bodies, and what reads a clock."""
DIGEST_LETTERS: Final = 12
_ROW: Final = re.compile(r"^\| `protocol/([a-z_]+)\.py` \| `([0-9a-f]{12})` \|", re.MULTILINE)


def wire_modules() -> list[str]:
    """Name the modules whose types travel between nodes."""
    names = (path.stem for path in (ROOT / "protocol").glob("*.py"))
    return sorted(name for name in names if name not in NOT_ON_THE_WIRE)


def digest_of(module: str) -> str:
    """Digest what a module does; docstrings, comments and layout do not count."""
    return digest_of_tree(syntax_tree(ROOT / "protocol" / f"{module}.py"))


def digest_of_tree(tree: ast.Module) -> str:
    """Digest a syntax tree alike on all versions of Python, which differ in empty fields only."""
    written = "".join(_written(tree))
    return hashlib.sha256(written.encode()).hexdigest()[:DIGEST_LETTERS]


def documented() -> dict[str, str]:
    """Read the digests that the document holds."""
    return dict(_ROW.findall(WIRE.read_text(encoding="utf-8")))


def renew() -> None:
    """Write the digests of now into the document; rows must be there for all modules."""
    text = WIRE.read_text(encoding="utf-8")
    for module, old in documented().items():
        if module in wire_modules():
            row = f"| `protocol/{module}.py` | `{{}}` |"
            text = text.replace(row.format(old), row.format(digest_of(module)))
    WIRE.write_text(text, encoding="utf-8")


def _written(node: object) -> Iterator[str]:
    if isinstance(node, ast.AST):
        yield type(node).__name__
        yield "("
        for name, value in ast.iter_fields(node):
            if value is None or value == []:
                continue
            yield name
            yield "="
            yield from _written(value)
        yield ")"
    elif isinstance(node, list):
        for item in cast("list[object]", node):
            if not _is_text(item):
                yield from _written(item)
    else:
        yield repr(node)
        yield ";"


def _is_text(node: object) -> bool:
    """Say whether a statement is a string that stands alone: a docstring, of whatever it is."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


if __name__ == "__main__":
    renew()
