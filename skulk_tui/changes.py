"""A change on its way: what it would do, the `skulk` line of it, and how it is sent.

Plan, confirm, apply what was planned: a dialog shows this value, and only what it holds is sent.
It names objects by identity, so that nothing that moves on the screen meanwhile can change whom it
hits.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from skulk_tui.lines import Line


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A way to go on, chosen by its letter."""

    key: str
    title: str
    is_default_danger: bool = False
    """Drawn as what destroys something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What came of a change."""

    message: str
    """What to tell: accepted or done, in words."""
    command_id: str = ""
    undo: "Change | None" = None
    """What would take it back, where something can; `u` offers it."""


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change.

    Invariant: `send` raises SkulkError and nothing else; what it sends was fixed when this was
    made.
    """

    title: str
    effect: tuple[Line, ...]
    """What it does and does not do, with the numbers."""
    cli: str
    """The same as a command."""
    options: tuple[Option, ...]
    send: Callable[[str], Awaitable[Sent]]
    """Takes the chosen option's key."""
    typed_word: str = ""
    """To be typed before anything happens: for what cannot be taken back."""
    cluster_word: str = ""
    """To be typed too: the name of a cluster that is protected."""
    is_at_once: bool = False
    """Cheap, and what takes it back is as cheap: sent without a question, and undone for 8 s."""
    is_still_so: Callable[[], bool] = _always
    """Whether what `effect` says of the object still holds; where not, it is made anew."""
