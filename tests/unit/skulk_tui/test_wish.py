"""What an operator asks a planner for: the same as a query, as a body and as a line."""

import operator
import shlex

import pytest

from protocol.errors import ClientError
from protocol.ids import Digest
from skulk_tui.wish import BACKEND_FORM, CONTEXT_BOUNDS, Wish, bounded_number, same_again
from tests.support.builders import MODEL, a_digest, a_node_id, a_plan

_WHOLE = Wish(
    model_id=MODEL,
    nodes=(a_node_id(1), a_node_id(2)),
    excluded_nodes=(a_node_id(3),),
    min_nodes=2,
    shape="rpc",
    backend="llama_server-cpu",
    context_tokens=4096,
    slots=2,
)


def test_what_is_left_out_is_in_no_form_of_it() -> None:
    wish = Wish(model_id=MODEL)
    assert wish.query() == {"model_id": MODEL}
    assert wish.cli(str) == f"skulk place {MODEL}"
    body = wish.body(None).model_dump(exclude_defaults=True)
    assert body == {"model_id": MODEL}


def test_query_body_and_line_say_the_same() -> None:
    plan_id = Digest(a_digest("a plan"))
    body = _WHOLE.body(plan_id)
    assert (body.shape, body.slots, body.plan_id) == ("rpc", 2, plan_id)
    assert _WHOLE.query()["excluded_node_ids"] == (a_node_id(3),)
    assert _WHOLE.cli(operator.itemgetter(-1), plan_id) == (
        f"skulk place {MODEL} --nodes {a_node_id(1)[-1]},{a_node_id(2)[-1]}"
        f" --exclude {a_node_id(3)[-1]} --min-nodes 2 --shape rpc"
        f" --backend llama_server-cpu --context 4096 --slots 2 --plan {plan_id[:12]}"
    )


def test_a_line_with_a_hostile_name_is_one_word_to_a_shell() -> None:
    words = shlex.split(_WHOLE.cli(lambda _: "a; rm -rf /"))
    assert words[4] == "a; rm -rf /,a; rm -rf /"


def test_a_node_is_picked_and_taken_back_and_an_excluded_one_is_picked() -> None:
    wish = Wish(model_id=MODEL, excluded_nodes=(a_node_id(3),))
    picked = wish.toggled(a_node_id(3))
    assert (picked.nodes, picked.excluded_nodes) == ((a_node_id(3),), ())
    assert picked.toggled(a_node_id(3)).nodes == ()


def test_window_and_slots_stay_in_bounds() -> None:
    wish = Wish(model_id=MODEL)
    assert wish.with_context(1).context_tokens == CONTEXT_BOUNDS[0]
    assert wish.with_context(1 << 40).context_tokens == CONTEXT_BOUNDS[1]
    assert wish.with_slots(0).slots == 1
    assert _WHOLE.with_context(None).context_tokens is None
    for text in ("", "0", "-4", "1e3", "9" * 40):
        with pytest.raises(ClientError, match="whole number"):
            bounded_number("slots", text, (1, 256))
    assert bounded_number("slots", "256", (1, 256)) == 256


def test_the_same_again_pins_what_the_plan_has() -> None:
    plan = a_plan(node=2, context_tokens=4096, slots=3)
    wish = same_again(plan)
    assert wish.nodes == (a_node_id(2),)
    assert (wish.backend, wish.context_tokens, wish.slots) == (plan.backend, 4096, 3)


@pytest.mark.parametrize(
    ("tag", "is_one"),
    [("mlx", True), ("llama_server-cuda", True), ("vllm-tpu", False), ("mlx-", False)],
)
def test_a_backend_is_an_engine_with_a_known_compute(tag: str, *, is_one: bool) -> None:
    assert bool(BACKEND_FORM.match(tag)) is is_one
