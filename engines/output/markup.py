"""How families of models mark tool calls and reasoning in their text, and which family a card is.

Pure data and one choice. A *mark* is a fixed piece of text, usually one special token; what stands
between two of them is read in engines/output/call_blocks.py.

Source:
    The families' published chat templates and format documents: Hermes function calling, Qwen3 and
    Qwen3-Coder, GLM-4.5, mistral-common, Llama 3.1 prompt formats, the harmony response format,
    Gemma 4 prompt formatting and FunctionGemma, DeepSeek V3, V3.1 and V3.2.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

from protocol.cards import ModelCard

MarkupName = Literal["tags", "mistral", "llama", "harmony", "gemma", "deepseek", "any"]

BlockKind = Literal[
    "objects",
    "mistral",
    "deepseek",
    "tool_call",
    "function",
    "glm",
    "dsml",
    "gemma",
    "function_gemma",
    "message",
    "channel",
]
"""How the text after an opening mark is read; see engines/output/call_blocks.py."""

BAR: Final = "\N{FULLWIDTH VERTICAL LINE}"
DSML: Final = f"{BAR}DSML{BAR}"


def deepseek_mark(words: str) -> str:
    """Spell one of DeepSeek's special tokens."""
    return f"<{BAR}{words.replace(' ', chr(0x2581))}{BAR}>"


@dataclass(frozen=True, kw_only=True)
class Markup:
    """The marks of one family.

    Invariant: each mark begins with `<` or `[`, has no second one of them, and is not the beginning
    of another mark. So the first mark in a text is the same wherever the text is cut.
    """

    opens_call: dict[str, BlockKind] = field(default_factory=dict[str, BlockKind])
    opens_reasoning: frozenset[str] = frozenset()
    ends_reasoning: frozenset[str] = frozenset()
    ends_turn: tuple[str, ...] = ()
    """After one of these a model has nothing more to say; an engine that would go on is stopped."""
    other: frozenset[str] = frozenset()
    """Closing marks and separators, which mean nothing where they stand alone.

    Those that other texts are full of (`</parameter>`, `[ARGS]`) are none outside a call.
    """

    @cached_property
    def marks(self) -> frozenset[str]:
        """All of them."""
        paired = self.opens_reasoning | self.ends_reasoning | self.other
        return paired | self.opens_call.keys() | frozenset(self.ends_turn)

    @cached_property
    def ends(self) -> frozenset[str]:
        """After one of these a model reasons no more."""
        return self.ends_reasoning.union(self.ends_turn)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Finds a mark."""
        return re.compile("|".join(map(re.escape, sorted(self.marks))))

    @cached_property
    def first_characters(self) -> re.Pattern[str]:
        """Finds where a mark may begin."""
        return re.compile("[" + re.escape("".join(sorted({mark[0] for mark in self.marks}))) + "]")

    @cached_property
    def beginnings(self) -> frozenset[str]:
        """All that may yet become a mark."""
        return frozenset(mark[:size] for mark in self.marks for size in range(1, len(mark)))

    def begins_in_reasoning(self, prompt: str) -> bool:
        """Tell whether a prompt's end has opened the reasoning already."""
        return prompt.rstrip().endswith((*self.opens_reasoning, "<|channel|>analysis<|message|>"))


_THINK: Final = (frozenset({"<think>"}), frozenset({"</think>"}))
_TURN_ENDS: Final = ("<|im_end|>", "<|endoftext|>")

