"""What every part of the terminal UI is given: the view of the cluster, the link, and the run.

The seat is where the operator sits. It knows no widget: what is to be shown is told to it, and the
application shows it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from protocol.clock import Clock
from protocol.errors import SkulkError
from protocol.state import Scope
from skulk_tui.changes import Change, Option
from skulk_tui.clipboard import Clipboard
from skulk_tui.clusters import SavedClusters
from skulk_tui.flash import FlashLog
from skulk_tui.glyphs import GlyphSet
from skulk_tui.lines import Line
from skulk_tui.node_history import NodeHistory
from skulk_tui.registry import Registry
from skulk_tui.session_link import SessionLink
from skulk_tui.table_model import Ref
from skulk_tui.view_state import Changes, ViewState

UNDO_S: Final = 8.0
"""How long what was done without a question can be taken back."""


class Shell(Protocol):
    """What the application does for its parts."""

    @property
    def backlog(self) -> int:
        """Writes that the terminal has not taken yet."""
        ...

    def take(self, changes: Changes) -> None:
        """Show what the link has changed in the view, at the next frame."""
        ...

    def show_changed(self) -> None:
        """Draw the rows on top and below anew."""
        ...

    def confirm(self, change: Change) -> None:
        """Show a change's dialog, and send it if the operator says so."""
        ...

    async def open_ref(self, ref: Ref) -> None:
        """Open an object's detail."""
        ...

    async def show_text(self, title: str, lines: Sequence[Line]) -> None:
        """Show a text over everything until it is left."""
        ...

    async def edit_text(self, text: str) -> str | None:
        """Have a text edited in the operator's editor; None where that was left with an error."""
        ...

    async def probe_keys(self) -> None:
        """Show keys as they arrive, until the operator has seen enough."""
        ...

    def turn_mouse(self, *, is_on: bool) -> None:
        """Ask the terminal for the mouse, or leave it alone."""
        ...

    def picture(self) -> str:
        """Give what is on the screen, as SVG."""
        ...

    def figures(self) -> Sequence[tuple[str, str]]:
        """Give names and values of how the screen is drawn."""
        ...

    async def choose(self, title: str, options: Sequence[Option]) -> str | None:
        """Let the operator choose by letter; None where nothing was chosen."""
        ...


@dataclass(slots=True, kw_only=True)
class Seat:
    """One run of the terminal UI."""

    view: ViewState
    link: SessionLink
    clock: Clock
    glyphs: GlyphSet
    registry: Registry
    flash: FlashLog = field(default_factory=FlashLog)
    history: NodeHistory = field(default_factory=NodeHistory)
    """What nodes have told in the last minutes, where there is room to show it."""
    profile: str = ""
    is_protected: bool = False
    is_readonly: bool = False
    is_always_readonly: bool = False
    """By the command line or the settings: whatever cluster is chosen."""
    clusters: SavedClusters | None = None
    """Which other ones can be chosen; None offers none."""
    paused_since: float | None = None
    undo: Change | None = None
    undo_until: float | None = None
    """When it is no longer offered, in monotonic seconds; None keeps it until the next change."""
    utc_offset_s: int = 0
    """Of local times shown; `T` switches to 0."""
    local_offset_s: int = 0
    """Of this machine's zone."""
    started: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Title and command id of each change sent from here."""
    clipboard: Clipboard | None = None
    """None copies nowhere."""
    state_dir: Path | None = None
    """Where drafts and conversations are kept; None keeps nothing."""
    n_streaming: int = 0
    """Answers of models that are coming now."""
    stop_streams: Callable[[], int] | None = None
    """Stops them at once and gives how many those were; there once the screen Chat was shown."""
    shell: "Shell | None" = None
    """The application; there once it runs."""

    @property
    def scope(self) -> Scope | None:
        """What the key allows; everything before a node has said."""
        return "admin" if self.view.hello is None else self.view.hello.scope

    @property
    def may_change(self) -> bool:
        """Whether changes are offered at all."""
        return not self.is_readonly and self.scope in {"operate", "admin"}

    @property
    def has_undo(self) -> bool:
        """Whether the last change can still be taken back."""
        is_over = self.undo_until is not None and self.now() >= self.undo_until
        return self.undo is not None and not is_over

    def offer_undo(self, undo: Change | None) -> None:
        """Offer to take the last change back; what was done without a question, for a moment."""
        self.undo = undo
        is_brief = undo is not None and undo.is_at_once
        self.undo_until = self.now() + UNDO_S if is_brief else None

    def now(self) -> float:
        """Give monotonic seconds."""
        return self.clock.monotonic_s()

    def take(self, changes: Changes) -> None:
        """Have shown what the link has changed in the view."""
        if self.shell is not None:
            self.shell.take(changes)

    def tell(self, text: str, *, level: str = "info") -> None:
        """Tell the operator something in the flash row."""
        self.flash.tell(text, at_ms=self.clock.wall_ms(), level=level)
        self._show_changed()

    def tell_error(self, error: SkulkError) -> None:
        """Tell what went wrong, and what helps."""
        self.flash.tell_error(error, at_ms=self.clock.wall_ms())
        self._show_changed()

    def confirm(self, change: Change) -> None:
        """Have a change shown, and sent if the operator says so."""
        if self.shell is not None:
            self.shell.confirm(change)

    async def open_ref(self, ref: Ref) -> None:
        """Have an object's detail opened."""
        if self.shell is not None:
            await self.shell.open_ref(ref)

    def _show_changed(self) -> None:
        if self.shell is not None:
            self.shell.show_changed()
