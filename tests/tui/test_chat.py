"""The screen Chat: asking, reading, stopping, losing the link, and coming back to what was said.

Numbers in brackets are rows of the acceptance list for the terminal interface.
"""

import asyncio
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from protocol.session import Cancel, OpenStream, row_key
from tests.support.den_cluster import LLAMA, QWEN, den_instance, fill
from tests.support.frames import check_frame
from tests.support.scripted_session import ScriptedSession
from tests.support.seat import SeatUnderTest, a_seat

SIZES = pytest.mark.parametrize(
    "size", [(60, 16), (80, 24), (160, 50)], ids=lambda size: f"{size[0]}"
)
MARKDOWN = """\
# Ring all-reduce

Each node owns **one chunk** of the *vector*; see [the paper](https://example.org/ring).

1. every node sends a chunk
2. it adds what it receives

```python
def step(rank, chunks, world):
    return chunks[(rank - 1) % world]
```

| phase | packets |
|-------|--------:|
| reduce | n - 1 |
| gather | n - 1 |

> and `n` is the number of nodes
"""
_TIMES = (
    (re.compile(r"\d\d:\d\d(?= {2,}\S|$)"), "12:03"),
    (re.compile(r"\d+\.\d\ds"), "0.92s"),
    (re.compile(r"\d+\.\d tok/s"), "18.4 tok/s"),
    (re.compile(r" {2,}(?=(streaming|waiting|\d+ tokens))"), "   "),
)


def _masked(rows: Sequence[str]) -> list[str]:
    """Mask what differs from run to run: times of day, durations and rates."""
    found: list[str] = []
    for row in rows:
        for pattern, instead in _TIMES:
            row = pattern.sub(instead, row)  # ruff: ignore[redefined-loop-name]  one mask after the other
        found.append(row)
    return found


@pytest.fixture
def node() -> Iterator[ScriptedSession]:
    with ScriptedSession() as scripted:
        fill(scripted)
        yield scripted


async def _go(seat: SeatUnderTest) -> None:
    await seat.until_shows("via den-01", "LIVE")
    await seat.press("3")
    await seat.until_shows("- prompt", "enter sends")


async def _ask(seat: SeatUnderTest, question: str) -> None:
    await seat.type(question)
    await seat.press("enter")


def _asked(node: ScriptedSession) -> list[dict[str, object]]:
    return [frame.body for frame in node.seen if isinstance(frame, OpenStream)]


@SIZES
def test_before_anything_is_asked_it_says_whom_and_how(
    node: ScriptedSession, tmp_path: Path, size: tuple[int, int]
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path, size=size) as seat:
            await _go(seat)
            check_frame(f"chat-empty-{size[0]}x{size[1]}", await seat.settled())

    asyncio.run(story())


@SIZES
def test_an_answer_is_drawn_when_its_blocks_close(
    node: ScriptedSession, tmp_path: Path, size: tuple[int, int]
) -> None:
    async def story() -> None:
        pieces = re.findall(r"\S+\s*|\s+", MARKDOWN)
        node.chat(*pieces, hold_after=30)
        async with a_seat(node.url, tmp_path, size=size) as seat:
            await _go(seat)
            await _ask(seat, "how")
            await seat.until_shows("chunks,", "ctrl+c stop")
            check_frame(f"chat-streaming-{size[0]}x{size[1]}", _masked(await seat.settled()))
            node.let_chats_go()
            await seat.until_shows("n is the number")
            check_frame(f"chat-finished-{size[0]}x{size[1]}", _masked(await seat.settled()))

    asyncio.run(story())


@SIZES
def test_a_failed_answer_keeps_its_text_and_says_what_helps(
    node: ScriptedSession, tmp_path: Path, size: tuple[int, int]
) -> None:
    async def story() -> None:
        error = {
            "message": "the engine on rack-a6k was ended by the kernel",
            "type": "server_error",
            "code": "engine.gone",
            "skulk_code": "engine.gone",
            "remediation": "Ask again; the instance is started anew.",
        }
        node.chat("Half ", "an answer", error=error)
        node.chat("A whole one.")
        async with a_seat(node.url, tmp_path, size=size) as seat:
            await _go(seat)
            await _ask(seat, "why")
            await seat.until_shows("Half an answer", "engine.gone", "R asks again")
            check_frame(f"chat-failed-{size[0]}x{size[1]}", _masked(await seat.settled()))
            await seat.press("f2", "R")
            await seat.until_shows("A whole one.")
            assert [len(body["messages"]) for body in _asked(node)] == [1, 1]  # type: ignore[arg-type]

    asyncio.run(story())


