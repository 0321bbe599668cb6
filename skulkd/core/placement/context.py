"""The window that an instance is placed with: as large as asked, else as large as sensible.

An asked window is taken exactly or refused. Without one, the window is the smallest of what the
model was trained for, what its card allows, what is usually served, and what fits with a tenth of
the free memory left over; the last is taken from a ladder of sizes, so that readings that move a
little do not move the plan.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from protocol.cards import ModelCard

DEFAULT_SERVED_TOKENS: Final = 32_768
"""What is served when nobody asks for more; the original's `served_context_tokens`."""
UNKNOWN_LENGTH_TOKENS: Final = 8_192
"""Assumed maximum of a model whose card names none."""
MIN_TOKENS: Final = 512
"""Below this a window serves nobody; the model is refused instead."""
STEP_TOKENS: Final = 256
"""Refusals name a window rounded down to this."""
SPARE_RATIO_PERCENT: Final = 90
"""An unasked window may fill so much of what is free."""
LADDER: Final[tuple[int, ...]] = (
    512, 1024, 2048, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768,
)  # fmt: skip
"""Windows that memory may limit an unasked one to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextCap:
    """The largest window to consider when nobody asked, and why not more, in words."""

    tokens: int
    limited_by: str
    """Empty when the model itself is the limit."""


def model_maximum(card: ModelCard) -> int:
    """The longest window that the card allows."""
    trained = card.context_length or UNKNOWN_LENGTH_TOKENS
    allowed = card.placement.max_context_tokens
    return trained if allowed is None else min(trained, allowed)


def default_cap(card: ModelCard) -> ContextCap:
    """Choose the largest window to consider when nobody asked for one."""
    maximum = model_maximum(card)
    if maximum > DEFAULT_SERVED_TOKENS:
        return ContextCap(
            tokens=DEFAULT_SERVED_TOKENS,
            limited_by=f"the default served context of {DEFAULT_SERVED_TOKENS} tokens "
            f"(the model takes {maximum}; ask with --context)",
        )
    if card.context_length == 0 and card.placement.max_context_tokens is None:
        return ContextCap(
            tokens=maximum,
            limited_by=f"the card names no context length, {UNKNOWN_LENGTH_TOKENS} is assumed",
        )
    if card.context_length > maximum:
        return ContextCap(
            tokens=maximum,
            limited_by=f"the card's max_context_tokens of {maximum} "
            f"(the model takes {card.context_length})",
        )
    return ContextCap(tokens=maximum, limited_by="")


def fitting_window(cap_tokens: int, fits: Callable[[int], bool]) -> int | None:
    """Choose the window when nobody asked: the cap, or the next step of the ladder that fits.

    Args:
        cap_tokens: The largest to consider.
        fits: Whether the model fits with so many tokens, with the spare tenth left over.

    Returns:
        None when not even the smallest window fits.
    """
    if fits(cap_tokens):
        return cap_tokens
    return next((step for step in reversed(LADDER) if step <= cap_tokens and fits(step)), None)


def windows_to_try(card: ModelCard, asked: int | None) -> list[tuple[int, int]]:
    """List windows, widest first, each with the part of free memory that it may fill, in percent.

    A window that fits leaves all later ones fitting.
    """
    if asked is not None:
        return [(asked, 100)]
    cap = default_cap(card).tokens
    spared = [cap, *(step for step in reversed(LADDER) if step < cap)]
    return [*((step, SPARE_RATIO_PERCENT) for step in spared), (min(MIN_TOKENS, cap), 100)]


def widest_fitting(
    windows: list[tuple[int, int]], fits: Callable[[int, int], bool]
) -> tuple[int, int]:
    """Give the first window of `windows_to_try` that fits; the last of them when none does."""
    place = bisect_left(windows, 1, hi=len(windows) - 1, key=lambda window: int(fits(*window)))
    return windows[place]


def fitting_below(asked: int, fits: Callable[[int], bool]) -> int | None:
    """Give the widest window below an asked one that fits, as refusals name it; None if none."""
    steps = range(1, asked // STEP_TOKENS + 1)
    n_fitting = bisect_left(steps, 1, key=lambda n: int(not fits(n * STEP_TOKENS)))
    return n_fitting * STEP_TOKENS or None


def limited_by(card: ModelCard, chosen: int, asked: int | None, node_name: str) -> str:
    """Say what kept a window below what the model offers; empty when nothing did."""
    cap = default_cap(card)
    if asked is not None:
        return "" if chosen >= model_maximum(card) else "the request"
    if chosen >= cap.tokens:
        return cap.limited_by
    return f"the free memory of {node_name}"


def rounded_down(tokens: int) -> int:
    """Round a window down to what a refusal may name."""
    return tokens // STEP_TOKENS * STEP_TOKENS
