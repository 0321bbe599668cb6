import ast
import re
from pathlib import Path

import pytest

from tests.support.source_tree import (
    ALL_CODE,
    PACKAGES,
    ROOT,
    comments,
    python_files,
    relative,
    syntax_tree,
)

MAX_LINES = 600
MAX_BODY_LINES = 55
"""Of a function, without its docstring: what fits on a screen."""
NAMELESS = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}


def _code() -> list[Path]:
    files = python_files(*ALL_CODE)
    assert len(files) > 50, "the tree was not found"
    return files


def test_no_module_is_longer_than_600_lines() -> None:
    lengths = {relative(path): len(path.read_text().splitlines()) for path in _code()}
    assert {path: n for path, n in lengths.items() if n > MAX_LINES} == {}


def _n_body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    has_docstring = ast.get_docstring(function, clean=False) is not None
    body = function.body[1:] if has_docstring else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_no_function_is_longer_than_a_screen() -> None:
    lengths = {
        f"{relative(path)}:{node.lineno}: {node.name}": _n_body_lines(node)
        for path in _code()
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {place: n for place, n in lengths.items() if n > MAX_BODY_LINES} == {}


def test_init_files_are_empty() -> None:
    inits = [path for path in _code() if path.name == "__init__.py"]
    assert [relative(path) for path in inits if path.read_bytes()] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_folder_with_modules_is_a_package(package: str) -> None:
    folders = {path.parent for path in python_files(package)}
    assert [relative(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_the_folder_packaging_is_no_package() -> None:
    # It would hide the library of that name from everything that runs in the repository's root.
    assert not (ROOT / "packaging" / "__init__.py").exists()


def test_every_shipped_module_says_what_it_is_for() -> None:
    silent = [
        relative(path)
        for path in python_files(*PACKAGES)
        if path.name != "__init__.py" and not ast.get_docstring(syntax_tree(path))
    ]
    assert silent == []


def test_every_public_name_of_a_shipped_module_has_a_docstring() -> None:
    silent = [
        f"{relative(path)}:{node.lineno}: {node.name}"
        for path in python_files(*PACKAGES)
        for node in syntax_tree(path).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert silent == []


def test_no_import_is_relative() -> None:
    found = [
        f"{relative(path)}:{node.lineno}"
        for path in _code()
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert found == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    names = {relative(path): {path.stem, path.parent.name} for path in _code()}
    assert [path for path, parts in names.items() if parts & NAMELESS] == []


def test_what_is_left_to_do_names_its_issue() -> None:
    marker = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    allowed = re.compile(r"# TODO\(#\d+\): \S")
    found = [
        f"{relative(path)}:{line}: {text}"
        for path in _code()
        for line, text in comments(path)
        if marker.search(text) and not allowed.match(text)
    ]
    assert found == []


def test_an_ignored_check_is_ignored_by_name() -> None:
    blanket = re.compile(
        r"#\s*(noqa(?!:)|type:\s*ignore(?!\[)|pyright:\s*ignore(?!\[)|ruff:\s*ignore(?!\[))"
    )
    found = [
        f"{relative(path)}:{line}: {text}"
        for path in _code()
        for line, text in comments(path)
        if blanket.search(text)
    ]
    assert found == []
