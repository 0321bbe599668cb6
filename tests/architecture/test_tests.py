import ast
from functools import cache
from pathlib import Path

from tests.support.source_tree import ROOT, python_files, relative, syntax_tree

Function = ast.FunctionDef | ast.AsyncFunctionDef

EXPECTS = {"raises", "warns", "fail"}
"""Of pytest: what they stand for fails the test when it does not come."""


@cache
def _functions(path: Path) -> dict[str, list[Function]]:
    found: dict[str, list[Function]] = {}
    for node in ast.walk(syntax_tree(path)):
        if isinstance(node, Function):
            found.setdefault(node.name, []).append(node)
    return found


@cache
def _support_of(path: Path) -> tuple[Path, ...]:
    """Give a file of the tests, and those of the tests that it imports from."""
    modules = [
        module
        for node in syntax_tree(path).body
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tests.")
        for module in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
    ]
    files = [ROOT / f"{module.replace('.', '/')}.py" for module in modules]
    return (path, *(file for file in files if file.is_file()))


def _called(function: Function) -> set[str]:
    """Name what a function calls, by the last part of each name."""
    targets = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return {*names, *(target.attr for target in targets if isinstance(target, ast.Attribute))}


def _can_fail(path: Path, function: Function, seen: set[Function]) -> bool:
    """Say whether a function asserts or raises, or calls one of the tests that does."""
    if function in seen:
        return False
    seen.add(function)
    if any(isinstance(node, ast.Assert | ast.Raise) for node in ast.walk(function)):
        return True
    called = _called(function)
    return bool(called & EXPECTS) or any(
        _can_fail(file, other, seen)
        for file in _support_of(path)
        for name in sorted(called & _functions(file).keys())
        for other in _functions(file)[name]
    )


def test_every_test_expects_something() -> None:
    tests = [
        (path, function)
        for path in python_files("tests")
        if path.name.startswith("test_")
        for name, functions in _functions(path).items()
        if name.startswith("test_")
        for function in functions
    ]
    assert len(tests) > 1000, "the tests were not found"
    silent = [
        f"{relative(path)}:{function.lineno}: {function.name}"
        for path, function in tests
        if not _can_fail(path, function, set())
    ]
    assert silent == []


def test_a_test_without_an_expectation_is_found(tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(
        "def helps():\n    assert True\n\n\n"
        "def test_it():\n    helps()\n\n\n"
        "def test_nothing():\n    print()\n    test_nothing()\n"
    )
    found = {name: _can_fail(path, named, set()) for name, (named,) in _functions(path).items()}
    assert found == {"helps": True, "test_it": True, "test_nothing": False}