_TAGS: Final = Markup(
    opens_call={"<tool_call>": "tool_call", "<function=": "function"},
    opens_reasoning=_THINK[0],
    ends_reasoning=_THINK[1],
    ends_turn=(*_TURN_ENDS, "<|observation|>", "<|user|>"),
    other=frozenset({
        "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|im_start|>",
        "<|assistant|>",
    }),
)  # fmt: skip
_MISTRAL: Final = Markup(
    opens_call={"[TOOL_CALLS]": "mistral"},
    opens_reasoning=frozenset({"[THINK]"}) | _THINK[0],
    ends_reasoning=frozenset({"[/THINK]"}) | _THINK[1],
)
_LLAMA: Final = Markup(
    opens_call={"<|python_tag|>": "objects", **_TAGS.opens_call},
    opens_reasoning=_THINK[0],
    ends_reasoning=_THINK[1],
    ends_turn=("<|eom_id|>", "<|eot_id|>", "<|end_of_text|>", "<|eot|>", "<|eom|>", *_TURN_ENDS),
    other=_TAGS.other | {"<|start_header_id|>", "<|end_header_id|>", "<|begin_of_text|>"},
)
_HARMONY: Final = Markup(
    opens_call={"<|start|>": "message", "<|channel|>": "message"},
    ends_reasoning=frozenset({"<|end|>"}),
    ends_turn=("<|return|>", "<|call|>"),
    other=frozenset({"<|message|>", "<|constrain|>"}),
)
_GEMMA: Final = Markup(
    opens_call={
        "<|tool_call>": "gemma",
        "<start_function_call>": "function_gemma",
        "<|channel>": "channel",
    },
    ends_reasoning=frozenset({"<channel|>"}),
    ends_turn=("<turn|>", "<end_of_turn>", "<|tool_response>", "<start_function_response>"),
    other=frozenset({
        "<tool_call|>", "<end_function_call>", '<|"|>', "<escape>", "<|turn>", "<start_of_turn>",
        "<|think|>",
    }),
)  # fmt: skip
_DEEPSEEK: Final = Markup(
    opens_call={
        deepseek_mark("tool call begin"): "deepseek",
        f'<{DSML}invoke name="': "dsml",
    },
    opens_reasoning=_THINK[0],
    ends_reasoning=_THINK[1],
    ends_turn=(deepseek_mark("end of sentence"),),
    other=frozenset({
        *map(deepseek_mark, ("tool calls begin", "tool calls end", "tool call end", "tool sep")),
        *(f"<{DSML}function_calls>", f"</{DSML}function_calls>"),
        *(f"</{DSML}invoke>", f"</{DSML}parameter>", f"<{BAR}Assistant{BAR}>"),
    }),
)  # fmt: skip


def _all_of(markups: tuple[Markup, ...]) -> Markup:
    return Markup(
        opens_call={mark: kind for one in markups for mark, kind in one.opens_call.items()},
        opens_reasoning=frozenset[str]().union(*(one.opens_reasoning for one in markups)),
        ends_reasoning=frozenset[str]().union(*(one.ends_reasoning for one in markups)),
        ends_turn=tuple(dict.fromkeys(mark for one in markups for mark in one.ends_turn)),
        other=frozenset[str]().union(*(one.other for one in markups)),
    )


MARKUPS: Final[dict[MarkupName, Markup]] = {
    "tags": _TAGS,
    "mistral": _MISTRAL,
    "llama": _LLAMA,
    "harmony": _HARMONY,
    "gemma": _GEMMA,
    "deepseek": _DEEPSEEK,
    "any": _all_of((_TAGS, _MISTRAL, _LLAMA, _HARMONY, _GEMMA, _DEEPSEEK)),
}

_BY_NAME: Final[tuple[tuple[str, MarkupName], ...]] = (
    ("gpt_oss", "harmony"), ("harmony", "harmony"), ("gemma", "gemma"), ("dsml", "deepseek"),
    ("deepseek", "deepseek"), ("mistral", "mistral"), ("ministral", "mistral"),
    ("magistral", "mistral"), ("devstral", "mistral"), ("mixtral", "mistral"),
    ("hermes", "tags"), ("qwen", "tags"), ("qwq", "tags"), ("glm", "tags"), ("llama", "llama"),
)  # fmt: skip
"""What a name of a parser, a format or a family has in it; the first that fits."""

_SHARED_ARCHITECTURES: Final = frozenset({"llama"})
"""A GGUF file names its architecture; Mistral's, Hermes' and many others' models have this one."""

_BY_TEMPLATE: Final[tuple[tuple[str, MarkupName], ...]] = (
    ("<|channel|>", "harmony"), ("<|tool_call>", "gemma"), ("<start_function_call>", "gemma"),
    (deepseek_mark("tool call begin"), "deepseek"), (f"<{DSML}", "deepseek"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_tag|>", "llama"), ("<|eom_id|>", "llama"), ("<tool_call>", "tags"),
)  # fmt: skip
"""What only that family's chat templates have in them."""


def markup_name_of(card: ModelCard, template: str | None = None) -> MarkupName:
    """Choose the marks to look for in a model's text.

    What the card says of its output counts first, then what its chat template shows, then its
    family, unless that is no more than an architecture which many share. Where nothing is known all
    marks count: one that leaks does more harm than one that an answer about marks does without.

    Args:
        card: The model.
        template: Its chat template, where it is known.
    """
    for said in (card.runtime.output_parser, card.tooling.tool_call_format):
        name = _find(said, _BY_NAME)
        if name is not None:
            return name
    for mark, name in _BY_TEMPLATE:
        if mark in (template or ""):
            return name
    if (card.family or "").lower() in _SHARED_ARCHITECTURES:
        return "any"
    return _find(card.family, _BY_NAME) or "any"


def _find(said: str | None, table: tuple[tuple[str, MarkupName], ...]) -> MarkupName | None:
    plain = (said or "").lower().replace("-", "_")
    return next((name for part, name in table if part in plain), None)
