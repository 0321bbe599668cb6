"""What a runner takes, measured when it is ready and again when it has worked.

An engine touches part of its buffers only once all slots have worked, so a boot is measured again
when it comes to rest, and what counts is the most that was seen.
"""

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, final

from protocol.cards import ModelCard
from protocol.clock import Clock
from protocol.measurements import BootKey, MeasuredMemory
from protocol.nodes import EngineFacts, NodeFacts
from protocol.placements import Plan, ShardAssignment
from skulkd.core.placement.measured import boot_key, held_by_process, place_of
from skulkd.core.placement.memory_fit import compute_of
from skulkd.runtime.tasks import Tasks
from skulkd.worker.launchers.base import ProcessMemory

AGAIN_AFTER_S: Final = 30.0
"""The kernel walks the whole address space of the engine: milliseconds, and not for each answer."""
_GROWTH_RATIO: Final = 1.01
"""Less growth than this is not worth an entry in the log of the cluster."""


class Measured(NamedTuple):
    """What a boot takes, and what that holds for."""

    key: BootKey
    memory: MeasuredMemory


def measured_boot(
    card: ModelCard,
    plan: Plan,
    shard: ShardAssignment,
    build: EngineFacts,
    facts: NodeFacts,
    process: ProcessMemory,
) -> Measured | None:
    """Say what one rank takes, from what the kernel tells of its process; pure.

    Returns:
        None where that does not tell: a GPU's memory is in no process.
    """
    if shard.memory.pool != "ram":
        return None
    key = boot_key(
        card,
        build,
        facts,
        compute=compute_of(shard.backend or plan.backend),
        context_tokens=plan.context_tokens,
        slots=plan.slots,
        place=place_of(plan, shard),
    )
    memory = held_by_process(
        shard.memory,
        mapped_bytes=process.mapped_bytes,
        private_bytes=process.private_bytes,
    )
    return Measured(key, memory)


@final
class BootMeter:
    """Measures one runner.

    Args:
        measure: Says what it takes now; None where nothing tells.
        report: Told what is more than was known.
        clock: For the time between two measurements.
        tasks: Owner of the task that measures.
        name: Of the runner.
    """

    def __init__(
        self,
        measure: Callable[[], Awaitable[Measured | None]],
        report: Callable[[Measured], None],
        *,
        clock: Clock,
        tasks: Tasks,
        name: str,
    ) -> None:
        self._measure = measure
        self._report = report
        self._clock = clock
        self._tasks = tasks
        self._name = f"memory {name}"
        self._newest: Measured | None = None
        self._measured_at_s = float("-inf")
        self._has_worked = True

    def on_load(self, n_running: int) -> None:
        """Note how many requests are served now; the first call says that the runner is ready."""
        now_s = self._clock.monotonic_s()
        if n_running:
            self._has_worked = True
        elif self._has_worked and now_s - self._measured_at_s >= AGAIN_AFTER_S:
            self._has_worked = False
            self._measured_at_s = now_s
            self._tasks.start(self._look(), name=self._name, essential=False)

    def report_again(self) -> None:
        """Say anew what was measured: it may be in no log any more."""
        if self._newest is not None:
            self._report(self._newest)

    async def _look(self) -> None:
        seen = await self._measure()
        known = self._newest
        if seen is None or (
            known is not None
            and seen.memory.total_bytes <= known.memory.total_bytes * _GROWTH_RATIO
        ):
            return
        self._newest = seen
        self._report(seen)
