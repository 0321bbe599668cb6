"""The queue of one plane in front of one connection: bounded in bytes, by the plane's own rule."""

from collections import OrderedDict
from typing import Final, final

from protocol.envelope import MAX_PAYLOAD_BYTES, MAX_QUEUED_BYTES, Plane

REPLACING: Final[frozenset[Plane]] = frozenset({"election", "telemetry"})
"""Planes of news: what is newer takes the place of what is older."""


@final
class PlaneQueue:
    """Frames of one plane that wait for the connection."""

    def __init__(self, plane: Plane) -> None:
        self._limit_bytes = MAX_QUEUED_BYTES[plane]
        self._largest_bytes = MAX_PAYLOAD_BYTES[plane]
        self._is_replacing = plane in REPLACING
        self._frames: OrderedDict[str | int, bytes] = OrderedDict()
        self._next = 0
        self.n_bytes = 0
        """Of payloads; the marks are not counted."""
        self.n_dropped = 0
        """Frames that were taken and never left."""

    def __len__(self) -> int:
        return len(self._frames)

    def put(self, frame: bytes, key: str | None) -> bool:
        """Take a frame; False when there is no room.

        Args:
            frame: The mark and the payload.
            key: A waiting frame of the same key is superseded, and its place taken.
        """
        before = self._frames.get(key) if key is not None else None
        if before is not None and key is not None:
            self.n_bytes += len(frame) - len(before)
            self.n_dropped += 1
            self._frames[key] = frame
            self._make_room(0)
            return True
        if not self._make_room(len(frame) - 1):
            return False
        self._next += 1
        self._frames[self._next if key is None else key] = frame
        self.n_bytes += len(frame) - 1
        return True

    def first(self) -> bytes:
        """Give the frame that has waited longest."""
        return next(iter(self._frames.values()))

    def drop_first(self) -> None:
        """Let it go: it has been sent."""
        _, frame = self._frames.popitem(last=False)
        self.n_bytes -= len(frame) - 1

    def has_room(self) -> bool:
        """Say whether a payload of the largest size would be taken."""
        return self._is_replacing or self.n_bytes + self._largest_bytes <= self._limit_bytes

    def clear(self) -> None:
        """Drop everything."""
        self.n_dropped += len(self._frames)
        self._frames.clear()
        self.n_bytes = 0

    def _make_room(self, n_bytes: int) -> bool:
        while self.n_bytes + n_bytes > self._limit_bytes:
            if not self._is_replacing:
                return False
            self.drop_first()
            self.n_dropped += 1
        return True
