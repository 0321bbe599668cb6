"""Requests between nodes: asked, answered or timed out, over the control plane."""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from protocol.ids import NodeId
from protocol.peer_messages import PeerAnswer, PeerRequest

Asked = TypeVar("Asked", bound=PeerRequest)
Handler = Callable[[NodeId, Asked], Awaitable[PeerAnswer]]
"""Answers a request of a peer; a `SkulkError` becomes `Refused`, anything else `internal.bug`."""


class PeerCalls(Protocol):
    """Both sides of it, on one node."""

    async def ask(self, peer: NodeId, request: PeerRequest, *, timeout_s: float) -> PeerAnswer:
        """Ask a peer and wait for its answer, which is never `Refused`.

        Raises:
            ClusterError: `cluster.peer_unreachable` at once when its link is not up, and when it
                breaks while the answer is waited for; `cluster.peer_timeout`.
            SkulkError: What the peer refused with.
        """
        ...

    def serve(self, kind: type[Asked], handler: Handler[Asked]) -> None:
        """Name who answers requests of a kind.

        At most 64 of a kind run for one peer, more are refused.
        """
        ...
