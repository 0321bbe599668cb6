"""This node's copy of the cluster's state, and those who follow it.

Only committed events reach the replica. It knows no disk and no network: the log hands it each
event with the state after it. It goes from event to event; only when this node's log was given up
for its master's does it begin anew from a whole state, and then its followers are told.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, final

from protocol.events import SequencedEvent
from protocol.state import ClusterState

_log = logging.getLogger(__name__)

EVENTS_KEPT: Final = 4096
"""How many of the newest events stay in memory for readers that follow."""

Placed = tuple[SequencedEvent, ClusterState]
"""An event with its place, and the state after it."""

OnEvent = Callable[[SequencedEvent, ClusterState], None]
OnEvents = Callable[[Sequence[Placed]], None]
OnReset = Callable[[ClusterState], None]


@final
class Replica:
    """The newest committed state.

    Args:
        state: What the log's recovery ended with.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._recent: deque[SequencedEvent] = deque(maxlen=EVENTS_KEPT)
        self._subscribers: list[tuple[OnEvent, OnReset | None]] = []
        self._batch_subscribers: list[tuple[OnEvents, OnReset | None]] = []

    @property
    def state(self) -> ClusterState:
        """The newest committed state; an immutable value."""
        return self._state

    def subscribe(self, on_event: OnEvent, on_reset: OnReset | None = None) -> Callable[[], None]:
        """Call back after each committed event, in order; returns what ends the subscription.

        Args:
            on_event: Called with the event and the state after it.
            on_reset: Called with the new state when it was not reached event by event.
        """
        follower = (on_event, on_reset)
        self._subscribers.append(follower)

        def unsubscribe() -> None:
            if follower in self._subscribers:
                self._subscribers.remove(follower)

        return unsubscribe

    def subscribe_batches(self, on_events: OnEvents, on_reset: OnReset | None = None) -> None:
        """Call back once for all events that were committed together, for good.

        For those whom a flood reaches: they come after everybody who is told of each event, when
        the replica has the last state of the batch.
        """
        self._batch_subscribers.append((on_events, on_reset))

    def recent(self, after_seq: int, limit: int) -> tuple[SequencedEvent, ...]:
        """Give the kept events after `after_seq`, oldest first, at most `limit`."""
        if not self._recent or limit <= 0:
            return ()
        first = max(0, after_seq + 1 - self._recent[0].seq)
        return tuple(islice(self._recent, first, first + limit))

    def advance(self, batch: Sequence[Placed]) -> None:
        """Take the next committed events, each with the state after it; at least one.

        A subscriber that raises is a bug; it is logged with the event, and the others go on.
        """
        first_seq, last_seq = batch[0][0].seq, batch[-1][0].seq
        is_next = first_seq == self._state.seq + 1 and last_seq == self._state.seq + len(batch)
        # ruff: ignore[assert]  the commit order is this class's invariant
        assert is_next, "events are committed without a gap"
        if self._subscribers:
            for sequenced, state in batch:
                self._state = state
                self._recent.append(sequenced)
                self._tell(sequenced, state)
        else:
            self._state = batch[-1][1]
            self._recent.extend(placed[0] for placed in batch)
        for on_events, _ in self._batch_subscribers:
            try:
                on_events(batch)
            except Exception:  # ruff: ignore[blind-except]  one follower's bug is not another's
                _log.exception("a follower of the log failed at seq %d to %d", first_seq, last_seq)

    def reset(self, state: ClusterState) -> None:
        """Begin anew from a state that another history led to, or events that are not kept."""
        self._state = state
        self._recent.clear()
        for _, on_reset in (*self._subscribers, *self._batch_subscribers):
            if on_reset is None:
                continue
            try:
                on_reset(state)
            except Exception:  # ruff: ignore[blind-except]  see above
                _log.exception("a follower of the log failed at the reset to seq %d", state.seq)

    def _tell(self, sequenced: SequencedEvent, state: ClusterState) -> None:
        for on_event, _ in tuple(self._subscribers):
            try:
                on_event(sequenced, state)
            except Exception:  # ruff: ignore[blind-except]  see above
                _log.exception("a follower of the log failed at seq %d", sequenced.seq)
