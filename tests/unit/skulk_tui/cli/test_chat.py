import json

import pytest

from skulk_tui.cli.chat import stats_line
from skulk_tui.cli.records import ChatRecord
from tests.support.builders import MODEL, an_instance_id
from tests.support.command_line import skulk
from tests.support.fake_node import (
    Answer,
    FakeNode,
    a_view,
    chat_stream,
    loading_refusal,
    refusal,
)

CHAT = "/v1/chat/completions"
PERSON = frozenset({"stdin", "stderr"})


pytestmark = pytest.mark.usefixtures("no_real_waiting")


def test_the_answer_and_nothing_else_is_on_stdout(node: FakeNode) -> None:
    ran = skulk("chat", MODEL, "What?", node=node.url)
    assert (ran.code, ran.out, ran.err) == (0, "The capital is Paris.\n", "")


def test_stats_are_on_stderr(node: FakeNode) -> None:
    ran = skulk("chat", MODEL, "What?", "--stats", node=node.url)
    assert ran.out == "The capital is Paris.\n"
    assert ran.err.startswith("first token ")
    assert "3 tokens  prompt 12  total" in ran.err


def test_the_rate_is_that_of_the_tokens_after_the_first() -> None:
    record = ChatRecord(
        model_id=MODEL,
        command_id=None,
        text="x",
        reasoning="",
        finish_reason="stop",
        prompt_tokens=12,
        completion_tokens=41,
        first_token_s=0.25,
        total_s=1.25,
        tokens_per_s=40.0,
    )
    line = stats_line(record)
    assert line == "first token 250 ms  40.0 tok/s  41 tokens  prompt 12  total 1.2 s"


def test_options_become_the_request(node: FakeNode) -> None:
    options = ("--system", "Be brief.", "--temperature", "0", "--max-tokens", "9", "--seed", "7")
    skulk("chat", MODEL, "What?", *options, node=node.url)
    (asked,) = node.asked("POST", CHAT)
    assert asked.body == {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What?"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0,
        "max_tokens": 9,
        "seed": 7,
    }


def test_the_budget_ends_a_stream_that_always_has_something_to_say(node: FakeNode) -> None:
    node.on("POST", CHAT, Answer(pieces=(b": wait\n\n",) * 100, pause_s=0.05))
    ran = skulk("chat", MODEL, "What?", "--timeout", "300ms", node=node.url)
    assert (ran.code, len(ran.err.splitlines())) == (124, 3)


@pytest.mark.parametrize("arguments", [(), ("-",)])
def test_the_question_comes_from_stdin_when_it_is_not_an_argument(
    node: FakeNode, arguments: tuple[str, ...]
) -> None:
    ran = skulk("chat", MODEL, *arguments, node=node.url, stdin="Long\nquestion?\n")
    assert ran.code == 0
    assert node.asked("POST", CHAT)[0].body["messages"][0]["content"] == "Long\nquestion?\n"


def test_no_question_at_all_is_a_usage_error(node: FakeNode) -> None:
    ran = skulk("chat", MODEL, node=node.url, stdin=" \n")
    assert ran.code == 2
    assert node.seen == []


def test_a_whole_answer_is_shown_without_streaming(node: FakeNode) -> None:
    choice = {"message": {"content": "Paris."}, "finish_reason": "stop"}
    body = {"id": "x", "choices": [choice], "usage": {"completion_tokens": 2}}
    node.on("POST", CHAT, Answer(body=json.dumps(body).encode()))
    ran = skulk("chat", MODEL, "What?", "--no-stream", node=node.url)
    assert (ran.code, ran.out) == (0, "Paris.\n")
    assert node.asked("POST", CHAT)[0].body["stream"] is False


def test_an_answer_that_breaks_off_is_a_failure_after_its_text(node: FakeNode) -> None:
    node.on("POST", CHAT, chat_stream("The cap", finish=None, done=False))
    ran = skulk("chat", MODEL, "What?", node=node.url)
    assert (ran.code, ran.out) == (1, "The cap\n")
    assert "broke off" in ran.err


