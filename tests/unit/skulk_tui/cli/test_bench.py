"""`skulk bench`: figures of what was measured, also of a run that failed or was ended."""

import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from skulk_tui.cli.bench_figures import RequestRecord, bench_tables, spread, summary
from tests.support.builders import MODEL
from tests.support.command_line import skulk
from tests.support.fake_node import Answer, FakeNode, chat_stream, loading_refusal, refusal

CHAT = "/v1/chat/completions"

pytestmark = pytest.mark.usefixtures("no_real_waiting")


def a_result(number: int = 1, **changes: object) -> RequestRecord:
    fields: dict[str, object] = {
        "number": number,
        "error_code": None,
        "error": None,
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "first_token_s": 0.1,
        "per_token_s": 0.02,
        "longest_gap_s": 0.03,
        "total_s": 0.2,
        "finish_reason": "length",
    }
    return RequestRecord(**(fields | changes))  # pyright: ignore[reportArgumentType]  fields by name


# ---- Figures -------------------------------------------------------------------------------------


def test_a_percentile_is_a_value_that_was_measured() -> None:
    found = spread([float(value) for value in range(1, 101)])
    assert found is not None
    assert (found.mean, found.p50, found.p90, found.p99) == (50.5, 50.0, 90.0, 99.0)
    assert (found.min, found.max) == (1.0, 100.0)


def test_of_few_values_the_high_percentiles_are_the_greatest() -> None:
    found = spread([3.0, None, 1.0, 2.0])
    assert found is not None
    assert (found.p50, found.p90, found.p99, found.max) == (2.0, 3.0, 3.0, 3.0)


def test_nothing_known_has_no_spread() -> None:
    assert spread([None]) is None
    assert spread([]) is None


def test_a_run_is_summed_over_what_was_answered() -> None:
    failed = a_result(2, error_code="engine.busy", error="busy", completion_tokens=None)
    record = summary(
        [a_result(3), failed, a_result(1)],
        model_id=MODEL,
        node="http://den-01:52415",
        concurrency=2,
        requests=4,
        wall_s=2.0,
    )
    assert (record.completed, record.failed, record.partial) == (2, 1, True)
    assert (record.failures, record.completion_tokens) == ({"engine.busy": 1}, 10)
    assert (record.tokens_per_s, record.requests_per_s) == (5.0, 1.0)
    assert record.request_tokens_per_s is not None
    assert record.request_tokens_per_s.p50 == pytest.approx(50.0)
    assert [one.number for one in record.results] == [1, 2, 3]


def test_a_run_without_an_answer_has_no_rates() -> None:
    record = summary([], model_id=MODEL, node="x", concurrency=1, requests=4, wall_s=0.0)
    assert (record.tokens_per_s, record.requests_per_s, record.first_token_s) == (None, None, None)
    head, spreads, failures = bench_tables(record)
    assert ("tokens/s", "-") in head.rows
    assert (spreads.rows, failures.rows) == ((), ())


# ---- The verb ------------------------------------------------------------------------------------


def test_all_requests_are_sent_and_none_begins_as_another(node: FakeNode) -> None:
    ran = skulk("bench", MODEL, "-n", "6", "-c", "3", "--max-tokens", "9", node=node.url)
    assert ran.code == 0
    assert "6 done; 3 at a time" in ran.out
    asked = [one.body for one in node.asked("POST", CHAT)]
    assert len(asked) == 7  # one of them to warm up
    starts = {one["messages"][0]["content"].partition(".")[0] for one in asked}
    assert len(starts) == 7
    assert {one["max_tokens"] for one in asked} == {9}


def test_warming_up_does_not_count(node: FakeNode) -> None:
    node.on("POST", CHAT, chat_stream("slow", finish="length"), chat_stream("a", "b", "c"))
    ran = skulk("bench", MODEL, "-n", "2", "--json", node=node.url)
    (item,) = json.loads(ran.out)["items"]
    assert (item["requests"], item["completed"], item["completion_tokens"]) == (2, 2, 6)
    assert [one["finish_reason"] for one in item["results"]] == ["stop", "stop"]


