from protocol.ids import ModelId
from protocol.tasks import ChatMessage, ChatTask, ToolDefinition
from skulkd.core.warm_prefixes import (
    BLOCK_CHARS,
    MAX_BLOCKS,
    MAX_KEPT,
    WARM_S,
    WarmPrefixes,
)
from tests.support.builders import a_command_id, an_instance_id

ONE, TWO = an_instance_id(1), an_instance_id(2)


def a_chat(*texts: str, tools: tuple[ToolDefinition, ...] = ()) -> ChatTask:
    return ChatTask(
        command_id=a_command_id(),
        model_id=ModelId("a/b"),
        messages=tuple(ChatMessage(role="user", content=text) for text in texts),
        tools=tools,
    )


def warm() -> WarmPrefixes:
    return WarmPrefixes(b"s" * 32)


def test_a_prompt_that_goes_on_is_warm_where_its_beginning_was_read() -> None:
    prefixes, first = warm(), "a" * 3 * BLOCK_CHARS
    prefixes.note(ONE, prefixes.blocks(a_chat(first)), 0.0)
    longer = prefixes.blocks(a_chat(first, "and then?", "b" * BLOCK_CHARS))
    assert len(longer) == 4
    assert prefixes.warmth(longer, (ONE, TWO), 1.0) == {ONE: 3}


def test_a_prompt_that_begins_otherwise_is_cold_however_it_goes_on() -> None:
    prefixes, text = warm(), "a" * 3 * BLOCK_CHARS
    prefixes.note(ONE, prefixes.blocks(a_chat(text)), 0.0)
    tools = (ToolDefinition(name="now"),)
    for other in (a_chat(f"b{text}"), a_chat(text, tools=tools), a_chat("short", text)):
        assert prefixes.warmth(prefixes.blocks(other), (ONE,), 1.0) == {}
    assert prefixes.blocks(a_chat("a" * 1000)) == ()


def test_what_was_read_long_ago_is_cold() -> None:
    prefixes = warm()
    blocks = prefixes.blocks(a_chat("a" * 2 * BLOCK_CHARS))
    prefixes.note(ONE, blocks, 0.0)
    assert prefixes.warmth(blocks, (ONE,), WARM_S) == {ONE: 2}
    assert prefixes.warmth(blocks, (ONE,), WARM_S + 1) == {}
    prefixes.note(ONE, blocks[:1], WARM_S)
    assert prefixes.warmth(blocks, (ONE,), WARM_S + 1) == {ONE: 1}


def test_no_text_is_kept_and_another_process_has_other_hashes() -> None:
    secret_word = "swordfish" * BLOCK_CHARS
    prefixes, other = warm(), WarmPrefixes(b"t" * 32)
    blocks = prefixes.blocks(a_chat(secret_word))
    prefixes.note(ONE, blocks, 0.0)
    assert len(blocks) == 9
    assert not set(blocks) & set(other.blocks(a_chat(secret_word)))
    assert all(len(block) == 12 for block in blocks)


def test_what_is_kept_and_what_is_hashed_is_bounded() -> None:
    prefixes = warm()
    assert len(prefixes.blocks(a_chat("a" * 2 * MAX_BLOCKS * BLOCK_CHARS))) == MAX_BLOCKS
    newest = prefixes.blocks(a_chat("newest" * BLOCK_CHARS))
    for number in range(MAX_KEPT // 6 + 100):
        prefixes.note(ONE, tuple(b"%d %d" % (number, block) for block in range(6)), 0.0)
    prefixes.note(TWO, newest, 0.0)
    assert len(prefixes) == MAX_KEPT
    assert prefixes.warmth(newest, (ONE, TWO), 1.0) == {TWO: 6}
    assert prefixes.warmth((b"0 0",), (ONE,), 1.0) == {}
