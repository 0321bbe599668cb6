"""This node's copy of the cluster's state, and those who follow it.

Only committed events reach the replica. It knows no disk and no network: the log hands it each
event with the state after it. It goes from event to event; only when this node's log was given up
for its master's does it begin anew from a whole state, and then its followers are told.
"""

import logging
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final, final

from protocol.events import SequencedEvent
from protocol.state import ClusterState

_log = logging.getLogger(__name__)

EVENTS_KEPT: Final = 4096
"""How many of the newest events stay in memory for readers that follow."""

OnEvent = Callable[[SequencedEvent, ClusterState], None]
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

    def recent(self, after_seq: int, limit: int) -> tuple[SequencedEvent, ...]:
        """Give the kept events after `after_seq`, oldest first, at most `limit`."""
        if not self._recent or limit <= 0:
            return ()
        first = max(0, after_seq + 1 - self._recent[0].seq)
        return tuple(islice(self._recent, first, first + limit))

    def advance(self, sequenced: SequencedEvent, state: ClusterState) -> None:
        """Take the next committed event and the state after it.

        A subscriber that raises is a bug; it is logged with the event, and the others go on.
        """
        # ruff: ignore[assert]  the commit order is this class's invariant
        assert sequenced.seq == self._state.seq + 1, "events are committed without a gap"
        self._state = state
        self._recent.append(sequenced)
        for on_event, _ in tuple(self._subscribers):
            try:
                on_event(sequenced, state)
            except Exception:  # ruff: ignore[blind-except]  one follower's bug is not another's
                _log.exception("a follower of the log failed at seq %d", sequenced.seq)

    def reset(self, state: ClusterState) -> None:
        """Begin anew from a state that another history led to, or events that are not kept."""
        self._state = state
        self._recent.clear()
        for _, on_reset in tuple(self._subscribers):
            if on_reset is None:
                continue
            try:
                on_reset(state)
            except Exception:  # ruff: ignore[blind-except]  see above
                _log.exception("a follower of the log failed at the reset to seq %d", state.seq)
