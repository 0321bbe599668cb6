"""The nearest known word to a mistyped one, and the usage error that names it."""

from collections.abc import Iterable
from difflib import get_close_matches

from protocol.errors import ClientError
from skulk_tui.formatting import one_line, shorten

_SHOWN_MAX = 16


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Give the known word that resembles the given one most, if any does.

    The part after an organisation counts too: `smollm2` is near `HuggingFaceTB/SmolLM2-135M`.
    """
    by_lower = {candidate.lower(): candidate for candidate in known}
    matches = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    if matches:
        return by_lower[matches[0]]
    inside = [full for lower, full in by_lower.items() if word and word.lower() in lower]
    return inside[0] if len(inside) == 1 else None


def unknown_value(what: str, word: str, known: Iterable[str], *, see: str = "") -> ClientError:
    """Say that a value is not known, with the nearest that is, or a short list.

    Args:
        what: The kind of thing, with its article: `a model`.
        word: What was given.
        known: What would have been understood.
        see: A command that lists them.
    """
    candidates = sorted(known)
    guess = nearest(word, candidates)
    if guess is not None:
        remedy = f"Did you mean {guess!r}?"
    elif see:
        remedy = f"See `{see}`."
    elif len(candidates) > _SHOWN_MAX:
        shown = ", ".join(candidates[:_SHOWN_MAX])
        remedy = f"Known: {shown} and {len(candidates) - _SHOWN_MAX} more."
    else:
        remedy = f"Known: {', '.join(candidates)}." if candidates else ""
    return ClientError(
        "client.usage",
        f"{shorten(one_line(word), 120)!r} is not {what}",
        remediation=remedy,
    )
