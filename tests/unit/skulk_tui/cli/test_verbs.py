"""The table of verbs: in step with the modules it names, and what it spares."""

import subprocess
import sys

import pytest

from skulk_tui.cli.main import build_app
from skulk_tui.cli.manual import command_of
from skulk_tui.cli.verbs import VERBS
from tests.support.command_line import skulk


@pytest.mark.parametrize("name", list(VERBS))
def test_a_line_of_the_help_is_the_first_paragraph_of_the_verbs_own(name: str) -> None:
    own = str(command_of(build_app()).commands[name].help)
    assert VERBS[name][1] == " ".join(own.partition("\n\n")[0].split())


def test_the_help_lists_every_verb_on_a_line_of_its_own() -> None:
    _, _, listed = skulk("--help").out.partition("Commands:\n")
    assert [line.split()[0] for line in listed.split("\n\n")[0].splitlines()] == list(VERBS)


@pytest.mark.parametrize("line", ["['--help']", "['version']"])
def test_a_verb_that_is_not_called_is_not_loaded(line: str) -> None:
    program = (
        "import sys; from skulk_tui.cli.main import run\n"
        f"code = run({line})\n"
        "others = [name for name in ('chat', 'cluster', 'models', 'service', 'place')\n"
        "          if f'skulk_tui.cli.{name}' in sys.modules]\n"
        "sys.exit(code or bool(others))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=False, timeout=30
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
