"""What the readings of other nodes say about their model files."""

import hashlib
from collections.abc import Callable
from typing import final

from protocol.ids import Digest, ModelId, NodeId
from protocol.readings import Readings
from skulkd.cluster.transport import Transport
from store.sources.peer import PeerTransfer


@final
class ReadHoldings:
    """Implements `store.sources.peer.PeerHoldings`.

    Args:
        transport: Tells which nodes can be reached.
        readings: Gives the newest readings of all nodes.
        name_of: Gives a node's name, for people.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        readings: Callable[[], Readings],
        name_of: Callable[[NodeId], str],
    ) -> None:
        self._transport = transport
        self._readings = readings
        self._name_of = name_of

    def has_peers(self) -> bool:
        """Tell whether any other node can be reached now."""
        return bool(self._transport.peers())

    def holders(self, key: Digest) -> tuple[NodeId, ...]:
        """Name the other nodes that hold an artifact.

        Each node has an order of its own, so that many that want one model do not all ask the
        same node first.
        """
        holdings = self._readings().holdings
        found = [
            node_id
            for node_id in self._transport.peers()
            if node_id in holdings
            and any(item.digest == key for item in holdings[node_id].holdings)
        ]
        return tuple(sorted(found, key=self._rank))

    def fetchers(self, model_id: ModelId) -> tuple[PeerTransfer, ...]:
        """Give the transfers of a model on other nodes."""
        reachable = set(self._transport.peers())
        return tuple(
            PeerTransfer(
                node_id=item.node_id,
                phase=item.phase,
                done_bytes=item.done_bytes,
                total_bytes=item.total_bytes,
            )
            for (node_id, model), item in self._readings().transfers.items()
            if model == model_id and node_id in reachable
        )

    def name_of(self, node_id: NodeId) -> str:
        """Give a node's name."""
        return self._name_of(node_id)

    def _rank(self, node_id: NodeId) -> bytes:
        return hashlib.sha256(f"{self._transport.node_id} {node_id}".encode()).digest()
