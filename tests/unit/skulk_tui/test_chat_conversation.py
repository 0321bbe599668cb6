"""A conversation, its answers, and the files they are kept in."""

import json
import os
from pathlib import Path

import pytest

from protocol.errors import ClientError, EngineError
from skulk_tui.chat_answer import MAX_CHARS as ANSWER_MAX_CHARS
from skulk_tui.chat_answer import Answer
from skulk_tui.chat_conversation import MAX_CHARS, Conversation, read_temperature
from skulk_tui.chat_files import MAX_KEPT, ChatFiles, file_name
from tests.support.session_answers import chunk, last_chunks


def a_conversation(**fields: object) -> Conversation:
    return Conversation(id="one", created_ms=1, changed_ms=1, model_id="my/model", **fields)  # type: ignore[arg-type]


def answered(conversation: Conversation, question: str, *texts: str) -> Answer:
    answer = conversation.ask(question, at_ms=5, now=10.0)
    for index, text in enumerate(texts):
        answer.take(chunk(text), 11.0 + index)
    for event in last_chunks(len(texts)):
        answer.take(event, 12.0)
    answer.finish()
    return answer


def test_an_answer_counts_its_tokens_and_times() -> None:
    answer = answered(a_conversation(), "q", "a", "b", "c")
    assert (answer.text, answer.state, answer.n_tokens) == ("abc", "finished", 3)
    assert (answer.first_token_s, answer.tokens_per_s, answer.prompt_tokens) == (1.0, 1.0, 12)


def test_a_stream_that_ends_without_its_end_has_failed() -> None:
    answer = Answer("m", at_ms=0, now=0.0)
    answer.take(chunk("half"), 1.0)
    answer.finish()
    assert (answer.state, answer.error_code, answer.text) == ("failed", "engine.gone", "half")


def test_what_comes_after_the_stop_is_not_taken() -> None:
    answer = Answer("m", at_ms=0, now=0.0)
    answer.take(chunk("a"), 1.0)
    answer.stop(2.0)
    answer.take(chunk("b"), 3.0)
    answer.fail(EngineError("engine.gone", "x"))
    assert (answer.state, answer.text) == ("stopped", "a")


def test_control_characters_never_get_in() -> None:
    answer = Answer("m", at_ms=0, now=0.0)
    answer.take(chunk("a\x1b[2Jb\u202ec\n\td"), 1.0)
    assert answer.text == "a[2Jbc\n\td"


def test_a_model_that_never_ends_is_found_out() -> None:
    answer = Answer("m", at_ms=0, now=0.0)
    answer.take(chunk("x" * (ANSWER_MAX_CHARS + 1)), 1.0)
    assert answer.is_too_long


def test_what_was_said_before_goes_along_and_failures_without_text_do_not() -> None:
    conversation = a_conversation(system="be brief", temperature=0.5, max_tokens=9)
    answered(conversation, "one", "first")
    conversation.ask("two", at_ms=6, now=1.0).fail(EngineError("engine.gone", "x"))
    body = conversation.body("three")
    assert body["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "first"},
        {"role": "user", "content": "three"},
    ]
    assert (body["temperature"], body["max_tokens"], body["stream"]) == (0.5, 9, True)
    assert conversation.body()["messages"][-1]["content"] == "two"


def test_asking_again_keeps_what_was_said_and_sends_the_question_once() -> None:
    conversation = a_conversation()
    answered(conversation, "one", "first")
    conversation.ask_again(at_ms=7, now=1.0)
    assert len(conversation.exchanges[0].answers) == 2
    assert conversation.body()["messages"] == [{"role": "user", "content": "one"}]
    with pytest.raises(ClientError):
        a_conversation().ask_again(at_ms=7, now=1.0)


def test_more_than_can_be_sent_is_refused_with_its_remedy() -> None:
    with pytest.raises(ClientError) as caught:
        a_conversation().body("x" * (MAX_CHARS + 1))
    assert ":new" in caught.value.remediation


