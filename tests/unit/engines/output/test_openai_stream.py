import json
from collections.abc import Mapping

import pytest

from engines.output.openai_stream import StreamDecoder, decode_whole, error_of_answer
from protocol.data_frames import (
    Chunk,
    Failed,
    Finished,
    Frame,
    Started,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from protocol.tasks import FinishReason

Answer = Mapping[str, object]
ROLE: Answer = {"choices": [{"delta": {"role": "assistant", "content": None}}]}


def events(*answers: Answer) -> bytes:
    return b"".join(b"data: " + json.dumps(answer).encode() + b"\n\n" for answer in answers)


def stream_of(*answers: Answer, n_alternatives: int = 0) -> list[Frame]:
    decoder = StreamDecoder(n_alternatives)
    return decoder.feed(events(*answers)) + decoder.feed(b"")


def delta(**fields: object) -> Answer:
    return {"choices": [{"finish_reason": None, "index": 0, "delta": fields}]}


def end(reason: str) -> Answer:
    nothing: dict[str, object] = {}
    return {"choices": [{"finish_reason": reason, "index": 0, "delta": nothing}]}


def code_of(frames: list[Frame]) -> str:
    assert isinstance(frames[-1], Failed)
    return frames[-1].error.code


def test_the_first_progress_tells_the_length_of_the_prompt() -> None:
    progress = {**ROLE, "prompt_progress": {"total": 42, "processed": 0}}
    assert stream_of(progress, progress, end("stop"))[:1] == [Started(42)]


def test_usage_and_timings_come_with_the_terminal() -> None:
    usage = {
        "prompt_tokens": 42,
        "completion_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 41},
    }
    timings = {"prompt_ms": 1.5, "predicted_ms": 80.25}
    frames = stream_of(ROLE, end("length"), {"choices": [], "usage": usage, "timings": timings})
    assert frames[-1] == Finished("length", Usage(42, 8, 41, 1.5, 80.25))


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("tool_calls", "tool_calls"),
        ("function_call", "tool_calls"),
        ("content_filter", "content_filter"),
    ],
)
def test_reasons_stay_inside_the_known_set(said: str, meant: FinishReason) -> None:
    last = stream_of(ROLE, end(said))[-1]
    assert isinstance(last, Finished)
    assert last.reason == meant


@pytest.mark.parametrize(("word", "told"), [("END", "END"), ("<|im_end|>", None), ("", None)])
def test_a_stop_string_is_told_if_it_is_one_of_the_tasks(word: str, told: str | None) -> None:
    last = {**end("stop"), "__verbose": {"stopping_word": word, "prompt": "hi"}}
    decoder = StreamDecoder(stop=("END",))
    *_, streamed = decoder.feed(events(ROLE, last)) + decoder.feed(b"")
    *_, whole = decode_whole(json.dumps(last).encode(), ("END",))
    for ended in (streamed, whole):
        assert isinstance(ended, Finished)
        assert (ended.reason, ended.stop) == ("stop", told)


def test_an_unknown_reason_is_a_failure_that_names_it() -> None:
    frames = stream_of(ROLE, end("abort"))
    assert code_of(frames) == "engine.request_failed"
    assert isinstance(frames[-1], Failed)
    assert "'abort'" in frames[-1].error.message


def test_a_stream_without_an_end_is_the_engines_death() -> None:
    assert code_of(stream_of(ROLE, delta(content="The"))) == "engine.gone"


def test_an_error_in_mid_stream_is_the_terminal() -> None:
    frames = stream_of(ROLE, delta(content="The"), {"error": {"message": "no space left"}})
    assert frames[1] == Chunk("The")
    assert code_of(frames) == "engine.request_failed"


def test_nothing_follows_a_terminal() -> None:
    frames = stream_of(ROLE, {"error": {"message": "x"}}, delta(content="late"), end("stop"))
    assert [type(frame) for frame in frames] == [Started, Failed]


