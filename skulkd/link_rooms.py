"""What a node knows of its links and tells the others: by what, how long, and how much they carry.

Wired here once, for the daemon and for the simulator alike.
"""

import random
from collections.abc import Callable
from typing import Final, final

from protocol.clock import Clock
from protocol.ids import NodeId
from skulkd.cluster.link_paths import ReadPaths
from skulkd.cluster.link_probes import LinkProbes
from skulkd.cluster.link_report import LinkReport
from skulkd.cluster.probe_series import ProbeSeries
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.cluster.transport import LinkState
from skulkd.rooms import Rooms, RoomsTransport
from skulkd.runtime.tasks import Tasks


@final
class LinkRooms:
    """The links of one node.

    Args:
        rooms: Whose members are at the other ends.
        transport: The way to them.
        read_paths: Finds the interfaces; blocks.
        table: Gets the reading of them, and tells what this node serves.
        clock: Stamps it.
        rng: Numbers measurements.
        tasks: Owns what runs in the background.
    """

    def __init__(
        self,
        *,
        rooms: Rooms,
        transport: RoomsTransport,
        read_paths: ReadPaths,
        table: ReadingsTable,
        clock: Clock,
        rng: random.Random,
        tasks: Tasks,
    ) -> None:
        self._rooms = rooms
        self._table = table
        self._tasks = tasks
        self._n_elsewhere: Callable[[], int] = lambda: 0
        self.probes: Final = LinkProbes(
            transport, rng=rng, is_serving=self._is_serving, name_of=self._name_of
        )
        self.report: Final = LinkReport(
            node_id=rooms.node_id,
            members=lambda: rooms.replica.state.members,
            links=transport,
            rtt_of=rooms.telemetry.echoes.rtt,
            read_paths=read_paths,
            table=table,
            clock=clock,
            rounds=rooms.rounds,
        )
        self.series: Final = ProbeSeries(
            node_id=rooms.node_id,
            calls=rooms.calls,
            master=self._master,
            probes=self.probes,
            report=self.report,
            name_of=self._name_of,
            clock=clock,
            tasks=tasks,
        )
        transport.on_link(self._on_link)

    def count_elsewhere(self, count: Callable[[], int]) -> None:
        """Name who counts the answers that come through this node from others."""
        self._n_elsewhere = count

    def start(self) -> None:
        """Begin to tell how this node reaches the others."""
        self._tasks.start(self.report.run(), name="links")

    def _is_serving(self) -> bool:
        """Say whether clients are answered here, or from elsewhere through here."""
        own = self._rooms.node_id
        instances = self._table.readings.instances.values()
        return self._n_elsewhere() > 0 or any(
            reading.in_flight > 0 for reading in instances if reading.node_id == own
        )

    def _master(self) -> NodeId | None:
        term = self._rooms.mastership.term
        return None if term is None else term.master

    def _name_of(self, node_id: NodeId) -> str:
        member = self._rooms.replica.state.members.get(node_id)
        return node_id if member is None else member.name

    def _on_link(self, peer: NodeId, state: LinkState) -> None:
        del peer, state
        self.report.look_soon()
