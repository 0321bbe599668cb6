"""The saved view of a cluster: what is kept, what is not, and files that count for nothing."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.errors import ClientError
from protocol.session import Rows, row_key
from skulk_tui.last_view import (
    MAX_BYTES,
    MAX_ROWS,
    SavedView,
    read_view,
    rows_to_keep,
    show_saved,
    write_view,
)
from skulk_tui.view_state import SAVED, ViewState
from tests.support.builders import NOW_MS, a_node_id
from tests.support.den_cluster import den_head, den_instance, den_node

NODE = row_key("node", a_node_id(1))


def _view() -> ViewState:
    view = ViewState()
    instance = den_instance()
    rows = {
        "cluster": den_head(),
        NODE: den_node(1),
        row_key("instance", instance.instance_id): instance,
    }
    documents = {key: document.model_dump(mode="json") for key, document in rows.items()}
    frame = Rows(id=1, cursor="c", is_snapshot=True, rows=documents, at_ms=NOW_MS)
    view.apply_rows(frame, 0.0)
    return view


def test_what_is_kept_comes_back_as_it_was(tmp_path: Path) -> None:
    write_view(tmp_path, "home", rows_to_keep(_view()), NOW_MS)
    saved = read_view(tmp_path, "home")
    assert saved is not None
    again = ViewState()
    changes = show_saved(again, saved, 0.0)
    assert changes.keys == saved.rows.keys()
    assert again.saved_at_ms == NOW_MS
    assert [node.member.name for node in again.nodes] == ["den-01"]
    assert len(again.instances) == 1
    assert again.n_unreadable == 0
    assert read_view(tmp_path, "work") is None


def test_no_rate_no_age_and_no_error_is_kept() -> None:
    kept = json.dumps(rows_to_keep(_view()))
    for name in ("tokens_per_s", "cpu_ratio", "reading_age_s", "silent_s", "failure", "health"):
        assert name not in kept
    assert "waiting" not in kept, "who waited then waits no more"


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    write_view(tmp_path, "home", rows_to_keep(_view()), NOW_MS)
    path = tmp_path / "views" / "home.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [one.name for one in path.parent.iterdir()] == ["home.json"]


def test_a_view_that_is_too_large_is_not_written_and_the_old_one_stays(tmp_path: Path) -> None:
    write_view(tmp_path, "home", {"cluster": {}}, NOW_MS)
    long: dict[str, object] = {NODE: {"x": "x" * MAX_BYTES}}
    many: dict[str, object] = {f"node/{n}": {} for n in range(MAX_ROWS + 1)}
    for rows in (long, many):
        with pytest.raises(ClientError, match="too large"):
            write_view(tmp_path, "home", rows, NOW_MS)
    saved = read_view(tmp_path, "home")
    assert saved is not None
    assert saved.rows == {"cluster": {}}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "JSON"),
        ("[]", "object"),
        ('{"version": 2, "at_ms": 1, "rows": {}}', "version"),
        ('{"version": 1, "at_ms": -1, "rows": {}}', "at_ms"),
        ('{"version": 1, "at_ms": 1e300, "rows": {}}', "at_ms"),
        ('{"version": 1, "at_ms": 1, "rows": {"node/a": 7}}', "rows.node/a"),
        ('{"version": 1, "at_ms": 1, "rows": {}, "more": 1}', "more"),
        ("x" * (MAX_BYTES + 1), "more than"),
    ],
)
def test_a_file_that_is_none_is_refused_with_its_fault(
    tmp_path: Path, text: str, fault: str
) -> None:
    path = tmp_path / "views" / "home.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ClientError, match=fault):
        read_view(tmp_path, "home")


def test_saved_rows_go_with_the_first_that_a_node_sends() -> None:
    view = ViewState()
    saved = SavedView(version=1, at_ms=NOW_MS, rows={NODE: rows_to_keep(_view())[NODE]})
    show_saved(view, saved, 0.0)
    head = {"cluster": den_head().model_dump(mode="json")}
    frame = Rows(id=1, cursor="c", is_snapshot=True, rows=head, at_ms=NOW_MS)
    assert view.apply_rows(frame, 1.0).keys == {"cluster", NODE}
    assert view.saved_at_ms is None
    assert view.nodes == ()


def test_saved_rows_never_take_the_place_of_what_a_node_has_sent() -> None:
    view = _view()
    saved = SavedView(version=1, at_ms=NOW_MS, rows={"node/other": {}})
    assert not show_saved(view, saved, 0.0)
    assert view.saved_at_ms is None
    assert view.row("node/other") is None
    assert not view.drop(SAVED)
    assert len(view.nodes) == 1


def test_what_keeps_it_is_not_loaded_before_the_first_paint() -> None:
    program = "import sys, skulk_tui.app; print('skulk_tui.last_view' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.strip() == "False"
