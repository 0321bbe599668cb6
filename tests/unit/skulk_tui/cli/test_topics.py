"""`skulk help` and the manual page: complete, in step with the verbs, and good roff."""

import json
import re
import shutil
import subprocess

import pytest

from skulk_tui.cli.main import build_app
from skulk_tui.cli.manual import command_of, manual_page, verbs_of
from skulk_tui.cli.topics import ENVIRONMENT
from tests.support.command_line import skulk
from tests.support.source_tree import ROOT, python_files

REGENERATE = "python -m skulk_tui.cli.manual > docs/skulk.1"


def test_the_page_that_is_shipped_is_that_of_the_verbs() -> None:
    shipped = (ROOT / "docs" / "skulk.1").read_text(encoding="utf-8")
    assert shipped == manual_page(build_app(), ENVIRONMENT), f"renew it: {REGENERATE}"


def test_the_page_names_every_verb_and_every_option() -> None:
    page = manual_page(build_app(), ENVIRONMENT).replace("\\-", "-")
    for path, command in verbs_of(command_of(build_app())):
        assert f".SS skulk {' '.join(path)}" in page
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert f".B {', '.join(parameter.opts)}" in page


def test_roff_takes_the_page_without_a_warning() -> None:
    groff = shutil.which("groff")
    page = skulk("help", "man").out
    lines = page.splitlines()
    assert all(line.isascii() for line in lines)
    # What begins with a dot is a request; nothing that a verb says may become one.
    requests = {line.split()[0] for line in lines if line.startswith((".", "'"))}
    known = {".TH", ".SH", ".SS", ".TP", ".B", ".BR", ".I", ".PP", ".nf", ".fi", ".RS", ".RE"}
    assert requests <= known
    if groff is not None:
        ran = subprocess.run(
            [groff, "-man", "-ww", "-z", "-Tutf8"],
            input=page,
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        assert not ran.stderr


def test_help_alone_lists_the_topics() -> None:
    ran = skulk("help", "-o", "name")
    assert ran.out.split() == ["exit-codes", "environment", "output", "man"]


def test_help_alone_says_where_the_verbs_are() -> None:
    assert "`skulk --help`" in skulk("help").err
    assert not skulk("help", "--json").err


def test_help_of_a_verb_is_its_help() -> None:
    ran = skulk("help", "cluster", "join")
    assert ran.code == 0
    assert "skulk cluster join - < token" in ran.out
    assert "Options: `skulk cluster join --help`." in ran.err


def test_help_of_a_group_is_that_of_its_verbs() -> None:
    items = json.loads(skulk("help", "keys", "--json").out)["items"]
    verbs = ("create", "list", "set", "rotate", "revoke")
    assert [one["name"] for one in items] == [f"keys {verb}" for verb in verbs]


@pytest.mark.parametrize(("word", "nearest"), [("enviroment", "environment"), ("plcae", "place")])
def test_what_is_neither_topic_nor_verb_names_the_nearest(word: str, nearest: str) -> None:
    ran = skulk("help", word)
    assert (ran.code, ran.err.splitlines()[-1]) == (2, f"  remedy: Did you mean {nearest!r}?")


def test_every_variable_that_is_read_is_in_the_topic() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in python_files("skulk_tui"))
    read = set(re.findall(r'"(SKULK_[A-Z_]+)"', text))
    assert read - set(ENVIRONMENT) == set()
