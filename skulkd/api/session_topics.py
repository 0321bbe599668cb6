"""The row topics of all sessions: one table each, filled while anybody follows it.

A decision of the cluster is looked at within 0.1 s, and readings twice a second: however many
sessions there are, each document is made once for all of them.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, final

from protocol.cluster_api import ClusterDocument
from protocol.control_api import StateDocument
from protocol.errors import SkulkError
from protocol.events import SequencedEvent
from protocol.session import RowTopic
from protocol.state import ClusterState
from skulkd.api.dependencies import ApiDependencies
from skulkd.api.model_views import companions_in, model_entry
from skulkd.api.session_rows import (
    Rows,
    cluster_rows,
    health_rows,
    model_rows,
    placement_rows,
    transfer_rows,
)
from skulkd.api.views import merged_catalog, state_document
from skulkd.core.row_table import RowTable

LOOK_S: Final = 0.5
"""Between two looks at what moves without a decision."""
EVENT_DELAY_S: Final = 0.08
"""From a decision to the look at what follows from it; the decisions meanwhile are seen with it."""
CATALOG_S: Final = 5.0
"""Between two looks at the catalogue, which is read from the disk."""
CATALOG_EVENT_S: Final = 0.5
_log = logging.getLogger(__name__)

_OF_STATE: Final[dict[RowTopic, Callable[[ClusterDocument, StateDocument], Rows]]] = {
    "cluster": cluster_rows,
    "placements": lambda _, state: placement_rows(state),
    "transfers": lambda _, state: transfer_rows(state),
    "health": lambda _, state: health_rows(state),
}


@dataclass(slots=True, eq=False)
class RowFeed:
    """One topic."""

    table: RowTable = field(default_factory=RowTable)
    is_ready: bool = False
    """The table holds what there is now; False before the first look after a time without one."""
    followers: set[Callable[[], None]] = field(default_factory=set[Callable[[], None]])

    def fill(self, rows: Rows) -> None:
        """Take all rows as they are now, and tell the followers where anything changed."""
        has_changed = self.table.update(rows)
        if has_changed or not self.is_ready:
            self.is_ready = True
            for follower in tuple(self.followers):
                follower()


@final
class RowTopics:
    """See the module.

    Args:
        deps: The rest of the daemon.
    """

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps
        self._feeds: dict[RowTopic, RowFeed] = {
            "cluster": RowFeed(),
            "placements": RowFeed(),
            "transfers": RowFeed(),
            "health": RowFeed(),
            "models": RowFeed(),
        }
        self._unsubscribe: Callable[[], None] | None = None
        self._first_look: asyncio.Handle | None = None
        self._next_look: asyncio.TimerHandle | None = None
        self._next_event_look: asyncio.TimerHandle | None = None
        self._next_catalog: asyncio.TimerHandle | None = None
        self._is_reading_catalog = False

    def follow(self, topic: RowTopic, on_change: Callable[[], None]) -> RowFeed:
        """Have a topic's table filled, and be told of changes, until `leave`."""
        feed = self._feeds[topic]
        feed.followers.add(on_change)
        if self._unsubscribe is None:
            self._unsubscribe = self._deps.state.subscribe(self._on_event, self._on_reset)
            self._look_again()
        if topic == "models":
            if not feed.is_ready:
                self._read_catalog_after(0.0)
        elif not feed.is_ready and self._first_look is None:
            # One for all topics that are asked for together, and for one that comes and goes.
            self._first_look = asyncio.get_running_loop().call_soon(self._on_first_look)
        return feed

    def leave(self, topic: RowTopic, on_change: Callable[[], None]) -> None:
        """Be told no more. Idempotent."""
        feed = self._feeds[topic]
        feed.followers.discard(on_change)
        if not feed.followers:
            feed.is_ready = False
        if not any(one.followers for one in self._feeds.values()):
            self.stop()

    def stop(self) -> None:
        """Look no more."""
        for handle in (
            self._first_look,
            self._next_look,
            self._next_event_look,
            self._next_catalog,
        ):
            if handle is not None:
                handle.cancel()
        self._first_look = None
        self._next_look = self._next_event_look = self._next_catalog = None
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    # ---- When ----

    def _look_again(self) -> None:
        loop = asyncio.get_running_loop()
        self._next_look = loop.call_later(LOOK_S, self._on_look)

    def _on_first_look(self) -> None:
        self._first_look = None
        self._look()

    def _on_look(self) -> None:
        self._look_again()
        self._look()

    def _on_event(self, event: SequencedEvent, state: ClusterState) -> None:
        del event, state
        self._look_soon()

    def _on_reset(self, state: ClusterState) -> None:
        del state
        self._look_soon()

    def _look_soon(self) -> None:
        if self._next_event_look is None:
            loop = asyncio.get_running_loop()
            self._next_event_look = loop.call_later(EVENT_DELAY_S, self._on_event_look)
        if self._feeds["models"].followers:
            self._read_catalog_after(CATALOG_EVENT_S)

    def _on_event_look(self) -> None:
        self._next_event_look = None
        self._look()

    # ---- What ----

    def _look(self) -> None:
        followed = [
            (self._feeds[topic], make)
            for topic, make in _OF_STATE.items()
            if self._feeds[topic].followers
        ]
        if not followed:
            return
        try:
            cluster, state = self._documents()
            for feed, make in followed:
                feed.fill(make(cluster, state))
        except Exception:  # ruff: ignore[blind-except]  a bug costs this look, not the sessions
            _log.exception("the rows of sessions could not be made")

    def _documents(self) -> tuple[ClusterDocument, StateDocument]:
        deps = self._deps
        cluster = deps.cluster.status()
        state = state_document(
            deps.state.state,
            deps.readings.readings,
            deps.health.node_health(),
            cluster,
            face=deps.face,
            now=deps.clock.monotonic_s(),
            is_reachable=deps.is_reachable,
        )
        return cluster, state

    def _read_catalog_after(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        if self._next_catalog is not None:
            if self._next_catalog.when() <= loop.time() + delay_s:
                return
            self._next_catalog.cancel()
        self._next_catalog = loop.call_later(delay_s, self._start_catalog)

    def _start_catalog(self) -> None:
        self._next_catalog = None
        if self._is_reading_catalog:
            self._read_catalog_after(CATALOG_EVENT_S)
            return
        self._is_reading_catalog = True
        self._deps.tasks.start(self._read_catalog(), name="catalogue rows", essential=False)

    async def _read_catalog(self) -> None:
        feed = self._feeds["models"]
        try:
            catalog = merged_catalog(await self._deps.models.catalog(), self._deps.state.state)
            state = self._deps.state.state
            companions = companions_in(item.card for item in catalog.values())
            entries = (model_entry(item, state, companions) for item in catalog.values())
            feed.fill(model_rows(entries))
        except SkulkError as error:
            _log.warning("the catalogue cannot be read: %s", error.message)
        finally:
            self._is_reading_catalog = False
            if feed.followers and self._unsubscribe is not None:
                self._read_catalog_after(CATALOG_S)
