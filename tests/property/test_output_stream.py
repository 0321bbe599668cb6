"""An engine's stream: the cheap path, the typed path and every cut of the bytes agree."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engines.output.openai_stream import StreamDecoder
from engines.output.sse import SseReader
from protocol.data_frames import Chunk, Finished, Frame, Started, Usage

TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20) | (
    st.sampled_from(['"}}],"created":', "\\", '"', "\\u0041", "\n", '{"choices":[{"'])
)
USAGE = {"prompt_tokens": 5, "completion_tokens": 3}


def frame(delta: dict[str, str | None], reason: str | None = None, *, reorder: bool = False) -> str:
    choice = {"finish_reason": reason, "index": 0, "delta": delta}
    body: dict[str, object] = {"choices": [choice], "created": 1, "id": "x"}
    if reorder:  # llama-server's own order is the cheap path's; any other takes the typed one
        body = dict(reversed(body.items()))
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def stream(texts: list[tuple[str, bool]], *, reorder: bool) -> bytes:
    payloads = [frame({"role": "assistant", "content": None})]
    payloads += [
        frame({"reasoning_content" if is_reasoning else "content": text}, reorder=reorder)
        for text, is_reasoning in texts
    ]
    payloads.append(frame({}, "stop"))
    payloads.append(json.dumps({"choices": [], "usage": USAGE}))
    payloads.append("[DONE]")
    return "".join(f"data: {payload}\n\n" for payload in payloads).encode()


def decoded(pieces: list[bytes]) -> list[Frame]:
    decoder = StreamDecoder()
    frames = [frame for piece in pieces if piece for frame in decoder.feed(piece)]
    return frames + decoder.feed(b"")


@given(st.lists(st.tuples(TEXT, st.booleans()), max_size=6))
def test_both_paths_give_the_text_as_it_was_said(texts: list[tuple[str, bool]]) -> None:
    expected: list[Frame] = [
        Started(None),
        *(Chunk("", text) if is_reasoning else Chunk(text) for text, is_reasoning in texts),
        Finished("stop", Usage(5, 3)),
    ]
    whole = stream(texts, reorder=False)
    assert decoded([whole]) == expected
    assert decoded([event + b"\n\n" for event in whole.split(b"\n\n")[:-1]]) == expected
    assert decoded([stream(texts, reorder=True)]) == expected


@given(
    st.lists(st.tuples(TEXT, st.booleans()), max_size=4),
    st.lists(st.integers(0, 9999), max_size=12),
)
def test_it_does_not_matter_where_the_bytes_are_cut(
    texts: list[tuple[str, bool]], places: list[int]
) -> None:
    whole = stream(texts, reorder=False)
    borders = [0, *sorted(place % (len(whole) + 1) for place in places), len(whole)]
    pieces = [whole[a:b] for a, b in pairwise(borders)]
    assert decoded(pieces) == decoded([whole])


@given(st.binary(max_size=200), st.lists(st.binary(max_size=50), max_size=5))
def test_whatever_an_engine_sends_ends_in_exactly_one_terminal(
    noise: bytes, more: list[bytes]
) -> None:
    frames = decoded([stream([], reorder=False)[:40], noise, b"\ndata: ", *more, b"\n"])
    terminals = [frame for frame in frames if not isinstance(frame, Started | Chunk)]
    assert len(terminals) == 1
    assert frames[-1] is terminals[0]


@given(st.binary(max_size=100), st.integers(1, 99))
def test_events_are_the_same_at_every_split(stream_bytes: bytes, at: int) -> None:
    whole, halves = SseReader(), SseReader()
    at = min(at, len(stream_bytes))
    stream_bytes = b"data: " + stream_bytes + b"\n"
    assert whole.feed(stream_bytes) == halves.feed(stream_bytes[:at]) + halves.feed(
        stream_bytes[at:]
    )
