"""Texts as models write them, with what is in them; the corpus of all tests of output splitting."""

from dataclasses import dataclass
from typing import Final

from engines.output.markup import BAR, DSML, MARKUPS, MarkupName, deepseek_mark
from engines.output.splitter import OutputSplitter
from protocol.data_frames import Chunk
from protocol.tasks import ToolDefinition

TOOLS: Final = {
    tool.name: tool
    for tool in (
        ToolDefinition(
            name="weather",
            parameters={
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "zip": {"type": ["string", "null"]},
                    "unit": {"enum": ["C", "F"]},
                },
            },
        ),
        ToolDefinition(name="write.file", parameters={"type": "object"}),
    )
}

Piece = tuple[str, str]
"""`text`, `reasoning`, or the name of a tool; and what was said, or the arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    name: str
    markup: MarkupName
    raw: str
    pieces: tuple[Piece, ...]
    has_tools: bool = True
    prompt: str = ""


def splitter_of(sample: Sample, markup: MarkupName | None = None) -> OutputSplitter:
    rules = MARKUPS[markup or sample.markup]
    return OutputSplitter(
        rules,
        TOOLS if sample.has_tools else {},
        call_id_prefix="call_",
        begins_in_reasoning=rules.begins_in_reasoning(sample.prompt),
    )


def pieces_of(chunks: list[Chunk]) -> tuple[Piece, ...]:
    """Join what belongs together."""
    pieces: list[Piece] = []
    for chunk in chunks:
        found: list[Piece] = [(call.name or "", call.arguments) for call in chunk.tool_calls]
        found += [("text", chunk.text)] if chunk.text else []
        found += [("reasoning", chunk.reasoning)] if chunk.reasoning else []
        for kind, text in found:
            if pieces and pieces[-1][0] == kind and kind in {"text", "reasoning"}:
                pieces[-1] = (kind, pieces[-1][1] + text)
            else:
                pieces.append((kind, text))
    return tuple(pieces)


def split(sample: Sample, tokens: list[str], markup: MarkupName | None = None) -> tuple[Piece, ...]:
    splitter = splitter_of(sample, markup)
    chunks = [chunk for token in tokens for chunk in splitter.feed(token)]
    return pieces_of(chunks + splitter.finish())


_PARIS: Final = ("weather", '{"city": "Paris"}')
_TWO_DAYS: Final = ("weather", '{"city": "Paris", "days": 2}')
_DANGEROUS: Final = 'say "</tool_call>" and {<tool_call>} [TOOL_CALLS] \\ done'
_BEGIN, _END, _SEP = (deepseek_mark(f"tool {w}") for w in ("call begin", "call end", "sep"))
_ALL_BEGIN, _ALL_END = deepseek_mark("tool calls begin"), deepseek_mark("tool calls end")

SAMPLES: Final = (
    Sample(
        name="plain text",
        markup="any",
        raw="  Two < three, a[0] <= b, <b>bold</b>\n\n- and [a link](http://x).\n",
        pieces=(("text", "  Two < three, a[0] <= b, <b>bold</b>\n\n- and [a link](http://x).\n"),),
    ),
    Sample(
        name="hermes",
        markup="tags",
        raw='I will look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n'
        '</tool_call>\n<tool_call>\n{"name": "write.file", "arguments": {"text": "'
        + _DANGEROUS.replace("\\", "\\\\").replace('"', '\\"')
        + '"}}\n</tool_call><|im_end|>',
        pieces=(
            ("text", "I will look."),
            _PARIS,
            (
                "write.file",
                '{"text": "' + _DANGEROUS.replace("\\", "\\\\").replace('"', '\\"') + '"}',
            ),
        ),
    ),
    Sample(
        name="hermes, arguments as text, and two in one block",
        markup="tags",
        raw='<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Paris\\"}"}\n'
        '{"name": "weather", "parameters": null}</tool_call>',
        pieces=(_PARIS, ("weather", "{}")),
    ),
    Sample(
        name="hermes, a tool that nobody offered",
        markup="tags",
        raw='Look: <tool_call>{"name": "print", "arguments": {}}</tool_call> well.',
        pieces=(("text", 'Look: {"name": "print", "arguments": {}} well.'),),
    ),
    Sample(
        name="hermes, not whole",
        markup="tags",
        raw='<tool_call>\n{"name": "weather", "arguments": {"city": "Par',
        pieces=(("text", '{"name": "weather", "arguments": {"city": "Par'),),
    ),
    Sample(
        name="hermes, one bracket short",
        markup="tags",
        raw='<tool_call>{"name": "weather", "arguments": {"city": "Paris"}</tool_call>',
        pieces=(("text", '{"name": "weather", "arguments": {"city": "Paris"}'),),
    ),
    Sample(
        name="hermes, no tools offered",
        markup="tags",
        raw='Ok <tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>',
        pieces=(("text", 'Ok {"name": "weather", "arguments": {}}\n'),),
        has_tools=False,
    ),
    Sample(
        name="a mark in prose",
        markup="tags",
        raw="Write `<tool_call>` and then `</tool_call>` around it.",
        pieces=(("text", "Write `` and then `` around it."),),
    ),
    Sample(
        name="qwen xml",
        markup="tags",
        raw="<think>\nhm, <b>\n</think>\n\nNow.\n\n<tool_call>\n<function=weather>\n"
        "<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
        "<parameter=zip>\n75001\n</parameter>\n<parameter=unit>\nC\n</parameter>\n</function>\n"
        "</tool_call>",
        pieces=(
            ("reasoning", "hm, <b>"),
            ("text", "Now."),
            ("weather", '{"city": "Paris", "days": 2, "zip": "75001", "unit": "C"}'),
        ),
    ),
    Sample(
        name="qwen xml without its frame, and with an object",
        markup="tags",
        raw='<function=write.file><parameter=lines>["a", {"b": 1}]</parameter>'
        "<parameter=mode>0x</parameter></function>\n"
        '<function=weather>{"city": "Paris"}</function>',
        pieces=(("write.file", '{"lines": ["a", {"b": 1}], "mode": "0x"}'), _PARIS),
    ),
    Sample(
        name="qwen xml, a tool that nobody offered",
        markup="tags",
        raw="<tool_call>\n<function=print>\n<parameter=text>\nhi\n</parameter>\n</function>\n"
        "</tool_call>",
        pieces=(("text", "print\ntext\nhi\n\n\n"),),
    ),
    Sample(
        name="xml that is an answer",
        markup="tags",
        raw="<plugin><parameter>x</parameter></plugin>",
        pieces=(("text", "<plugin><parameter>x</parameter></plugin>"),),
    ),
    Sample(
        name="glm",
        markup="tags",
        raw="<think>so</think>Fine.\n<tool_call>weather\n<arg_key>city</arg_key>\n"
        "<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n"
        "</tool_call>\n<tool_call>weather<arg_key>city</arg_key><arg_value>Paris</arg_value>"
        "</tool_call><tool_call>weather</tool_call><|observation|>",
        pieces=(
            ("reasoning", "so"),
            ("text", "Fine."),
            _TWO_DAYS,
            _PARIS,
            ("weather", "{}"),
        ),
    ),
    Sample(
        name="mistral array",
        markup="mistral",
        raw='Usage: x [ARGS]. [TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris"}, '
        '"id": "abcdefghi"}, {"name": "weather", "arguments": {"city": "Paris", "days": 2}}]',
        pieces=(("text", "Usage: x [ARGS]."), _PARIS, _TWO_DAYS),
    ),
    Sample(
        name="mistral names first",
        markup="mistral",
        raw='[THINK]hm[/THINK][TOOL_CALLS]weather[ARGS]{"city": "Paris"}'
        '[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{"city": "Paris", "days": 2}'
        "[TOOL_CALLS]weather{}",
        pieces=(("reasoning", "hm"), _PARIS, _TWO_DAYS, ("weather", "{}")),
    ),
    Sample(
        name="mistral, a tool that nobody offered",
        markup="mistral",
        raw='[TOOL_CALLS]print[ARGS]{"a": [1]} ok',
        pieces=(("text", 'print{"a": [1]} ok'),),
    ),
    Sample(
        name="llama python tag",
        markup="llama",
        raw='<|python_tag|>{"name": "weather", "parameters": {"city": "Paris"}}; '
        '{"name": "weather", "parameters": {"city": "Paris", "days": 2}}<|eom_id|>',
        pieces=(_PARIS, _TWO_DAYS),
    ),
    Sample(
        name="llama bare",
        markup="llama",
        raw='\n{"type": "function", "name": "weather", "parameters": {"city": "Paris"}}<|eot_id|>',
        pieces=(_PARIS,),
    ),
    Sample(
        name="llama python code",
        markup="llama",
        raw='<|python_tag|>print({"a": 1}[0])<|eom_id|>',
        pieces=(("text", 'print({"a": 1}[0])'),),
    ),
    Sample(
        name="bare array",
        markup="any",
        raw='[{"name": "weather", "arguments": {"city": "Paris"}}, '
        '{"function": {"name": "weather", "arguments": "{}"}, "type": "function"}]',
        pieces=(_PARIS, ("weather", "{}")),
    ),
    Sample(
        name="an answer in json",
        markup="any",
        raw='{"name": "weather", "city": "Paris", "ok": [true, null]}\n\nThat is <i>all</i>.',
        pieces=(
            (
                "text",
                '{"name": "weather", "city": "Paris", "ok": [true, null]}\n\nThat is <i>all</i>.',
            ),
        ),
    ),
    Sample(
        name="a tool's definition, repeated",
        markup="any",
        raw='{"name": "weather", "description": "d", "parameters": {"type": "object"}}',
        pieces=(
            ("text", '{"name": "weather", "description": "d", "parameters": {"type": "object"}}'),
        ),
    ),
    Sample(
        name="json later in the text is an answer",
        markup="llama",
        raw='So: {"name": "weather", "parameters": {}}',
        pieces=(("text", 'So: {"name": "weather", "parameters": {}}'),),
    ),
    Sample(
        name="an answer that begins with a bracket",
        markup="any",
        raw="[1] is <|im_end|>a footnote",
        pieces=(("text", "[1] is a footnote"),),
    ),
    Sample(
        name="harmony",
        markup="harmony",
        raw="<|channel|>analysis<|message|>Think {x}.<|end|><|start|>assistant<|channel|>commentary"
        "<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
        '<|constrain|>json<|message|>{"city": "Paris"}<|call|>',
        pieces=(("reasoning", "Think {x}."), ("text", "I look."), _PARIS),
    ),
    Sample(
        name="harmony, recipient in the role",
        markup="harmony",
        raw="<|start|>assistant to=functions.weather<|channel|>commentary<|constrain|>json"
        '<|message|>{"city": "Paris", "days": 2}<|end|>\n<|start|>assistant<|channel|>final'
        "<|message|>Done.<|return|>",
        pieces=(_TWO_DAYS, ("text", "Done.")),
    ),
    Sample(
        name="harmony, a tool of its own",
        markup="harmony",
        raw="<|channel|>analysis to=python code<|message|>print(1)<|call|>",
        pieces=(("text", "print(1)"),),
    ),
    Sample(
        name="harmony, the prompt opened the analysis",
        markup="harmony",
        raw="so<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
        pieces=(("reasoning", "so"), ("text", "Yes.")),
        prompt="<|start|>assistant<|channel|>analysis<|message|>",
    ),
    Sample(
        name="harmony, cut in a heading",
        markup="harmony",
        raw="<|channel|>final<|message|>Yes.<|end|><|start|>assistant<|channel|>analysis",
        pieces=(("text", "Yes."),),
    ),
    Sample(
        name="gemma",
        markup="gemma",
        raw="<|channel>thought\nHm.\n<channel|>Ok.\n<|tool_call>call:weather{city:"
        '<|"|>Paris<|"|>,days:2}<tool_call|><|tool_call>call:write.file{text:<|"|>a "b": {c: d}'
        '<|"|>,list:[1,{x:true}]}<tool_call|><turn|>',
        pieces=(
            ("reasoning", "Hm."),
            ("text", "Ok."),
            _TWO_DAYS,
            ("write.file", '{"text": "a \\"b\\": {c: d}", "list": [1, {"x": true}]}'),
        ),
    ),
    Sample(
        name="function gemma",
        markup="gemma",
        raw="<start_function_call>call:weather{city:<escape>Paris<escape>}<end_function_call>"
        "<start_function_response>",
        pieces=(_PARIS,),
    ),
    Sample(
        name="gemma, a tool that nobody offered",
        markup="gemma",
        raw='<|tool_call>call:print{a:<|"|>x<|"|>}<tool_call|>',
        pieces=(("text", "call:print{a:x}"),),
    ),
    Sample(
        name="deepseek v3",
        markup="deepseek",
        raw=f"Ok.\n{_ALL_BEGIN}{_BEGIN}function{_SEP}weather\n```json\n"
        f'{{"city": "Paris"}}\n```{_END}\n{_BEGIN}function{_SEP}weather\n```json\n'
        f'{{"city": "Paris", "days": 2}}\n```{_END}{_ALL_END}{deepseek_mark("end of sentence")}',
        pieces=(("text", "Ok."), _PARIS, _TWO_DAYS),
    ),
    Sample(
        name="deepseek v3.1",
        markup="deepseek",
        raw=f"because\n</think>{_ALL_BEGIN}{_BEGIN}weather{_SEP}"
        f'{{"city": "Paris"}}{_END}{_BEGIN}print{_SEP}{{}}{_END}{_ALL_END}',
        pieces=(("reasoning", "because"), _PARIS, ("text", "print{}")),
        prompt=f"<{BAR}Assistant{BAR}><think>\n",
    ),
    Sample(
        name="deepseek v3.2",
        markup="deepseek",
        raw=f'Ok.\n\n<{DSML}function_calls>\n<{DSML}invoke name="weather">\n<{DSML}parameter '
        f'name="city" string="true">Paris</{DSML}parameter>\n<{DSML}parameter name="days" '
        f'string="false">2</{DSML}parameter>\n</{DSML}invoke>\n</{DSML}function_calls>',
        pieces=(("text", "Ok."), _TWO_DAYS),
    ),
    Sample(
        name="reasoning that the prompt opened",
        markup="tags",
        raw="\nfirst <|x\n\n</think>\n\nthen",
        pieces=(("reasoning", "first <|x"), ("text", "then")),
        prompt="<|im_start|>assistant\n<think>\n",
    ),
    Sample(
        name="reasoning without an end",
        markup="tags",
        raw="<think>on and on",
        pieces=(("reasoning", "on and on"),),
    ),
    Sample(
        name="reasoning that was closed in the prompt",
        markup="tags",
        raw="Yes.",
        pieces=(("text", "Yes."),),
        prompt="<think>\n\n</think>\n\n",
    ),
    Sample(
        name="a call ends the reasoning",
        markup="tags",
        raw='<think>hm <tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'
        "</think>Ok.",
        pieces=(("reasoning", "hm"), _PARIS, ("text", "Ok.")),
    ),
    Sample(
        name="thinking marks later in the text",
        markup="any",
        raw="Use <think>this</think> here.",
        pieces=(("text", "Use this here."),),
    ),
)
