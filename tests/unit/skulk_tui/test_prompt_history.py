from pathlib import Path

import pytest

from protocol.errors import ClientError
from skulk_tui.line_editor import HISTORY_KEPT
from skulk_tui.prompt_history import PromptHistory


def test_commands_are_kept_for_each_cluster_and_readable_by_their_owner_alone(
    tmp_path: Path,
) -> None:
    history = PromptHistory(tmp_path)
    history.add("home", "logs  den-01")
    history.add("home", "plan qwen")
    history.add("work", "door")
    assert history.load("home") == ["logs den-01", "plan qwen"]
    assert history.load("work") == ["door"]
    assert history.load("") == ()
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "history").iterdir())


@pytest.mark.parametrize("text", ["set hf_token=hf_abcdefgh", "system you are my lawyer", "  "])
def test_what_may_be_private_is_not_kept(tmp_path: Path, text: str) -> None:
    history = PromptHistory(tmp_path)
    history.add("home", text)
    assert history.load("home") == ()


def test_two_programs_keep_theirs_in_one_file_and_it_does_not_grow_for_ever(
    tmp_path: Path,
) -> None:
    first, second = PromptHistory(tmp_path), PromptHistory(tmp_path)
    for n in range(5 * HISTORY_KEPT):
        (first if n % 2 else second).add("", f"logs node-{n}")
    assert list(first.load(""))[-1] == f"logs node-{5 * HISTORY_KEPT - 1}"
    kept = (tmp_path / "history" / "default").read_text().splitlines()
    assert len(kept) == HISTORY_KEPT


def test_a_line_break_cannot_make_two_commands_of_one(tmp_path: Path) -> None:
    history = PromptHistory(tmp_path)
    history.add("", "filter a\nremove den-01")
    assert history.load("") == ["filter a remove den-01"]


def test_a_disk_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("a file where a folder should be")
    with pytest.raises(ClientError, match="cannot be written"):
        PromptHistory(tmp_path).add("", "door")


def test_without_a_directory_nothing_is_kept() -> None:
    history = PromptHistory(None)
    history.add("", "door")
    assert history.load("") == ()
