"""The health of every member, derived from this node's replica and readings when asked."""

from collections.abc import Callable, Mapping
from typing import final

from protocol.clock import Clock
from protocol.ids import NodeId
from protocol.nodes import NodeHealth
from skulkd.api.ports import ReadingsView
from skulkd.core.cluster_health import ClusterSight
from skulkd.core.health import Switches, node_health
from skulkd.eventlog.gateway import StateView


@final
class DerivedHealth:
    """Implements `HealthView`.

    Args:
        node_id: This node, whose switches are known.
        state: The replica.
        readings: The last value of every reading.
        switches: What the operator switched on or off here, now.
        clock: Of the readings.
        sight: What this node sees of its cluster, now; None where there is none to see.
    """

    def __init__(
        self,
        *,
        node_id: NodeId,
        state: StateView,
        readings: ReadingsView,
        switches: Callable[[], Switches],
        clock: Clock,
        sight: Callable[[], ClusterSight] | None = None,
    ) -> None:
        self._node_id = node_id
        self._state = state
        self._readings = readings
        self._switches = switches
        self._clock = clock
        self._sight = sight

    def node_health(self) -> Mapping[NodeId, NodeHealth]:
        """Derive it now."""
        state, readings = self._state.state, self._readings.readings
        now_s = self._clock.monotonic_s()
        sight = None if self._sight is None else self._sight()
        return {
            node_id: node_health(
                state,
                readings,
                node_id,
                now_s=now_s,
                switches=self._switches() if node_id == self._node_id else None,
                sight=sight,
            )
            for node_id in (*state.members, *({self._node_id} - state.members.keys()))
        }
