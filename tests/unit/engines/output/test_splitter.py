"""What the corpus of tests/property/test_output_markup.py cannot say: limits, choice, frames."""

import json

import pytest

from engines.output import call_blocks
from engines.output.json_scan import MAX_DEPTH
from engines.output.markup import MARKUPS, MarkupName, markup_name_of
from engines.output.split_frames import FrameSplitter, OutputRules, rules_of
from engines.output.splitter import MAX_BLANK_CHARS, OutputSplitter
from protocol.cards import ModelCard, RuntimeSection, ToolingSection
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
from protocol.errors import ErrorBody
from protocol.tasks import FinishReason, ResponseFormat, ToolDefinition
from tests.support.builders import a_card
from tests.support.engine_process import a_task
from tests.support.markup_corpus import TOOLS, pieces_of

USAGE = Usage(1, 1)
CALL = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'
WEATHER = ToolDefinition(name="weather")
OTHER = ToolDefinition(name="other")


def a_splitter(*, answers_in_json: bool = False) -> OutputSplitter:
    return OutputSplitter(
        MARKUPS["tags"], TOOLS, call_id_prefix="c", answers_in_json=answers_in_json
    )


def frames_of(*said: Frame, **fields: object) -> list[Frame]:
    task = a_task("Go.", tools=(WEATHER, OTHER), **fields)
    splitter = FrameSplitter(task, OutputRules(markup=MARKUPS["any"]))
    return [frame for one in said for frame in splitter.take([one])]


@pytest.mark.parametrize("name", MARKUPS)
def test_marks_are_found_alike_wherever_a_text_is_cut(name: MarkupName) -> None:
    marks = MARKUPS[name].marks
    for mark in marks:
        assert mark[0] in "<["
        assert not set(mark[1:]) & set("<[")
        assert not any(other.startswith(mark) for other in marks - {mark})


def test_a_call_that_is_too_long_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_blocks, "MAX_BLOCK_CHARS", 50)
    for closing in ("", "</tool_call>"):
        long = '{"name": "weather", "arguments": {"city": "' + "x" * 50 + '"}}'
        splitter = a_splitter()
        chunks = [
            chunk for letter in f"<tool_call>{long}{closing}" for chunk in splitter.feed(letter)
        ]
        assert pieces_of(chunks + splitter.finish()) == (("text", long),)
        tagged = "<function=weather><parameter=city>" + "x" * 50 + "</parameter></function>"
        splitter = a_splitter()
        assert splitter.feed(tagged) == [Chunk("weathercity" + "x" * 50)]


def test_no_mark_leaks_where_a_block_grew_too_long() -> None:
    splitter = OutputSplitter(MARKUPS["any"], TOOLS, call_id_prefix="c")
    text = "[TOOL_CALLS]" + "x" * (call_blocks.MAX_HEAD_CHARS - 5) + "<|im_end|> y"
    chunks = [chunk for letter in text for chunk in splitter.feed(letter)]
    said = "x" * (call_blocks.MAX_HEAD_CHARS - 5) + " y"
    assert pieces_of(chunks + splitter.finish()) == (("text", said),)


@pytest.mark.parametrize("broken", [
    '"name": "weather"', "[" * (MAX_DEPTH + 1), '{"name": "weather", "arguments": {"a": NaN}}',
    '{"name": "weather", "arguments": {"a": 1e999}}', '{"name": ["weather"], "arguments": {}}',
    '{"name": "weather", "arguments": [1]}', '{"name": "weather", "arguments": "no"}', "[1, 2]",
    '{"name": "weather", "arguments": {"a": ' + "9" * 5000 + "}}",
])  # fmt: skip
def test_what_does_not_read_as_a_call_is_text(broken: str) -> None:
    splitter = a_splitter()
    chunks = splitter.feed(f"<tool_call>{broken}</tool_call>") + splitter.finish()
    assert pieces_of(chunks) == (("text", broken),)


