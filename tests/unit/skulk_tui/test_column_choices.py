"""Columns that the operator left out: kept for each cluster, and read with care."""

from pathlib import Path

import pytest

from protocol.errors import ClientError
from skulk_tui.column_choices import MAX_BYTES, ColumnChoices


def test_choices_are_kept_for_each_cluster_and_readable_by_their_owner_alone(
    tmp_path: Path,
) -> None:
    first, second = ColumnChoices(tmp_path), ColumnChoices(tmp_path)
    first.keep("home", "cluster.nodes", {"gpu", "cpu"})
    second.keep("home", "models.models", {"size"})
    first.keep("", "cluster.nodes", {"seen"})
    assert first.load("home") == {
        "cluster.nodes": frozenset({"gpu", "cpu"}),
        "models.models": frozenset({"size"}),
    }
    assert second.load("") == {"cluster.nodes": frozenset({"seen"})}
    assert first.load("work") == {}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "columns").iterdir())


def test_where_nothing_is_left_out_nothing_is_kept_of_a_table(tmp_path: Path) -> None:
    choices = ColumnChoices(tmp_path)
    choices.keep("home", "cluster.nodes", {"gpu"})
    choices.keep("home", "cluster.nodes", ())
    assert choices.load("home") == {}


def test_without_a_directory_nothing_is_kept() -> None:
    choices = ColumnChoices(None)
    choices.keep("home", "cluster.nodes", {"gpu"})
    assert choices.load("home") == {}


@pytest.mark.parametrize("text", ["[]", '{"cluster.nodes": 3}', "{", " " * (MAX_BYTES + 1)])
def test_what_is_no_such_file_is_refused_and_not_written_over(tmp_path: Path, text: str) -> None:
    path = tmp_path / "columns" / "home.json"
    path.parent.mkdir()
    path.write_text(text)
    choices = ColumnChoices(tmp_path)
    with pytest.raises(ClientError, match=r"home\.json"):
        choices.load("home")
    with pytest.raises(ClientError, match=r"home\.json"):
        choices.keep("home", "cluster.nodes", {"gpu"})
    assert path.read_text() == text
