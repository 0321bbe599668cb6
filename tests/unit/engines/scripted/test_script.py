import math
from dataclasses import fields, replace

import pytest

from engines.scripted.script import (
    Script,
    Utterance,
    count_tokens,
    embedding,
    render,
    reply_to,
    score,
)
from protocol.cards import ScriptedSection
from protocol.vectors import numbers_of

REPLY = "one two  three"


def said(
    script: Script,
    *,
    prompt_tokens: int = 0,
    max_tokens: int | None = None,
    stop: tuple[str, ...] = (),
) -> tuple[list[str], str | None, int]:
    utterance = Utterance(
        script,
        reply=script.reply,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        stop=stop,
    )
    pieces: list[str] = []
    while utterance.reason is None:
        pieces.append(utterance.step())
    return pieces, utterance.reason, utterance.n_tokens


def a_script(*, reply: str = REPLY, repeat: bool = False, split_utf8: bool = False) -> Script:
    return Script(slots=1, context_tokens=100, reply=reply, repeat=repeat, split_utf8=split_utf8)


def test_a_script_has_every_field_of_a_card() -> None:
    of_card = set(ScriptedSection.model_fields)
    assert {field.name for field in fields(Script)} == of_card | {
        "slots",
        "context_tokens",
        "dimensions",
    }


def test_a_word_is_a_token_with_the_blanks_before_it() -> None:
    assert said(a_script()) == (["one", " two", "  three", ""], "stop", 3)


def test_a_repeated_reply_goes_on_to_the_end_of_the_budget() -> None:
    pieces, reason, n_tokens = said(a_script(repeat=True), max_tokens=5)
    assert ("".join(pieces), reason, n_tokens) == ("one two  three one two", "length", 5)


def test_a_repeated_reply_ends_with_the_context() -> None:
    _, reason, n_tokens = said(a_script(repeat=True), prompt_tokens=90)
    assert (reason, n_tokens) == ("length", 10)


def test_the_budget_cuts_the_reply() -> None:
    assert said(a_script(), max_tokens=2) == (["one", " two"], "length", 2)


def test_a_stop_string_across_tokens_ends_the_reply() -> None:
    pieces, reason, _ = said(a_script(), stop=("o  th",))
    assert ("".join(pieces), reason) == ("one tw", "stop")


def test_text_held_back_in_vain_is_said_at_the_end() -> None:
    assert "".join(said(a_script(), stop=("three four",))[0]) == REPLY


@pytest.mark.parametrize("max_tokens", range(1, 9))
def test_split_characters_are_said_whole_or_not_at_all(max_tokens: int) -> None:
    reply = "\N{EURO SIGN}\N{PARTY POPPER}"
    pieces, _, _ = said(a_script(reply=reply, split_utf8=True), max_tokens=max_tokens)
    assert "".join(pieces) == reply.encode()[:max_tokens].decode("utf-8", "ignore")


def test_an_empty_reply_ends_at_once() -> None:
    assert said(a_script(reply=" ", repeat=True)) == ([""], "stop", 0)


def test_the_prompt_is_counted_in_words() -> None:
    prompt = render([{"role": "user", "content": "two words"}])
    assert count_tokens(prompt) == 3


def test_an_embedding_has_length_one_and_depends_on_the_text() -> None:
    one = embedding("a fox", 8)
    assert math.isclose(sum(value * value for value in numbers_of(one)), 1.0, rel_tol=1e-6)
    assert one == embedding("a fox", 8) != embedding("the sea", 8)
    assert [len(embedding(text, 4096)) for text in ("", "x", "x" * 9000)] == [4 * 4096] * 3


def test_a_score_is_the_share_of_the_words_that_a_document_has() -> None:
    scores = [score("A red fox", text) for text in ("the red fox", "nothing", "fox a red", "")]
    assert scores == [2 / 3, 0.0, 1.0, 0.0]


def test_each_result_of_a_tool_has_its_reply_and_the_last_holds_for_all_further() -> None:
    script = replace(a_script(), later_replies=("then", "at last"))
    question = {"role": "user", "content": "do it"}
    result = {"role": "tool", "content": "done"}
    said_after = [reply_to(script, [question, *[result] * n]) for n in range(4)]
    assert said_after == [REPLY, "then", "at last", "at last"]
    assert reply_to(a_script(), [question, result]) == REPLY
