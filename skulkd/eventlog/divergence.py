"""When this node's log did not agree with its master's: what it was, for health and the operator.

There is no merging. The node gives its own log up, which is put aside on its disk, and goes on from
its master's. What it loses was committed by nobody, or by a minority.
"""

import logging
from dataclasses import dataclass
from typing import final

from protocol.clock import Clock

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """One of them."""

    at_ms: int
    term: int
    """Of the master whose log is kept."""
    seq: int
    """The last position at which both logs agreed, as far as that is known."""
    n_discarded: int
    """How many events of this node go."""
    is_of_states: bool
    """The logs agree, and what they led to does not."""
    message: str


@final
class DivergenceReport:
    """Counts them, and keeps the last.

    Args:
        clock: Stamps them.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.n_seen = 0
        """Since the start of the process."""
        self.last: Divergence | None = None

    def logs_differ(self, *, term: int, seq: int, n_discarded: int) -> None:
        """Report that the logs differ behind `seq`."""
        self._report(
            Divergence(
                at_ms=self._clock.wall_ms(),
                term=term,
                seq=seq,
                n_discarded=n_discarded,
                is_of_states=False,
                message=f"this node's log and its master's differ behind seq {seq}; {n_discarded} "
                "events of this node are given up",
            )
        )

    def states_differ(self, *, term: int, seq: int, own: bytes, masters: bytes) -> None:
        """Report that the same events led to another state here: a bug, or a bad memory chip."""
        self._report(
            Divergence(
                at_ms=self._clock.wall_ms(),
                term=term,
                seq=seq,
                n_discarded=0,
                is_of_states=True,
                message=f"the states after seq {seq} differ: {own.hex()} here, {masters.hex()} on "
                "the master",
            )
        )

    def _report(self, found: Divergence) -> None:
        self.n_seen += 1
        self.last = found
        _log.error("%s; this node begins anew from the master's snapshot", found.message)
