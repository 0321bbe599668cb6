import hypothesis
import pytest
from hypothesis import strategies

from protocol.errors import RequestError
from protocol.ids import ModelId
from protocol.tasks import ChatMessage, ChatTask, ToolCall, ToolDefinition
from skulkd.worker.token_budget import (
    UNMEASURED,
    bounded_budget,
    counted_budget,
    image_size,
    image_tokens,
    prompt_bound_tokens,
    template_size,
)
from tests.support.builders import a_command_id
from tests.support.image_files import a_png, a_png_that_says, a_task_image


def a_task(*texts: str, max_tokens: int | None = None) -> ChatTask:
    return ChatTask(
        command_id=a_command_id(),
        model_id=ModelId("a/b"),
        messages=tuple(ChatMessage(role="user", content=text) for text in texts),
        max_tokens=max_tokens,
    )


@hypothesis.given(texts=strategies.lists(strategies.text(max_size=50), min_size=1, max_size=5))
def test_the_bound_is_never_below_the_bytes(texts: list[str]) -> None:
    n_bytes = sum(len(text.encode()) for text in texts)
    assert prompt_bound_tokens(a_task(*texts), UNMEASURED) >= n_bytes


@hypothesis.given(text=strategies.text(max_size=50))
def test_a_text_without_a_template_is_bounded_by_its_own_bytes(text: str) -> None:
    task = a_task().model_copy(update={"prompt": text})
    bound = prompt_bound_tokens(task, UNMEASURED)
    assert len(text.encode()) < bound < len(text.encode()) + 100


def test_everything_that_a_template_prints_is_in_the_bound() -> None:
    plain = a_task("x")
    least = prompt_bound_tokens(plain, UNMEASURED)
    long = "y" * 1000
    call = ToolCall(id="1", name="f", arguments=long)
    for message in (
        ChatMessage(role="assistant", content="x", reasoning=long),
        ChatMessage(role="assistant", content="x", tool_calls=(call,)),
        ChatMessage(role="tool", content="x", name=long),
    ):
        task = plain.model_copy(update={"messages": (message,)})
        assert prompt_bound_tokens(task, UNMEASURED) >= least + 1000
    tool = ToolDefinition(name="f", description=long, parameters={"a": long})
    task = plain.model_copy(update={"tools": (tool,)})
    assert prompt_bound_tokens(task, UNMEASURED) >= least + 3000


def test_a_short_prompt_needs_no_count() -> None:
    task = a_task("hello", max_tokens=64)
    budget = bounded_budget(task, 4096, UNMEASURED)
    assert budget.reserved_tokens < 8192
    assert budget.max_tokens == 64
    assert budget.reserved_tokens == prompt_bound_tokens(task, UNMEASURED) + 64


def test_without_a_limit_the_answer_gets_the_default_or_what_is_left() -> None:
    task = a_task("hello")
    assert bounded_budget(task, 4096, UNMEASURED).max_tokens == 4096
    assert bounded_budget(task, 4096, UNMEASURED).reserved_tokens > 4096
    budget = counted_budget(task, 4000, window_tokens=4096, default_max_tokens=4096)
    assert budget.max_tokens == 96
    assert budget.reserved_tokens == 4096


def test_a_limit_beyond_the_window_is_cut_to_it() -> None:
    task = a_task("hello", max_tokens=9000)
    assert counted_budget(task, 92, window_tokens=4096, default_max_tokens=1).max_tokens == 4004


@pytest.mark.parametrize("prompt_tokens", [4096, 4097, 100_000])
def test_a_prompt_that_fills_the_window_is_refused_with_both_numbers(prompt_tokens: int) -> None:
    with pytest.raises(RequestError) as caught:
        counted_budget(a_task("x"), prompt_tokens, window_tokens=4096, default_max_tokens=10)
    assert caught.value.code == "request.context_length_exceeded"
    assert caught.value.details == {"prompt_tokens": prompt_tokens, "context_tokens": 4096}


def test_a_template_is_judged_by_what_it_adds_to_one_message_and_to_three() -> None:
    # An opening of 30 tokens, 7 around each message, 1 of the text itself.
    measured = template_size(30 + 8, 30 + 3 * 8)
    assert measured.opening_tokens >= 30
    assert measured.message_tokens >= 7
    short = a_task("Hi there", max_tokens=64)
    assert prompt_bound_tokens(short, measured) >= 30 + 7 + len("Hi there")
    assert prompt_bound_tokens(short, measured) < prompt_bound_tokens(short, UNMEASURED) / 3


@pytest.mark.parametrize(("one", "three"), [(0, 0), (5, 5), (9, 3), (1, 2)])
def test_counts_that_make_no_sense_still_give_a_bound(one: int, three: int) -> None:
    measured = template_size(one, three)
    assert measured.opening_tokens > 0
    assert measured.message_tokens > 0


def shown(*images: bytes, max_tokens: int | None = None) -> ChatTask:
    turn = ChatMessage(
        role="user", content="what?", images=tuple(a_task_image(data) for data in images)
    )
    return a_task(max_tokens=max_tokens).model_copy(update={"messages": (turn,)})


@pytest.mark.parametrize(
    ("family", "small", "large"),
    [("gemma3", 288, 288), ("qwen2vl", 72, 4104), ("nobody-knows", 4104, 4104), (None, 4104, 4104)],
)
def test_an_image_is_estimated_by_its_family_and_size(
    family: str | None, small: int, large: int
) -> None:
    size = image_size(family)
    assert image_tokens(shown(a_png(2, 2)), size) == small
    assert image_tokens(shown(a_png_that_says(5000, 5000)), size) == large
    assert image_tokens(shown(a_png(2, 2), a_png(2, 2)), size) == 2 * small


def test_an_image_takes_its_part_of_the_pool() -> None:
    plain, task = a_task("what?", max_tokens=10), shown(a_png(), max_tokens=10)
    least = bounded_budget(plain, 4096, UNMEASURED).reserved_tokens
    budget = bounded_budget(task, 4096, UNMEASURED, image_size("gemma"))
    assert budget.reserved_tokens == least + 288


def test_the_estimate_of_an_image_refuses_nothing_and_cuts_no_answer() -> None:
    budget = counted_budget(
        shown(a_png(), max_tokens=500), 20, window_tokens=600, default_max_tokens=4096
    )
    assert budget.max_tokens == 500
    assert budget.reserved_tokens == 600  # it runs alone
    with pytest.raises(RequestError, match="beside its images"):
        counted_budget(shown(a_png()), 600, window_tokens=600, default_max_tokens=4096)
