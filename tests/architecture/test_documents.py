import ast
import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest
from pydantic_core import PydanticUndefined

from protocol.errors import ERROR_CODES
from protocol.nodes import ConflictCode
from skulkd.config import CLIENT_VARIABLES, ORIGINAL_KEYS, Settings
from tests.support.source_tree import (
    PACKAGES,
    ROOT,
    documents,
    headings,
    python_files,
    relative,
    syntax_tree,
)

ERRORS = ROOT / "docs" / "errors.md"
CONFIGURATION = ROOT / "docs" / "configuration.md"
LOCKS = ("requirements.lock", "requirements-dev.lock")

MACHINE = re.compile(
    r"(?<![\w./<{])/(root|work|home/(?!me\b|op\b|linuxbrew\b)\w+|opt/(?!homebrew)\w+)/"
    r"|//(?:\w+\.)*(?!pip\.)py\w+\.org|//registry\."
)
"""Folders of one developer's machine, and addresses of package registries."""


def test_every_error_code_is_documented_and_nothing_else() -> None:
    assert set(headings(ERRORS, 3)) == {*ERROR_CODES, *get_args(ConflictCode)} | _health_codes()


def test_every_error_code_is_raised_somewhere() -> None:
    raised = {code for path in python_files(*PACKAGES) for code in _codes_given(syntax_tree(path))}
    assert set(ERROR_CODES) - raised == set()


def _codes_given(tree: ast.Module) -> set[str]:
    """Find the codes that are handed to a call, or stand in front of a reason given as text."""
    values = [
        value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for value in (*node.args, *(keyword.value for keyword in node.keywords))
    ]
    whole = {value.value for value in values if isinstance(value, ast.Constant)}
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    fronts = {text.partition(": ")[0] for text in texts if ": " in text}
    return {code for code in ERROR_CODES if code in whole or code in fronts}


def _health_codes() -> set[str]:
    """Find the codes that only health knows, as strings in the modules that give reasons."""
    code = re.compile(r"[a-z]+\.[a-z_]+")
    return {
        node.value
        for name in ("health.py", "cluster_health.py")
        for node in ast.walk(syntax_tree(ROOT / "skulkd" / "core" / name))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and code.fullmatch(node.value)
    }


@pytest.mark.parametrize("code", sorted({*ERROR_CODES, *get_args(ConflictCode), *_health_codes()}))
def test_a_code_is_documented_with_meaning_and_remedy(code: str) -> None:
    meaning, _, remedy = headings(ERRORS, 3)[code].partition("**Remedy:**")
    assert len(meaning.split()) >= 5
    assert len(remedy.split()) >= 3


def test_every_setting_is_documented_and_nothing_else() -> None:
    assert set(headings(CONFIGURATION, 3)) == set(Settings.model_fields)


@pytest.mark.parametrize("key", sorted(Settings.model_fields))
def test_a_setting_is_documented_with_its_variable_and_default(key: str) -> None:
    entry = headings(CONFIGURATION, 3)[key]
    assert f"`SKULK_{key.upper()}`" in entry
    default = Settings.model_fields[key].default
    if isinstance(default, bool):
        assert f"Default: `{str(default).lower()}`" in entry
    elif default is PydanticUndefined or default is None or default == ():
        assert "Default: " in entry
    else:
        assert f"Default: `{default}`" in entry


def test_the_originals_keys_and_the_commands_variables_are_documented() -> None:
    text = CONFIGURATION.read_text()
    assert [name for name in (*ORIGINAL_KEYS, *CLIENT_VARIABLES) if f"`{name}`" not in text] == []


def test_no_document_names_a_machine_or_a_registry() -> None:
    found = [
        f"{relative(path)}: {match[0]}"
        for path in [*documents(), *(ROOT / lock for lock in LOCKS), *python_files(*PACKAGES)]
        for match in MACHINE.finditer(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_package_is_pinned_and_hashed_and_no_address_is_named(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    assert "--index" not in text
    entries = re.split(r"^(?=\S)", text, flags=re.MULTILINE)[1:]
    assert len(entries) > 20
    assert [entry for entry in entries if "==" not in entry or "--hash=sha256:" not in entry] == []


def test_every_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    runtime = {_name(line) for line in project["project"]["dependencies"]}
    development = {_name(line) for line in project["dependency-groups"]["dev"]}
    locked = {lock: {_name(line) for line in _pins(lock)} for lock in LOCKS}
    assert runtime - locked["requirements.lock"] == set()
    assert (runtime | development) - locked["requirements-dev.lock"] == set()
    pins = [{line.partition(" ")[0] for line in _pins(lock)} for lock in LOCKS]
    assert pins[0] - pins[1] == set()


def test_the_notice_names_what_is_installed_beside_us() -> None:
    text = (ROOT / "NOTICE").read_text().replace("_", "-").lower()
    named = set(re.findall(r"[a-z][a-z0-9-]+", text))
    elsewhere = ("== 'pypy'", "== 'win32'")
    installed = [
        line for line in _pins("requirements.lock") if not any(mark in line for mark in elsewhere)
    ]
    assert sorted({_name(line) for line in installed} - named) == []


def _pins(lock: str) -> list[str]:
    lines = (ROOT / lock).read_text().splitlines()
    return [line.rstrip(" \\") for line in lines if line[:1].isalnum()]


def _name(requirement: str) -> str:
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name is not None
    return re.sub(r"[._-]+", "-", name[0]).lower()


def test_links_between_documents_lead_somewhere() -> None:
    link = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
    broken = [
        f"{relative(path)}: {target}"
        for path in documents()
        for target in link.findall(path.read_text())
        if "://" not in target and not (path.parent / target).exists()
    ]
    assert broken == []


def test_the_map_names_every_room() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = {relative(path.parent) for path in python_files(*PACKAGES)}
    assert sorted(room for room in rooms if f"`{room}/`" not in text) == []


def test_the_map_names_no_room_that_is_gone() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = re.findall(rf"`((?:{'|'.join(PACKAGES)}|tests|bench|docs)/[a-z_/.]*)`", text)
    assert named
    assert sorted({name for name in named if not (ROOT / Path(name)).exists()}) == []
