from pathlib import Path

from protocol.ids import Digest
from skulk_tui.cli.plan_notes import NOTES_KEPT, PlanNotes, differences
from tests.support.builders import GIB, a_digest, a_plan, some_arithmetic


def test_a_plan_is_recalled_by_its_id_or_the_start_of_it(tmp_path: Path) -> None:
    notes, plan = PlanNotes(tmp_path / "plans"), a_plan()
    assert notes.recall(plan.plan_id) is None
    notes.remember([plan])
    assert notes.recall(plan.plan_id) == plan
    assert notes.whole_id(plan.plan_id[:8]) == plan.plan_id
    assert notes.whole_id("f00f") is None


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    notes = PlanNotes(tmp_path)
    notes.remember(a_plan(plan_id=a_digest(str(n))) for n in range(NOTES_KEPT + 5))
    assert len(list(tmp_path.iterdir())) == NOTES_KEPT


def test_a_broken_note_or_an_unusable_folder_is_no_error(tmp_path: Path) -> None:
    plan = a_plan()
    (tmp_path / f"{plan.plan_id}.json").write_text("{")
    assert PlanNotes(tmp_path).recall(Digest(plan.plan_id)) is None
    blocked = PlanNotes(tmp_path / f"{plan.plan_id}.json")
    blocked.remember([plan])
    assert blocked.recall(plan.plan_id) is None


def test_what_differs_between_plans_is_named() -> None:
    then = a_plan(context_tokens=8192, node=1)
    now = a_plan(context_tokens=4096, node=2, memory=some_arithmetic(available_bytes=GIB), slots=2)
    named = [difference.split(" ")[0] for difference in differences(then, now)]
    assert named == ["nodes", "context", "slots", "smallest"]
    assert "context 8,192 -> 4,096" in differences(then, now)
    assert differences(then, then) == []
