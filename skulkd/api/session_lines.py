"""Line topics of a session: what every one of them gives, and the events of the log.

A source holds no more than its place: what was not sent is asked for when there is room, and what
cannot be had any more, or was passed over for a reader that is too slow, is told as a gap.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol, final

from protocol.errors import RequestError
from protocol.events import SequencedEvent
from protocol.session import Subscribe
from protocol.state import ClusterState
from skulkd.api.views import event_view
from skulkd.eventlog.gateway import StateView

BATCH_ITEMS: Final = 200
BATCH_BYTES: Final = 256 << 10
"""About how much one frame has: a slow client is to see that something comes."""
_MAX_DIGITS: Final = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class LineBatch:
    """The content of one `lines` frame."""

    cursor: str
    items: list[bytes] = field(default_factory=list[bytes])
    """Documents as JSON."""
    gap: str = ""
    """What is missing before them; empty where nothing is."""
    has_more: bool = False


class LineSource(Protocol):
    """Gives the items of one subscription."""

    def take(self, *, is_skipping: bool) -> LineBatch | None:
        """Give what is new since the last call; None where nothing is.

        Args:
            is_skipping: Pass over it, and say so: the client is too slow for it.
        """
        ...

    def close(self) -> None:
        """Watch no more. Idempotent."""
        ...


@final
class EventLines:
    """The events of the log, from a position that is good on every node.

    Args:
        view: The replica.
        wish: The subscription.
        on_change: Called when there may be something to take.

    Raises:
        RequestError: `request.invalid`; the cursor is none.
    """

    def __init__(self, view: StateView, wish: Subscribe, on_change: Callable[[], None]) -> None:
        self._view = view
        self._on_change = on_change
        self._gap = ""
        state = view.state
        if wish.cursor is None:
            self._term, self._seq = state.term, max(0, state.seq - wish.backlog)
        else:
            self._term, self._seq = _position(wish.cursor)
            self._compare(state)
        self._is_first = True
        self._has_asked_for_backlog = wish.cursor is None
        self._unsubscribe = view.subscribe(self._on_event, self._on_reset)

    def take(self, *, is_skipping: bool) -> LineBatch | None:
        """Give what is new since the last call; see `LineSource`."""
        state = self._view.state
        if is_skipping:
            return self._skip(state)
        kept = self._view.recent(self._seq, BATCH_ITEMS)
        gap = self._take_gap(kept, state)
        items: list[bytes] = []
        n_bytes = 0
        for event in kept:
            item = event_view(event, camel=False).model_dump_json().encode()
            n_bytes += len(item)
            if items and n_bytes > BATCH_BYTES:
                break
            items.append(item)
            self._term, self._seq = event.term, event.seq
        if not (items or gap or self._is_first):
            return None
        self._is_first = self._has_asked_for_backlog = False
        return LineBatch(
            cursor=self._cursor,
            items=items,
            gap=gap,
            has_more=bool(items) and self._seq < state.seq,
        )

    def close(self) -> None:
        """Watch no more. Idempotent."""
        self._unsubscribe()

    @property
    def _cursor(self) -> str:
        return f"{self._term}:{self._seq}"

    def _skip(self, state: ClusterState) -> LineBatch | None:
        n_passed = state.seq - self._seq
        if n_passed <= 0 and not self._gap:
            return None
        self._gap = ""
        first = self._seq + 1
        self._term, self._seq = state.term, max(self._seq, state.seq)
        return LineBatch(
            cursor=self._cursor,
            gap=f"the events {first} to {self._seq} were passed over: this client reads too slowly",
        )

    def _take_gap(self, kept: tuple[SequencedEvent, ...], state: ClusterState) -> str:
        gap, self._gap = self._gap, ""
        first = kept[0].seq if kept else state.seq + 1
        if first > self._seq + 1:
            if not self._has_asked_for_backlog:
                gap = gap or f"the events {self._seq + 1} to {first - 1} are no longer kept here"
            self._seq = first - 1
        return gap

    def _compare(self, state: ClusterState) -> None:
        """See whether this node's history leads through the place that the client has."""
        if self._seq > state.seq:
            if self._term < state.term:
                self._gap = (
                    f"the events up to {self._seq} of term {self._term} were replaced by another "
                    f"history, which is at {state.seq}"
                )
                self._seq = state.seq
            return  # else this node is behind, and will get there
        at = self._view.recent(self._seq - 1, 1)
        if at and at[0].seq == self._seq and at[0].term != self._term:
            self._gap = (
                f"event {self._seq} is another one in this node's history: what came before it may "
                "differ too"
            )

    def _on_event(self, event: SequencedEvent, state: ClusterState) -> None:
        del event, state
        self._on_change()

    def _on_reset(self, state: ClusterState) -> None:
        self._gap = "this node began anew from a snapshot; events before it are not told"
        self._term, self._seq = state.term, state.seq
        self._on_change()


def _position(cursor: str) -> tuple[int, int]:
    term, colon, seq = cursor.partition(":")
    is_number = all(part.isascii() and part.isdecimal() for part in (term, seq))
    if not (colon and is_number) or len(term) > _MAX_DIGITS or len(seq) > _MAX_DIGITS:
        raise RequestError(
            "request.invalid",
            "the cursor is none of the topic `events`",
            remediation="Use the cursor of an earlier frame, or none.",
            details={"param": "cursor"},
        )
    return int(term), int(seq)
