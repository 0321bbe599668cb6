"""Holding API keys to their limits: requests a minute, and requests at a time. Pure.

Each node counts what comes to it. To count for the whole cluster, every request would have to wait
for another node, or a limit would have to be cut into shares that a client of one node cannot use.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Final, final

from protocol.errors import RequestError
from protocol.ids import KeyId
from protocol.state import KeyLimits

WINDOW_S: Final = 60
_CONCURRENCY_RETRY_S: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RateStanding:
    """How far a key has used up its requests a minute."""

    limit: int
    remaining: int
    reset_s: int
    """Until all of them may be made again, if none is made before."""


@final
class RequestWindow:
    """Counts the requests of the last minute, by whole seconds: at most 61 numbers.

    A second counts until the last moment of it is a minute ago, so that there are never more than
    the limit in any 60 s, and a request counts for 61 s at the most.
    """

    __slots__ = ("_n", "_seconds")

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque()
        """Each with its requests, the oldest first."""
        self._n = 0

    def count(self, now: float) -> int:
        """How many there are."""
        while self._seconds and self._seconds[0][0] + WINDOW_S + 1 <= now:
            self._n -= self._seconds.popleft()[1]
        return self._n

    def add(self, now: float) -> None:
        """Count one more."""
        second = math.floor(now)
        if self._seconds and self._seconds[-1][0] >= second:
            last, n = self._seconds.pop()
            self._seconds.append((last, n + 1))
        else:
            self._seconds.append((second, 1))
        self._n += 1

    def room_in_s(self, limit: int, now: float) -> int:
        """Give the whole seconds, at least 1, until fewer than `limit` are counted."""
        left = self.count(now)
        wait_s = 0.0
        for second, n in self._seconds:
            if left < limit:
                break
            left -= n
            wait_s = second + WINDOW_S + 1 - now
        return max(1, math.ceil(wait_s))


@final
class KeyUse:
    """What one key has used on this node."""

    __slots__ = ("n_open", "window")

    def __init__(self) -> None:
        self.window: Final = RequestWindow()
        self.n_open = 0


@final
class KeyLimiter:
    """Counts the use of every key, whether it is limited or not: limits may come later."""

    def __init__(self) -> None:
        self._uses: dict[KeyId, KeyUse] = {}

    def take(self, key_id: KeyId, limits: KeyLimits, now: float) -> KeyUse:
        """Count a request of a key, which `give_back` ends.

        Args:
            key_id: Who asks.
            limits: Of it, now.
            now: Monotonic seconds.

        Raises:
            RequestError: `request.concurrency_limited`, `request.rate_limited`; nothing is counted.
        """
        use = self._uses.get(key_id)
        if use is None:
            use = self._uses[key_id] = KeyUse()
        most, rate = limits.concurrent_requests, limits.requests_per_minute
        if most is not None and use.n_open >= most:
            raise _concurrency_limited(key_id, use.n_open, most)
        if rate is not None and use.window.count(now) >= rate:
            raise _rate_limited(key_id, rate, use.window.room_in_s(rate, now))
        use.window.add(now)
        use.n_open += 1
        return use

    def give_back(self, use: KeyUse) -> None:
        """End a request; once for each that was taken."""
        use.n_open -= 1

    def n_open(self, key_id: KeyId) -> int:
        """How many requests of a key are open."""
        use = self._uses.get(key_id)
        return 0 if use is None else use.n_open

    def standing(self, key_id: KeyId, limits: KeyLimits, now: float) -> RateStanding | None:
        """Say how far a key has used up its requests a minute; None where they are not limited."""
        limit = limits.requests_per_minute
        if limit is None:
            return None
        use = self._uses.get(key_id)
        n = 0 if use is None else use.window.count(now)
        reset_s = 0 if use is None or n == 0 else use.window.room_in_s(1, now)
        return RateStanding(limit=limit, remaining=max(0, limit - n), reset_s=reset_s)

    @property
    def n_known(self) -> int:
        """Of how many keys something is known."""
        return len(self._uses)

    def keep(self, known: frozenset[KeyId]) -> None:
        """Drop what is known of all keys but these; what those have open may still end."""
        for key_id in self._uses.keys() - known:
            del self._uses[key_id]


def _concurrency_limited(key_id: KeyId, n_open: int, limit: int) -> RequestError:
    return RequestError(
        "request.concurrency_limited",
        f"the key {key_id} has {n_open} requests open on this node; it may have {limit}",
        remediation="Wait for one to end, or have the limit raised: "
        f"skulk keys set {key_id} --concurrent N",
        details={"key_id": key_id, "concurrent_requests": limit, "open": n_open},
        retry_after_s=_CONCURRENCY_RETRY_S,
    )


def _rate_limited(key_id: KeyId, limit: int, retry_after_s: int) -> RequestError:
    return RequestError(
        "request.rate_limited",
        f"the key {key_id} has made its {limit} requests of this minute on this node",
        remediation=f"Ask again in {retry_after_s} s, or have the limit raised: "
        f"skulk keys set {key_id} --rate N",
        details={"key_id": key_id, "requests_per_minute": limit},
        retry_after_s=retry_after_s,
    )
