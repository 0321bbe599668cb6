"""Which pieces are asked for, which are lost, and what is handed on."""

import random

import pytest

from skulkd.cluster.range_window import TAKE_BYTES, RangeWindow

CONTENT = bytes(range(250)) * 4


def window(offset: int = 0, end: int = 1000, range_bytes: int = 100) -> RangeWindow:
    return RangeWindow(offset, end, range_bytes=range_bytes, window_bytes=4 * range_bytes)


def ask_all(asked: RangeWindow) -> list[tuple[int, int]]:
    pieces: list[tuple[int, int]] = []
    while (piece := asked.to_ask()) is not None:
        asked.on_asked(piece[0])
        pieces.append(piece)
    return pieces


def piece(offset: int, n_bytes: int = 100) -> memoryview:
    return memoryview(CONTENT)[offset : offset + n_bytes]


def test_no_more_is_asked_for_than_the_window_holds() -> None:
    asked = window()
    assert ask_all(asked) == [(0, 100), (100, 100), (200, 100), (300, 100)]
    asked.on_content(0, piece(0))
    assert ask_all(asked) == []
    asked.take()
    assert ask_all(asked) == [(400, 100)]


def test_the_last_piece_ends_where_the_file_ends() -> None:
    asked = window(offset=750, end=999)
    assert ask_all(asked) == [(750, 100), (850, 100), (950, 49)]


def test_a_file_that_is_all_here_asks_for_nothing() -> None:
    asked = window(offset=1000)
    assert asked.is_done
    assert ask_all(asked) == []


def test_what_has_a_gap_before_it_is_kept_and_not_handed_on() -> None:
    asked = window()
    ask_all(asked)
    assert asked.on_content(100, piece(100)) == "taken"
    assert asked.take() == ()
    assert asked.on_content(0, piece(0)) == "taken"
    assert b"".join(asked.take()) == CONTENT[:200]


def test_what_was_asked_before_a_piece_that_came_is_lost_and_asked_again_once() -> None:
    asked = window()
    ask_all(asked)
    asked.on_content(200, piece(200))
    assert ask_all(asked) == [(0, 100), (100, 100)]
    # Asked before the questions that were repeated: tells nothing about them.
    asked.on_content(300, piece(300))
    assert ask_all(asked) == []
    asked.on_content(100, piece(100))
    assert ask_all(asked) == [(0, 100)]


def test_a_piece_that_was_thought_lost_is_taken_when_it_comes() -> None:
    asked = window()
    ask_all(asked)
    asked.on_silence()
    assert asked.on_content(0, piece(0)) == "taken"
    assert ask_all(asked)[0] == (100, 100)


def test_silence_lets_everything_be_asked_again() -> None:
    asked = window()
    first = ask_all(asked)
    asked.on_silence()
    assert ask_all(asked) == first


def test_a_piece_that_comes_twice_is_told_from_one_that_nobody_asked_for() -> None:
    asked = window()
    ask_all(asked)
    asked.on_content(0, piece(0))
    assert asked.on_content(0, piece(0)) == "duplicate"
    asked.take()
    assert asked.on_content(0, piece(0)) == "duplicate"
    assert asked.on_content(400, piece(400)) == "unasked"
    assert asked.on_content(150, piece(150)) == "unasked"


@pytest.mark.parametrize("n_bytes", [0, 99, 101])
def test_a_piece_of_another_length_is_not_what_was_asked_for(n_bytes: int) -> None:
    asked = window()
    ask_all(asked)
    assert asked.on_content(0, piece(0, n_bytes)) == "unasked"
    assert asked.take() == ()


def test_at_most_so_much_is_handed_on_at_once() -> None:
    content = memoryview(bytes(TAKE_BYTES))
    asked = RangeWindow(0, 3 * TAKE_BYTES, range_bytes=TAKE_BYTES, window_bytes=3 * TAKE_BYTES)
    ask_all(asked)
    for number in range(3):
        asked.on_content(number * TAKE_BYTES, content)
    assert [len(asked.take()) for _ in range(4)] == [1, 1, 1, 0]
    assert asked.is_done


@pytest.mark.parametrize("seed", range(50))
def test_whatever_is_lost_or_doubled_all_comes_in_order(seed: int) -> None:
    # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
    rng = random.Random(seed)
    asked = RangeWindow(13, 1000, range_bytes=rng.randint(1, 90), window_bytes=rng.randint(1, 400))
    got = b""
    n_sent = 0
    while not asked.is_done:
        wire = ask_all(asked)
        if not wire:
            asked.on_silence()
        for offset, n_bytes in wire:
            for _ in range(rng.choice([0, 1, 1, 1, 2])):
                n_sent += 1
                assert asked.on_content(offset, piece(offset, n_bytes)) != "unasked"
        got += b"".join(asked.take())
        assert n_sent < 20_000
    assert got == CONTENT[13:1000]
