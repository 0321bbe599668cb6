"""The master's pen: decides commands, gives events their place, commits them in order.

A command is decided on the *head*, the state after everything decided so far. Its events are
journalled, and only what is committed reaches the replica and the caller. Decisions that come
while the disk syncs are written together by the next sync (group commit).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, final

from protocol.clock import Clock
from protocol.commands import Command, CommandReply
from protocol.errors import ClusterError
from protocol.events import ClusterFounded, Event, MasterElected, SequencedEvent
from protocol.ids import CommandId, NodeId
from protocol.readings import Readings
from protocol.state import ClusterState
from skulkd.core.apply import apply, repeated
from skulkd.core.decide import decide
from skulkd.eventlog.replica import Replica
from skulkd.runtime.tasks import Tasks

_log = logging.getLogger(__name__)

MAX_UNCOMMITTED: Final = 4096
"""Decided commands that may wait for the disk; the next one is refused."""

Durability = Literal["member", "local", "memory"]


class EventStore(Protocol):
    """What makes events durable."""

    async def commit(self, events: Sequence[tuple[SequencedEvent, ClusterState]]) -> Durability:
        """Make events durable, in order; each comes with the state after it.

        Never raises for a failing disk: it counts what it could not write and says `memory`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Committed:
    seq: int
    durable: Durability


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decided:
    command_id: CommandId | None
    events: tuple[tuple[SequencedEvent, ClusterState], ...]
    committed: asyncio.Future[_Committed]


@final
class Sequencer:
    """Sequences one term's events.

    Args:
        node_id: The master: this node.
        term: Persisted before this call; greater than every term in the log.
        replica: Holds the state that the log's recovery ended with.
        store: Makes events durable.
        readings: Gives the newest readings, which `decide` plans with.
        clock: Stamps events; the stamp never steps back within the log.
        tasks: Owns the committing task.
    """

    def __init__(
        self,
        *,
        node_id: NodeId,
        term: int,
        replica: Replica,
        store: EventStore,
        readings: Callable[[], Readings],
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self._node_id = node_id
        self._term = term
        self._replica = replica
        self._store = store
        self._readings = readings
        self._clock = clock
        self._tasks = tasks
        self._head = replica.state
        self._queue: deque[_Decided] = deque()
        self._waiting: dict[CommandId, asyncio.Future[_Committed]] = {}
        self._durable: Durability = "local"
        self._has_work = asyncio.Event()
        self._is_closed = False

    async def begin_term(self) -> None:
        """Start committing, and open the term with its first events."""
        self._tasks.start(self._commit_loop(), name="commit")
        events: list[Event] = []
        if self._head.seq == 0:
            events.append(ClusterFounded(cluster_id=self._head.cluster_id))
        events.append(MasterElected(master=self._node_id))
        await self._enqueue(events, command_id=None)

    async def submit(self, command: Command) -> CommandReply:
        """Decide a command and wait until it is committed; idempotent by its id.

        Cancelling the wait does not take the command back.

        Raises:
            SkulkError: What `decide` refuses with; `cluster.stopping`; `cluster.not_durable` when
                too many decisions wait for the disk.
        """
        earlier = self._waiting.get(command.command_id)
        if earlier is not None:
            return self._reply(command, await asyncio.shield(earlier), repeated=True)
        result = repeated(self._head, command.command_id)
        if result is not None:
            return CommandReply(
                command_id=command.command_id,
                term=result.term,
                seq=result.seq,
                durable=self._durable,
                repeated=True,
            )
        self._refuse_if_unable()
        events = decide(self._head, self._readings(), command, now_ms=self._stamp_ms())
        committed = await self._enqueue(events, command_id=command.command_id)
        return self._reply(command, committed, repeated=False)

    async def close(self) -> None:
        """Take no more commands, and commit what has been decided."""
        self._is_closed = True
        if self._queue:
            await asyncio.wait([decided.committed for decided in self._queue])

    def _refuse_if_unable(self) -> None:
        if self._is_closed:
            raise ClusterError(
                "cluster.stopping",
                "this node is stopping and takes no more commands",
                remediation="Ask another node, or this one after its restart.",
                retry_after_s=5,
            )
        if len(self._queue) >= MAX_UNCOMMITTED:
            raise ClusterError(
                "cluster.not_durable",
                f"{len(self._queue)} decided commands wait for the disk",
                remediation="Look at the disk that holds the home: it does not keep up.",
                retry_after_s=2,
            )

    def _stamp_ms(self) -> int:
        return max(self._clock.wall_ms(), self._head.at_ms)

    def _reply(self, command: Command, committed: _Committed, *, repeated: bool) -> CommandReply:
        return CommandReply(
            command_id=command.command_id,
            term=self._term,
            seq=committed.seq,
            durable=committed.durable,
            repeated=repeated,
        )

    async def _enqueue(
        self, events: Sequence[Event], *, command_id: CommandId | None
    ) -> _Committed:
        committed: asyncio.Future[_Committed] = asyncio.get_running_loop().create_future()
        placed = tuple(self._place(event, command_id) for event in events)
        self._queue.append(_Decided(command_id=command_id, events=placed, committed=committed))
        if command_id is not None:
            self._waiting[command_id] = committed
        self._has_work.set()
        return await asyncio.shield(committed)

    def _place(
        self, event: Event, command_id: CommandId | None
    ) -> tuple[SequencedEvent, ClusterState]:
        sequenced = SequencedEvent(
            term=self._term,
            seq=self._head.seq + 1,
            at_ms=self._stamp_ms(),
            command_id=command_id,
            event=event,
        )
        self._head = apply(self._head, sequenced)
        return sequenced, self._head

    async def _commit_loop(self) -> None:
        while True:
            await self._has_work.wait()
            self._has_work.clear()
            batch = tuple(self._queue)
            if not batch:
                continue
            events = [placed for decided in batch for placed in decided.events]
            if events:
                self._durable = await self._store.commit(events)
            for sequenced, state in events:
                self._replica.advance(sequenced, state)
            for decided in batch:
                self._queue.popleft()
                self._answer(decided)
            if self._queue:
                self._has_work.set()

    def _answer(self, decided: _Decided) -> None:
        if decided.command_id is not None:
            self._waiting.pop(decided.command_id, None)
        last_seq = decided.events[-1][0].seq if decided.events else self._replica.state.seq
        decided.committed.set_result(_Committed(seq=last_seq, durable=self._durable))
