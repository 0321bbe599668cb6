"""Numbers and foreign text as people read them: bytes, durations, rates, percentages, ages.

Pure: no clock, no terminal. A value that is not known is shown as `-`, never as 0.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

UNKNOWN: Final = "-"

_BINARY_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_THREE_DIGITS: Final = 100
_TWO_DIGITS: Final = 10
_UNIT_STEP: Final = 1024
# What rounds up to 1000 ms is written as a second; one decimal while it is the second digit.
_MILLISECONDS_BELOW_S: Final = 0.9995
_DECIMAL_BELOW_S: Final = 9.95
_MEGA: Final = 1_000_000
_GIGA: Final = 1_000_000_000
_ELLIPSIS: Final = "..."
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

# C0 without tab and newline, DEL and C1; the escape that begins every terminal sequence is one.
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Characters that reorder the text around them, and could show a name as another.
_BIDI: Final = re.compile(r"[\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def presence_text(liveness: str, eligibility: str) -> str:
    """Write whether a node is there, and if no models may be placed on it that too."""
    return liveness if eligibility == "eligible" else f"{liveness}, {eligibility}"


def format_bytes(n_bytes: float | None) -> str:
    """Write a size in binary units with three significant digits: `1.50 GiB`, `87.5 MiB`."""
    if n_bytes is None:
        return UNKNOWN
    sign = "-" if n_bytes < 0 else ""
    value = abs(float(n_bytes))
    unit = 0
    # 1023.5 would round to "1024 MiB", so the next unit starts at what rounds up to it.
    while value >= _UNIT_STEP - 0.5 and unit < len(_BINARY_UNITS) - 1:
        value /= _UNIT_STEP
        unit += 1
    if unit == 0:
        return f"{sign}{value:.0f} B"
    digits = 0 if round(value, 1) >= _THREE_DIGITS else 1 if round(value, 2) >= _TWO_DIGITS else 2
    return f"{sign}{value:.{digits}f} {_BINARY_UNITS[unit]}"


def format_rate(bytes_per_s: float | None) -> str:
    """Write a transfer rate: `12.3 MiB/s`."""
    return UNKNOWN if bytes_per_s is None else f"{format_bytes(bytes_per_s)}/s"


def format_bits_rate(bits_per_s: int | None) -> str:
    """Write what an interface says that it can: `1 Gbit/s`, `100 Mbit/s`."""
    if bits_per_s is None:
        return UNKNOWN
    if bits_per_s >= _GIGA:
        return f"{bits_per_s / _GIGA:g} Gbit/s"
    return f"{bits_per_s / _MEGA:g} Mbit/s"


def format_duration(seconds: float | None) -> str:
    """Write a duration in at most two units: `850 ms`, `4.2 s`, `1 m 05 s`, `2 h 10 m`, `3 d 4 h`.

    Args:
        seconds: At least 0; None is unknown.
    """
    if seconds is None:
        return UNKNOWN
    if seconds < _MILLISECONDS_BELOW_S:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _DECIMAL_BELOW_S:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour} h"
    if hours:
        return f"{hours} h {minute:02d} m"
    return f"{minutes} m {second:02d} s" if minutes else f"{second} s"


def format_percent(done: float | None, total: float | None) -> str:
    """Write how much of a total is done; rounded down, so that 100 % means all of it."""
    if done is None or not total:
        return UNKNOWN
    return f"{int(100 * min(done, total) / total)} %"


def format_rtt(milliseconds: float | None) -> str:
    """Write how long a word takes to a node and back; hundredths, because a LAN takes tenths."""
    return UNKNOWN if milliseconds is None else f"{milliseconds:.2f}"


def format_count(count: int | None) -> str:
    """Write a count with thousands separated: `32,768`."""
    return UNKNOWN if count is None else f"{count:,}"


def format_tokens_per_s(tokens: int, seconds: float | None) -> str:
    """Write a generation rate: `43.1 tok/s`; unknown without a measured time."""
    return UNKNOWN if not seconds or seconds <= 0 else f"{tokens / seconds:.1f} tok/s"


def format_throughput(tokens_per_s: float | None) -> str:
    """Write a rate that a node has told: `37.2 tok/s`, and `0 tok/s` at rest."""
    if tokens_per_s is None:
        return UNKNOWN
    return f"{tokens_per_s:.1f} tok/s" if tokens_per_s else "0 tok/s"


def format_age(then_ms: int | None, *, now_ms: int) -> str:
    """Write how long ago a wall-clock stamp was; a stamp from the future counts as now."""
    return UNKNOWN if then_ms is None else format_duration(max(0, now_ms - then_ms) / 1000)


def rfc3339(wall_ms: int | None) -> str | None:
    """Write milliseconds since 1970 as a UTC timestamp: `2026-01-02T03:04:05.678Z`."""
    if wall_ms is None:
        return None
    moment = _EPOCH + timedelta(milliseconds=wall_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{wall_ms % 1000:03d}Z"


def date_of(wall_ms: int, utc_offset_s: int = 0) -> str:
    """Write milliseconds since 1970 as people write a day and a time: `2026-01-02 03:04`."""
    moment = _EPOCH + timedelta(milliseconds=wall_ms, seconds=utc_offset_s)
    return f"{moment:%Y-%m-%d %H:%M}"


def strip_controls(text: str) -> str:
    """Take away what a terminal would act on or be misled by; newline and tab stay.

    Text from models, peers and logs can carry escape sequences that move the cursor, change the
    clipboard or redraw what an operator is about to confirm.
    """
    return _BIDI.sub("", _CONTROLS.sub("", text))


def one_line(text: str) -> str:
    """Make foreign text safe for one line: controls away, runs of white space to one space."""
    return " ".join(strip_controls(text).split())


def joined(items: Iterable[str]) -> str:
    """List short names in one cell."""
    return ", ".join(items) or UNKNOWN


def shorten(text: str, width: int) -> str:
    """Cut text to a width in characters, saying so with an ellipsis."""
    if len(text) <= width:
        return text
    if width <= len(_ELLIPSIS):
        return text[: max(0, width)]
    return text[: width - len(_ELLIPSIS)] + _ELLIPSIS
