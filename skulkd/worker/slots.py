"""Admission of tasks to one engine: `slot_queue` decides, this waits."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal, final

from engines.base import EngineClient
from protocol.cards import TEXT_TOKENS
from protocol.clock import Clock
from protocol.errors import EngineError, ErrorBody, error_of
from protocol.tasks import ChatTask
from skulkd.core.meters import QUEUE_BOUNDS_S, Histogram
from skulkd.worker.slot_queue import MAX_QUEUED, Admit, Place, SlotQueue
from skulkd.worker.token_budget import (
    DEFAULT_MAX_OUTPUT_TOKENS,
    UNKNOWN_IMAGES,
    UNMEASURED,
    ImageSize,
    TemplateSize,
    TokenBudget,
    bounded_budget,
    counted_budget,
    wanted_tokens,
)

_Signal = Literal["admit", "count", "closed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLimits:
    """What one instance offers."""

    slots: int
    context_tokens: int
    """Window of one request, and the pool that all share."""
    default_max_tokens: int = DEFAULT_MAX_OUTPUT_TOKENS
    template: TemplateSize = UNMEASURED
    """Of the model; a large guess makes fewer requests run at a time, never too many."""
    images: ImageSize = UNKNOWN_IMAGES
    """Of the model; a large guess, as for the template."""
    text_tokens: int = TEXT_TOKENS
    """The longest text that is made a vector."""
    max_queued: int = MAX_QUEUED


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A slot, held."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission(Ticket):
    """A slot, held for a chat."""

    task: ChatTask
    """What to give to the engine: its limit of output tokens is set."""


_Recount = Callable[[], Awaitable[TokenBudget]]
"""Gives the exact budget of a task that waits with a bounded one."""


@final
class Slots:
    """The slots of one running engine.

    Args:
        limits: What the engine was started with.
        client: Asked for the size of prompts.
        clock: For the guess in `engine.busy`.
        on_change: Called when the number of running or waiting tasks has changed.
        waits: Gets the seconds that each task has waited that got a slot.
    """

    def __init__(
        self,
        limits: SlotLimits,
        client: EngineClient,
        clock: Clock,
        on_change: Callable[[], None] = lambda: None,
        waits: Histogram | None = None,
    ) -> None:
        self._limits: Final = limits
        self._client = client
        self._clock = clock
        self._on_change = on_change
        self._waits = waits or Histogram(QUEUE_BOUNDS_S)
        self._queue = SlotQueue(
            slots=limits.slots,
            pool_tokens=limits.context_tokens,
            max_queued=limits.max_queued,
        )
        self._waiters: dict[int, asyncio.Future[_Signal]] = {}
        self._admitted_early: set[int] = set()
        """Admitted between the request to count and the moment the task woke up to do so."""
        self._refused_by: ErrorBody | None = None
        """For those that come from now on; None while they are taken."""
        self._closed_by: ErrorBody | None = None

    @property
    def limits(self) -> SlotLimits:
        """What the engine was started with."""
        return self._limits

    @property
    def slots(self) -> int:
        """Tasks that are served at a time."""
        return self._queue.slots

    @property
    def n_running(self) -> int:
        """Tasks that have a slot."""
        return self._queue.n_running

    @property
    def n_queued(self) -> int:
        """Tasks that wait for one."""
        return self._queue.n_queued

    def places(self, n: int) -> tuple[Place, ...]:
        """Give the first `n` waiting tasks in the order in which they start, as it is now."""
        return self._queue.places(n, now=self._clock.monotonic_s())

    async def acquire(self, task: ChatTask) -> Admission:
        """Wait for a slot; whoever gets one gives it back with `release`.

        Raises:
            EngineError: `engine.busy` when too many wait; what counting the prompt raised.
            RequestError: `request.context_length_exceeded`.
            SkulkError: What `close` or `refuse` was called with.
        """
        self.check_room(task.asker)
        began_s = self._clock.monotonic_s()
        budget, is_exact = await self._budget(task)
        ticket, budget = await self._enter(
            budget, None if is_exact else lambda: self._counted(task), task.asker
        )
        self._waits.observe(self._clock.monotonic_s() - began_s)
        admitted = task.changed({"max_tokens": budget.max_tokens})
        return Admission(ticket=ticket, task=admitted)

    def check_room(self, asker: str) -> None:
        """See whether a task of an asker could wait here now.

        Raises:
            EngineError: `engine.busy` when too many wait.
            SkulkError: What `close` or `refuse` was called with.
        """
        self._check_open()
        if self._refused_by is not None:
            raise error_of(self._refused_by)
        if not self._queue.has_room(asker):
            raise self._busy()

    async def acquire_tokens(self, n_tokens: int, asker: str) -> Ticket:
        """Wait for a slot with room for so many tokens at a time; `check_room` goes before it.

        Raises:
            EngineError: `engine.busy` when too many wait.
            SkulkError: What `close` was called with.
        """
        began_s = self._clock.monotonic_s()
        budget = TokenBudget(prompt_tokens=n_tokens, max_tokens=0)
        ticket, _ = await self._enter(budget, None, asker)
        self._waits.observe(self._clock.monotonic_s() - began_s)
        return Ticket(ticket=ticket)

    def release(self, held: Ticket) -> None:
        """Give a slot back; idempotent."""
        self._leave(held.ticket)

    def refuse(self, error: ErrorBody) -> None:
        """Refuse all tasks that come later with `error`; those that run or wait go on."""
        self._refused_by = error

    def close(self, error: ErrorBody) -> None:
        """Refuse the waiting tasks and all later ones with `error`; running ones go on."""
        self._closed_by = error
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_result("closed")

    def _leave(self, ticket: int) -> None:
        self._waiters.pop(ticket, None)
        self._admitted_early.discard(ticket)
        self._queue.leave(ticket, now=self._clock.monotonic_s())
        self._pump()
        self._on_change()

    def _check_open(self) -> None:
        if self._closed_by is not None:
            raise error_of(self._closed_by)

    async def _budget(self, task: ChatTask) -> tuple[TokenBudget, bool]:
        limits = self._limits
        bounded = bounded_budget(task, limits.default_max_tokens, limits.template, limits.images)
        if bounded.reserved_tokens <= limits.context_tokens:
            return bounded, False
        return await self._counted(task), True

    async def _enter(
        self, budget: TokenBudget, recount: _Recount | None, asker: str
    ) -> tuple[int, TokenBudget]:
        """Queue up, and wait; without `recount` the budget is exact."""
        self._check_open()
        reserved_tokens, now = budget.reserved_tokens, self._clock.monotonic_s()
        ticket = self._queue.try_start(reserved_tokens, now=now)
        if ticket is not None:  # nearly always: no future is made, and nothing awaited
            self._on_change()
            return ticket, budget
        ticket = self._queue.try_enqueue(
            reserved_tokens, is_exact=recount is None, asker=asker, now=now
        )
        if ticket is None:
            raise self._busy()
        try:
            budget = await self._wait(ticket, budget, recount)
        except BaseException:
            self._leave(ticket)
            raise
        del self._waiters[ticket]
        return ticket, budget

    async def _wait(
        self, ticket: int, budget: TokenBudget, recount: _Recount | None
    ) -> TokenBudget:
        waiter = self._renew_waiter(ticket)
        self._pump()
        self._on_change()
        while await waiter == "count" and recount is not None:
            # The new one is there before the queue may decide about it.
            waiter = self._renew_waiter(ticket)
            budget = await recount()
            self._queue.set_exact(ticket, budget.reserved_tokens)
            self._pump()
        self._check_open()
        return budget

    def _renew_waiter(self, ticket: int) -> "asyncio.Future[_Signal]":
        waiter: asyncio.Future[_Signal] = asyncio.get_running_loop().create_future()
        self._waiters[ticket] = waiter
        if ticket in self._admitted_early:
            self._admitted_early.discard(ticket)
            waiter.set_result("admit")
        elif self._closed_by is not None:
            waiter.set_result("closed")
        return waiter

    async def _counted(self, task: ChatTask) -> TokenBudget:
        limits = self._limits
        try:
            prompt_tokens = await self._client.count_tokens(task)
        except EngineError as error:
            if error.code != "engine.unsupported":
                raise
            # Nobody can count: the task runs alone, and the engine itself guards its window.
            wanted = wanted_tokens(task, limits.default_max_tokens)
            return TokenBudget(prompt_tokens=limits.context_tokens, max_tokens=wanted)
        return counted_budget(
            task,
            prompt_tokens,
            window_tokens=limits.context_tokens,
            default_max_tokens=limits.default_max_tokens,
            images=limits.images,
        )

    def _pump(self) -> None:
        while (step := self._queue.next_step(now=self._clock.monotonic_s())) is not None:
            waiter = self._waiters[step.ticket]
            if not waiter.done():
                waiter.set_result("admit" if isinstance(step, Admit) else "count")
            elif isinstance(step, Admit):
                self._admitted_early.add(step.ticket)

    def _busy(self) -> EngineError:
        return EngineError(
            "engine.busy",
            f"{self._queue.n_running} requests run and {self._queue.n_queued} wait, which is as "
            "many as this instance takes",
            remediation="Retry after the given time, or place the model a second time.",
            details={"running": self._queue.n_running, "queued": self._queue.n_queued},
            retry_after_s=self._queue.retry_after_s(),
        )
