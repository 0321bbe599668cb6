"""What the operator asks of the planner, and how its answers are added up; without a screen."""

from dataclasses import replace

import pytest

from protocol.control_api import PreviewsDocument
from protocol.errors import ClientError, ErrorBody
from protocol.placements import (
    PlacementRequest,
    Plan,
    PredictedSpeed,
    RankSpeed,
    Refusal,
    SmallestChange,
)
from protocol.session import Rows
from skulk_tui.glyphs import ASCII
from skulk_tui.lines import text_of, width_of
from skulk_tui.screens.models_rows import inputs_line, short_size, state_of_model
from skulk_tui.screens.plan_inputs import (
    applied,
    next_shape,
    one_instance,
    resized_context,
    resized_slots,
    wish_of,
)
from skulk_tui.screens.plan_maker import situation_of, with_changes
from skulk_tui.screens.plan_phases import run_blocks
from skulk_tui.screens.plan_rows import Made, dry_run_lines, plan_lines, plan_rows, refusal_lines
from skulk_tui.table_model import Ref
from skulk_tui.view_state import ViewState
from skulk_tui.wish import Wish
from tests.support.builders import GIB, MIB, NOW_MS, a_node_id, a_plan, an_instance_id
from tests.support.builders import some_arithmetic as arithmetic
from tests.support.den_cluster import (
    LLAMA,
    QWEN,
    SMALL,
    den_failure,
    den_instance,
    den_member,
    den_models,
    den_node,
    den_rows,
    den_transfer,
)
from tests.support.session_answers import plain

_WISH = Wish(model_id=SMALL)


def _view() -> ViewState:
    view = ViewState()
    for number, rows in enumerate(den_rows().values(), start=1):
        document = {key: plain(row) for key, row in rows.items()}
        frame = Rows(id=number, cursor="1", is_snapshot=True, rows=document, at_ms=NOW_MS)
        view.apply_rows(frame, 0.0)
    return view


def _made(*plans: Plan, refusals: tuple[Refusal, ...] = (), wish: Wish = _WISH) -> Made:
    document = PreviewsDocument(
        model_id=SMALL, request=PlacementRequest(model_id=SMALL), plans=plans, refusals=refusals
    )
    return Made(wish=wish, document=document, at=0.0)


def _refusal(change: SmallestChange | None) -> Refusal:
    return Refusal(
        node_id=a_node_id(4),
        error=ErrorBody(code="placement.no_fit", message="too little", remediation="free some"),
        term="weights",
        memory=arithmetic(weights_bytes=30 * GIB, available_bytes=18 * GIB),
        smallest_change=change,
    )


# ---- What is asked -----------------------------------------------------------------------------


def test_the_words_of_a_command_become_what_is_asked() -> None:
    values = {
        "model": QWEN, "nodes": "den-01,den-02,den-01", "excluded": "attic-mini", "shape": "one",
        "context": "4096", "slots": "2", "backend": "llama_server",
    }  # fmt: skip
    assert wish_of(values, _view(), "") == Wish(
        model_id=QWEN,
        nodes=(a_node_id(1), a_node_id(2)),
        excluded_nodes=(a_node_id(4),),
        shape="single",
        backend="llama_server",
        context_tokens=4096,
        slots=2,
    )


@pytest.mark.parametrize(("word", "priority"), [("7", 7), ("-100", -100), ("0", 0)])
def test_a_priority_is_asked_for_and_shown(word: str, priority: int) -> None:
    wish = wish_of({"priority": word}, _view(), SMALL)
    assert wish == replace(_WISH, priority=priority)
    assert (f"priority {priority}" in text_of(inputs_line(wish))) == bool(priority)
    assert wish.body(None).priority == priority


@pytest.mark.parametrize("word", ["101", "-101", "--5", "-", "", "high"])
def test_a_priority_out_of_bounds_is_refused(word: str) -> None:
    with pytest.raises(ClientError, match="priority is a whole number from -100 to 100"):
        wish_of({"priority": word}, _view(), SMALL)


def test_without_a_model_the_chosen_one_is_meant_and_without_either_nothing() -> None:
    assert wish_of({}, _view(), SMALL) == _WISH
    with pytest.raises(ClientError, match="no model is chosen"):
        wish_of({}, _view(), "")


def test_shapes_go_round_and_end_where_the_planner_chooses() -> None:
    wish, seen = _WISH, [_WISH.shape]
    for _ in range(5):
        wish = next_shape(wish)
        seen.append(wish.shape)
    assert seen == [None, "single", "pipeline", "tensor", "rpc", None]


