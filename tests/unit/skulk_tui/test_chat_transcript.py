"""A conversation as rows: what stands above never moves, and costs nothing again."""

import time

from skulk_tui.chat_answer import Answer
from skulk_tui.chat_conversation import Conversation
from skulk_tui.chat_transcript import AnswerBody, Look, Transcript
from skulk_tui.glyphs import ASCII
from skulk_tui.lines import text_of
from tests.support.session_answers import chunk, last_chunks

TEXT = """# Head

Some *words* in a paragraph that has to be broken somewhere, as it is too long.

- one
- two

```python
def f():
    return 1
```

| a | b |
|---|---|
| 1 | 2 |

The end.
"""


def rows_of(body: AnswerBody) -> list[str]:
    return [text_of(row).rstrip() for row in body.rows(0, len(body))]


def a_conversation() -> tuple[Conversation, Answer]:
    conversation = Conversation(id="x", created_ms=0, changed_ms=0, model_id="my/model")
    return conversation, conversation.ask("why?", at_ms=0, now=0.0)


def test_it_ends_the_same_in_whatever_pieces_it_came() -> None:
    whole = AnswerBody(ASCII, 40)
    whole.update(TEXT, is_over=True)
    for step in (1, 3, 17):
        body = AnswerBody(ASCII, 40)
        for end in range(step, len(TEXT) + step, step):
            body.update(TEXT[:end], is_over=False)
        body.update(TEXT, is_over=True)
        assert rows_of(body) == rows_of(whole)


def test_rows_of_closed_blocks_never_change() -> None:
    body = AnswerBody(ASCII, 40)
    closed: list[str] = []
    for end in range(1, len(TEXT) + 1):
        body.update(TEXT[:end], is_over=False)
        rows = rows_of(body)
        assert rows[: len(closed)] == closed
        closed = [text_of(row).rstrip() for row in body.rows(0, body.n_closed)]


def test_what_is_open_is_plain_text_and_is_drawn_once_it_closes() -> None:
    body = AnswerBody(ASCII, 40)
    body.update("some **bold", is_over=False)
    assert rows_of(body) == ["some **bold"]
    body.update("some **bold** text\n\n", is_over=False)
    assert rows_of(body) == ["some bold text"]


def test_links_by_reference_are_right_at_the_end() -> None:
    body = AnswerBody(ASCII, 60)
    text = "see [it][r]\n\nand more\n\n[r]: http://x\n"
    body.update(text, is_over=False)
    assert rows_of(body)[0] == "see [it][r]"
    body.update(text, is_over=True)
    assert rows_of(body) == ["see it (http://x)", "", "and more"]


def test_a_fence_ten_times_as_long_costs_no_more_a_line() -> None:
    def cost(n_lines: int) -> float:
        body, text = AnswerBody(ASCII, 80), "```\n"
        body.update(text, is_over=False)
        started = time.process_time()
        for number in range(n_lines):
            text += f"    value_{number} = compute(rank, chunks[{number}], world)\n"
            body.update(text, is_over=False)
            body.rows(max(0, len(body) - 20), len(body))
        return (time.process_time() - started) / n_lines

    cost(50)
    short, long = min(cost(200) for _ in range(3)), min(cost(2000) for _ in range(3))
    assert long < 4 * short


def test_windows_of_a_transcript_are_pieces_of_the_whole() -> None:
    conversation, answer = a_conversation()
    answer.take(chunk(TEXT), 1.0)
    for event in last_chunks(1):
        answer.take(event, 2.0)
    answer.finish()
    conversation.ask("and then?", at_ms=0, now=3.0).take(chunk("half of *it"), 4.0)
    transcript = Transcript(ASCII)
    transcript.update(conversation, 60)
    look = Look(width=60, now=5.0)
    whole = list(transcript.rows(0, len(transcript), look))
    assert len(whole) == len(transcript)
    for start in range(0, len(whole), 3):
        for height in (1, 2, 5):
            assert (
                list(transcript.rows(start, start + height, look)) == whole[start : start + height]
            )
    heads = [text_of(whole[row]) for row, _ in transcript.tops()]
    assert [head.split()[0] for head in heads] == ["model", "model"]


def test_a_restored_conversation_of_any_size_is_laid_out_in_bounded_time() -> None:
    conversation = Conversation(id="x", created_ms=0, changed_ms=0, model_id="m")
    for _ in range(100):
        answer = conversation.ask("q", at_ms=0, now=0.0)
        answer.take(chunk(TEXT * 30), 1.0)
        answer.stop(1.0)
    transcript = Transcript(ASCII)
    started = time.process_time()
    transcript.update(conversation, 80)
    assert time.process_time() - started < 3.0
    look = Look(width=80, now=0.0)
    assert "stopped" in text_of(transcript.rows(len(transcript) - 1, len(transcript), look)[0])
