import pytest
from hypothesis import given
from hypothesis import strategies as st

from skulk_tui.terminal_input import (
    ANSWER_PAUSE_S,
    MAX_PASTE_BYTES,
    PASTE_PAUSE_S,
    Item,
    LoneEscape,
    Pasted,
    TerminalInput,
)

ESCAPE_DELAY_S = 0.025


def fed(*pieces: bytes) -> list[Item]:
    """Feed pieces a millisecond apart, and put neighbouring strings together."""
    machine = TerminalInput(escape_delay_s=ESCAPE_DELAY_S)
    items: list[Item] = []
    for number, piece in enumerate(pieces):
        items += machine.feed(piece, now=number / 1000)
    return merged(items)


def merged(items: list[Item]) -> list[Item]:
    result: list[Item] = []
    for item in items:
        if isinstance(item, str) and result and isinstance(result[-1], str):
            result[-1] += item
        else:
            result.append(item)
    return result


@pytest.mark.parametrize(
    "data",
    [
        b"q",
        b"\x1b[A",
        b"\x1b[1;5C",
        b"\x1bOP",
        b"\x1b[<0;120;7M",
        b"\x1b[?2026;2$y",
        b"\x1b[48;24;80;480;800t",
        b"\x1b[97;5u",
        b"\x1b[I",
        "ä€節".encode(),
        b"\x03\r\t\x7f\x00",
    ],
)
def test_what_the_parser_reads_passes_unchanged(data: bytes) -> None:
    assert fed(data) == [data.decode()]
    assert fed(*(bytes([byte]) for byte in data)) == [data.decode()]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x1b[M !!", "\x1b[<0;1;1M"),
        (b"\x1b[M \x80\xff", "\x1b[<0;96;223M"),
        (b"\x1b[M`!!", "\x1b[<64;1;1M"),
        (b'\x1b[M"!!\x1b[M#!!', "\x1b[<2;1;1M\x1b[<2;1;1m"),
    ],
)
def test_old_mouse_bytes_are_said_in_the_new_form(data: bytes, said: str) -> None:
    assert fed(data) == [said]
    assert fed(*(bytes([byte]) for byte in data), b"k") == [said + "k"]


def test_old_mouse_bytes_that_make_no_sense_are_dropped() -> None:
    assert fed(b"\x1b[M\x00\x00\x00k") == ["k"]


@pytest.mark.parametrize("data", [b"\xff\xfek", b"\xc3(k", b"\x80\x80\x80k", b"\xed\xa0\x80k"])
def test_broken_utf8_is_no_key(data: bytes) -> None:
    assert fed(data) in (["k"], ["(k"])


@pytest.mark.parametrize(
    "answer",
    [
        b"\x1b]11;rgb:0000/0000/0000\x1b\\",
        b"\x1b]11;rgb:0000/0000/0000\x07",
        b"\x1b]52;c;" + b"A" * 3000 + b"\x07",
        b"\x1b[?64;1;2;6c",
        b"\x1b[>41;330;0c",
        b"\x1b[?1u",
    ],
)
def test_an_answer_nobody_waits_for_is_no_key(answer: bytes) -> None:
    assert fed(b"j" + answer + b"k") == ["jk"]
    assert fed(b"j", *(bytes([byte]) for byte in answer), b"k") == ["jk"]


def test_half_an_answer_is_dropped_when_its_rest_does_not_come() -> None:
    for half in (b"\x1b]11;rgb:00", b"\x1b[?64;1", b"\x1b[M !"):
        machine = TerminalInput(escape_delay_s=ESCAPE_DELAY_S)
        assert machine.feed(half, now=1.0) == []
        assert machine.deadline == pytest.approx(1.0 + ANSWER_PAUSE_S)
        assert machine.tick(now=1.1) == []
        assert machine.tick(now=2.0) == []
        assert machine.feed(b"q", now=2.1) == ["q"]


def test_a_lone_escape_is_told_after_its_delay() -> None:
    machine = TerminalInput(escape_delay_s=ESCAPE_DELAY_S)
    assert machine.feed(b"\x1b", now=1.0) == []
    assert machine.deadline == pytest.approx(1.0 + ESCAPE_DELAY_S)
    assert machine.tick(now=1.01) == []
    assert machine.tick(now=1.03) == [LoneEscape()]
    assert machine.deadline is None


@pytest.mark.parametrize("key", ["4", "j", ":", "/", "G", "q"])
@pytest.mark.parametrize("is_one_lump", [True, False])
def test_a_key_typed_soon_after_escape_is_that_key(key: str, *, is_one_lump: bool) -> None:
    """Over a slow line both come at once, and would be the letter ¢."""
    pieces = [f"\x1b{key}".encode()] if is_one_lump else [b"\x1b", key.encode()]
    assert fed(*pieces) == [LoneEscape(), key]