@pytest.mark.parametrize(
    ("now", "more", "less"),
    [(4096, 8192, 2048), (5000, 8192, 4096), (256, 512, 256), (1 << 24, 1 << 24, 1 << 23)],
)
def test_context_goes_by_powers_of_two_from_what_is_planned(now: int, more: int, less: int) -> None:
    made = _made(a_plan(context_tokens=now))
    assert resized_context(_WISH, made, 1).context_tokens == more
    assert resized_context(_WISH, made, -1).context_tokens == less
    assert resized_context(_WISH, None, 1).context_tokens == 8192


def test_slots_go_by_one_from_what_is_planned() -> None:
    made = _made(a_plan(slots=4))
    assert resized_slots(_WISH, made, 1).slots == 5
    assert resized_slots(replace(_WISH, slots=1), made, -1).slots == 1
    assert resized_slots(_WISH, None, 1).slots == 2


def test_the_smallest_change_is_applied_where_it_can_be_asked_for() -> None:
    fits = SmallestChange(kind="context_tokens", context_tokens=4096, text="--context 4096")
    free = SmallestChange(kind="free_memory", free_bytes=GIB, text="Free 1 GiB on attic-mini")
    assert applied(_WISH, [_refusal(free), _refusal(fits)]).context_tokens == 4096
    for refusals, helps in (([_refusal(free)], "Free 1 GiB"), ([_refusal(None)], "other nodes")):
        with pytest.raises(ClientError) as caught:
            applied(_WISH, refusals)
        assert helps in caught.value.remediation


def test_an_instance_is_meant_by_its_id_or_by_a_model_that_has_one() -> None:
    view = _view()
    model = Ref(kind="model", id=LLAMA)
    assert one_instance(view, "", (model,)).instance_id == an_instance_id(1)
    assert one_instance(view, an_instance_id(2), ()).model_id == QWEN
    with pytest.raises(ClientError, match="nothing that runs"):
        one_instance(view, "", (Ref(kind="model", id=SMALL),))
    second = den_instance(1, instance_id=an_instance_id(9))
    more = Rows(
        id=2, cursor="2", rows={f"instance/{an_instance_id(9)}": plain(second)}, at_ms=NOW_MS
    )
    view.apply_rows(more, 0.0)
    with pytest.raises(ClientError, match="2 instances"):
        one_instance(view, "", (model,))


# ---- What is answered --------------------------------------------------------------------------


def test_plans_have_letters_in_the_planners_order_and_refusals_follow() -> None:
    rows = plan_rows(_made(a_plan(node=2), a_plan(node=1), refusals=(_refusal(None),)), _view())
    assert [text_of(row.cells["plan"]).strip() for row in rows] == [
        "A one node", "B one node", "one node",
    ]  # fmt: skip
    assert [text_of(row.cells["verdict"]) for row in rows] == ["fits", "fits", "no fit"]


@pytest.mark.parametrize("width", [30, 43, 76, 120])
def test_the_arithmetic_fits_its_width_and_its_figures_add_up(width: int) -> None:
    view = _view()
    plan = a_plan(node=4, memory=arithmetic(weights_bytes=4 * GIB, available_bytes=18 * GIB))
    for content in plan_lines(plan, view, ASCII, width):
        assert width_of(content) <= max(width, 30)
    text = "\n".join(text_of(item) for item in plan_lines(plan, view, ASCII, 76))
    assert "weights 4.0G" in text
    assert "6.0 + 4.0+0.0+0.1" in text  # 24 GiB in all, 18 of them free
    assert "10/24G" in text


def test_a_gpu_of_unknown_size_is_drawn_by_what_is_free() -> None:
    memory = arithmetic(weights_bytes=4 * GIB, available_bytes=8 * GIB)
    plan = a_plan(node=4, memory=memory.model_copy(update={"pool": "vram"}))
    text = "\n".join(text_of(item) for item in plan_lines(plan, _view(), ASCII, 76))
    assert "- + 4.0" in text
    assert "4.1/8.0G" in text


def test_a_gpu_of_known_size_is_drawn_by_what_it_has_in_all() -> None:
    memory = arithmetic(weights_bytes=4 * GIB, available_bytes=8 * GIB)
    plan = a_plan(node=1, memory=memory.model_copy(update={"pool": "vram"}))
    text = "\n".join(text_of(item) for item in plan_lines(plan, _view(), ASCII, 76))
    assert "16.0 + 4.0" in text
    assert "20/24G" in text


def test_a_refusal_names_node_term_and_shortage() -> None:
    free = SmallestChange(kind="free_memory", free_bytes=12 * GIB, text="Free 12 GiB")
    lines = [text_of(item) for item in refusal_lines(_refusal(free), _view(), ASCII, 76)]
    assert lines[0].startswith(" attic-min> 6.0 + 30.0") or "attic-mi" in lines[0]
    assert lines[1] == " short 12.1G at weights"
    assert "smallest change: Free 12 GiB" in lines[3]
    assert not [item for item in lines if item.startswith(" F ")]


