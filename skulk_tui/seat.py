"""What every part of the terminal UI is given: the view of the cluster, the link, and the run.

The seat is where the operator sits. It knows no widget: what is to be shown is told to it, and the
application shows it.
"""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from protocol.clock import Clock
from protocol.errors import SkulkError
from protocol.state import Scope
from skulk_tui.changes import Change
from skulk_tui.flash import FlashLog
from skulk_tui.glyphs import GlyphSet
from skulk_tui.registry import Registry
from skulk_tui.session_link import SessionLink
from skulk_tui.table_model import Ref
from skulk_tui.view_state import ViewState


@dataclass(slots=True, kw_only=True)
class Seat:
    """One run of the terminal UI."""

    view: ViewState
    link: SessionLink
    clock: Clock
    random: random.Random
    glyphs: GlyphSet
    registry: Registry
    confirm: Callable[[Change], None]
    """Shows a change's dialog, and sends it if the operator says so. Set by the application."""
    open_ref: Callable[[Ref], Awaitable[None]]
    """Opens an object's detail. Set by the application."""
    show_changed: Callable[[], None]
    """Has the rows on top and below drawn again. Set by the application."""
    flash: FlashLog = field(default_factory=FlashLog)
    profile: str = ""
    is_protected: bool = False
    is_readonly: bool = False
    paused_since: float | None = None
    undo: Change | None = None
    utc_offset_s: int = 0
    """Of local times shown; `T` switches to 0."""

    @property
    def scope(self) -> Scope | None:
        """What the key allows; everything before a node has said."""
        return "admin" if self.view.hello is None else self.view.hello.scope

    @property
    def may_change(self) -> bool:
        """Whether changes are offered at all."""
        return not self.is_readonly and self.scope in {"operate", "admin"}

    def now(self) -> float:
        """Give monotonic seconds."""
        return self.clock.monotonic_s()

    def tell(self, text: str, *, level: str = "info") -> None:
        """Tell the operator something in the flash row."""
        self.flash.tell(text, at_ms=self.clock.wall_ms(), level=level)
        self.show_changed()

    def tell_error(self, error: SkulkError) -> None:
        """Tell what went wrong, and what helps."""
        self.flash.tell_error(error, at_ms=self.clock.wall_ms())
        self.show_changed()