def test_the_time_to_the_first_token_is_that_of_the_first_text(node: FakeNode) -> None:
    slow = chat_stream("a", "b", "c")
    node.on("POST", CHAT, Answer(pieces=slow.pieces, pause_s=0.02, content_type=slow.content_type))
    ran = skulk("bench", MODEL, "-n", "1", "--warmup", "0", "--json", node=node.url)
    (item,) = json.loads(ran.out)["items"]
    (one,) = item["results"]
    # A comment and the first piece, then two more pieces, then the end.
    assert 0.04 <= one["first_token_s"] < one["total_s"]
    assert one["per_token_s"] > 0.01  # what is read late has less of a pause before the next
    assert one["longest_gap_s"] >= one["per_token_s"]


def test_some_failures_are_counted_and_end_with_6(node: FakeNode) -> None:
    busy = refusal("engine.busy", "all slots are taken", status=503)
    node.on("POST", CHAT, chat_stream("a"), busy, chat_stream("a"))
    ran = skulk("bench", MODEL, "-n", "3", "--warmup", "0", node=node.url)
    assert ran.code == 6
    assert "2 done, 1 failed" in ran.out
    assert "1  engine.busy  all slots are taken" in ran.out


def test_what_every_request_failed_with_is_the_error(node: FakeNode) -> None:
    node.on("POST", CHAT, refusal("request.too_large", "too long", status=413))
    ran = skulk("bench", MODEL, "-n", "3", "--warmup", "0", node=node.url)
    assert (ran.code, ran.out) == (4, "")
    assert ran.err.splitlines()[-3] == "error: too long"


def test_a_stream_without_its_end_has_failed(node: FakeNode) -> None:
    node.on("POST", CHAT, chat_stream("a", finish=None, done=False))
    ran = skulk("bench", MODEL, "-n", "1", "--warmup", "0", node=node.url)
    assert (ran.code, ran.out) == (1, "")
    assert "broke off" in ran.err


def test_a_model_that_is_loading_is_waited_for(node: FakeNode) -> None:
    node.on("POST", CHAT, loading_refusal(), chat_stream("a"))
    assert skulk("bench", MODEL, "-n", "1", node=node.url).code == 0


def test_an_unknown_model_names_the_nearest(node: FakeNode) -> None:
    node.on("POST", CHAT, refusal("request.model_not_found", status=404))
    ran = skulk("bench", f"{MODEL}x", node=node.url)
    assert (ran.code, ran.err.splitlines()[-1]) == (2, f"  remedy: Did you mean {MODEL!r}?")


def test_the_end_of_the_budget_shows_what_there_is(node: FakeNode) -> None:
    slow = Answer(pieces=(b": wait\n\n",) * 100, pause_s=0.1)
    node.on("POST", CHAT, chat_stream("a"), chat_stream("b"), slow)
    ran = skulk("bench", MODEL, "-n", "4", "--timeout", "600ms", node=node.url)
    assert ran.code == 124
    assert "1 done, 3 not done" in ran.out
    assert "before all requests were done" in ran.err


def test_ctrl_c_shows_what_there_is_and_leaves_no_thread(node: FakeNode) -> None:
    slow = Answer(pieces=(b": wait\n\n",) * 40, pause_s=0.1)
    node.on("POST", CHAT, chat_stream("a"), slow)
    program = (
        "from skulk_tui.cli.main import main; import sys\n"
        f"sys.argv[1:] = ['bench', {MODEL!r}, '-n', '4', '-c', '2', '--warmup', '0']\n"
        "main()\n"
    )
    environ = {**os.environ, "SKULK_NODE": node.url}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    ) as running:
        assert running.stderr is not None
        first = running.stderr.readline()
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
    assert (running.returncode, first) == (130, "bench  1 of 4 requests\n")
    assert "1 done, 3 not done" in out
    assert "Traceback" not in err


def test_no_thread_outlives_a_run(node: FakeNode) -> None:
    skulk("bench", MODEL, "-n", "4", "-c", "4", node=node.url)
    assert not [one for one in threading.enumerate() if one.name.startswith("bench-")]
