"""What the operator's program knows of the cluster: one copy of each row, and lines as they came.

Pure: frames go in with the time they came at, and what changed comes out. Everything that is shown
is read from here, and nothing here knows a widget, a socket or a clock.
"""

import contextlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, final

from pydantic import ValidationError

from protocol.base import FrozenModel
from protocol.cluster_api import NodeView, StrangerView
from protocol.control_api import (
    InstanceView,
    LinkEdge,
    NodeHealthView,
    TransferStatus,
)
from protocol.instances import InstanceFailure
from protocol.models_api import ModelEntry
from protocol.session import ClusterHead, FeedState, Lines, NodeHello, RowKind, Rows, kind_of_row
from protocol.state import PlacementFailure

DocumentT = TypeVar("DocumentT", bound=FrozenModel)

SAVED: Final = 0
"""The subscription of rows that an earlier run has left; those of a link begin with 1."""
LINES_KEPT: Final = 10_000
"""Of each line subscription."""

_KINDS: Final[Mapping[RowKind, type[FrozenModel]]] = {
    "cluster": ClusterHead,
    "node": NodeView,
    "link": LinkEdge,
    "stranger": StrangerView,
    "instance": InstanceView,
    "failure": InstanceFailure,
    "refusal": PlacementFailure,
    "transfer": TransferStatus,
    "model": ModelEntry,
    "health": NodeHealthView,
}
_DOCUMENTS: Final[Mapping[str, type[FrozenModel]]] = {**_KINDS}
"""The same, for kinds that a newer node may have."""