@pytest.mark.parametrize(("schema", "text", "value"), [
    ({"type": "string"}, "7", "7"), ({"type": "integer"}, "7", 7), ({"type": "integer"}, "x", "x"),
    ({"type": ["string", "null"]}, "null", None), ({"type": ["integer", "null"]}, "7", 7),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "7", "7"),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", None),
    ({"allOf": [{"oneOf": [{"enum": ["7", "8"]}]}]}, "7", "7"), ({"enum": [7, 8]}, "7", 7),
    ({"type": "boolean"}, "True", True), ({"type": "array"}, "[1, true]", [1, True]),
    ({}, "7", 7), (True, "7", 7), ({"type": 5, "enum": "7"}, "seven", "seven"),
])  # fmt: skip
def test_a_value_that_comes_as_text_gets_the_type_of_its_schema(
    schema: object, text: str, value: object
) -> None:
    tool = ToolDefinition(name="f", parameters={"properties": {"a": schema}})
    splitter = OutputSplitter(MARKUPS["tags"], {"f": tool}, call_id_prefix="c")
    (chunk,) = splitter.feed(f"<function=f><parameter=a>{text}</parameter></function>")
    assert json.loads(chunk.tool_calls[0].arguments) == {"a": value}


def test_half_a_character_in_an_argument_stays_an_escape() -> None:
    (chunk,) = a_splitter().feed('<tool_call>{"name": "weather", "arguments": {"a": "\\ud83d"}}')
    assert chunk.tool_calls[0].arguments == '{"a": "\\ud83d"}'
    chunk.tool_calls[0].arguments.encode()


@pytest.mark.parametrize("begun", ['{"city"', "{1", "{}", '[{"a"', '{"' + "x" * 300])
def test_an_answer_in_json_is_not_held_longer_than_its_first_key(begun: str) -> None:
    splitter = a_splitter()
    chunks = [chunk for letter in begun + ": [1" for chunk in splitter.feed(letter)]
    assert pieces_of(chunks) == (("text", begun + ": [1"),)


def test_endless_white_space_is_not_held_for_ever() -> None:
    splitter = a_splitter()
    said = "".join(chunk.text for _ in range(1000) for chunk in splitter.feed("\n"))
    assert len(said) == 1000 - MAX_BLANK_CHARS


def test_marks_in_an_argument_are_part_of_it() -> None:
    text = "<tool_call> </tool_call>" * 10_000
    body = json.dumps({"name": "write.file", "arguments": {"text": text}})
    (chunk,) = a_splitter().feed(f"<tool_call>{body}</tool_call>")
    assert json.loads(chunk.tool_calls[0].arguments) == {"text": text}


def test_where_json_was_asked_for_its_strings_are_left_alone() -> None:
    answer = '\n{"name": "weather", "arguments": {}, "mark": "<tool_call>"}\n'
    splitter = a_splitter(answers_in_json=True)
    chunks = [chunk for letter in answer for chunk in splitter.feed(letter)]
    assert pieces_of(chunks + splitter.finish()) == (("text", answer),)
    splitter = a_splitter(answers_in_json=True)
    chunks = splitter.feed("<think>hm</think>\n" + answer * 500) + splitter.finish()
    assert pieces_of(chunks) == (("reasoning", "hm"), ("text", (answer * 500).lstrip()))
    assert pieces_of(a_splitter(answers_in_json=True).feed(CALL)) == (("weather", "{}"),)