def test_a_kept_conversation_comes_back_as_it_was(tmp_path: Path) -> None:
    conversation = a_conversation(title="t")
    answered(conversation, "one", "first")
    conversation.ask("two", at_ms=6, now=1.0).take(chunk("half"), 2.0)
    files = ChatFiles(tmp_path)
    files.save("one", conversation.saved(3.0).model_dump_json())
    files.save_draft("one", "and then")
    kept = files.load("one")
    first, cut = kept.exchanges[0].last, kept.exchanges[1].last
    assert first is not None
    assert cut is not None
    assert (first.text, first.state, first.tokens_per_s) == ("first", "finished", None)
    assert (cut.text, cut.state, cut.error_code) == ("half", "failed", "client.stream_cut")
    assert files.load_draft("one") == "and then"
    assert kept.saved(9.0) == conversation.saved(3.0)
    assert (tmp_path / "chats" / "one.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"id": 3}', "\x00", '{"id": "x"'])
def test_a_damaged_file_is_told_and_never_crashes(tmp_path: Path, text: str) -> None:
    files = ChatFiles(tmp_path)
    files.save("one", text)
    with pytest.raises(ClientError, match="cannot be read"):
        files.load("one")
    assert files.recent() == []


def test_only_so_many_are_kept_and_the_oldest_go(tmp_path: Path) -> None:
    files = ChatFiles(tmp_path)
    for number in range(MAX_KEPT + 3):
        files.save(f"c{number}", a_conversation().saved(0.0).model_dump_json())
        files.save_draft(f"c{number}", "draft")
        os.utime(tmp_path / "chats" / f"c{number}.json", ns=(number, number))
    files.save("last", a_conversation().saved(0.0).model_dump_json())
    left = {path.stem for path in (tmp_path / "chats").glob("*.json")}
    assert len(left) == MAX_KEPT
    assert not {"c0", "c1", "c2", "c3"} & left
    assert not (tmp_path / "chats" / "c0.draft").exists()


def test_only_so_many_drafts_are_kept_too(tmp_path: Path) -> None:
    files = ChatFiles(tmp_path)
    for number in range(MAX_KEPT + 2):
        files.save_draft(f"c{number}", "draft")
        os.utime(tmp_path / "chats" / f"c{number}.draft", ns=(number, number))
    files.save_draft("last", "draft")
    assert len(list((tmp_path / "chats").glob("*.draft"))) == MAX_KEPT


def test_the_latest_is_what_was_changed_last_be_it_a_draft(tmp_path: Path) -> None:
    files = ChatFiles(tmp_path)
    assert files.latest_id() is None
    files.save("one", a_conversation().saved(0.0).model_dump_json())
    os.utime(tmp_path / "chats" / "one.json", ns=(1, 1))
    assert files.latest_id() == "one"
    files.save_draft("two", "x")
    assert files.latest_id() == "two"
    files.save_draft("two", "")
    assert files.latest_id() == "one"


def test_without_a_directory_nothing_is_kept_and_nothing_fails() -> None:
    files = ChatFiles(None)
    files.save("one", "{}")
    files.save_draft("one", "x")
    assert (files.load_draft("one"), files.latest_id(), files.recent()) == ("", None, [])
    with pytest.raises(ClientError):
        files.export("x.md", "y")


def test_exports_are_for_people_and_for_programs() -> None:
    conversation = a_conversation(system="s")
    answered(conversation, "why?", "**because**")
    conversation.ask("and?", at_ms=7, now=1.0).fail(EngineError("engine.gone", "it died"))
    text = conversation.as_markdown()
    assert "# why?" in text
    assert "**because**" in text
    assert "*(failed: it died)*" in text
    assert json.loads(conversation.as_json(1.0))["exchanges"][0]["question"] == "why?"


def test_a_files_name_is_made_of_letters_alone() -> None:
    assert file_name("Why, ../../etc/passwd?\n", "md") == "why-etc-passwd.md"
    assert file_name("...", "json") == "chat.json"


@pytest.mark.parametrize("text", ["", "hot", "-1", "3", "nan", "inf", "1e9"])
def test_what_is_no_temperature_is_refused(text: str) -> None:
    with pytest.raises(ClientError):
        read_temperature(text)
    assert read_temperature("0.5") == pytest.approx(0.5)
