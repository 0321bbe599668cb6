"""A pane of log lines or events: follows the newest, unless the operator looks further up."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

from protocol.errors import SkulkError
from skulk_tui.lines import EMPTY, Line, Span, Tone, line, span, toned
from skulk_tui.view_state import LineBuffer, LineItem
from skulk_tui.widgets.pane import Pane

Format = Callable[[Mapping[str, Any]], Line]
_LEVELS: Final[Mapping[str, Tone]] = {
    "debug": "dim",
    "info": "plain",
    "warning": "warn",
    "error": "bad",
    "critical": "bad",
}


def log_line(item: Mapping[str, Any]) -> Line:
    """Write a `LogLineView`: time of day, level where it is not info, and the message."""
    at = str(item.get("at") or "")
    clock = at[11:19] if len(at) > 19 else at  # ruff: ignore[magic-value-comparison]  RFC 3339
    level = str(item.get("level") or "info").lower()
    word = "" if level == "info" else f"{level} "
    tone = _LEVELS.get(level, "plain")
    return line(span(f"{clock} " if clock else "", "dim"), span(word, tone),
                span(str(item.get("message") or ""), tone))  # fmt: skip


@final
class LogPane(Pane):
    """The pane.

    Args:
        name: As in `Pane`.
        title: On its rule.
        form: Writes one item.
    """

    def __init__(self, name: str, title: str, *, form: Format = log_line, dash: str = "-") -> None:
        super().__init__(name, title, dash=dash)
        self._form = form
        self._given: Sequence[LineItem] = ()
        """What there is to show, whenever it was."""
        self._items: Sequence[LineItem] = ()
        """Of these, what is shown: all, or what is within the window."""
        self._since_ms: int | None = None
        self._window = ""
        self._n_forgotten = 0
        self._refusal: SkulkError | None = None
        self._written: dict[int, tuple[LineItem, Line]] = {}
        """What is shown, by the items' counts: a frame has most of the lines of the one before."""
        self._bottom: int | None = None
        """Count of the item shown last; None follows the newest."""

    @property
    def is_following(self) -> bool:
        """Whether the newest line is shown as it comes."""
        return self._bottom is None

    @property
    def state(self) -> str:
        """Whether it follows, and what is no longer kept."""
        follow = "follow ON" if self.is_following else f"{self._n_below} new below, G follows"
        dropped = f"   {self._n_forgotten} dropped" if self._n_forgotten else ""
        return self._window_state + follow + dropped

    @property
    def _window_state(self) -> str:
        if self._since_ms is None:
            return ""
        # More may have happened within that time than has been brought here.
        reach = ", all that is here" if self._items and len(self._items) == len(self._given) else ""
        return f"last {self._window}{reach}   "

    def show(
        self,
        buffer: LineBuffer,
        *,
        refusal: SkulkError | None = None,
        keep: Callable[[LineItem], bool] | None = None,
    ) -> None:
        """Show what a subscription has brought, or why it brings nothing."""
        items = buffer.items
        self._given = (
            list(items) if keep is None else [item for item in items if item.gap or keep(item)]
        )
        self._items = _since(self._given, self._since_ms)
        self._n_forgotten = buffer.n_forgotten
        self._refusal = refusal
        self.redraw()

    def look_back(self, since_ms: int, said: str) -> None:
        """Show nothing from before a time.

        Args:
            since_ms: In milliseconds since 1970.
            said: How far back that is, for people: `10m`.
        """
        self._since_ms, self._window = since_ms, said
        self._items = _since(self._given, since_ms)
        self.follow()

    def unfilter(self) -> bool:
        """Show all again; False where that is so already."""
        if self._since_ms is None:
            return False
        self._since_ms = None
        self._items = self._given
        return True

    def follow(self) -> None:
        """Go to the newest line and stay there."""
        self._bottom = None
        self.redraw()

    def move(self, by: int) -> None:
        """Scroll; any move up stops following, and coming within two lines of the end resumes."""
        if not self._items:
            return
        last = len(self._items) - 1
        here = last - self._n_below
        target = max(min(self.page, last), min(here + by, last))
        self._bottom = None if target >= last - 1 and by > 0 else self._items[target].n

    def move_to_end(self, *, last: bool) -> None:
        """Go to the oldest line kept, or follow the newest."""
        self._bottom = None if last or not self._items else self._items[0].n
        if not last:
            self.move(self.page)

    @property
    def _n_below(self) -> int:
        if self._bottom is None:
            return 0
        return sum(1 for item in reversed(self._items) if item.n > (self._bottom or 0))

    def body(self, width: int, height: int) -> Sequence[Line]:
        """Draw the lines that fit, formatting no other."""
        del width
        if self._refusal is not None:
            return [
                line(span(f"   {self._refusal.message}", "bad")),
                line(span(f"   {self._refusal.remediation}")),
            ]
        if not self._items and self._given:
            return [toned(f"   nothing within the last {self._window}; esc shows all", "dim")]
        if not self._items:
            return [toned("   no line has come yet", "dim")]
        end = len(self._items) - self._n_below
        shown = self._items[max(0, end - height) : end]
        lines = [self._line_of(item) for item in shown]
        self._written = {item.n: (item, made) for item, made in zip(shown, lines, strict=True)}
        return lines

    def _line_of(self, item: LineItem) -> Line:
        before, made = self._written.get(item.n, (None, EMPTY))
        return made if before is item else self._write(item)

    def _write(self, item: LineItem) -> Line:
        if item.gap:
            return line(Span(" -- gap: ", "warn"), span(item.gap, "warn"), Span(" --", "warn"))
        return (Span(" "), *self._form(item.item))


def _since(items: Sequence[LineItem], since_ms: int | None) -> Sequence[LineItem]:
    """Leave out what is older; what has no time stays, and a gap goes with what follows it."""
    if since_ms is None:
        return items
    found: list[LineItem] = []
    is_within = True
    for item in reversed(items):
        if not item.gap:
            at_ms = item.item.get("at_ms")
            is_within = not isinstance(at_ms, int) or at_ms >= since_ms
        if is_within:
            found.append(item)
    return found[::-1]