@pytest.mark.parametrize(("fields", "template", "name"), [
    ({"family": "qwen3"}, None, "tags"), ({"family": "GLM"}, None, "tags"),
    ({"family": "gpt-oss"}, None, "harmony"), ({"family": "ministral3"}, None, "mistral"),
    ({"family": "deepseek_v3"}, None, "deepseek"), ({"family": "llama"}, None, "any"),
    ({"family": "smollm"}, None, "any"), ({}, None, "any"),
    ({"family": "llama"}, "{{ '<tool_call>' }}", "tags"),
    ({"family": "qwen2"}, "{{ x }}", "tags"), ({"family": "llama"}, "<|eom_id|>", "llama"),
    ({"family": "qwen", "tooling": ToolingSection(tool_call_format="gpt_oss")}, None, "harmony"),
    ({"family": "qwen", "tooling": ToolingSection(tool_call_format="generic")}, None, "tags"),
    ({"tooling": ToolingSection(tool_call_format="dsml")}, "<tool_call>", "deepseek"),
    ({"runtime": RuntimeSection(output_parser="gemma4")}, "<|channel|>", "gemma"),
])  # fmt: skip
def test_card_then_template_then_family_choose_the_marks(
    fields: dict[str, object], template: str | None, name: MarkupName
) -> None:
    card: ModelCard = a_card().model_copy(update={"family": None, **fields})
    assert markup_name_of(card, template) == name
    assert rules_of(card, template).markup is MARKUPS[name]


def test_a_call_makes_tool_calls_of_a_stop_and_of_nothing_else() -> None:
    reasons: tuple[tuple[FinishReason, FinishReason], ...]
    reasons = (("stop", "tool_calls"), ("length", "length"))
    for reason, becomes in reasons:
        last = frames_of(Started(), Chunk(CALL), Finished(reason, USAGE))[-1]
        assert last == Finished(becomes, USAGE)
    assert frames_of(Chunk("no"), Finished("stop", USAGE))[-1] == Finished("stop", USAGE)


@pytest.mark.parametrize(("choice", "n_calls"), [("auto", 1), ("none", 0), ("=weather", 1),
                                                 ("=other", 0), ("required", 1)])  # fmt: skip
def test_only_what_may_be_called_is(choice: str, n_calls: int) -> None:
    frames = frames_of(Chunk(CALL), Finished("stop", USAGE), tool_choice=choice)
    calls = [frame for frame in frames if isinstance(frame, Chunk) and frame.tool_calls]
    assert len(calls) == n_calls


def test_what_an_engine_has_split_itself_passes_and_counts() -> None:
    own = Chunk("", "", (ToolCallDelta(0, "x", "other", "{}"),))
    thought = Chunk("", "hm")
    frames = frames_of(thought, own, Chunk(CALL), Finished("tool_calls", USAGE))
    assert frames[:2] == [thought, own]
    assert isinstance(frames[2], Chunk)
    assert frames[2].tool_calls[0].call_index == 1
    assert frames_of(own, Finished("stop", USAGE))[-1] == Finished("stop", USAGE)
    both = own._replace(text="so")
    *_, call, _ = frames_of(Chunk("a"), both, Chunk(CALL), Finished("stop", USAGE))
    assert isinstance(call, Chunk)
    assert call.tool_calls[0].call_index == 1


def test_logprobs_go_along_with_their_text_or_alone() -> None:
    logprobs = (TokenLogprob("a", -1.0),)
    held = Chunk("<tool", "", (), logprobs)
    assert frames_of(Chunk("a", "", (), logprobs)) == [Chunk("a", "", (), logprobs)]
    assert frames_of(held) == [Chunk("", "", (), logprobs)]


def test_a_failure_passes_at_once() -> None:
    failed = Failed(ErrorBody(code="engine.gone", message="gone"))
    assert frames_of(Chunk("<tool"), failed) == [failed]


def test_json_that_was_asked_for_is_no_call() -> None:
    bare = Chunk('{"name": "weather", "arguments": {}}')
    wanted = ResponseFormat(kind="json_object")
    assert frames_of(bare, response_format=wanted) == [bare]


def test_an_engine_that_shows_the_ends_of_turns_is_stopped_by_them() -> None:
    rules = OutputRules(markup=MARKUPS["llama"], stops_at_turn_ends=True)
    task = a_task(stop=("x",))
    assert rules.stop(task).stop[:2] == ("x", "<|eom_id|>")
    assert OutputRules(markup=MARKUPS["llama"]).stop(task) is task
