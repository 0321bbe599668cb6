"""A pane of a text that grows at its end: it follows the end, unless the operator looks further up.

Any move up stops following; coming within two rows of the end resumes it.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol, final

from skulk_tui.lines import EMPTY, Line, spread, toned
from skulk_tui.table_model import Ref
from skulk_tui.widgets.pane import Pane

RESUMES_WITHIN: Final = 2


class Growing(Protocol):
    """What such a pane shows."""

    def update(self, width: int) -> int:
        """Lay out what is new; gives how many rows there are now."""
        ...

    def rows(self, start: int, end: int, *, is_focused: bool) -> Sequence[Line]:
        """Give some of the rows."""
        ...

    def empty(self, width: int) -> Sequence[Line]:
        """Give what stands there while there is nothing: why, and what to do."""
        ...


@final
class StreamPane(Pane):
    """The pane.

    Args:
        name: As in `Pane`.
        title: On its rule.
        content: What it shows.
        select: Gives what an action would be about.
    """

    def __init__(
        self,
        name: str,
        title: str,
        content: Growing,
        *,
        select: Callable[[], tuple[Ref, ...]],
        dash: str = "-",
        down: str = "v",
    ) -> None:
        super().__init__(name, title, dash=dash)
        self.note = ""
        self._content = content
        self._select = select
        self._down = down
        self._top: int | None = None
        """The first row that is shown; None follows the end."""
        self._n_rows = 0
        self._n_known = 0
        """How many rows there were when following stopped."""

    @property
    def is_following(self) -> bool:
        """Whether the end is shown as it comes."""
        return self._top is None

    @property
    def top(self) -> int:
        """The first row that is shown."""
        lowest = max(0, self._n_rows - self._height)
        return lowest if self._top is None else min(self._top, lowest)

    @property
    def bottom(self) -> int:
        """One after the last row that is shown."""
        return min(self._n_rows, self.top + self._height)

    @property
    def state(self) -> str:
        """The note that was set."""
        return self.note

    @property
    def selection(self) -> tuple[Ref, ...]:
        """What the view says."""
        return self._select()

    def follow(self) -> None:
        """Go to the end and stay there."""
        self._top = None

    def look_at(self, row: int) -> None:
        """Show a row at the top, as far as there is enough below it."""
        self.move(row - self.top)

    def move(self, by: int) -> None:
        """Scroll."""
        lowest = max(0, self._n_rows - self._height)
        target = max(0, min(self.top + by, lowest))
        if by > 0 and target >= lowest - RESUMES_WITHIN:
            self._top = None
        elif by < 0:
            if self._top is None:
                self._n_known = self._n_rows
            self._top = target
        elif by:
            self._top = target

    def move_to_end(self, *, last: bool) -> None:
        """Go to the beginning, or follow the end."""
        if last:
            self._top = None
        else:
            self.move(-self._n_rows)

    @property
    def _height(self) -> int:
        return max(1, self.size.height - 1)

    def body(self, width: int, height: int) -> Sequence[Line]:
        """Draw the rows that fit, laying no other out."""
        self._n_rows = self._content.update(width)
        if not self._n_rows:
            return self._content.empty(width)
        rows = list(self._content.rows(self.top, self.top + height, is_focused=self.has_focus))
        below = self._n_rows - self.top - height
        if self._top is not None and below > 0:
            fresh = max(0, self._n_rows - self._n_known)
            what = f"{fresh} new lines" if fresh else f"{below} more lines"
            rows += [EMPTY] * (height - len(rows))
            rows[-1] = spread(
                EMPTY, toned(f"{self._down} {what}: G follows again", "accent"), width
            )
        return rows