def test_an_error_in_the_middle_is_told_as_it_came(node: FakeNode) -> None:
    start = chat_stream("The cap", finish=None, done=False)
    error = refusal("engine.gone", "the engine died").body
    node.on("POST", CHAT, Answer(pieces=(*start.pieces, b"data: " + error + b"\n\n")))
    ran = skulk("chat", MODEL, "What?", node=node.url)
    assert ran.code == 1
    assert "error: the engine died" in ran.err


def test_a_cut_answer_is_told(node: FakeNode) -> None:
    node.on("POST", CHAT, chat_stream("The", finish="length"))
    ran = skulk("chat", MODEL, "What?", node=node.url)
    assert ran.code == 0
    assert "--max-tokens" in ran.err


def test_an_unknown_model_names_the_nearest(node: FakeNode) -> None:
    node.on("POST", CHAT, refusal("request.model_not_found", status=404))
    ran = skulk("chat", "test/tinny", "What?", node=node.url)
    assert (ran.code, ran.err.splitlines()[-1]) == (2, f"  remedy: Did you mean '{MODEL}'?")


def test_a_known_model_that_is_not_placed_is_told_by_the_node(node: FakeNode) -> None:
    missing = refusal(
        "request.model_not_found", "not placed", status=404, remediation="skulk place it"
    )
    node.on("POST", CHAT, missing)
    ran = skulk("chat", MODEL, "What?", node=node.url)
    assert ran.err == f"error: not placed\n  at: {node.url}\n  remedy: skulk place it\n"


def test_a_loading_model_is_waited_for(node: FakeNode) -> None:
    node.on("POST", CHAT, loading_refusal(), chat_stream("Paris."))
    node.on("GET", f"/instance/{an_instance_id()}", a_view("load"), a_view("ready"))
    ran = skulk("chat", MODEL, "What?", node=node.url)
    assert (ran.code, ran.out) == (0, "Paris.\n")
    assert ran.err.startswith("load ")


def test_a_loading_model_is_8_when_nobody_waits(node: FakeNode) -> None:
    node.on("POST", CHAT, loading_refusal())
    ran = skulk("chat", MODEL, "What?", "--no-wait", node=node.url)
    assert (ran.code, ran.out) == (8, "")


def test_escape_sequences_of_a_model_reach_a_pipe_but_no_terminal(node: FakeNode) -> None:
    node.on("POST", CHAT, chat_stream("a\x1b", "]52;c;eA==\x07b"))
    assert "\x1b" in skulk("chat", MODEL, "x", node=node.url).out
    shown = skulk("chat", MODEL, "x", node=node.url, terminals=frozenset({"stdout"}))
    assert shown.out == "a]52;c;eA==b\n"


def test_lines_of_json_are_chunks_and_one_end(node: FakeNode) -> None:
    ran = skulk("chat", MODEL, "What?", "-o", "jsonl", node=node.url)
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert [line["type"] for line in lines] == ["chunk", "chunk", "chunk", "finished"]
    assert lines[-1]["text"] == "".join(line["text"] for line in lines[:-1])


def test_a_conversation_keeps_its_turns_until_it_is_cleared(node: FakeNode) -> None:
    said = "one\ntwo\n\n/clear\nthree\n/exit\nnever\n"
    ran = skulk("chat", MODEL, node=node.url, stdin=said, terminals=PERSON)
    assert ran.code == 0
    assert ran.out == "The capital is Paris.\n" * 3
    turns = [
        [turn["content"] for turn in asked.body["messages"]] for asked in node.asked("POST", CHAT)
    ]
    assert turns == [["one"], ["one", "The capital is Paris.", "two"], ["three"]]


def test_an_error_ends_an_answer_and_not_the_conversation(node: FakeNode) -> None:
    busy = refusal("request.overloaded", "too many", status=503)
    node.on("POST", CHAT, busy, chat_stream("Paris."))
    ran = skulk("chat", MODEL, node=node.url, stdin="one\ntwo\n", terminals=PERSON)
    assert (ran.code, ran.out) == (0, "Paris.\n")
    assert "error: too many" in ran.err
    assert [turn["content"] for turn in node.asked("POST", CHAT)[1].body["messages"]] == ["two"]
