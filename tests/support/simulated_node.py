"""One node in virtual time: the rooms of `skulkd.node`, wired as there, in a simulated world.

Real are the log, the sequencer, the replica, the worker with all it has, the planner and the whole
HTTP application; simulated are the disk, the machine, the engines, the store and the sockets. What
outlives a node (its disk, its machine, its files) is the world's; a node is one life in it.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, final

from protocol.cards import EngineName
from protocol.commands import Command, CommandReply
from protocol.errors import SkulkError
from protocol.events import InstanceRemoved, SequencedEvent
from protocol.ids import CommandId
from protocol.nodes import EngineFacts, NodeFacts
from protocol.peer_messages import CallApi
from protocol.state import ClusterState
from skulkd.api.app import ApiApp, create_app
from skulkd.api.dependencies import ApiDependencies, NodeFace
from skulkd.api.node_cluster import ClusterRoomsAccess, NodeCluster
from skulkd.api.node_joining import JoiningAccess, NodeJoining
from skulkd.api.peer_api_client import PeerApiClient
from skulkd.api.previews import PreviewService
from skulkd.api.request_meters import RequestMeters
from skulkd.cluster.addresses import ClusterAddress, InterfaceAddress, MachineAddresses
from skulkd.cluster.closed_transport import ClosedTransport
from skulkd.cluster.cluster_door import ClusterDoor, DoorParts, DoorSettings, DoorTransport
from skulkd.cluster.discovery import Announcement, cluster_hash_of
from skulkd.cluster.join_guest import JoinGuest
from skulkd.cluster.reach import WayBack
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.cluster.transport import Peer
from skulkd.core.invariants import event_violations, violations
from skulkd.core.lifecycle import Deadlines
from skulkd.data_rooms import DataRooms
from skulkd.eventlog.cluster_change import change_cluster
from skulkd.eventlog.cluster_gateway import ClusterGateway
from skulkd.eventlog.journal import JournalLimits
from skulkd.eventlog.journal_term import TermFile
from skulkd.eventlog.replica import Replica
from skulkd.link_rooms import LinkRooms
from skulkd.own_membership import OwnMembership
from skulkd.rooms import Rooms, RoomsParts, RoomsSpec
from skulkd.runtime.choices import Choices, ChoicesFile, KeptChoices
from skulkd.runtime.disk import Disk
from skulkd.runtime.identity import Identity, load_or_create
from skulkd.runtime.simulated_sleep import SimulatedSleep
from skulkd.runtime.tasks import Tasks, run_blocking
from skulkd.worker.accelerators import AcceleratorProbe
from skulkd.worker.launchers.base import LauncherPaths
from skulkd.worker.machine import MachineView
from skulkd.worker.probes import ProbeSettings
from skulkd.worker.readings import JournalStatus
from skulkd.worker.service import WorkerService, WorkerSettings, WorkerSurroundings
from tests.support.builders import an_engine, some_facts
from tests.support.fake_cluster import FakeAdmin, FakeLogs
from tests.support.fake_ports import FakeHealth, FakeListeners
from tests.support.simulated_engine import SimulatedEngine
from tests.support.simulated_launcher import SimulatedLauncher
from tests.support.simulated_lines import simulated_links
from tests.support.simulated_machine import SimulatedProcess
from tests.support.simulated_power import PoweredDisk
from tests.support.simulated_store import SimulatedModels
from tests.support.simulated_world import HOME, SimulatedWorld

DEADLINES: Final = Deadlines(
    download_s=30.0, stage_s=20.0, spawn_s=5.0, load_s=15.0, probe_s=10.0, terminate_s=2.0
)
_LIMITS: Final = JournalLimits(max_segment_bytes=16_384, retry_s=1.0)
_STOP_S: Final = 12.0
_STOP_IN_CLUSTER_S: Final = 1.7
"""As much as `skulkd.node` gives to each of its parts."""
_REQUESTS_S: Final = 1.5
_HELD_S: Final = 3.5
"""A process that takes longer to come or to go may still be there when a stop has to end."""
_API_PORT: Final = 52_415
_LINK: Final = 24
"""How many bits all addresses of the simulated network share."""


@final
class SimulatedGateway:
    """Implements `CommandGateway`, and tells what it promised.

    Args:
        node: Whose it is.
        behind: The node's own.
    """

    def __init__(self, node: "SimulatedNode", behind: ClusterGateway) -> None:
        self._node = node
        self._behind = behind

    def mint_command_id(self) -> CommandId:
        """Make a new id."""
        return self._node.world.mint()

    async def submit(self, command: Command) -> CommandReply:
        """Have a command decided and committed."""
        reply = await self._behind.submit(command)
        self._node.world.witness.on_reply(self._node, command, reply)
        return reply


@final
class SimulatedNode:
    """One life of the node; made by `start`.

    Args:
        world: What it lives in.
    """

    def __init__(self, world: SimulatedWorld) -> None:
        world.n_lives += 1
        self.world = world
        self.disk = PoweredDisk(world.disk)
        self.table = ReadingsTable()
        self.tasks = Tasks(f"node {world.number}", on_death=self._on_death)
        self.n_events = 0
        self.has_begun = False
        """Whether it serves HTTP, and has not died since."""
        self.is_dead = False
        self.identity: Identity
        self.choices: KeptChoices
        self.replica: Replica
        self.app: ApiApp
        self.worker: WorkerService
        self.launcher: SimulatedLauncher | None = None
        self.rooms: Rooms
        self.data: DataRooms
        self.links: LinkRooms
        self.door: ClusterDoor
        self.sleep: SimulatedSleep
        self.membership: OwnMembership
        self.boot_id = f"{world.number:08x}{world.n_lives:08x}"
        self.transport = ClosedTransport(world.node_id)
        self._before: ClusterState

    @classmethod
    async def start(cls, world: SimulatedWorld) -> "SimulatedNode":
        """Start a node on what the last one left, in the order of `skulkd.node`."""
        node = cls(world)
        await node.begin()
        return node

    @property
    def state(self) -> ClusterState:
        """What is committed."""
        return self.replica.state

    async def begin(self) -> None:
        """Start the rooms, in the order of `skulkd.node`."""
        world, clock = self.world, self.world.clock
        await self._read_home()
        rooms = self.rooms = await self._open_rooms()
        self.world.problems.extend(f"recovered: {what}" for what in violations(rooms.log.appended))
        self.replica = rooms.replica
        self._before = self.state
        world.witness.on_begin(self)
        self.replica.subscribe(self._check_event, self._on_reset)
        gateway = SimulatedGateway(self, rooms.gateway)
        self._make_door(rooms)
        self.links = simulated_links(rooms, self.transport, self.table, world, self.tasks)
        self.worker = self._make_worker(gateway)
        if self.choices.now.cluster_open:
            await self.door.open()
        self.membership.start()
        rooms.start()
        if await rooms.arrive():
            await self._disown()
        self.data = DataRooms(
            rooms=rooms,
            transport=self.transport,
            worker=self.worker,
            held=world.store.held,
            table=self.table,
            clock=clock,
            rng=world.chance,
            tasks=self.tasks,
        )
        self.links.count_elsewhere(lambda: self.data.inference.n_remote)
        self.app = create_app(self._dependencies(gateway))
        rooms.calls.serve(CallApi, self.app.peers.handle)
        rooms.set_api(_API_PORT, is_tls=False)
        self.has_begun = True
        self.worker.start()
        self.data.start()
        self.links.start()
        rooms.on_wake(self.worker.probe_again)
        self.sleep = SimulatedSleep(clock)
        self.tasks.start(self.sleep.tell(rooms), name="hear of sleep", essential=False)

    async def _read_home(self) -> None:
        """Find out who this node is, and make the cluster that has admitted it its own."""
        world = self.world
        file = HOME / "identity.json"
        self.identity = await run_blocking(
            load_or_create,
            self.disk,
            file,
            make_keys=lambda: world.keys,
            entropy=world.chance.randbytes,
        )
        choices_file = ChoicesFile(self.disk, HOME / "choices.json")
        self.choices = KeptChoices(choices_file, await run_blocking(choices_file.read))
        joining = self.choices.now.joining
        if joining is None:
            return
        self.identity = await run_blocking(
            change_cluster,
            self.disk,
            self.identity,
            joining,
            identity_file=file,
            journal=HOME / "journal",
            term_file=HOME / "term",
        )

        def arrived(kept: Choices) -> Choices:
            return kept.model_copy(update={"joining": None})

        await self.choices.change(arrived)

    async def _open_rooms(self) -> Rooms:
        world = self.world
        rooms, _ = await Rooms.open(
            RoomsSpec(
                identity=self.identity,
                name=world.name,
                role=world.role,
                boot_id=self.boot_id,
                seeds=tuple(
                    Peer(
                        node_id=seed.node_id,
                        public_key=bytes.fromhex(seed.public_key),
                        addresses=seed.addresses,
                    )
                    for seed in self.choices.now.seeds
                ),
                journal=HOME / "journal",
                journal_limits=_LIMITS,
            ),
            RoomsParts(
                disk=self.disk,
                clock=world.clock,
                transport=self.transport,
                keeper=TermFile(self.disk, HOME / "term"),
                table=self.table,
                rng=world.chance,
                random_bytes=world.chance.randbytes,
                tasks=self.tasks,
            ),
        )
        return rooms

    def _make_door(self, rooms: Rooms) -> None:
        self.door = ClusterDoor(
            self.transport,
            DoorSettings(
                address=ClusterAddress(host=None, base_port=0),
                kept_base_port=self.choices.now.base_port,
            ),
            DoorParts(
                load=_load_nothing,
                make_transport=self._attach,
                make_discovery=None,
                read_machine=self._read_machine,
            ),
            announce=self._announcement,
            tasks=self.tasks,
            on_addresses=rooms.set_addresses,
            on_sighting=rooms.directory.sight,
        )
        self.membership = OwnMembership(
            identity=self.identity,
            build="simulated",
            rooms=rooms,
            door=self.transport,
            prover=WayBack(
                make_dialler=lambda: self.world.network.guest_dialler(self.world.node_id),
                keys=self.world.keys,
                build="simulated",
                is_neighbour=self.door.is_neighbour,
            ),
            choices=self.choices,
            random_bytes=self.world.chance.randbytes,
            restart=self._restart,
            tasks=self.tasks,
        )

    def _attach(self) -> DoorTransport:
        world = self.world
        return world.network.attach(world.node_id, public_key=world.keys.public_key, is_open=False)

    def _read_machine(self) -> MachineAddresses:
        host = self.world.network.host_of(self.world.node_id)
        address = InterfaceAddress(interface="sim0", host=host, prefix=_LINK)
        return MachineAddresses(addresses=(address,), default_interface="sim0")

    def _announcement(self, base_port: int) -> Announcement:
        return Announcement(
            node_id=self.world.node_id,
            public_key=self.world.keys.public_key,
            cluster_hash=cluster_hash_of(self.identity.cluster_id),
            base_port=base_port,
        )

    def _restart(self) -> None:
        if not self.is_dead and self.world.on_restart is not None:
            self.world.on_restart(self)

    async def _disown(self) -> None:
        try:
            await self.worker.disown()
        except SkulkError:
            return  # the master was lost meanwhile; the worker says the same again once it runs
        if not self.rooms.is_alone:
            return  # this node may hear of it a moment after the master has decided it
        self.world.problems.extend(
            f"{item.instance_id} is ready in a node that has just begun"
            for item in self.state.instances.values()
            if item.phase == "ready"
            and all(shard.node_id == self.world.node_id for shard in item.plan.shards)
        )

    async def stop(self) -> None:
        """End in good order, as `skulkd.node` does."""
        self.has_begun = False
        self.app.stop()
        await self._end_requests()
        machine = self.world.machine
        is_held = any(
            max(item.mood.gone_s, item.mood.spawn_s) > _HELD_S for item in machine.living()
        )
        late = await self.worker.close(6.0)
        # One that the kernel does not start, or does not let go, is told and not waited for.
        if late and not is_held:
            self.world.problems.append(f"a stop left {', '.join(late)}")
        await self.data.close()
        await self._bounded(self.door.close)
        await self._bounded(self.rooms.close)
        await self._bounded(self.rooms.journal.close)
        await self.transport.close()
        late = await self.tasks.close(1.0)
        if late:
            self.world.problems.append(f"a stop left tasks {', '.join(late)}")
        self.is_dead = True
        self.disk.cut()
        # What an earlier life left, and this one had no time to find, is the next one's.
        left = [item for item in machine.living() if self._has_started(item)]
        if not is_held and any(item.exit_status is None for item in left):
            self.world.problems.append(f"a stop left processes {[item.pid for item in left]}")
        for process in left:
            process.signal(signal.SIGKILL)

    async def _bounded(self, close: Callable[[], Awaitable[object]]) -> None:
        """Close a part; what others must do for it, and they do not, is not waited for."""
        is_alone = self.rooms.is_alone
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S if is_alone else _STOP_IN_CLUSTER_S):
                await close()
            return
        if is_alone:
            self.world.problems.append(f"a stop took more than {_STOP_S:.0f} s")

    async def die(self) -> None:
        """End without any order: what it still does reaches neither disk nor process nor others."""
        self.has_begun = False
        self.is_dead = True
        self.disk.cut()
        await self.transport.close()
        if self.launcher is not None:
            self.launcher.cut()
        while dying := self._own_tasks(("node", "worker", "request")):
            for task in dying:
                task.cancel()
            await asyncio.wait(dying, timeout=10.0)

    async def _end_requests(self) -> None:
        """Give requests a moment, then end them, as the server does when it closes."""
        requests = self._own_tasks(("request",))
        if requests:
            await asyncio.wait(requests, timeout=_REQUESTS_S)
            for task in requests:
                task.cancel()

    def _own_tasks(self, owners: tuple[str, ...]) -> list[asyncio.Task[object]]:
        """Find what runs for this node, in an order that repeats.

        Requests are started by `simulated_clients`, under the node's number, too.
        """
        me = asyncio.current_task()
        starts = tuple(f"{owner} {self.world.number}/" for owner in owners)
        found = [task for task in asyncio.all_tasks() if task is not me and not task.done()]
        mine = [task for task in found if task.get_name().startswith(starts)]
        return sorted(mine, key=lambda task: task.get_name())

    def _has_started(self, process: SimulatedProcess) -> bool:
        return self.launcher is not None and self.launcher.has_started(process)

    def _make_worker(self, gateway: SimulatedGateway) -> WorkerService:
        world = self.world

        def journal() -> JournalStatus:
            health = self.rooms.journal.health()
            return JournalStatus(durable=health.mode == "durable", unwritten=health.n_unwritten)

        return WorkerService(
            WorkerSettings(
                node_id=world.node_id,
                home=HOME,
                models_dir=Path("/models"),
                environment={},
                build="simulated",
                role=world.role,
                deadlines=DEADLINES,
            ),
            WorkerSurroundings(
                gateway=gateway,
                view=self.replica,
                store=world.store,
                table=self.table,
                clock=world.clock,
                disk=self.disk,
                choices=self.choices,
                journal=journal,
                on_death=self._on_death,
                engine_of=self._engine_of,
                machine=world.machine,
                probe=probe_simulated,
                make_launcher=self._make_launcher,
                make_sockets_directory=lambda _path: None,
                owner=f"worker {world.number}",
                rounds=self.rooms.rounds,
                has_master=lambda: self.rooms.mastership.term is not None,
            ),
        )

    def _engine_of(self, name: EngineName) -> SimulatedEngine:
        return SimulatedEngine(name, self.world.machine)

    def _make_launcher(
        self, *, paths: LauncherPaths, disk: Disk, tasks: Tasks, environment: Mapping[str, str]
    ) -> SimulatedLauncher:
        del environment
        world = self.world
        self.launcher = SimulatedLauncher(
            world.machine, world.mood_of, paths=paths, disk=disk, tasks=tasks, chance=world.chance
        )
        return self.launcher

    def _dependencies(self, gateway: SimulatedGateway) -> ApiDependencies:
        world = self.world
        models = SimulatedModels(world.node_id, world.store, self.worker.transfers)
        face = NodeFace(
            node_id=world.node_id, name=world.name, hostname=world.name, boot_id=self.boot_id,
            version="simulated", role=world.role,
        )  # fmt: skip
        return ApiDependencies(
            face=face,
            clock=world.clock,
            tasks=self.tasks,
            gateway=gateway,
            state=self.replica,
            readings=self.table,
            health=FakeHealth(),
            placements=PreviewService(
                node_id=world.node_id,
                state=self.replica,
                readings=self.table,
                models=models,
                clock=world.clock,
            ),
            inference=self.data.inference,
            counts=self.data.counts,
            is_reachable=self.rooms.mastership.is_reachable,
            models=models,
            listeners=FakeListeners(),
            cluster=NodeCluster(self._cluster_access(), self._make_joining()),
            logs=FakeLogs(),
            admin=FakeAdmin(),
            peers=PeerApiClient(self.rooms.calls),
            cancels=self.data.cancels,
            probes=self.links.series,
            random=world.chance,
            meters=RequestMeters(world.clock),
            queue_waits=self.worker.queue_waits,
        )

    def _cluster_access(self) -> ClusterRoomsAccess:
        rooms = self.rooms
        return ClusterRoomsAccess(
            identity=self.identity,
            name=self.world.name,
            build="simulated",
            transport=self.transport,
            door=self.door,
            log=rooms.log,
            mastership=rooms.mastership,
            gateway=rooms.gateway,
            host=self.membership.host,
            choices=self.choices,
            clock=self.world.clock,
            random_bytes=self.world.chance.randbytes,
            rtt_of=rooms.telemetry.echoes.rtt,
            is_durable=lambda: rooms.journal.health().mode == "durable",
        )

    def _make_joining(self) -> NodeJoining:
        world = self.world
        return NodeJoining(
            JoiningAccess(
                identity=self.identity,
                name=world.name,
                role=world.role,
                build="simulated",
                boot_id=self.boot_id,
                api_port=lambda: _API_PORT,
                is_api_tls=False,
                journal=str(HOME / "journal"),
                state=self.replica,
                door=self.door,
                choices=self.choices,
                make_guest=lambda: JoinGuest(
                    dialler=world.network.guest_dialler(world.node_id),
                    clock=world.clock,
                    requests=self.membership.host.own_requests,
                ),
                peers=(),
                wall_ms=world.clock.wall_ms,
                is_known=lambda: self.rooms.is_known,
                is_shut_out=lambda: self.rooms.is_shut_out,
                retire=self.rooms.mastership.close,
                restart=self._restart,
            )
        )

    def _check_event(self, sequenced: SequencedEvent, state: ClusterState) -> None:
        self.n_events += 1
        problems = self.world.problems
        problems.extend(event_violations(self._before, sequenced))
        problems.extend(f"seq {state.seq}: {what}" for what in violations(state))
        self._check_removed(sequenced)
        self._before = state
        self.world.witness.on_event(self, sequenced)
        planned_bytes = sum(
            shard.memory.needed_bytes
            for instance in state.instances.values()
            if instance.phase not in {"failed", "stopping", "asleep"}
            for shard in instance.plan.shards
            if shard.node_id == self.world.node_id
        )
        if planned_bytes > self.world.machine.total_bytes:
            problems.append(f"seq {state.seq}: plans take {planned_bytes} bytes")

    def _on_reset(self, state: ClusterState) -> None:
        self._before = state
        self.world.problems.extend(
            f"reset to seq {state.seq}: {what}" for what in violations(state)
        )
        self.world.witness.on_reset(self)

    def _check_removed(self, sequenced: SequencedEvent) -> None:
        """See that what is said to be gone is gone; a failure is told before its process is."""
        event = sequenced.event
        if not isinstance(event, InstanceRemoved):
            return
        gone = self._before.instances.get(event.instance_id)
        if gone is None or gone.phase != "stopping":
            return
        for process in self.world.machine.living():
            if process.owner.instance_id == event.instance_id:
                self.world.problems.append(f"{process.owner} is gone, and there: {process.pid}")

    def _on_death(self, story: str, _error: BaseException) -> None:
        if not self.is_dead:
            self.world.problems.append(f"a part of the node died: {story}")


def _load_nothing() -> None:
    """There is no wire library here."""


async def probe_simulated(
    _settings: ProbeSettings, machine: MachineView, _accelerators: AcceleratorProbe
) -> NodeFacts:
    """Find what every simulated machine has: two engines on the processor."""
    await asyncio.sleep(0.3)
    engines: tuple[EngineFacts, ...] = (
        an_engine(default_slots=2),
        an_engine("scripted", overhead_bytes=1 << 20, default_slots=2),
    )
    return some_facts(memory_bytes=machine.memory().total_bytes, engines=engines)
