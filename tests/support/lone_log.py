"""The log of a node that is alone, and one without any disk at all."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import final

from protocol.clock import Clock
from protocol.commands import Command, CommandReply
from protocol.events import Event, MasterElected, SequencedEvent
from protocol.ids import ClusterId, CommandId, NodeId
from protocol.peer_messages import TermPair
from protocol.readings import Readings
from skulkd.cluster.closed_transport import ClosedTransport
from skulkd.cluster.peer_calls import ControlCalls
from skulkd.core.apply import apply, repeated
from skulkd.core.decide import decide
from skulkd.eventlog.cluster_log import ClusterLog
from skulkd.eventlog.durable_log import DurableLog
from skulkd.eventlog.journal import JournalLimits
from skulkd.eventlog.replica import Replica
from skulkd.runtime.disk import Disk
from skulkd.runtime.tasks import Tasks


@final
class AloneMasters:
    """Mastership of a node that is alone: it is master."""

    def __init__(self, node_id: NodeId, number: int) -> None:
        self._node_id = node_id
        self.term: TermPair | None = TermPair(number, node_id)
        self.last_master: NodeId | None = node_id
        self.is_master = True

    def is_alive(self, node_id: NodeId) -> bool:
        return node_id == self._node_id

    def silent_s(self, node_id: NodeId) -> float | None:
        return 0.0 if node_id == self._node_id else None

    def is_reachable(self, node_id: NodeId) -> bool:
        return node_id == self._node_id

    def on_change(self, watcher: Callable[[], None]) -> None:
        del watcher


@final
class LoneLog:
    """A journal, and the log of its only node, which leads from the start."""

    def __init__(self, durable: DurableLog, log: ClusterLog) -> None:
        self.durable = durable
        self.log = log

    @classmethod
    async def open(
        cls,
        disk: Disk,
        directory: Path,
        *,
        node_id: NodeId,
        cluster_id: ClusterId,
        number: int,
        clock: Clock,
        tasks: Tasks,
        limits: JournalLimits | None = None,
    ) -> "LoneLog":
        """Replay, and lead the term `number`."""
        durable, appended, _ = await DurableLog.open(
            disk, directory, cluster_id=cluster_id, clock=clock, tasks=tasks, limits=limits
        )
        transport = ClosedTransport(node_id)
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  numbers requests that nobody gets
        calls = ControlCalls(transport, rng=random.Random(1), tasks=tasks)
        log = ClusterLog(
            durable,
            appended,
            transport=transport,
            calls=calls,
            readings=Readings,
            clock=clock,
            tasks=tasks,
        )
        log.attach(AloneMasters(node_id, number))
        log.lead(TermPair(number, node_id), is_minority=False)
        return cls(durable, log)

    async def close(self) -> None:
        """End in good order."""
        await self.log.close()
        await self.durable.close()


@final
class MemoryLog:
    """Decides and applies; keeps nothing and never fails.

    Args:
        node_id: The master.
        replica: At the state to begin with.
        readings: What `decide` plans with.
        clock: Stamps events.
    """

    def __init__(
        self,
        node_id: NodeId,
        replica: Replica,
        readings: Callable[[], Readings],
        clock: Clock,
    ) -> None:
        self._node_id = node_id
        self._replica = replica
        self._readings = readings
        self._clock = clock
        self._term = replica.state.term + 1

    def begin(self) -> None:
        """Open the term."""
        self._commit(MasterElected(master=self._node_id), None)

    def submit(self, command: Command) -> CommandReply:
        """Decide a command, once."""
        state = self._replica.state
        known = repeated(state, command.command_id)
        if known is None:
            events = decide(state, self._readings(), command, now_ms=self._now_ms())
            for event in events:
                self._commit(event, command.command_id)
        return CommandReply(
            command_id=command.command_id,
            term=self._term,
            seq=self._replica.state.seq if known is None else known.seq,
            durable="local",
            repeated=known is not None,
        )

    def _commit(self, event: Event, command_id: CommandId | None) -> None:
        state = self._replica.state
        sequenced = SequencedEvent(self._term, state.seq + 1, self._now_ms(), command_id, event)
        self._replica.advance([(sequenced, apply(state, sequenced))])

    def _now_ms(self) -> int:
        return max(self._clock.wall_ms(), self._replica.state.at_ms)
