"""What this node sees of its cluster now, for the health of every member."""

from collections.abc import Callable
from typing import final

from protocol.clock import Clock
from protocol.ids import NodeId
from skulkd.cluster.cluster_door import ClusterDoor
from skulkd.cluster.link_views import LinkViews
from skulkd.cluster.roles import MasterView
from skulkd.core.cluster_health import ClusterSight, DuplicateIdentity, Mdns, ReplacedLog
from skulkd.eventlog.cluster_log import ClusterLog


@final
class NodeSight:
    """Fills a `ClusterSight`.

    Args:
        node_id: This node.
        log: Its log.
        masters: Who is master, and who is heard.
        links: How the ways to the others are.
        door: Whether this node is open, and how discovery does.
        clock: Of all ages.
    """

    def __init__(
        self,
        *,
        node_id: NodeId,
        log: ClusterLog,
        masters: MasterView,
        links: LinkViews,
        door: ClusterDoor,
        clock: Clock,
    ) -> None:
        self._node_id = node_id
        self._log = log
        self._masters = masters
        self._links = links
        self._door = door
        self._clock = clock
        self._masterless_since_s: float | None = clock.monotonic_s()
        masters.on_change(self._on_change)

    def look(self) -> ClusterSight:
        """Say what is seen now; cheap."""
        now_s = self._clock.monotonic_s()
        term = self._masters.term
        since_s = self._masterless_since_s
        last = self._log.health().last_divergence
        mdns, mdns_reason = self._mdns()
        return ClusterSight(
            node_id=self._node_id,
            now_ms=self._clock.wall_ms(),
            is_open=self._door.base_port is not None,
            master=None if term is None else term.master,
            masterless_s=0.0 if term is not None or since_s is None else now_s - since_s,
            silent_s=self._silent(),
            link_reasons=self._reasons(),
            is_durable_elsewhere=self._is_durable_elsewhere(),
            duplicates=tuple(
                DuplicateIdentity(
                    node_id=one.node_id,
                    addresses=one.addresses,
                    last_ago_s=max(0.0, now_s - one.last_seen_s),
                )
                for one in self._links.duplicates()
            ),
            replaced_log=None
            if last is None
            else ReplacedLog(
                at_ms=last.at_ms,
                term=last.term,
                seq=last.seq,
                n_discarded=last.n_discarded,
                is_of_states=last.is_of_states,
            ),
            mdns=mdns,
            mdns_reason=mdns_reason,
        )

    def unheard(self) -> frozenset[NodeId]:
        """Name the members that this node does not hear at the moment."""
        return frozenset(self._silent())

    def _on_change(self) -> None:
        if self._masters.term is not None:
            self._masterless_since_s = None
        elif self._masterless_since_s is None:
            self._masterless_since_s = self._clock.monotonic_s()

    def _others(self, is_wanted: Callable[[NodeId], bool]) -> tuple[NodeId, ...]:
        members = self._log.replica.state.members
        return tuple(
            node_id for node_id in members if node_id != self._node_id and is_wanted(node_id)
        )

    def _silent(self) -> dict[NodeId, float]:
        masters = self._masters
        return {
            node_id: masters.silent_s(node_id) or 0.0
            for node_id in self._others(lambda peer: not masters.is_alive(peer))
        }

    def _reasons(self) -> dict[NodeId, str]:
        found = (self._links.peer_info(node_id) for node_id in self._others(lambda _: True))
        return {info.node_id: info.reason for info in found if info is not None and info.reason}

    def _is_durable_elsewhere(self) -> bool:
        return bool(self._others(self._masters.is_alive))

    def _mdns(self) -> tuple[Mdns, str]:
        status = self._door.discovery
        if status is None:
            return "off", ""
        return ("failed" if status.state == "failed" else "running"), status.warning
