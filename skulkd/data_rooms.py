"""What a node does for the others' clients and files, and they for its: the data and files planes.

Wired here once, for the daemon and for the simulator alike.
"""

import random
from collections.abc import Callable
from typing import Final, Protocol, final

from protocol.clock import Clock
from skulkd.api.cancels import ClusterCancels
from skulkd.api.ports import Inference, TokenCounts
from skulkd.api.remote_inference import ClusterInference
from skulkd.cluster.data_link import DataLinks
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.cluster.transport import Transport
from skulkd.rooms import Rooms
from skulkd.runtime.tasks import Tasks
from skulkd.worker.data_server import DataServer, Served
from skulkd.worker.holdings import Held, HoldingsReport


class LocalWorker(Inference, TokenCounts, Served, Protocol):
    """What serves the instances of this node."""


@final
class DataRooms:
    """The way of requests between nodes.

    Args:
        rooms: Whose replica says where instances are.
        transport: Its data plane belongs to this object from now on.
        worker: Serves what is placed here.
        held: Lists the artifacts that are complete here; blocks.
        table: Gets the reading of them.
        clock: Stamps it.
        rng: Numbers streams.
        tasks: Owns what runs in the background.
    """

    def __init__(
        self,
        *,
        rooms: Rooms,
        transport: Transport,
        worker: LocalWorker,
        held: Callable[[], tuple[Held, ...]],
        table: ReadingsTable,
        clock: Clock,
        rng: random.Random,
        tasks: Tasks,
    ) -> None:
        self._tasks = tasks
        self._links = DataLinks(transport, tasks)
        self._server = DataServer(self._links, worker, tasks)
        self.inference: Final = ClusterInference(rooms.replica, worker, self._links, rng)
        self.counts: Final[TokenCounts] = worker
        self.cancels: Final = ClusterCancels(rooms.node_id, rooms.replica, rooms.calls, tasks)
        self.cancels.add_here(self._server.cancel)
        self._holdings = HoldingsReport(
            node_id=rooms.node_id, held=held, table=table, view=rooms.replica, clock=clock
        )

    def start(self) -> None:
        """Begin to tell what files are here."""
        self._tasks.start(self._holdings.run(), name="holdings")

    async def close(self) -> None:
        """Take no further task of other nodes, and end those that go on elsewhere."""
        self._server.close()
        self._links.close()
