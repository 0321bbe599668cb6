"""Takes commands to the master, wherever it is; implements `CommandGateway`.

A command keeps its id however often it is sent, so that a master that changes, an answer that is
lost and a client that repeats never make it happen twice. So nobody waits for a master that has
been replaced or is heard no more: what it was asked is asked of the next one. Who writes here reads
here: the answer waits a moment for this node's own replica.
"""

import asyncio
import heapq
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, final

from protocol.commands import Command, CommandReply
from protocol.errors import ProtocolError, SkulkError
from protocol.ids import CommandId, NodeId, command_id_of
from protocol.peer_messages import CommandAnswer, SubmitCommand, TermPair
from protocol.state import ClusterState
from skulkd.cluster.calls import PeerCalls
from skulkd.cluster.peer_calls import MAX_ANSWERING
from skulkd.cluster.roles import MasterView
from skulkd.eventlog import refusals
from skulkd.eventlog.cluster_log import ClusterLog
from skulkd.eventlog.replica import Placed
from skulkd.runtime.tasks import timeout

_RETRIED: Final = frozenset(
    {"cluster.no_master", "cluster.peer_unreachable", "cluster.peer_timeout", "cluster.stopping"}
)
"""With these another try may reach a master that decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """How long a command waits; the defaults are for use, others are for tests."""

    master_wait_s: float = 8.0
    """Until a master is known that takes it, over all tries."""
    answer_s: float = 2.5
    """For one answer; then it is asked again, by the same id, whoever is master by then."""
    replica_wait_s: float = 2.0
    """After the answer, for this node's replica."""
    pause_s: float = 0.2
    """Between two tries with one and the same master, and two looks whether there is one: that it
    was late for a moment is told to nobody."""


@final
class ClusterGateway:
    """See the module.

    Args:
        node_id: This node; its short id begins each command id.
        log: Decides, where this node is master; holds the replica.
        masters: Who is master.
        calls: Asks the master.
        limits: How long is waited.
        random_bytes: Makes command ids; the system's by default.
    """

    def __init__(
        self,
        *,
        node_id: NodeId,
        log: ClusterLog,
        masters: MasterView,
        calls: PeerCalls,
        limits: GatewayLimits | None = None,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._node_id = node_id
        self._log = log
        self._masters = masters
        self._calls = calls
        self._limits = limits or GatewayLimits()
        self._random_bytes = random_bytes
        # Asking for the running loop is a system call, and each command would ask.
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._ways = asyncio.Semaphore(MAX_ANSWERING)
        """The master works on so many commands of one node; the others wait their turn here."""
        self._asking: dict[asyncio.Timeout, TermPair] = {}
        """What ends the wait for an answer, and whose answer it is."""
        self._reached: list[tuple[int, int, asyncio.Future[None]]] = []
        """A heap of those who wait for the replica: the seq, a number that tells them apart."""
        self._n_reached = 0
        self._is_closed = False
        masters.on_change(self._on_change)
        log.replica.subscribe_batches(self._on_events, self._on_state)

    def mint_command_id(self) -> CommandId:
        """Make a new id."""
        return command_id_of(self._node_id, self._random_bytes(20))

    async def submit(self, command: Command) -> CommandReply:
        """Have a command decided and committed; see `CommandGateway`.

        Raises:
            SkulkError: What the master refuses with; `cluster.no_master` or `cluster.no_quorum`
                when none took it in time; `cluster.stopping`.
        """
        reply = await self._send(command)
        if self._log.replica.state.seq < reply.seq:
            await self._wait_replica(reply.seq)
        return reply

    def close(self) -> None:
        """Take no more commands, and end those that wait for a master."""
        self._is_closed = True
        self._changed.set()

    async def _send(self, command: Command) -> CommandReply:
        loop = self._loop
        deadline_s = loop.time() + self._limits.master_wait_s
        last: SkulkError | None = None
        while True:
            if self._is_closed:
                raise refusals.stopping()
            # Cleared before the look: a change in between is not missed.
            self._changed.clear()
            term, left_s = self._masters.term, deadline_s - loop.time()
            if term is not None and left_s > 0:
                try:
                    if term.master == self._node_id:
                        return await self._log.submit(command)
                    return await self._try(term, command, left_s)
                except SkulkError as error:
                    if error.code not in _RETRIED:
                        raise
                    last = error
                left_s = deadline_s - loop.time()
            if left_s <= 0:
                raise self._given_up(last)
            if self._masters.term == term:
                await self._wait_change(min(left_s, self._limits.pause_s))

    async def _try(self, term: TermPair, command: Command, within_s: float) -> CommandReply:
        patience = timeout(within_s)
        self._asking[patience] = term
        try:
            async with patience:
                return await self._ask(term.master, command)
        except TimeoutError as error:
            why = "the master that was asked has not answered"
            raise refusals.no_master(term.master, why=why) from error
        finally:
            self._asking.pop(patience, None)

    async def _ask(self, master: NodeId, command: Command) -> CommandReply:
        request = SubmitCommand(command=command)
        async with self._ways:
            answer = await self._calls.ask(master, request, timeout_s=self._limits.answer_s)
        if not isinstance(answer, CommandAnswer) or answer.reply.command_id != command.command_id:
            raise ProtocolError(
                "protocol.bad_frame",
                f"the master {master} answered a command with {answer.kind}",
                remediation="Run the same build on all nodes; if they do, report this.",
            )
        return answer.reply

    def _given_up(self, last: SkulkError | None) -> SkulkError:
        state = self._log.appended
        if refusals.lacks_majority(state, self._masters):
            return refusals.no_quorum(state, self._masters)
        if last is not None and self._masters.term is not None:
            return last
        return refusals.no_master(self._masters.last_master)

    def _on_change(self) -> None:
        self._changed.set()
        term = self._masters.term
        left = [patience for patience, asked in self._asking.items() if asked != term]
        now_s = self._loop.time()
        for patience in left:
            del self._asking[patience]
            if not patience.expired():  # else it ends in this very turn by itself
                patience.reschedule(now_s)

    async def _wait_change(self, within_s: float) -> None:
        with suppress(TimeoutError):
            async with timeout(within_s):
                await self._changed.wait()

    # ---- This node's replica ----

    async def _wait_replica(self, seq: int) -> None:
        """Wait until this node's replica shows what was committed, within a bound."""
        reached: asyncio.Future[None] = self._loop.create_future()
        self._n_reached += 1
        waiting = (seq, self._n_reached, reached)
        heapq.heappush(self._reached, waiting)
        try:
            with suppress(TimeoutError):
                async with timeout(self._limits.replica_wait_s):
                    await reached
        finally:
            if reached.cancelled() and waiting in self._reached:
                self._reached.remove(waiting)
                heapq.heapify(self._reached)

    def _on_events(self, batch: Sequence[Placed]) -> None:
        self._on_state(batch[-1][1])

    def _on_state(self, state: ClusterState) -> None:
        waiting = self._reached
        while waiting and waiting[0][0] <= state.seq:
            reached = heapq.heappop(waiting)[2]
            if not reached.done():
                reached.set_result(None)