def test_a_dry_run_without_a_candidate_says_so() -> None:
    (only,) = dry_run_lines(_made(), _view(), ASCII)
    assert text_of(only) == "no node is a candidate"


def test_what_has_changed_between_two_answers_is_named_by_node_names() -> None:
    view = _view()
    before = _made(a_plan(node=2))
    now = with_changes(_made(a_plan(node=1)), before, view)
    assert now.changes == ("nodes den-02 -> den-01",)
    assert with_changes(_made(a_plan(node=1)), now, view).changes == now.changes
    assert with_changes(_made(), before, view).changes == ("it fits nowhere any more",)
    assert with_changes(before, _made(), view).changes == ("it fits now",)
    assert with_changes(before, None, view).changes == ()


def test_readings_do_not_make_a_plan_old_but_members_and_placements_do() -> None:
    view = _view()
    before = situation_of(view)
    key = f"node/{a_node_id(1)}"

    def tell(row: object) -> None:
        view.apply_rows(Rows(id=1, cursor="2", rows={key: plain(row)}, at_ms=NOW_MS), 1.0)

    tell(den_node(1, memory_available_bytes=GIB, reading_age_s=3.0))
    assert situation_of(view) == before
    tell(den_node(1, member=den_member(1, liveness="suspect")))
    assert situation_of(view) != before


# ---- What runs ---------------------------------------------------------------------------------


def test_the_state_of_a_model_is_the_furthest_it_has_come() -> None:
    view, (large, _, small) = _view(), den_models()
    assert state_of_model(large, view) == ("ready", "good")
    assert state_of_model(small, view) == ("-", "dim")
    assert state_of_model(small, view, n_held=1) == ("on disk", "plain")
    coming = plain(den_transfer(model_id=SMALL, done_bytes=2 * GIB))
    key = f"transfer/{a_node_id(3)}/{SMALL}"
    view.apply_rows(Rows(id=3, cursor="2", rows={key: coming}, at_ms=NOW_MS), 0.0)
    assert state_of_model(small, view) == ("get 25%", "warn")
    away = den_instance(1, unreachable_nodes=(a_node_id(2),))
    key = f"instance/{an_instance_id(1)}"
    view.apply_rows(Rows(id=2, cursor="2", rows={key: plain(away)}, at_ms=NOW_MS), 0.0)
    assert state_of_model(large, view) == ("away!", "bad")


def test_a_size_takes_four_cells() -> None:
    assert [short_size(n) for n in (None, 145 * MIB, 43 * GIB, 400 * GIB)] == [
        "-", "145M", "43G", "400G",
    ]  # fmt: skip


@pytest.mark.parametrize("phase", ["pending", "download", "stage", "spawn", "load", "probe"])
def test_every_phase_is_told_with_its_place_bytes_rate_and_time_left(phase: str) -> None:
    item = den_instance(2, phase)  # type: ignore[arg-type]
    (block,) = run_blocks([item], _view(), ASCII, 80)
    text = "\n".join(text_of(part) for part in block.lines)
    assert f"{phase} " in text
    assert "35%  5.00 GiB of 14.0 GiB  80.0 MiB/s 01:55" in text


def test_what_is_not_measured_yet_is_not_told() -> None:
    item = den_instance(2, "spawn")
    bare = item.progress[0].model_copy(
        update={"done_bytes": None, "total_bytes": None, "rate_bytes_s": None, "eta_s": None}
    )
    (block,) = run_blocks([item.model_copy(update={"progress": (bare,)})], _view(), ASCII, 80)
    assert text_of(block.lines[1]).strip() == "attic-mi> spawn    for 4.5 s"


def test_a_failure_names_phase_signal_remedy_and_the_last_line() -> None:
    item = den_instance(2, "failed", failure=den_failure(2))
    (block,) = run_blocks([item], _view(), ASCII, 120)
    text = "\n".join(text_of(part) for part in block.lines)
    assert "failed in load, attempt 3, SIGKILL; no further attempt follows" in text
    assert "give it less context" in text
    assert "| killed" in text


def test_a_predicted_rate_is_shown_and_marked_where_it_was_not_measured() -> None:
    rank = RankSpeed(rank=0, read_bytes=1, rate_bytes_s=1, is_measured=True)
    measured = PredictedSpeed(compute_us=49_500, link_us=500, ranks=(rank,))
    typical = measured.model_copy(update={"links_measured": False})
    for speed, shown in ((measured, "20.0"), (typical, "20.0?"), (None, "-")):
        plan = a_plan().model_copy(update={"speed": speed})
        (row,) = plan_rows(_made(plan), _view())
        assert text_of(row.cells["speed"]) == shown
    plan = a_plan().model_copy(update={"speed": measured})
    words = "\n".join(text_of(item) for item in plan_lines(plan, _view(), ASCII, 76))
    assert "20.0 tok/s measured: 49.5 ms a token + 0.5 ms on links" in words
