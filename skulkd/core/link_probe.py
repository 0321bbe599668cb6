"""How a link is measured without filling it, which links are, and who may measure now. Pure.

One direction at a time: a node asks another one for bytes that mean nothing and sees how fast they
come. What is on its way is never more than what has come already, beside a little to begin with: so
a slow link is left alone soon after the time is over, and a fast one is filled within some turns.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, NamedTuple, final

from protocol.errors import ClusterError, ErrorBody
from protocol.files_wire import MAX_FILLING_BYTES
from protocol.ids import NodeId

PROBE_S: Final = 0.5
"""One direction is asked for more no longer than this."""
PROBE_BYTES: Final = 64 << 20
"""And for no more than this."""
SILENT_S: Final = 5.0
"""Without a byte for so long a measurement has failed."""
HOLD_S: Final = 30.0
"""A hold that is not renewed ends by itself: who had it is gone."""
_BEGIN_BYTES: Final = 256 << 10
_AHEAD_BYTES: Final = 6 << 20
"""Less than the queue of the plane takes: what finds no room there is lost."""
_LEAST_PIECE_BYTES: Final = 16 << 10
_PIECES_AHEAD: Final = 32
"""A window of few large pieces would be empty half of the time."""


class Rate(NamedTuple):
    """What a direction was seen to carry."""

    bytes_s: float
    n_bytes: int
    """All that came."""
    seconds: float
    """Until the last of it came."""


@final
class Measurement:
    """One direction, as the node sees it that the bytes come to.

    Args:
        now: When it begins.
    """

    def __init__(self, *, now: float) -> None:
        self._began_s = now
        self._last_s = now
        self._n_asked = 0
        self._ever_bytes = 0
        """All that was asked for, lost pieces too: the peer gives no more than is measured by."""
        self._asked: deque[tuple[int, int]] = deque()
        """Number and bytes of the pieces that have not come, in the order of asking."""
        self._asked_bytes = 0
        self._come: list[tuple[float, int]] = []
        """When pieces came, and how much had come by then."""

    @property
    def n_bytes(self) -> int:
        """How much has come."""
        return self._come[-1][1] if self._come else 0

    def to_ask(self, *, now: float) -> tuple[int, int] | None:
        """Give the next piece to ask for, as number and bytes; None while enough is on its way."""
        window = min(_AHEAD_BYTES, max(_BEGIN_BYTES, self.n_bytes))
        piece = max(_LEAST_PIECE_BYTES, min(MAX_FILLING_BYTES, window // _PIECES_AHEAD))
        is_over = now - self._began_s >= PROBE_S
        is_enough = self._ever_bytes + piece > PROBE_BYTES
        if is_over or is_enough or self._asked_bytes + piece > window:
            return None
        return self._n_asked, piece

    def on_asked(self, number: int, n_bytes: int) -> None:
        """Note that the piece that `to_ask` gave was asked for."""
        self._asked.append((number, n_bytes))
        self._asked_bytes += n_bytes
        self._ever_bytes += n_bytes
        self._n_asked += 1

    def on_piece(self, number: int, n_bytes: int, *, now: float) -> bool:
        """Take in a piece; False for one that was not asked for, or not now.

        Pieces come in the order of asking; one that another has passed was lost on its way.
        """
        if (number, n_bytes) not in self._asked:
            return False
        while self._asked:
            first = self._asked.popleft()
            self._asked_bytes -= first[1]
            if first == (number, n_bytes):
                break
        self._last_s = now
        self._come.append((now, self.n_bytes + n_bytes))
        return True

    def is_silent(self, *, now: float) -> bool:
        """Say whether nothing has come for too long."""
        return bool(self._asked) and now - self._last_s >= SILENT_S

    def is_done(self, *, now: float) -> bool:
        """Say whether all that was asked for has come, and no more is asked for."""
        return not self._asked and self.to_ask(now=now) is None

    def rate(self) -> Rate | None:
        """Give the rate of the second half of the bytes; None while too little has come.

        The first half shows how the window grew.
        """
        if not self._come:
            return None
        half = self.n_bytes / 2
        begin = next(index for index, (_, n_bytes) in enumerate(self._come) if n_bytes >= half)
        (from_s, from_bytes), (to_s, to_bytes) = self._come[begin], self._come[-1]
        if to_s <= from_s or to_bytes <= from_bytes:
            return None
        return Rate((to_bytes - from_bytes) / (to_s - from_s), to_bytes, to_s - self._began_s)


# ---- Which links -------------------------------------------------------------------------------


def pairs_to_probe(
    nodes: Iterable[NodeId], only: Sequence[NodeId] = ()
) -> tuple[tuple[NodeId, NodeId], ...]:
    """List the pairs of nodes that are measured, in order: one after the other.

    Args:
        nodes: That are there.
        only: Of one node its pairs with all others, of several the pairs among them.
    """
    pairs = combinations(sorted(nodes), 2)
    if not only:
        return tuple(pairs)
    least = min(2, len(set(only)))
    return tuple(pair for pair in pairs if len(set(pair) & set(only)) >= least)


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """What became of one direction of a pair."""

    source: NodeId
    target: NodeId
    """Where the bytes came to, and were measured."""
    rate_bytes_s: float | None = None
    error: ErrorBody | None = None
    """Why it was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRun:
    """A series of measurements: how far it is, or how it ended."""

    began_ms: int
    pairs: tuple[tuple[NodeId, NodeId], ...]
    current: tuple[NodeId, NodeId] | None = None
    done: tuple[Direction, ...] = ()
    ended_ms: int | None = None
    error: ErrorBody | None = None
    """Why it ended before all pairs had been tried."""


# ---- Who may measure ---------------------------------------------------------------------------


@dataclass(slots=True)
class _Hold:
    holder: NodeId
    number: int
    until_s: float


@final
class ProbeHolds:
    """At the master: one series of measurements at a time in the whole cluster.

    A new master knows of none. A series that goes on renews its hold there; two that ask are told
    apart by who comes first.

    Args:
        name_of: Names a node for people.
    """

    def __init__(self, name_of: Callable[[NodeId], str]) -> None:
        self._name_of = name_of
        self._hold: _Hold | None = None

    def take(self, holder: NodeId, number: int, *, now: float) -> None:
        """Take or renew the hold.

        Raises:
            ClusterError: `cluster.probe_busy`; another series has it.
        """
        hold = self._hold
        is_free = hold is None or now >= hold.until_s
        if hold is not None and not is_free and (hold.holder, hold.number) != (holder, number):
            holder_name = self._name_of(hold.holder)
            raise probe_busy(holder_name, "measures the cluster's links now")
        self._hold = _Hold(holder, number, now + HOLD_S)

    def give_back(self, holder: NodeId, number: int) -> None:
        """End a hold; one that is somebody else's stays."""
        hold = self._hold
        if hold is not None and (hold.holder, hold.number) == (holder, number):
            self._hold = None


def probe_busy(name: str, does: str) -> ClusterError:
    """Say which node measures already, and what it does."""
    return ClusterError(
        "cluster.probe_busy",
        f"{name} {does}",
        remediation="Wait until it is done: `skulk cluster links` shows what is known by then.",
        retry_after_s=5,
    )


def probe_disturbs(name: str) -> ClusterError:
    """Say that a measurement would slow down what a node does for clients."""
    return ClusterError(
        "cluster.probe_disturbs",
        f"{name} is answering requests, which a measurement would slow down",
        remediation="Measure later, or all the same: `skulk probe links --even-busy`.",
        retry_after_s=30,
    )
