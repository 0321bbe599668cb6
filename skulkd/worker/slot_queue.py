"""Who may start: slots, a shared pool of tokens, first come first served. Pure.

A task starts when a slot is free and its reservation fits what the running ones leave of the pool;
one task alone may always run. Nobody is overtaken: a short task behind a long one waits, because a
long one that is overtaken whenever the pool is tight would never start.

Reservations are upper bounds until someone has counted. The exact number is asked for only when it
can matter: for the task at the head, while a slot is free and the bound does not fit.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Final, Literal, final

MAX_QUEUED: Final = 256
_MAX_RETRY_AFTER_S: Final = 60


@dataclass(frozen=True, slots=True)
class Admit:
    """The task starts now."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Count:
    """The task at the head needs its exact size."""

    ticket: int


Step = Admit | Count
_Knowledge = Literal["bound", "counting", "exact"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    reserved_tokens: int
    knowledge: _Knowledge


@final
class SlotQueue:
    """The waiting and the running tasks of one instance.

    Invariant: at most `slots` tasks run; with two or more of them, their reservations sum to at
    most `pool_tokens`.

    Args:
        slots: Tasks that the engine serves at a time.
        pool_tokens: Tokens that all running tasks share.
        max_queued: Tasks that may wait.
    """

    def __init__(self, *, slots: int, pool_tokens: int, max_queued: int = MAX_QUEUED) -> None:
        self.slots = slots
        self._pool_tokens = pool_tokens
        self._max_queued = max_queued
        self._waiting: OrderedDict[int, _Waiting] = OrderedDict()
        self._running: dict[int, tuple[int, float]] = {}
        self._used_tokens = 0
        self._last_ticket = 0
        self._mean_service_s = 1.0

    @property
    def n_running(self) -> int:
        """Tasks that have a slot."""
        return len(self._running)

    @property
    def n_queued(self) -> int:
        """Tasks that wait for one."""
        return len(self._waiting)

    @property
    def used_tokens(self) -> int:
        """What the running tasks reserve."""
        return self._used_tokens

    def try_enqueue(self, reserved_tokens: int, *, is_exact: bool) -> int | None:
        """Put a task at the end of the queue; None when the queue is full."""
        if len(self._waiting) >= self._max_queued:
            return None
        self._last_ticket += 1
        self._waiting[self._last_ticket] = _Waiting(
            reserved_tokens=reserved_tokens, knowledge="exact" if is_exact else "bound"
        )
        return self._last_ticket

    def set_exact(self, ticket: int, reserved_tokens: int) -> None:
        """Note a task's exact reservation; one that has left is no error."""
        if ticket in self._waiting:
            self._waiting[ticket] = _Waiting(reserved_tokens=reserved_tokens, knowledge="exact")

    def leave(self, ticket: int, *, now: float) -> None:
        """Take a task out, whether it waits or runs; idempotent."""
        self._waiting.pop(ticket, None)
        running = self._running.pop(ticket, None)
        if running is not None:
            reserved_tokens, since = running
            self._used_tokens -= reserved_tokens
            self._mean_service_s += 0.2 * (now - since - self._mean_service_s)

    def next_step(self, *, now: float) -> Step | None:
        """Say what follows; call again until it is None, and after each change."""
        if not self._waiting or len(self._running) >= self.slots:
            return None
        ticket, head = next(iter(self._waiting.items()))
        if self._fits(head.reserved_tokens):
            del self._waiting[ticket]
            self._running[ticket] = (head.reserved_tokens, now)
            self._used_tokens += head.reserved_tokens
            return Admit(ticket)
        if head.knowledge == "bound":
            self._waiting[ticket] = replace(head, knowledge="counting")
            return Count(ticket)
        return None

    def retry_after_s(self) -> int:
        """Guess when a task refused now would find room."""
        waiting_s = self._mean_service_s * (len(self._waiting) + 1) / self.slots
        return max(1, min(_MAX_RETRY_AFTER_S, round(waiting_s)))

    def _fits(self, reserved_tokens: int) -> bool:
        return not self._running or self._used_tokens + reserved_tokens <= self._pool_tokens
