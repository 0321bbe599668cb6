"""What goes into a bundle: asked of each node through one, redacted, and bounded in bytes."""

import json
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Final, Protocol, TypeVar, final

from protocol.admin_api import ConfigDocument
from protocol.base import FrozenModel
from protocol.cluster_api import ClusterDocument, LogLineView, LogsDocument
from protocol.control_api import EventsDocument, HealthDocument, NodeIdentity, StateDocument
from protocol.errors import SkulkError
from protocol.ids import NodeId
from skulk_tui.cli.bundle_wish import (
    MAX_DOCUMENT_BYTES,
    MAX_LOG_BYTES,
    MAX_SAMPLED_BYTES,
    BundleWish,
    Sampling,
)
from skulk_tui.cli.redaction import Redactor
from skulk_tui.client import Query
from skulk_tui.clock import WaitingClock
from skulk_tui.formatting import rfc3339

DocumentT = TypeVar("DocumentT", bound=FrozenModel)

MAX_EVENTS: Final = 1000
_PAGE_LINES: Final = 1000
_MAX_PAGES: Final = 400
"""More than a log may have, which is capped by its node."""
_FIRST_LINE: Final = "0.0"

_DOCUMENTS: Final = (
    ("identity", "/node/identity", NodeIdentity),
    ("health", "/health", HealthDocument),
    ("cluster", "/v1/cluster", ClusterDocument),
    ("config", "/config", ConfigDocument),
)
_SAMPLED: Final = frozenset({"state", "health", "cluster"})
"""The parts that change by themselves."""


def stamp_of(now_ms: int) -> str:
    """Write a time, UTC, as part of a file's name."""
    return datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")


class Asked(Protocol):
    """Who is asked: a node, by HTTP or over the session of the terminal interface."""

    def get(self, path: str, kind: type[DocumentT], *, query: Query | None = None) -> DocumentT:
        """Ask for a document; blocking.

        Raises:
            SkulkError: It is not to be had.
        """
        ...


@final
class Collected:
    """What has been asked for so far, and what was taken out of it.

    Args:
        asked: The node that asks the others.
        wish: What is wanted.
        clock: Times the samples, and waits for the next.
        tell: Is told what is asked for next; what it raises ends the collecting.
    """

    def __init__(
        self, asked: Asked, wish: BundleWish, clock: WaitingClock, *, tell: Callable[[str], None]
    ) -> None:
        self._asked = asked
        self._clock = clock
        self._tell = tell
        self._wish = wish
        self._redactor = Redactor()
        self.files: dict[str, int] = {}
        """Bytes of each document."""
        self.failed: dict[str, str] = {}
        """Why a document is not there."""

    @property
    def removed(self) -> dict[str, int]:
        """How often each kind of thing was taken out."""
        return dict(self._redactor.counts)

    def documents(self, state: StateDocument) -> Iterator[tuple[str, bytes]]:
        """Ask for one document after the other; one that is not to be had is noted.

        What tells a story comes last, so that it also tells of the time of the samples.
        """
        wish = self._wish
        if "state" in wish.parts:
            yield from self._one("state.json", lambda: _plain(state))
        yield from self._of_nodes(wish.parts, "")
        if wish.sampling is not None:
            yield from self._samples(wish.sampling)
        if "events" in wish.parts:
            yield from self._one("events.json", self._events)
        if "log" in wish.parts:
            for node_id in wish.nodes:
                yield from self._one(f"nodes/{node_id}/log.json", partial(self._log, node_id))

    def _of_nodes(self, parts: frozenset[str], under: str) -> Iterator[tuple[str, bytes]]:
        for node_id in self._wish.nodes:
            for name, path, kind in _DOCUMENTS:
                if name in parts:
                    ask = partial(self._document, path, kind, node_id)
                    yield from self._one(f"{under}nodes/{node_id}/{name}.json", ask)

    def _samples(self, sampling: Sampling) -> Iterator[tuple[str, bytes]]:
        started_s = self._clock.monotonic_s()
        parts = self._wish.parts & _SAMPLED
        n_bytes = 0
        for index in range(1, sampling.n_samples + 1):
            due_s = started_s + index * sampling.interval_s
            self._tell(f"waiting for sample {index} of {sampling.n_samples}")
            self._clock.wait_s(due_s - self._clock.monotonic_s())
            under = f"samples/{index:04}-{stamp_of(self._clock.wall_ms())}/"
            for name, content in self._sample(parts, under):
                n_bytes += len(content)
                if n_bytes > MAX_SAMPLED_BYTES:
                    del self.files[name]
                    self.failed[name] = f"all samples together have {MAX_SAMPLED_BYTES} bytes"
                    return
                yield name, content

    def _sample(self, parts: frozenset[str], under: str) -> Iterator[tuple[str, bytes]]:
        if "state" in parts:
            ask = partial(self._asked.get, "/state", StateDocument)
            yield from self._one(f"{under}state.json", lambda: _plain(ask()))
        yield from self._of_nodes(parts, under)

    def _one(self, name: str, ask: Callable[[], object]) -> Iterator[tuple[str, bytes]]:
        self._tell(f"asking for {name}")
        try:
            found = ask()
        except SkulkError as error:
            self.failed[name] = self._redactor.text(f"{error.code}: {error.message}")
            return
        content = json.dumps(self._redactor.value(found), indent=1, ensure_ascii=False).encode()
        if len(content) > max(MAX_DOCUMENT_BYTES, MAX_LOG_BYTES):
            self.failed[name] = f"it has {len(content)} bytes"
            return
        self.files[name] = len(content)
        yield name, content

    def _document(self, path: str, kind: type[FrozenModel], node_id: NodeId) -> object:
        return _plain(self._asked.get(path, kind, query={"node": node_id}))

    def _events(self) -> object:
        client = self._asked
        last = client.get("/events", EventsDocument, query={"limit": "1"}).last_seq
        query = {"after_seq": str(max(0, last - MAX_EVENTS)), "limit": str(MAX_EVENTS)}
        events = client.get("/events", EventsDocument, query=query).events
        since_ms = self._wish.since_ms or 0
        return [_plain(event) for event in events if event.at_ms >= since_ms]

    def _log(self, node_id: NodeId) -> object:
        """Read the newest lines of a node's own log; engines' logs may quote what was asked."""
        kept: deque[LogLineView] = deque()
        n_bytes = 0
        query = {"node": node_id, "limit": str(_PAGE_LINES)}
        since_ms = self._wish.since_ms
        if since_ms is not None:
            query["after"] = _FIRST_LINE
        since = rfc3339(since_ms) or ""
        for _ in range(_MAX_PAGES):
            page = self._asked.get("/v1/logs", LogsDocument, query=query)
            for line in page.lines:
                if (line.at or since)[:19] < since[:19] or not self._wish.wants_line(line.level):
                    continue
                kept.append(line)
                n_bytes += _size(line)
                while n_bytes > MAX_LOG_BYTES // 2:  # written out, a line has its fields' names too
                    n_bytes -= _size(kept.popleft())
            if since_ms is None or not page.has_more:
                break
            query["after"] = page.next_after
        return [_plain(line) for line in kept]


def _plain(document: FrozenModel) -> object:
    return document.model_dump(mode="json", exclude_none=True)


def _size(line: LogLineView) -> int:
    return len(line.model_dump_json(exclude_none=True).encode())
