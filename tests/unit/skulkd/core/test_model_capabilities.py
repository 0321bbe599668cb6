import pytest

from protocol.cards import ModelCard, ReasoningSection, ToolingSection
from protocol.ids import ModelId
from protocol.tasks import ChatMessage, ChatTask
from skulkd.core.model_capabilities import ThinkingWish, heeded, resolve_capabilities
from tests.support.builders import a_command_id
from tests.support.fake_ports import make_card

TOGGLE = make_card(reasoning=ReasoningSection(supports_toggle=True, format="token_delimited"))
WORDED = make_card(
    reasoning=ReasoningSection(supports_toggle=True, disabled_effort="off", default_effort="high")
)
ALWAYS = make_card(reasoning=ReasoningSection(format="token_delimited"))
NEVER = make_card()


def a_task(enable_thinking: bool | None, effort: str | None) -> ChatTask:
    return ChatTask(
        command_id=a_command_id(),
        model_id=ModelId("a/b"),
        messages=(ChatMessage(role="user", content="x"),),
        enable_thinking=enable_thinking,
        reasoning_effort=effort,
    )


@pytest.mark.parametrize(
    ("card", "asked", "given"),
    [
        # A toggle: off unless something asks for thoughts, and `none` is no.
        (TOGGLE, (None, None), (False, None)),
        (TOGGLE, (True, None), (True, None)),
        (TOGGLE, (False, None), (False, None)),
        (TOGGLE, (None, "none"), (False, None)),
        (TOGGLE, (None, "high"), (True, "high")),
        (TOGGLE, (True, "none"), (False, None)),
        (TOGGLE, (False, "high"), (False, None)),
        # A family with a word for it is told in its word.
        (WORDED, (None, None), (False, "off")),
        (WORDED, (None, "none"), (False, "off")),
        (WORDED, (None, "off"), (False, "off")),
        (WORDED, (None, "low"), (True, "low")),
        # No toggle: what would switch is dropped, an effort stays.
        (ALWAYS, (None, None), (None, None)),
        (ALWAYS, (False, None), (None, None)),
        (ALWAYS, (True, "low"), (None, "low")),
        (ALWAYS, (None, "none"), (None, None)),
        # No thoughts at all.
        (NEVER, (None, None), (None, None)),
        (NEVER, (True, "high"), (None, None)),
    ],
)
def test_a_request_is_heeded_as_far_as_its_model_can(
    card: ModelCard, asked: tuple[bool | None, str | None], given: tuple[bool | None, str | None]
) -> None:
    task = heeded(card, a_task(*asked))
    assert (task.enable_thinking, task.reasoning_effort) == given


def test_a_request_that_can_be_heeded_whole_is_not_copied() -> None:
    task = a_task(None, None)
    assert heeded(NEVER, task) is task


def test_without_a_word_from_the_card_its_coarse_capabilities_count() -> None:
    thinks = resolve_capabilities(make_card(capabilities=("text", "thinking", "vision")))
    assert thinks.supports_thinking
    assert not thinks.supports_thinking_toggle
    assert thinks.thinking_format == "token_delimited"
    assert thinks.supports_vision
    toggles = resolve_capabilities(make_card(capabilities=("thinking_toggle",)))
    assert (toggles.supports_thinking, toggles.supports_thinking_toggle) == (True, True)
    assert not toggles.thinks
    plain = resolve_capabilities(NEVER)
    assert (plain.supports_thinking, plain.thinking_format, plain.thinks) == (False, "none", False)


@pytest.mark.parametrize("family", ["gpt-oss", "gpt_oss"])
def test_a_family_fills_what_its_cards_leave_out(family: str) -> None:
    known = resolve_capabilities(make_card(family=family))
    assert known.thinking_format == "channel_delimited"
    assert (known.supports_thinking, known.thinks) == (True, True)
    assert (known.tool_call_format, known.default_effort) == ("gpt_oss", "medium")


def test_what_a_card_says_counts_more_than_its_family() -> None:
    card = make_card(
        family="gpt-oss",
        reasoning=ReasoningSection(format="token_delimited", default_effort="low"),
        tooling=ToolingSection(supports_tool_calling=True, tool_call_format="generic"),
    )
    known = resolve_capabilities(card)
    assert (known.thinking_format, known.default_effort) == ("token_delimited", "low")
    assert known.tool_call_format == "generic"


def test_capabilities_of_one_request_say_whether_it_thinks() -> None:
    assert not resolve_capabilities(TOGGLE).thinks
    assert resolve_capabilities(TOGGLE, ThinkingWish(enable_thinking=True)).thinks
    assert resolve_capabilities(ALWAYS, ThinkingWish(enable_thinking=False)).thinks
