import json

import pytest

from protocol.errors import ClientError, EngineError, SkulkError
from skulk_tui.chat_stream import ChatReader, Piece


def chunk(**fields: object) -> str:
    return "data: " + json.dumps({"id": "abcdef-" + "a" * 20, **fields})


def text(content: str, finish: str | None = None) -> str:
    return chunk(choices=[{"index": 0, "delta": {"content": content}, "finish_reason": finish}])


def test_pieces_come_in_order_and_the_end_is_learnt() -> None:
    reader = ChatReader()
    lines = [
        ": command_id abcdef-k",
        "",
        text("Pa"),
        text("ris", "stop"),
        chunk(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 2}),
        ": keep-alive",
        "data: [DONE]",
    ]
    pieces = [piece for line in lines if (piece := reader.feed(line)) is not None]
    assert pieces == [Piece(text="Pa"), Piece(text="ris")]
    assert (reader.command_id, reader.finish_reason, reader.is_done) == ("abcdef-k", "stop", True)
    assert reader.usage is not None
    assert reader.usage.completion_tokens == 2
    reader.close()


def test_reasoning_is_kept_apart_from_the_answer() -> None:
    delta = {"index": 0, "delta": {"reasoning_content": "hm"}, "finish_reason": None}
    assert ChatReader().feed(chunk(choices=[delta])) == Piece(reasoning="hm")


def test_a_whole_answer_is_read_too() -> None:
    reader = ChatReader()
    body = {"id": "x", "choices": [{"message": {"content": "Paris"}, "finish_reason": "stop"}]}
    assert reader.fold(json.dumps(body)) == Piece(text="Paris")
    reader.close()


def test_an_error_in_the_stream_is_raised_as_it_was_sent() -> None:
    error = {
        "message": "the engine died",
        "type": "server_error",
        "code": "engine.gone",
        "skulk_code": "engine.gone",
        "remediation": "ask again",
    }
    with pytest.raises(EngineError) as caught:
        ChatReader().feed("data: " + json.dumps({"error": error}))
    assert caught.value.remediation == "ask again"


def test_a_stream_without_its_end_is_no_answer() -> None:
    reader = ChatReader()
    reader.feed(text("half"))
    with pytest.raises(SkulkError) as caught:
        reader.close()
    assert caught.value.code == "engine.gone"


def test_a_line_that_is_no_chunk_is_refused() -> None:
    with pytest.raises(ClientError) as caught:
        ChatReader().feed("data: {not json")
    assert caught.value.code == "client.bad_answer"
