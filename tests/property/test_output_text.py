"""Stop strings and UTF-8: how text is cut into tokens changes nothing."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engines.output.stop_filter import StopFilter
from engines.output.utf8 import Utf8Assembler

LETTERS = st.text(alphabet="ab\N{EURO SIGN}", max_size=24)
STOPS = st.lists(st.text(alphabet="ab\N{EURO SIGN}", min_size=1, max_size=5), max_size=4)


def cut(text: str | bytes, places: list[int]) -> list[str | bytes]:
    borders = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(borders)]


def filtered(pieces: list[str], stop: tuple[str, ...]) -> tuple[str, str | None, list[str]]:
    stop_filter = StopFilter(stop)
    shown = [stop_filter.feed(piece) for piece in pieces]
    shown.append(stop_filter.flush())
    return "".join(shown), stop_filter.stopped_by, shown


def up_to_the_first_stop(text: str, stop: tuple[str, ...]) -> tuple[str, str | None]:
    for end in range(len(text) + 1):
        ended = [one for one in stop if text[:end].endswith(one)]
        if ended:
            longest = max(ended, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(LETTERS, STOPS, st.lists(st.integers(0, 99), max_size=8))
def test_nothing_is_lost_and_nothing_leaks_wherever_the_text_is_cut(
    text: str, stops: list[str], places: list[int]
) -> None:
    stop = tuple(stops)
    pieces = [str(piece) for piece in cut(text, places)]
    shown, stopped_by, _ = filtered(pieces, stop)
    assert (shown, stopped_by) == up_to_the_first_stop(text, stop)


@given(LETTERS, STOPS)
def test_every_single_split_point_gives_the_same(text: str, stops: list[str]) -> None:
    stop = tuple(stops)
    whole = filtered([text], stop)[:2]
    for at in range(len(text) + 1):
        assert filtered([text[:at], text[at:]], stop)[:2] == whole


@given(LETTERS, STOPS, st.lists(st.integers(0, 99), max_size=8))
def test_no_more_is_held_back_than_could_become_a_stop_string(
    text: str, stops: list[str], places: list[int]
) -> None:
    stop_filter = StopFilter(tuple(stops))
    seen, shown = "", ""
    for piece in cut(text, places):
        seen += str(piece)
        shown += stop_filter.feed(str(piece))
        if stop_filter.has_stopped:
            break
        held = seen[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops)


@given(st.text(max_size=24), st.lists(st.integers(0, 999), max_size=12))
def test_characters_survive_any_cut_of_their_bytes(text: str, places: list[int]) -> None:
    text = text.encode("utf-8", "ignore").decode()
    assembler = Utf8Assembler()
    pieces = [assembler.feed(bytes(piece)) for piece in _cut_bytes(text.encode(), places)]
    assert "".join(pieces) + assembler.flush() == text


@given(st.text(max_size=12), st.integers(0, 99))
def test_an_incomplete_end_is_dropped_and_never_replaced(text: str, at: int) -> None:
    encoded = text.encode("utf-8", "ignore")
    beginning = encoded[: at % (len(encoded) + 1)]
    assembler = Utf8Assembler()
    shown = "".join(assembler.feed(beginning[i : i + 1]) for i in range(len(beginning)))
    assert shown + assembler.flush() == beginning.decode("utf-8", "ignore")


def _cut_bytes(encoded: bytes, places: list[int]) -> list[bytes]:
    return [bytes(piece) for piece in cut(encoded, places) if isinstance(piece, bytes)]
