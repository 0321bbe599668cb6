"""Finds out whether nodes that applied the same events have the same state.

Every node hashes its replica at the first event of each period of the log's own time, and after a
while without any; in a thread, one at a time. The master's hash travels with its heartbeats, and a
member compares. The stamps of the events are the same on every node, so that all hash the same
states, and a flood costs no more hashes than a trickle.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final, final

from protocol.clock import Clock
from protocol.state import ClusterState
from skulkd.core.apply import state_hash
from skulkd.eventlog.replica import Placed, Replica
from skulkd.runtime.tasks import Tasks, run_blocking

PERIOD_MS: Final = 2000
"""A hash takes some milliseconds: less than 1 % of a core, and no member errs for long unseen."""
IDLE_S: Final = 5.0
N_KEPT: Final = 16
HASH_BYTES: Final = 16

OnMismatch = Callable[[int, bytes, bytes], None]
"""Called with the seq, this node's hash and the master's."""

_log = logging.getLogger(__name__)


@final
class StateHashes:
    """This node's hashes, and the comparison.

    Args:
        replica: Whose state.
        clock: Tells how long nothing has happened.
        tasks: Owns the hashing.
        is_comparable: Says whether the state after a seq comes from the master's own events.
        on_mismatch: Told when a state differs, once until the replica begins anew.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        clock: Clock,
        tasks: Tasks,
        is_comparable: Callable[[int], bool],
        on_mismatch: OnMismatch,
    ) -> None:
        self._replica = replica
        self._clock = clock
        self._tasks = tasks
        self._is_comparable = is_comparable
        self._on_mismatch = on_mismatch
        self._kept: dict[int, bytes] = {}
        """By seq, oldest first."""
        self._masters: tuple[int, bytes] = (0, b"")
        self._is_hashing = False
        self._changed_s = clock.monotonic_s()
        self._period = replica.state.at_ms // PERIOD_MS
        self._has_mismatch = False
        replica.subscribe_batches(self._on_events, self._on_reset)

    @property
    def newest(self) -> tuple[int, bytes]:
        """The newest hash with its seq; (0, b"") before there is one."""
        return next(reversed(self._kept.items()), (0, b""))

    def tick(self) -> None:
        """Hash what has not changed for a while."""
        state = self._replica.state
        if state.seq not in self._kept and self._clock.monotonic_s() - self._changed_s >= IDLE_S:
            self._hash(state)

    def hear(self, seq: int, masters: bytes) -> None:
        """Take the master's hash: compare now, or when this node has one of the same seq."""
        if seq == 0 or not self._is_comparable(seq):
            return
        self._masters = (seq, masters)
        state = self._replica.state
        if seq in self._kept:
            self._compare()
        elif state.seq == seq:
            self._hash(state)

    def _on_events(self, batch: Sequence[Placed]) -> None:
        self._changed_s = self._clock.monotonic_s()
        first_seq, newest = batch[0][0].seq, batch[-1][1]
        asked = self._masters[0] - first_seq
        if 0 <= asked < len(batch):
            self._hash(batch[asked][1])
        # Stamps never step back, so the last one tells whether a period begins in between.
        if newest.at_ms // PERIOD_MS != self._period:
            for _, state in batch:
                if state.at_ms // PERIOD_MS != self._period:
                    self._period = state.at_ms // PERIOD_MS
                    self._hash(state)

    def _on_reset(self, state: ClusterState) -> None:
        self._kept.clear()
        self._has_mismatch = False
        self._period = state.at_ms // PERIOD_MS
        self._changed_s = self._clock.monotonic_s()

    def _hash(self, state: ClusterState) -> None:
        if not self._is_hashing and state.seq > 0:
            self._is_hashing = True
            self._tasks.start(self._run(state), name="hash the state")

    async def _run(self, state: ClusterState) -> None:
        try:
            digest = bytes.fromhex(await run_blocking(state_hash, state))[:HASH_BYTES]
        finally:
            self._is_hashing = False
        self._kept.pop(state.seq, None)
        self._kept[state.seq] = digest
        while len(self._kept) > N_KEPT:
            del self._kept[next(iter(self._kept))]
        self._compare()

    def _compare(self) -> None:
        seq, masters = self._masters
        own = self._kept.get(seq)
        if own is None or own == masters or self._has_mismatch:
            return
        if self._is_comparable(seq):
            self._has_mismatch = True
            self._on_mismatch(seq, own, masters)
