"""The links of a simulated node: the production's, on interfaces that are simulated."""

from collections.abc import Iterable

from protocol.files_wire import FillingFrame, unpack_files
from protocol.ids import NodeId
from skulkd.cluster.link_paths import LinkPath
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.link_rooms import LinkRooms
from skulkd.rooms import Rooms, RoomsTransport
from skulkd.runtime.tasks import Tasks
from tests.support.simulated_world import SimulatedWorld

PATH = LinkPath(interface="sim0", kind="ethernet", nominal_bits_s=1_000_000_000)


def simulated_links(
    rooms: Rooms,
    transport: RoomsTransport,
    table: ReadingsTable,
    world: SimulatedWorld,
    tasks: Tasks,
) -> LinkRooms:
    """Wire a node's links; no model files go over its files plane."""

    def read_paths(hosts: Iterable[str]) -> dict[str, LinkPath]:
        return dict.fromkeys(hosts, PATH)

    def take(sender: NodeId, payload: bytes) -> None:
        frame = unpack_files(payload)
        if isinstance(frame, FillingFrame):
            links.probes.on_frame(sender, frame)

    links = LinkRooms(
        rooms=rooms,
        transport=transport,
        read_paths=read_paths,
        table=table,
        clock=world.clock,
        rng=world.chance,
        tasks=tasks,
    )
    transport.on_receive("files", take)
    return links
