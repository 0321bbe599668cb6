"""Who may start: slots, a shared pool of tokens, and whose turn it is. Pure.

A task starts when a slot is free and its reservation fits what the running ones leave of the pool;
one task alone may always run. The first in the order is never overtaken by a shorter one: a long
one that is overtaken whenever the pool is tight would never start.

Each asker's tasks start in the order in which they came, and askers take turns: whoever has a
hundred tasks waiting delays another one's first by one task, not by a hundred. A task's turn is
settled when it comes: the one after its asker's last, or the present one.

Source: start-time fair queueing (Goyal, Vin, Cheng 1996), with all tasks of one length.

Reservations are upper bounds until someone has counted. The exact number is asked for only when it
can matter: for the task at the head, while a slot is free and the bound does not fit.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Final, Literal, final

MAX_QUEUED: Final = 256
_MAX_ASKERS: Final = 1024
"""From there on, those are forgotten whose next turn would be the present one anyway."""
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
    asker: str
    turn: int
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a waiting task stands; the first place is the next to start."""

    asker: str
    waited_s: float
    expected_s: float | None
    """Until it starts, guessed by how long tasks took lately; None before any has ended."""


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
        """In the order in which they came."""
        self._turn = 0
        """Of the task that started last; of no meaning while nothing waits."""
        self._next_turns: dict[str, int] = {}
        """Of each asker that has waiting tasks, or had them since something last waited."""
        self._running: dict[int, tuple[int, float]] = {}
        self._used_tokens = 0
        self._last_ticket = 0
        self._mean_service_s = 1.0
        self._has_measured = False

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

    def has_room(self, asker: str = "") -> bool:
        """Say whether a task could wait; the last quarter is for askers of whom none waits yet."""
        n_waiting = len(self._waiting)
        if n_waiting < self._max_queued - self._max_queued // 4:
            return True
        waits = any(task.asker == asker for task in self._waiting.values())
        return n_waiting < self._max_queued and not waits

    def try_start(self, reserved_tokens: int, *, now: float) -> int | None:
        """Start a task without its waiting for anything; None when it has to wait its turn."""
        is_held_up = self._waiting or len(self._running) >= self.slots
        if is_held_up or not self._fits(reserved_tokens):
            return None
        self._last_ticket += 1
        self._run(self._last_ticket, reserved_tokens, now)
        return self._last_ticket

    def try_enqueue(
        self, reserved_tokens: int, *, is_exact: bool, asker: str = "", now: float = 0.0
    ) -> int | None:
        """Have a task wait for its turn; None when there is no room."""
        if not self.has_room(asker):
            return None
        if not self._waiting:
            self._turn = 0
            self._next_turns.clear()
        if len(self._next_turns) > _MAX_ASKERS:
            later = {name: turn for name, turn in self._next_turns.items() if turn > self._turn}
            self._next_turns = later
        turn = max(self._turn, self._next_turns.get(asker, 0))
        self._next_turns[asker] = turn + 1
        self._last_ticket += 1
        self._waiting[self._last_ticket] = _Waiting(
            reserved_tokens=reserved_tokens,
            knowledge="exact" if is_exact else "bound",
            asker=asker,
            turn=turn,
            since=now,
        )
        return self._last_ticket

    def places(self, n: int, *, now: float) -> tuple[Place, ...]:
        """Give the first `n` waiting tasks in the order in which they start, as it is now."""
        order = sorted(self._waiting.items(), key=lambda item: (item[1].turn, item[0]))
        each_s = self._mean_service_s / self.slots if self._has_measured else None
        return tuple(
            Place(
                asker=task.asker,
                waited_s=max(0.0, now - task.since),
                expected_s=None if each_s is None else each_s * position,
            )
            for position, (_, task) in enumerate(order[:n], start=1)
        )

    def set_exact(self, ticket: int, reserved_tokens: int) -> None:
        """Note a task's exact reservation; one that has left is no error."""
        task = self._waiting.get(ticket)
        if task is not None:
            exact = replace(task, reserved_tokens=reserved_tokens, knowledge="exact")
            self._waiting[ticket] = exact

    def leave(self, ticket: int, *, now: float) -> None:
        """Take a task out, whether it waits or runs; idempotent."""
        task = self._waiting.pop(ticket, None)
        if task is not None:
            self._move_up(ticket, task)
        running = self._running.pop(ticket, None)
        if running is not None:
            reserved_tokens, since = running
            self._used_tokens -= reserved_tokens
            self._mean_service_s += 0.2 * (now - since - self._mean_service_s)
            self._has_measured = True

    def next_step(self, *, now: float) -> Step | None:
        """Say what follows; call again until it is None, and after each change."""
        if not self._waiting or len(self._running) >= self.slots:
            return None
        ticket = min(self._waiting, key=lambda item: (self._waiting[item].turn, item))
        head = self._waiting[ticket]
        if self._fits(head.reserved_tokens):
            del self._waiting[ticket]
            self._turn = head.turn
            self._run(ticket, head.reserved_tokens, now)
            return Admit(ticket)
        if head.knowledge == "bound":
            self._waiting[ticket] = replace(head, knowledge="counting")
            return Count(ticket)
        return None

    def retry_after_s(self) -> int:
        """Guess when a task refused now would find room."""
        waiting_s = self._mean_service_s * (len(self._waiting) + 1) / self.slots
        return max(1, min(_MAX_RETRY_AFTER_S, round(waiting_s)))

    def _move_up(self, ticket: int, left: _Waiting) -> None:
        """Give an asker's later tasks the turns before theirs: one of its tasks has left."""
        for other, task in self._waiting.items():
            if task.asker == left.asker and other > ticket:
                self._waiting[other] = replace(task, turn=task.turn - 1)
        self._next_turns[left.asker] -= 1

    def _run(self, ticket: int, reserved_tokens: int, now: float) -> None:
        self._running[ticket] = (reserved_tokens, now)
        self._used_tokens += reserved_tokens

    def _fits(self, reserved_tokens: int) -> bool:
        return not self._running or self._used_tokens + reserved_tokens <= self._pool_tokens
