"""Ending what a handler awaits because its client went, or because the node stops.

Works as `asyncio.timeout` does: the task's own await is cancelled, and the cancellation is turned
into an exception at the edge of the `with` block, so a cancellation from elsewhere stays one.
"""

import asyncio
from types import TracebackType
from typing import Self, final

from protocol.errors import ClusterError, RequestError, SkulkError
from skulkd.api.http import Connection


def client_gone() -> RequestError:
    """Give the error of a request whose client went away; only the log ever sees it."""
    return RequestError("request.cancelled", "the client went away")


def stopping() -> ClusterError:
    """Give the error that a node on its way down ends requests with."""
    return ClusterError(
        "cluster.stopping",
        "this node is stopping",
        remediation="Ask another node, or try again when it is back.",
        retry_after_s=5,
    )


@final
class Interruptible:
    """A block that `interrupt` can end from outside.

    Args:
        connection: Its loss interrupts the block.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._task: asyncio.Task[object] | None = None
        self._reason: SkulkError | None = None

    def interrupt(self, reason: SkulkError) -> None:
        """End the block with this error; the first reason counts."""
        if self._reason is None:
            self._reason = reason
            if self._task is not None:
                self._task.cancel()

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        self._connection.on_lost(lambda: self.interrupt(client_gone()))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.on_lost(None)
        task, self._task = self._task, None
        if self._reason is None or task is None:
            return
        # Zero: no cancellation but ours is pending, so the one in flight is ours to translate.
        if task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise self._reason from error