@final
class Row:
    """A row with its age; read only once somebody looks at it.

    Rows may change far more often than a screen is drawn, and reading one is most of what a change
    costs.

    Args:
        kind: What the row is read as.
        raw: As it came.
        at: When it came, in monotonic seconds.
    """

    __slots__ = ("_document", "_is_read", "_kind", "_raw", "at")

    def __init__(self, kind: type[FrozenModel], raw: object, at: float) -> None:
        self._kind = kind
        self._raw = raw
        self.at = at
        self._is_read = False
        self._document: FrozenModel | None = None

    @property
    def document(self) -> FrozenModel | None:
        """The row's document; None where it is in a form that this build cannot read."""
        if not self._is_read:
            self._is_read = True
            with contextlib.suppress(ValidationError):
                self._document = self._kind.model_validate(self._raw, extra="ignore")
            self._raw = None
        return self._document


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What one frame changed."""

    keys: frozenset[str] = frozenset()
    """Of rows that are new, other, or gone."""
    line_ids: frozenset[int] = frozenset()
    """Of line subscriptions with further items."""
    is_head: bool = False
    """The link, the hello or the feed changed: the status row."""

    def __bool__(self) -> bool:
        return bool(self.keys or self.line_ids or self.is_head)


NOTHING: Final = Changes()


@dataclass(frozen=True, slots=True, kw_only=True)
class LineItem:
    """One item of a line topic, or the gap before the items that follow."""

    n: int
    """Counts what this subscription has got, from 0."""
    item: Mapping[str, Any]
    """Empty for a gap."""
    gap: str = ""


@final
@dataclass(slots=True)
class LineBuffer:
    """The newest items of a line subscription, oldest first."""

    items: deque[LineItem] = field(default_factory=lambda: deque(maxlen=LINES_KEPT))
    n_seen: int = 0
    cursor: str | None = None

    @property
    def n_forgotten(self) -> int:
        """How many items are no longer kept here."""
        return self.n_seen - len(self.items)

    def take(self, frame: Lines) -> None:
        """Append what a frame brings."""
        if frame.was_cut or frame.gap:
            self._append({}, frame.gap or "earlier lines are lost")
        for item in frame.items:
            self._append(item, "")
        self.cursor = frame.cursor

    def _append(self, item: Mapping[str, Any], gap: str) -> None:
        self.items.append(LineItem(n=self.n_seen, item=item, gap=gap))
        self.n_seen += 1


@final
class ViewState:
    """The one copy that all screens read."""

    def __init__(self) -> None:
        self.hello: NodeHello | None = None
        self.feed: FeedState = "full"
        self.saved_at_ms: int | None = None
        """When the rows of `SAVED` were live; None where there are none."""
        self._rows: dict[str, Row] = {}
        self._by_subscription: dict[int, set[str]] = {}
        self._lines: dict[int, LineBuffer] = {}

    # ---- What comes in ----

    def apply_hello(self, hello: NodeHello) -> Changes:
        """Take whom the link leads to; rows stay until the new snapshots replace them."""
        self.hello = hello
        self.feed = "full"
        return Changes(is_head=True)

    def apply_feed(self, state: FeedState) -> Changes:
        """Take how much the node sends."""
        if state == self.feed:
            return NOTHING
        self.feed = state
        return Changes(is_head=True)

    def apply_rows(self, frame: Rows, now: float) -> Changes:
        """Take rows; a snapshot also removes what it does not hold.

        The first that come from a node replace all of `SAVED`.
        """
        changed = set[str]() if frame.id == SAVED else set(self.drop(SAVED).keys)
        if frame.id == SAVED:
            self.saved_at_ms = frame.at_ms
        known = self._by_subscription.setdefault(frame.id, set())
        if frame.is_snapshot:
            changed |= self._forget(known - frame.rows.keys())
            known.intersection_update(frame.rows)
        for key, document in frame.rows.items():
            if document is None:
                known.discard(key)
                changed |= self._forget({key})
            elif self._keep(key, document, now):
                known.add(key)
                changed.add(key)
        return Changes(keys=frozenset(changed), is_head="cluster" in changed)

    def apply_lines(self, frame: Lines) -> Changes:
        """Take lines."""
        self._lines.setdefault(frame.id, LineBuffer()).take(frame)
        return Changes(line_ids=frozenset({frame.id}))

    def drop(self, subscription_id: int) -> Changes:
        """Forget a subscription and what it brought."""
        self._lines.pop(subscription_id, None)
        if subscription_id == SAVED:
            self.saved_at_ms = None
        return Changes(
            keys=frozenset(self._forget(self._by_subscription.pop(subscription_id, set())))
        )

    # ---- What is known ----

    @property
    def n_unreadable(self) -> int:
        """How many rows are of a known kind and cannot be read: the node is of another build."""
        return sum(1 for row in self._rows.values() if row.document is None)

    def row(self, key: str) -> Row | None:
        """Give a row, with its age."""
        return self._rows.get(key)

    def lines(self, subscription_id: int) -> LineBuffer:
        """Give what a line subscription has brought; empty before its first frame."""
        return self._lines.get(subscription_id) or LineBuffer()

    @property
    def head(self) -> ClusterHead | None:
        """The cluster in short; None before the first snapshot."""
        row = self._rows.get("cluster")
        return row.document if row is not None and isinstance(row.document, ClusterHead) else None

    @property
    def nodes(self) -> tuple[NodeView, ...]:
        """All members, by name."""
        views = self._all(NodeView, "node")
        return tuple(sorted(views, key=lambda view: (view.member.name, view.member.node_id)))

    @property
    def links(self) -> tuple[LinkEdge, ...]:
        """The links that nodes have told of."""
        return tuple(self._all(LinkEdge, "link"))

    @property
    def strangers(self) -> tuple[StrangerView, ...]:
        """Who was refused at the door of the node attached to, the latest first."""
        return tuple(sorted(self._all(StrangerView, "stranger"), key=lambda one: one.last_ago_s))

    @property
    def instances(self) -> tuple[InstanceView, ...]:
        """All placed models, in the order they were placed."""
        views = self._all(InstanceView, "instance")
        return tuple(sorted(views, key=lambda view: (view.placed_at_ms, view.instance_id)))

    @property
    def failures(self) -> tuple[InstanceFailure, ...]:
        """Instances that failed, the latest first."""
        return tuple(sorted(self._all(InstanceFailure, "failure"), key=lambda one: -one.at_ms))

    @property
    def refusals(self) -> tuple[PlacementFailure, ...]:
        """Placements that could not be made, the latest first."""
        return tuple(sorted(self._all(PlacementFailure, "refusal"), key=lambda one: -one.at_ms))

    @property
    def transfers(self) -> tuple[TransferStatus, ...]:
        """Downloads of all nodes."""
        views = self._all(TransferStatus, "transfer")
        return tuple(sorted(views, key=lambda view: (view.model_id, view.node_id)))

    @property
    def models(self) -> tuple[ModelEntry, ...]:
        """All models that have a card, by id."""
        return tuple(sorted(self._all(ModelEntry, "model"), key=lambda entry: entry.id))

    @property
    def health(self) -> Mapping[str, NodeHealthView]:
        """The health of each node that has told it, by node id."""
        return {
            key.partition("/")[2]: row.document
            for key, row in self._rows.items()
            if kind_of_row(key) == "health" and isinstance(row.document, NodeHealthView)
        }

    def name_of(self, node_id: str) -> str:
        """Give a node's name, or its id while nobody has told the name."""
        row = self._rows.get(f"node/{node_id}")
        if row is not None and isinstance(row.document, NodeView):
            return row.document.member.name
        return node_id

    # ---- Rows ----

    def _all(self, kind: type[DocumentT], prefix: RowKind) -> list[DocumentT]:
        documents = (row.document for key, row in self._rows.items() if kind_of_row(key) == prefix)
        return [document for document in documents if isinstance(document, kind)]

    def _keep(self, key: str, document: object, now: float) -> bool:
        """Keep a row; False where it is of a kind that this build does not know."""
        kind = _DOCUMENTS.get(kind_of_row(key))
        if kind is None:
            return False
        self._rows[key] = Row(kind, document, now)
        return True

    def _forget(self, keys: Iterable[str]) -> set[str]:
        return {key for key in keys if self._rows.pop(key, None) is not None}