def test_ctrl_c_stops_the_stream_at_once_from_every_screen(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        node.chat(*["word "] * 100, hold_after=3)
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            await _ask(seat, "go on")
            await seat.until_shows("word word word", "ctrl+c stop")
            await seat.press("ctrl+c")
            assert seat.app.seat.n_streaming == 0
            await seat.until_shows("stopped", "R asks again", "word word word")
            await seat.until(lambda: any(isinstance(one, Cancel) for one in node.seen))
            node.let_chats_go()
            await seat.press("f2", "R")
            await seat.until(lambda: seat.app.seat.n_streaming == 1)
            await seat.press("4", "ctrl+c")
            assert seat.app.seat.n_streaming == 0
            await seat.press("ctrl+c")
            await seat.until_shows("q quits")

    asyncio.run(story())


def test_ctrl_c_copies_the_words_of_the_answer_once_nothing_streams(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        node.chat("All ", "of it.")
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            await _ask(seat, "go on")
            await seat.until_shows("All of it.", "2 tokens")
            await seat.press("ctrl+c")  # the field has the keyboard: nothing is selected
            await seat.until_shows("q quits")
            assert not (tmp_path / "clipboard.txt").exists()
            await seat.press("f2", "ctrl+c")
            await seat.until_shows("q quits; All of it.: wrote 10 bytes")
            assert (tmp_path / "clipboard.txt").read_text() == "All of it."

    asyncio.run(story())


def test_the_link_breaks_and_the_stream_goes_on(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        node.chat(*[f"{number} " for number in range(40)], hold_after=10)
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            await _ask(seat, "count")
            await seat.until_shows("8 9")
            node.close()
            await seat.until_shows("link lost; the answer")
            node.let_chats_go()
            node.reopen()
            await seat.until_shows("stream resumed after", "at token 10; nothing lost")
            await seat.until_shows(" ".join(str(number) for number in range(30, 40)))
            shown = re.findall(r"\d+", " ".join(row for row in seat.frame if row[:3] == " | "))
            assert [int(word) for word in shown] == list(range(40))

    asyncio.run(story())


def test_a_stream_that_the_node_no_longer_has_is_cut_and_kept(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        node.chat("one ", "two ", "three", hold_after=2)
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            await _ask(seat, "count")
            await seat.until_shows("one two")
            node.close()
            node.reopen(is_reboot=True)
            await seat.until_shows("one two", "cut after 2 tokens", "R asks again")

    asyncio.run(story())


def test_a_model_that_loads_shows_how_far_it_is_and_answers_when_it_is_ready(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        loading = den_instance(1, "load")
        key = row_key("instance", loading.instance_id)
        document = {
            "instance_id": loading.instance_id,
            "model_id": LLAMA,
            "phase": "load",
            "attempt": 1,
        }
        node.rows("placements", {key: loading})
        node.refuse_chats("request.instance_loading", "it is still loading", loading=document)
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("via den-01", "LIVE")
            await seat.press("colon")
            await seat.type("chat Llama-3.3-70B-Instruct-GGUF")
            await seat.press("enter")
            await seat.until_shows("is not ready yet: load 35%")
            await _ask(seat, "hello")
            await seat.until_shows("not ready yet: load", "35% of 14.0 GiB", "ctrl+c gives up")
            node.accept_chats()
            node.chat("Here I am.")
            node.rows("placements", {key: den_instance(1, "ready")})
            await seat.until_shows("Here I am.")

    asyncio.run(story())


def test_a_long_paste_is_shown_by_its_length_and_sent_whole_and_only_by_enter(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        from textual.events import Paste

        pasted = "\n".join(f"line {number}" for number in range(214))
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            await seat.type("see ")
            seat.app.screen.focused.post_message(Paste(pasted + "\x1b[2J"))  # type: ignore[union-attr]
            await seat.until_shows("see [pasted 214 lines]")
            assert _asked(node) == []
            await seat.press("ctrl+j")
            await seat.type("short")
            await seat.until_shows("   short")
            await seat.press("enter")
            await seat.until_shows("It works.")
            (body,) = _asked(node)
            messages = body["messages"]
            assert messages == [{"role": "user", "content": f"see {pasted}[2J\nshort"}]

    asyncio.run(story())


HOSTILE = (
    "\x1b[31mred\x1b[0m \x1b]52;c;aGk=\x07 [bold]x[/] \u202egnp.exe 漢字漢字 مرحبا \x9b2J\u0007 end"
)


def test_hostile_text_is_shown_literally_and_moves_nothing(
    node: ScriptedSession, tmp_path: Path
) -> None:
    """[16]"""

    async def story() -> None:
        node.chat(
            HOSTILE, "\n\n", "| " + HOSTILE + " | b |\n|---|---|\n| 漢 | " + "w" * 300 + " |\n"
        )
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            await _ask(seat, "x")
            await seat.until_shows("[31mred[0m ]52;c;aGk= [bold]x[/] gnp.exe", "2J end")
            text = "\n".join(await seat.settled())
            assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
            await seat.press("f2", "y", "t")
            await seat.until_shows("wrote 474 bytes")

    asyncio.run(story())


def test_reasoning_and_tools_fold_to_a_line(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        call = {"index": 0, "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
        node.chat_events(
            {"choices": [{"delta": {"reasoning_content": "hm, let me think about it"}}]},
            {"choices": [{"delta": {"tool_calls": [call]}}]},
            {"choices": [{"delta": {"content": "It rains."}}]},
        )
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            await _ask(seat, "weather")
            await seat.until_shows("reasoning 6 words", "calls weather", "It rains.")
            assert "let me think" not in seat.text
            await seat.press("f2", "o")
            await seat.until_shows("hm, let me think about it", '{"city": "Oslo"}')
            await seat.press("o")
            await seat.until(lambda: "Oslo" not in seat.text)

    asyncio.run(story())


def test_an_upward_move_stops_following_and_the_end_resumes_it(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        node.chat(*[f"row {number}\n\n" for number in range(80)], hold_after=40)
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            await _ask(seat, "count")
            await seat.until_shows("row 38")
            await seat.press("pageup")
            await seat.until(lambda: "row 38" not in seat.text)
            before = seat.frame[3:17]
            node.let_chats_go()
            await seat.until_shows("new lines: G follows again")
            assert seat.frame[3:17] == before
            await seat.press("f2", "G")
            await seat.until_shows("row 79")
            await seat.press("k", "j")
            await seat.until(lambda: "G follows again" not in seat.text)

    asyncio.run(story())


def test_drafts_and_conversations_survive_a_restart(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        node.chat("Forty-two.")
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            await _ask(seat, "what is it")
            await seat.until_shows("Forty-two.")
            await seat.type("and why")
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("via den-01", "LIVE")
            await seat.press("3")
            await seat.until_shows("what is it", "Forty-two.", "> and why")
            await seat.press("enter")
            await seat.until(lambda: len(_asked(node)) == 2)
            messages = _asked(node)[1]["messages"]
            assert [one["content"] for one in messages] == [  # type: ignore[index,attr-defined]
                "what is it", "Forty-two.", "and why",
            ]  # fmt: skip
        files = [path for path in (tmp_path / "chats").iterdir() if path.is_file()]
        assert files
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in files)

    asyncio.run(story())


def test_two_programs_on_one_directory_do_not_write_over_each_other(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as first, a_seat(node.url, tmp_path) as second:
            for text in ("Forty-two.", "Because.", "In the copy.", "In the first."):
                node.chat(text)
            await _go(first)
            await _ask(first, "what is it")
            await first.until_shows("Forty-two.")
            # The latest conversation is open elsewhere: another one is begun here.
            await _go(second)
            assert "Forty-two" not in second.text
            await _ask(second, "something else")
            await second.until_shows("Because.")
            # Opened on purpose it is a copy, which goes on by itself.
            await second.press("f2", "colon")
            await second.type("open what is it")
            await second.press("enter")
            await second.until_shows("this is a copy of it", "Forty-two.")
            await second.press("i")
            await _ask(second, "and then")
            await second.until_shows("In the copy.")
            await _ask(first, "and why")
            await first.until_shows("In the first.")
        kept = [path.read_text() for path in (tmp_path / "chats").glob("*.json")]
        assert len(kept) == 3
        assert sum("Forty-two." in text for text in kept) == 2
        for answer in ("Because.", "In the copy.", "In the first."):
            assert sum(answer in text for text in kept) == 1, answer
        assert not list((tmp_path / "chats").glob(".*.open"))

    asyncio.run(story())


def test_commands_change_how_it_is_asked_and_where_it_is_kept(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def command(seat: SeatUnderTest, text: str) -> None:
        await seat.press("f2", "colon")
        await seat.type(text)
        await seat.press("enter")
        await seat.press("i")

    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            await command(seat, "system be brief")
            await command(seat, "temp 0.2")
            await command(seat, "max 50")
            await seat.until_shows("T 0.2", "max 50", "system set")
            await _ask(seat, "hi")
            await seat.until_shows("It works.")
            (body,) = _asked(node)
            assert (body["temperature"], body["max_tokens"]) == (0.2, 50)
            assert body["messages"][0] == {"role": "system", "content": "be brief"}  # type: ignore[index]
            await command(seat, "rename first steps")
            await command(seat, "export md")
            await seat.until_shows("written to")
            (exported,) = (tmp_path / "chats" / "exports").iterdir()
            assert "It works." in exported.read_text()
            await command(seat, "new")
            await seat.until(lambda: "It works." not in seat.text)
            await command(seat, "open first")
            await seat.until_shows("It works.")

    asyncio.run(story())


def test_two_models_are_asked_side_by_side_where_there_is_room(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        node.chat("from the first")
        node.chat("from the second")
        async with a_seat(node.url, tmp_path, size=(160, 50)) as seat:
            await _go(seat)
            await seat.press("f2", "colon")
            await seat.type("compare Qwen2.5-7B-Instruct-GGUF")
            await seat.press("enter")
            await seat.until_shows("attic-mini")
            await seat.press("i")
            await _ask(seat, "hello")
            await seat.until_shows("from the first", "from the second")
            assert {body["model"] for body in _asked(node)} == {LLAMA, QWEN}
            (row,) = [row for row in seat.frame if "from the first" in row]
            assert "from the second" in row

    asyncio.run(story())


def test_two_columns_are_refused_where_there_is_no_room(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            await seat.press("f2", "colon")
            await seat.type("compare Qwen2.5-7B-Instruct-GGUF")
            await seat.press("enter")
            await seat.until_shows("two columns need 120 cells")

    asyncio.run(story())


def test_without_a_ready_model_it_says_what_to_do(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        node.snapshot("placements", {})
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("via den-01", "LIVE")
            await seat.press("3")
            await seat.until_shows("no model is placed", "skulk place MODEL")
            await _ask(seat, "hello")
            await seat.until_shows("no model is chosen", "> hello")

    asyncio.run(story())


def test_the_answers_story_opens_by_its_command_id(node: ScriptedSession, tmp_path: Path) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            await _ask(seat, "hi")
            await seat.until_shows("It works.")
            await seat.press("f2", "enter")
            await seat.until_shows("Command ")
            await seat.until(lambda: node.subscribed("command"))
            await seat.press("escape")
            await seat.until_shows("It works.")

    asyncio.run(story())


def test_c_on_an_instance_talks_to_its_model_and_ctrl_o_chooses_another(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("via den-01", "LIVE", "Qwen2.5-7B")
            await seat.press("tab", "home", "down", "c")
            await seat.until_shows("[3 Chat]", "ask Qwen2.5-7B-Instruct-GGUF", "attic-mini")
            await seat.press("ctrl+o")
            await seat.until_shows("Talk to", "den-01 > den-02 > rack-a6k  3/")
            await seat.press("b")
            await seat.until_shows("ask Llama-3.3-70B-Instruct-GGUF")
            await _ask(seat, "hi")
            await seat.until_shows("It works.")
            assert [body["model"] for body in _asked(node)] == [LLAMA]

    asyncio.run(story())


def test_without_a_link_it_says_so_and_the_question_waits(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            node.close()
            await seat.until_shows("nothing can be asked now", "can be sent when the link is back")
            await seat.type("hi")
            await seat.press("enter")
            await seat.until_shows("send: not while the link is", " > hi")
            node.reopen()
            await seat.until_shows("LIVE")
            await seat.press("enter")
            await seat.until_shows("It works.")

    asyncio.run(story())


def test_a_session_that_is_refused_a_chat_shows_the_nodes_own_words(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        node.refuse_chats("request.overloaded", "12 requests wait already")
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            await _ask(seat, "hi")
            await seat.until_shows(
                "request.overloaded: 12 requests wait already", "do it otherwise"
            )
            node.accept_chats()
            await _ask(seat, "again")
            await seat.until_shows("It works.")
            assert _asked(node)[1]["messages"] == [{"role": "user", "content": "again"}]

    asyncio.run(story())


def test_a_conversation_that_cannot_be_kept_is_told_once_and_goes_on(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        (tmp_path / "chats").write_text("a file where the directory should be")
        async with a_seat(node.url, tmp_path) as seat:
            await _go(seat)
            await _ask(seat, "hi")
            await seat.until_shows("It works.", "error: /")
            await _ask(seat, "more")
            await seat.until(lambda: len(_asked(node)) == 2)

    asyncio.run(story())
