"""Cancelling a task through any node: whoever has it is asked, the node that took it first.

A task is known to the node that took it, whose short id begins the command id, and to the node that
serves it. Either can end it; a node that knows nothing of it keeps that in mind for a minute, so
that a cancel may overtake its task.
"""

import logging
from collections.abc import Callable
from typing import Final, Protocol, final

from protocol.errors import SkulkError
from protocol.ids import CommandId, NodeId, may_have_minted
from protocol.peer_messages import CancelTask, TaskCancelled
from skulkd.cluster.calls import PeerCalls
from skulkd.eventlog.gateway import StateView
from skulkd.runtime.tasks import Tasks

_log = logging.getLogger(__name__)

ASK_S: Final = 3.0
CancelHere = Callable[[CommandId], bool]
"""Ends a task of this node with `request.cancelled`; False when there is none of that id."""


class Cancels(Protocol):
    """How a cancel reaches the other nodes."""

    def add_here(self, cancel_here: CancelHere) -> None:
        """Name one more part of this node that may know a task."""
        ...

    def cancel_here(self, command_id: CommandId) -> bool:
        """End a task that this node has taken or serves; False when it knows none of that id."""
        ...

    async def cancel_elsewhere(self, command_id: CommandId) -> bool:
        """Ask the other nodes to end a task; False when none that answers knows it."""
        ...


@final
class ClusterCancels:
    """Implements `Cancels`; answers the cancels of other nodes too.

    Args:
        node_id: This node.
        state: Names the members.
        calls: Asks them, and is asked.
        tasks: Owner of the questions.
    """

    def __init__(self, node_id: NodeId, state: StateView, calls: PeerCalls, tasks: Tasks) -> None:
        self._node_id = node_id
        self._state = state
        self._calls = calls
        self._tasks = tasks
        self._here: list[CancelHere] = []
        calls.serve(CancelTask, self._answer)

    def add_here(self, cancel_here: CancelHere) -> None:
        """Name one more part of this node that may know a task: its API, its worker."""
        self._here.append(cancel_here)

    def cancel_here(self, command_id: CommandId) -> bool:
        """End a task of this node; see `Cancels`."""
        # All of them: each may have to remember it for a task that is still on its way.
        known = [cancel_here(command_id) for cancel_here in self._here]
        return any(known)

    async def cancel_elsewhere(self, command_id: CommandId) -> bool:
        """Ask the other nodes to end a task; see `Cancels`."""
        others = [node_id for node_id in self._state.state.members if node_id != self._node_id]
        takers = [node_id for node_id in others if may_have_minted(node_id, command_id)]
        rest = [node_id for node_id in others if node_id not in takers]
        return await self._ask_all(takers, command_id) or await self._ask_all(rest, command_id)

    async def _ask_all(self, peers: list[NodeId], command_id: CommandId) -> bool:
        """Ask several at once, and wait for all: a cancel must reach everyone who may need it."""
        asked = [
            self._tasks.start(
                self._ask(peer, command_id), name=f"cancel {command_id}", essential=False
            )
            for peer in peers
        ]
        answers = [await task for task in asked]
        return any(answers)

    async def _ask(self, peer: NodeId, command_id: CommandId) -> bool:
        request = CancelTask(command_id=command_id)
        try:
            answer = await self._calls.ask(peer, request, timeout_s=ASK_S)
        except SkulkError as error:
            _log.info("%s was not asked to cancel: %s", peer, error.message)
            return False
        return isinstance(answer, TaskCancelled) and answer.was_known

    async def _answer(self, asker: NodeId, request: CancelTask) -> TaskCancelled:
        del asker
        return TaskCancelled(was_known=self.cancel_here(request.command_id))
