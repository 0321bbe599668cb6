import pytest
from hypothesis import given
from hypothesis import strategies as st

from skulk_tui.formatting import (
    UNKNOWN,
    format_age,
    format_bits_rate,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
    format_tokens_per_s,
    joined,
    one_line,
    rfc3339,
    shorten,
    strip_controls,
)


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (10 * 1024, "10.0 KiB"),
        (100 * 1024, "100 KiB"),
        ((1 << 20) - 1, "1.00 MiB"),
        (1 << 30, "1.00 GiB"),
        (-3 * (1 << 30), "-3.00 GiB"),
        (1 << 62, "4096 PiB"),
        (None, UNKNOWN),
    ],
)
def test_sizes_are_written_in_binary_units_with_three_digits(
    n_bytes: int | None, text: str
) -> None:
    assert format_bytes(n_bytes) == text


@given(st.integers(min_value=0, max_value=1 << 59))
def test_a_size_below_the_last_unit_never_has_more_than_four_digits(n_bytes: int) -> None:
    number = format_bytes(n_bytes).split()[0]
    assert len(number.replace(".", "")) <= 4
    assert float(number) <= 1023


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.85, "850 ms"),
        (0.9996, "1.0 s"),
        (4.24, "4.2 s"),
        (9.96, "10 s"),
        (59.6, "1 m 00 s"),
        (65, "1 m 05 s"),
        (7800, "2 h 10 m"),
        (3 * 86400 + 4 * 3600, "3 d 4 h"),
        (None, UNKNOWN),
    ],
)
def test_durations_have_at_most_two_units(seconds: float | None, text: str) -> None:
    assert format_duration(seconds) == text


def test_a_percentage_is_rounded_down_so_that_a_hundred_means_all() -> None:
    assert format_percent(999, 1000) == "99 %"
    assert format_percent(1000, 1000) == "100 %"
    assert format_percent(1001, 1000) == "100 %"
    assert format_percent(5, None) == UNKNOWN
    assert format_percent(None, 5) == UNKNOWN


def test_what_is_not_known_is_never_written_as_zero() -> None:
    unknown = [
        format_bytes(None),
        format_rate(None),
        format_count(None),
        format_tokens_per_s(5, None),
        format_age(None, now_ms=5),
        joined([]),
    ]
    assert unknown == [UNKNOWN] * 6


def test_rates_and_counts_and_ages() -> None:
    assert format_rate(12.5 * (1 << 20)) == "12.5 MiB/s"
    assert format_count(32768) == "32,768"
    assert format_tokens_per_s(86, 2.0) == "43.0 tok/s"
    assert format_age(1_000, now_ms=66_000) == "1 m 05 s"


def test_a_stamp_from_the_future_counts_as_now() -> None:
    assert format_age(9_000, now_ms=1_000) == "0 ms"


def test_times_are_written_in_utc_with_milliseconds() -> None:
    assert rfc3339(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert rfc3339(None) is None


def test_escape_sequences_and_direction_marks_are_taken_out_of_foreign_text() -> None:
    assert (
        strip_controls("a\x1b[31mred\x1b]52;c;eHh4\x07\x9b2J\r\tb\nc")
        == "a[31mred]52;c;eHh42J\tb\nc"
    )
    assert strip_controls("abc\u202egnp.exe") == "abcgnp.exe"
    assert one_line(" two\n lines\x00 ") == "two lines"


@given(st.text())
def test_stripped_text_holds_no_control_character(text: str) -> None:
    assert all(
        char in "\t\n" or char.isprintable() or ord(char) > 0x9F for char in strip_controls(text)
    )


@given(st.text(), st.integers(min_value=0, max_value=40))
def test_shortened_text_never_exceeds_its_width(text: str, width: int) -> None:
    short = shorten(text, width)
    assert len(short) <= width
    assert short == text or text.startswith(short.removesuffix("..."))


def test_what_an_interface_says_is_written_as_it_is_sold() -> None:
    assert format_bits_rate(None) == "-"
    assert format_bits_rate(100_000_000) == "100 Mbit/s"
    assert format_bits_rate(2_500_000_000) == "2.5 Gbit/s"
