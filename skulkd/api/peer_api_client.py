"""Control requests to the HTTP API of another node, over the cluster's own connections."""

from typing import final

from protocol.errors import ProtocolError
from protocol.ids import NodeId
from protocol.peer_messages import ApiAnswer, CallApi
from skulkd.cluster.calls import PeerCalls


@final
class PeerApiClient:
    """Implements `PeerApi`.

    Args:
        calls: Asks.
    """

    def __init__(self, calls: PeerCalls) -> None:
        self._calls = calls

    async def call(self, node_id: NodeId, request: CallApi, *, timeout_s: float) -> ApiAnswer:
        """Have a request answered there; an error of the route is an answer too.

        Raises:
            ClusterError: `cluster.peer_unreachable`, `cluster.peer_timeout`.
            ProtocolError: `protocol.bad_frame`; it answered something else.
        """
        answer = await self._calls.ask(node_id, request, timeout_s=timeout_s)
        if not isinstance(answer, ApiAnswer):
            raise ProtocolError(
                "protocol.bad_frame",
                f"node {node_id} answered a control request with {answer.kind}",
                remediation="Run the same build on all nodes; if they do, report this.",
            )
        return answer