def test_tool_calls_come_in_pieces_with_their_index() -> None:
    first = {"index": 1, "id": "c1", "function": {"name": "bell", "arguments": ""}}
    rest = {"index": 1, "function": {"arguments": '{"on"'}}
    frames = stream_of(ROLE, delta(tool_calls=[first]), delta(tool_calls=[rest]), end("tool_calls"))
    assert frames[1] == Chunk(tool_calls=(ToolCallDelta(1, "c1", "bell", ""),))
    assert frames[2] == Chunk(tool_calls=(ToolCallDelta(1, None, None, '{"on"'),))


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_no_more_alternatives_are_given_than_were_asked_for(wanted: int) -> None:
    top = [{"token": "The", "logprob": -0.5}, {"token": "A", "logprob": -2.0}]
    entry = {"token": "The", "logprob": -0.5, "top_logprobs": top}
    choice = {"delta": {"content": "The"}, "logprobs": {"content": [entry]}}
    frames = stream_of(ROLE, {"choices": [choice]}, end("stop"), n_alternatives=wanted)
    alternatives = (("The", -0.5), ("A", -2.0))[:wanted]
    assert frames[1] == Chunk("The", logprobs=(TokenLogprob("The", -0.5, alternatives),))


def test_empty_pieces_make_no_chunk() -> None:
    frames = stream_of(ROLE, delta(content=""), delta(content=None), end("stop"))
    assert [type(frame) for frame in frames] == [Started, Finished]


@pytest.mark.parametrize("payload", ["{", "[]", '{"choices": 3}', '{"choices":[{"delta":7}]}'])
def test_a_frame_that_cannot_be_read_is_a_failure(payload: str) -> None:
    decoder = StreamDecoder()
    assert code_of(decoder.feed(f"data: {payload}\n\n".encode())) == "engine.request_failed"


def test_comments_and_other_lines_are_no_frames() -> None:
    decoder = StreamDecoder()
    assert decoder.feed(b": ping\n\nevent: x\nid: 3\nretry: 1\n\n") == []


def test_a_whole_answer_is_started_one_chunk_and_the_terminal() -> None:
    message = {"role": "assistant", "content": "Paris.", "reasoning_content": "hm"}
    usage = {"prompt_tokens": 4, "completion_tokens": 2}
    body = json.dumps(
        {"choices": [{"finish_reason": "stop", "message": message}], "usage": usage}
    ).encode()
    assert decode_whole(body) == (
        Started(4),
        Chunk("Paris.", "hm"),
        Finished("stop", Usage(4, 2)),
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"choices":[]}',
        b'{"choices":[{"finish_reason":null}]}',
        b'{"error":{"message":"x"}}',
    ],
)
def test_a_whole_answer_that_is_none_is_a_failure(body: bytes) -> None:
    assert code_of(list(decode_whole(body))) == "engine.request_failed"


def test_a_prompt_too_long_is_the_clients_error_with_both_numbers() -> None:
    detail = {"message": "too long", "n_prompt_tokens": 9031, "n_ctx": 8192}
    error = error_of_answer(400, json.dumps({"error": detail}).encode())
    assert error.code == "request.context_length_exceeded"
    assert error.details == {"n_prompt_tokens": 9031, "n_ctx": 8192}
    assert "9031" in error.message
    assert "8192" in error.message


PREAMBLE = "Unable to generate parser for this template. Automatic parser generation failed: "
TRACE = """
------------
While executing CallExpression at line 1, column 96 in source:
...{{ raise_exception('Conversation roles must alternate...
                       ^
Error: Jinja Exception: Conversation roles must alternate"""


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (PREAMBLE + TRACE, "Conversation roles must alternate"),
        (PREAMBLE + "JSON schema error at #: no type", "JSON schema error at #: no type"),
        ("", "it does not say why"),
    ],
)
def test_a13_what_a_template_or_a_schema_is_refused_for_is_the_clients_to_mend(
    said: str, sentence: str
) -> None:
    error = error_of_answer(400, json.dumps({"error": {"message": said}}).encode())
    assert error.code == "request.invalid"
    assert error.message == f"the engine refused the request: {sentence}"


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"error":"text"}'])
def test_a_refusal_in_any_shape_is_a_failed_request(body: bytes) -> None:
    error = error_of_answer(500, body)
    assert error.code == "engine.request_failed"
    assert error.details["status"] == 500


def test_an_engines_words_are_bounded() -> None:
    body = json.dumps({"error": {"message": "x" * 100_000}}).encode()
    assert len(error_of_answer(500, body).message) < 2100
