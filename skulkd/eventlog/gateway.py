"""What the rooms above the log see of it: submit an intent, read the state, follow the events."""

from collections.abc import Callable
from typing import Protocol

from protocol.commands import Command, CommandReply
from protocol.events import SequencedEvent
from protocol.ids import CommandId
from protocol.state import ClusterState


class CommandGateway(Protocol):
    """Takes commands to the master, wherever it is."""

    def mint_command_id(self) -> CommandId:
        """Make a new id, prefixed with this node's short id."""
        ...

    async def submit(self, command: Command) -> CommandReply:
        """Have a command decided, and wait until what it led to is committed.

        Idempotent by `command.command_id`. Cancelling the wait does not take the command back.

        Raises:
            SkulkError: The refusal of `core.decide`, or `cluster.no_master`, `cluster.no_quorum`,
                `cluster.not_durable`, `cluster.stopping`.
        """
        ...


class StateView(Protocol):
    """This node's replica."""

    @property
    def state(self) -> ClusterState:
        """The newest applied state; an immutable value."""
        ...

    def subscribe(
        self,
        on_event: Callable[[SequencedEvent, ClusterState], None],
        on_reset: Callable[[ClusterState], None] | None = None,
    ) -> Callable[[], None]:
        """Call back after each applied event, in order; returns what ends the subscription.

        The callbacks run on the event loop and must not block.

        Args:
            on_event: Called with the event and the state after it.
            on_reset: Called with the new state when it was not reached event by event: this node
                began anew from a snapshot. Whoever keeps anything derived from events needs it.
        """
        ...

    def recent(self, after_seq: int, limit: int) -> tuple[SequencedEvent, ...]:
        """The newest kept events with a higher seq, oldest first, at most `limit`."""
        ...
