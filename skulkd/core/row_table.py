"""The rows of one topic as they are now, and what changed since any earlier moment.

One table serves any number of followers: each keeps a number, and asks for what changed after it.
So a follower that does not ask costs nothing, and one that asks late gets each row once, as it is
by then.
"""

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, final

from protocol.base import FrozenModel

REMOVALS_KEPT: Final = 4096
"""Of rows that are gone, so that a follower from before can be told. One from still earlier begins
anew."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a follower stands."""

    n: int
    """It has every row that changed until then, and changed no more."""
    snapshot_n: int = 0
    """When its snapshot was begun: of the rows that it has, none was gone before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What a follower gets next."""

    place: Place
    """Where it stands afterwards."""
    rows: tuple[tuple[str, bytes], ...] = ()
    """Keys with their documents as JSON, `null` for rows that are gone, in order of change."""
    is_snapshot: bool = False
    """The follower forgets what it had."""
    has_more: bool = False
    """Further rows wait: the size was bounded."""


@dataclass(slots=True)
class _Row:
    n: int
    document: FrozenModel | None
    """None for a row that is gone."""
    encoded: bytes


_GONE: Final = b"null"


@final
class RowTable:
    """See the module.

    Args:
        removals_kept: How many removals are remembered.
    """

    def __init__(self, *, removals_kept: int = REMOVALS_KEPT) -> None:
        self._removals_kept = removals_kept
        self._rows: dict[str, _Row] = {}
        """In order of their last change, the gone ones among them."""
        self._removals: deque[tuple[str, int]] = deque()
        """Oldest first; one whose row has come back since stays until it is the oldest."""
        self._forgotten_n = 0
        """The newest removal that is not remembered: who stands before it may have missed it."""
        self.n = 0
        """Counts changes of rows."""

    def update(self, rows: Mapping[str, FrozenModel]) -> bool:
        """Replace all rows; says whether anything changed.

        A document that is equal to the row's, by its JSON, changes nothing.
        """
        before = self.n
        for key, document in rows.items():
            self._put(key, document)
        known = [key for key, row in self._rows.items() if row.document is not None]
        if len(known) > len(rows):
            for key in known:
                if key not in rows:
                    self._remove(key)
        return self.n != before

    def row(self, key: str) -> tuple[int, bytes] | None:
        """Give one row: when it changed, and its JSON; None where it is not there."""
        row = self._rows.get(key)
        return None if row is None or row.document is None else (row.n, row.encoded)

    def since(self, place: Place | None, *, max_bytes: int) -> Delta:
        """Give what changed after a place, or all rows where that cannot be told.

        Args:
            place: Where the follower stands; None where it has nothing.
            max_bytes: About how much; at least one row is given if there is any.
        """
        is_snapshot = place is None or not self._is_good(place)
        start = Place(0, self.n) if place is None or is_snapshot else place
        after = start.n
        chosen: list[tuple[str, bytes]] = []
        n_bytes = 0
        has_more = False
        for key, row in self._changed_after(after):
            if is_snapshot and row.document is None:
                continue
            size = len(key) + len(row.encoded)
            if chosen and n_bytes + size > max_bytes:
                has_more = True
                break
            n_bytes += size
            after = row.n
            chosen.append((key, row.encoded))
        return Delta(
            place=Place(after if has_more else self.n, start.snapshot_n),
            rows=tuple(chosen),
            is_snapshot=is_snapshot,
            has_more=has_more,
        )

    def _is_good(self, place: Place) -> bool:
        """No removal that the follower may have missed is forgotten."""
        has_seen_n = max(place.n, place.snapshot_n)
        return 0 <= place.n <= self.n and self._forgotten_n <= has_seen_n <= self.n

    def _changed_after(self, n: int) -> Iterator[tuple[str, _Row]]:
        if n == 0:
            return iter(self._rows.items())
        changed: list[tuple[str, _Row]] = []
        for key in reversed(self._rows):
            row = self._rows[key]
            if row.n <= n:
                break
            changed.append((key, row))
        return reversed(changed)

    def _put(self, key: str, document: FrozenModel) -> None:
        known = self._rows.get(key)
        if known is not None and known.document is document:
            return
        encoded = document.model_dump_json().encode()
        if known is not None and known.document is not None and known.encoded == encoded:
            known.document = document
            return
        self._set(key, document, encoded)

    def _remove(self, key: str) -> None:
        self._set(key, None, _GONE)
        self._removals.append((key, self.n))
        while len(self._removals) > self._removals_kept:
            old_key, old_n = self._removals.popleft()
            row = self._rows.get(old_key)
            if row is not None and row.n == old_n:
                del self._rows[old_key]
                self._forgotten_n = old_n

    def _set(self, key: str, document: FrozenModel | None, encoded: bytes) -> None:
        self.n += 1
        self._rows.pop(key, None)  # to the end: the newest change
        self._rows[key] = _Row(n=self.n, document=document, encoded=encoded)


def members_of(rows: tuple[tuple[str, bytes], ...]) -> bytes:
    """Write rows as the members of a JSON object."""
    return b",".join(b"%b:%b" % (json.dumps(key).encode(), encoded) for key, encoded in rows)