def test_two_escapes_are_two_keys() -> None:
    machine = TerminalInput(escape_delay_s=ESCAPE_DELAY_S)
    assert machine.feed(b"\x1b\x1b", now=1.0) == [LoneEscape()]
    assert machine.tick(now=2.0) == [LoneEscape()]


@pytest.mark.parametrize("data", [b"\x1b[", b"\x1b]", b"\x1bO"])
def test_alt_and_a_bracket_are_a_key(data: bytes) -> None:
    machine = TerminalInput(escape_delay_s=ESCAPE_DELAY_S)
    machine.feed(data, now=1.0)
    assert machine.tick(now=2.0) == [data.decode()]


def test_an_endless_sequence_does_not_hold_the_keys_up() -> None:
    assert fed(b"\x1b[" + b"1;" * 5000 + b"q", b"k") == ["k"]
    machine = TerminalInput(escape_delay_s=ESCAPE_DELAY_S)
    for _ in range(100):
        machine.feed(b"\x1b]11;" + b"x" * 1000, now=1.0)
    machine.tick(now=9.0)
    assert machine.feed(b"q", now=9.1) == ["q"]


def test_a_paste_is_one_thing_whatever_is_in_it() -> None:
    text = b"q\r\nrm -rf\x1b[A\x00\x07 \xff\ttab\rend"
    whole = b"j\x1b[200~" + text + b"\x1b[201~k"
    expected = ["j", Pasted("q\nrm -rf[A \ufffd\ttab\nend"), "k"]
    assert fed(whole) == expected
    assert fed(*(bytes([byte]) for byte in whole)) == expected


def test_a_megabyte_is_pasted_whole() -> None:
    data = b"\x1b[200~" + b"a" * 1_000_000 + b"\x1b[201~"
    pieces = [data[at : at + 4095] for at in range(0, len(data), 4095)]
    assert fed(*pieces) == [Pasted("a" * 1_000_000)]


def test_a_paste_is_bounded() -> None:
    items = fed(b"\x1b[200~", b"a" * (MAX_PASTE_BYTES + 5), b"b" * 100_000, b"\x1b[201~k")
    assert items == [Pasted("a" * MAX_PASTE_BYTES), "k"]


def test_a_paste_that_never_ends_gives_the_keys_back() -> None:
    machine = TerminalInput(escape_delay_s=ESCAPE_DELAY_S)
    assert machine.feed(b"\x1b[200~half", now=1.0) == []
    assert machine.tick(now=1.0 + PASTE_PAUSE_S) == [Pasted("half")]
    assert machine.feed(b"q", now=9.0) == ["q"]


def test_what_comes_faster_than_anybody_types_is_pasted() -> None:
    machine = TerminalInput(escape_delay_s=ESCAPE_DELAY_S)
    line = b"stop everything now, then quit; a line nobody typed, for sure\r\n"
    assert machine.feed(line * 2, now=1.0) == [Pasted(line.decode().replace("\r", "") * 2)]
    assert machine.feed(b"q", now=1.01) == [Pasted("q")]  # its rest
    assert machine.feed(b"q", now=1.2) == ["q"]


def test_a_key_held_down_on_a_slow_line_is_a_key() -> None:
    assert fed(b"j" * 500) == ["j" * 500]


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_no_bytes_end_it_and_keys_work_afterwards(pieces: list[bytes]) -> None:
    machine = TerminalInput(escape_delay_s=ESCAPE_DELAY_S)
    now = 1.0
    for piece in pieces:
        machine.feed(piece, now=now)
        now += 0.001
    for _ in range(3):
        now += 10.0
        machine.tick(now=now)
    assert machine.deadline is None
    assert "q" in machine.feed(b"q", now=now + 10.0)[-1:]


SEQUENCES = st.sampled_from(
    [b"\x1b[A", b"k", b"\x1b[M \xff\xff", b"\x1b[200~x\x1b[201~", b"\x1b]11;?\x07", b"\xc3\xa9"]
)


@given(st.lists(SEQUENCES, max_size=8), st.lists(st.integers(1, 7), min_size=1, max_size=8))
def test_it_does_not_matter_how_the_bytes_are_cut(things: list[bytes], sizes: list[int]) -> None:
    data = b"".join(things)
    pieces: list[bytes] = []
    at = 0
    while at < len(data):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(data[at : at + size])
        at += size
    assert fed(*pieces) == fed(data)
