"""What patterns of wire types and settings cost: each field that has one compiles its own.

A class of all of Unicode that is repeated up to a number of times is unrolled that often. A path of
up to 1,023 characters took 226 kB before it was used and 1.4 MB after, in each type that has one.
"""

import ast
import re

import pytest

from tests.support.source_tree import ROOT

COUNTED = re.compile(r"(\\S|\\w|\\D|\\W|(?<!\\)\.|\[\^[^\]]*\])\{\d*,?(\d+)\}")
MOST = 40


def patterns_of(source: str) -> list[str]:
    """Give the patterns of all string constraints in a module."""
    return [
        keyword.value.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "pattern"
        and isinstance(keyword.value, ast.Constant)
        and isinstance(keyword.value.value, str)
    ]


def too_often(pattern: str) -> list[str]:
    return [found[0] for found in COUNTED.finditer(pattern) if int(found[2]) > MOST]


@pytest.mark.parametrize("room", ["protocol", "skulkd", "store", "engines"])
def test_a_length_is_bounded_by_max_length_and_not_by_a_pattern(room: str) -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), part)
        for path in (ROOT / room).rglob("*.py")
        for pattern in patterns_of(path.read_text(encoding="utf-8"))
        for part in too_often(pattern)
    }
    assert found == set(), "say max_length= beside the pattern"


def test_only_wide_classes_are_dear() -> None:
    assert patterns_of('A = C(pattern=r"^a{1,9}$", max_length=3)') == ["^a{1,9}$"]
    assert too_often(r"^/[^\s?#]{0,1023}$") == [r"[^\s?#]{0,1023}"]
    assert too_often(r"^\S{1,400}$") == [r"\S{1,400}"]
    assert too_often(r"^[0-9a-f]{64}$") == []
    assert too_often(r"^\S+:[0-9]{1,5}$") == []
