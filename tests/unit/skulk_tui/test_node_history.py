from protocol.session import Rows, row_key
from skulk_tui.glyphs import ASCII
from skulk_tui.lines import text_of
from skulk_tui.node_history import STEP_S, STEPS, Measure, NodeHistory
from skulk_tui.screens.node_traces import trace_lines
from skulk_tui.view_state import ViewState
from tests.support.builders import a_node_id, an_instance_id
from tests.support.den_cluster import den_instance, den_node
from tests.support.session_answers import plain

NODE = a_node_id(4)
KEY = row_key("node", NODE)


def view_with(*, tokens_per_s: float | None = None, in_flight: int = 3) -> ViewState:
    view = ViewState()
    run = den_instance(2, tokens_per_s=tokens_per_s, in_flight=in_flight)
    tell(view, {KEY: den_node(4)})
    tell(view, {row_key("instance", an_instance_id(2)): run})
    return view


def tell(view: ViewState, rows: dict[str, object]) -> None:
    documents = {key: None if row is None else plain(row) for key, row in rows.items()}
    view.apply_rows(Rows(id=1, rows=documents, cursor="1", at_ms=0), 0.0)


def values(history: NodeHistory, measure: Measure) -> list[float | None]:
    return [sample.value for sample in history.trace(NODE, measure)]


def test_within_a_step_the_last_look_counts_and_a_trace_moves_on_once_a_step() -> None:
    history, view = NodeHistory(), view_with(tokens_per_s=10.0)
    history.look(view, 100.0)
    history.look(view, 100.0 + STEP_S / 2)
    assert values(history, "tok/s") == [10.0]
    history.look(view_with(tokens_per_s=30.0), 100.0 + STEP_S)
    assert values(history, "tok/s") == [10.0, 30.0]


def test_what_was_not_looked_at_is_unknown_and_not_made_up() -> None:
    history, view = NodeHistory(), view_with(tokens_per_s=10.0)
    history.look(view, 0.0)
    history.look(view, 3 * STEP_S)
    assert values(history, "tok/s") == [10.0, None, None, 10.0]
    history.look(view_with(), 4 * STEP_S)
    assert values(history, "tok/s")[-1] is None


def test_five_minutes_are_kept_and_a_node_that_has_gone_is_forgotten() -> None:
    history, view = NodeHistory(), view_with(tokens_per_s=10.0)
    for step in range(3 * STEPS):
        history.look(view, step * STEP_S)
    assert len(values(history, "cpu")) == STEPS
    tell(view, {KEY: None})
    history.look(view, 3 * STEPS * STEP_S)
    assert values(history, "cpu") == []


def test_a_trace_shows_the_newest_to_the_right_with_its_value() -> None:
    history = NodeHistory()
    history.look(view_with(tokens_per_s=10.0, in_flight=1), 0.0)
    history.look(view_with(tokens_per_s=40.0, in_flight=4), STEP_S)
    drawn = [text_of(row) for row in trace_lines(history, NODE, ASCII, 40)]
    assert [len(row) for row in drawn] == [40, 40, 40, 40]
    assert drawn[0].startswith("cpu    [")
    assert drawn[2].endswith(":#]       4/4")
    assert drawn[3].endswith(":#]      40.0")


def test_without_room_or_news_there_is_no_trace() -> None:
    assert trace_lines(NodeHistory(), NODE, ASCII, 20) == ()
    rows = trace_lines(NodeHistory(), NODE, ASCII, 40)
    assert all(text_of(row).endswith(" -") for row in rows)
