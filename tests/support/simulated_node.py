"""One node in virtual time: the rooms of `skulkd.node`, wired as there, in a simulated world.

Real are the log, the sequencer, the replica, the worker with all it has, the planner and the whole
HTTP application; simulated are the disk, the machine, the engines, the store and the sockets. What
outlives a node (its disk, its machine, its files) is the world's; a node is one life in it.
"""

import asyncio
import random
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Final, final

from protocol.cards import EngineName, ModelCard
from protocol.commands import Command, CommandReply
from protocol.errors import SkulkError
from protocol.events import InstanceRemoved, SequencedEvent
from protocol.ids import CommandId, command_id_of
from protocol.nodes import EngineFacts, NodeFacts, Role
from protocol.peer_messages import CallApi
from protocol.state import ClusterState
from skulkd.api.app import ApiApp, create_app
from skulkd.api.dependencies import ApiDependencies, NodeFace
from skulkd.api.peer_api_client import PeerApiClient
from skulkd.api.previews import PreviewService
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.cluster.simulated import SimulatedNetwork
from skulkd.cluster.transport import Peer
from skulkd.core.apply import repeated
from skulkd.core.invariants import event_violations, violations
from skulkd.core.lifecycle import Deadlines
from skulkd.data_rooms import DataRooms
from skulkd.eventlog.cluster_gateway import ClusterGateway
from skulkd.eventlog.journal import JournalLimits
from skulkd.eventlog.journal_term import TermFile
from skulkd.eventlog.replica import Replica
from skulkd.rooms import Rooms, RoomsParts, RoomsSpec
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.disk import Disk
from skulkd.runtime.identity import Identity, KeyPair
from skulkd.runtime.simulated_disk import SimulatedDisk
from skulkd.runtime.tasks import Tasks
from skulkd.runtime.virtual_time import VirtualLoop
from skulkd.worker.accelerators import AcceleratorProbe
from skulkd.worker.launchers.base import LauncherPaths
from skulkd.worker.machine import MachineView
from skulkd.worker.probes import ProbeSettings
from skulkd.worker.readings import JournalStatus
from skulkd.worker.service import WorkerService, WorkerSettings, WorkerSurroundings
from tests.support.builders import a_cluster_id, a_node_id, a_public_key, an_engine, some_facts
from tests.support.fake_cluster import FakeLogs
from tests.support.fake_ports import FakeHealth, FakeListeners
from tests.support.simulated_cluster import SimulatedCluster
from tests.support.simulated_engine import SimulatedEngine
from tests.support.simulated_launcher import SimulatedLauncher
from tests.support.simulated_machine import HEALTHY, Mood, SimulatedMachine, SimulatedProcess
from tests.support.simulated_power import PoweredDisk
from tests.support.simulated_store import SimulatedModels, SimulatedStore

HOME: Final = Path("/home/skulk")
EPOCH_MS: Final = 1_700_000_000_000
DEADLINES: Final = Deadlines(
    download_s=30.0, stage_s=20.0, spawn_s=5.0, load_s=15.0, probe_s=10.0, terminate_s=2.0
)
_LIMITS: Final = JournalLimits(max_segment_bytes=16_384, retry_s=1.0)
_STOP_S: Final = 12.0
_REQUESTS_S: Final = 1.5
_HELD_S: Final = 3.5
"""A process that takes longer to come or to go may still be there when a stop has to end."""
_OWNERS: Final = ("node/", "worker/", "request/")
"""How the names of a node's tasks begin; requests are started by `simulated_clients`."""


@final
class SimulatedWorld:
    """What outlives a node, and what was promised by its lives.

    Args:
        seed: Draws ids; the schedule has a seed of its own.
        cards: The models there are.
        network: What it shares with the worlds of other nodes; one of its own by default.
        number: Which node of the network it is, from 1.
    """

    def __init__(
        self,
        seed: int,
        cards: tuple[ModelCard, ...],
        *,
        network: SimulatedNetwork | None = None,
        number: int = 1,
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  a repeatable history is the aim
        self.chance = random.Random(seed)
        self.network = network or SimulatedNetwork(self.chance)
        self.name = f"box-{number}"
        self.identity = Identity(
            node_id=a_node_id(number),
            cluster_id=a_cluster_id(),
            keys=KeyPair(public_key=bytes.fromhex(a_public_key(number)), secret_key=bytes(32)),
        )
        self.seeds: tuple[Peer, ...] = ()
        """Of a node that another one's cluster has admitted."""
        self.clock = LoopClock(loop, epoch_ms=EPOCH_MS)
        self.disk = SimulatedDisk(stall=loop.stall_job)
        self.disk.make_private_directory(HOME)
        self.machine = SimulatedMachine()
        self.store = SimulatedStore(cards)
        self.moods: dict[str, Mood] = {}
        """How the next processes of a model behave; healthy where nothing is said."""
        self.durable: dict[CommandId, int] = {}
        """Commands acknowledged as durable, with the seq that was named."""
        self.problems: list[str] = []
        """What does not hold."""
        self.committed: dict[CommandId, int] = {}
        """Commands that led to events, with the seq of their last one."""
        self.n_lives = 0
        self.role: Role = "full"
        """Of the next life; what is placed on a `management` node waits."""
        self.node_id = self.identity.node_id

    def mood_of(self, model_id: str) -> Mood:
        """Say how the next process of a model behaves."""
        return self.moods.get(model_id, HEALTHY)

    def mint(self) -> CommandId:
        """Make a command id."""
        return command_id_of(self.node_id, self.chance.randbytes(20))


@final
class SimulatedGateway:
    """Implements `CommandGateway`, and remembers what it promised.

    Args:
        world: Where promises are kept.
        behind: The node's own.
    """

    def __init__(self, world: SimulatedWorld, behind: ClusterGateway) -> None:
        self._world = world
        self._behind = behind

    def mint_command_id(self) -> CommandId:
        """Make a new id."""
        return self._world.mint()

    async def submit(self, command: Command) -> CommandReply:
        """Have a command decided and committed."""
        reply = await self._behind.submit(command)
        if reply.durable == "local" and command.command_id in self._world.committed:
            self._world.durable[command.command_id] = reply.seq
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
        self.tasks = Tasks("node", on_death=self._on_death)
        self.n_events = 0
        self.replica: Replica
        self.app: ApiApp
        self.worker: WorkerService
        self.launcher: SimulatedLauncher | None = None
        self.rooms: Rooms
        self.data: DataRooms
        self.transport = world.network.attach(
            world.node_id, public_key=world.identity.keys.public_key
        )
        self._before = ClusterState(cluster_id=world.identity.cluster_id)

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
        """Start the rooms."""
        world, clock = self.world, self.world.clock
        rooms, _ = await Rooms.open(
            RoomsSpec(
                identity=world.identity,
                name=world.name,
                role=world.role,
                boot_id=f"{world.n_lives:016x}",
                seeds=world.seeds,
                journal=HOME / "journal",
                journal_limits=_LIMITS,
            ),
            RoomsParts(
                disk=self.disk,
                clock=clock,
                transport=self.transport,
                keeper=TermFile(self.disk, HOME / "term"),
                table=self.table,
                rng=world.chance,
                random_bytes=world.chance.randbytes,
                tasks=self.tasks,
            ),
        )
        self.rooms = rooms
        self._check_recovered(rooms.log.appended)
        self.replica = rooms.replica
        self._before = self.state
        self.replica.subscribe(self._check_event, self._on_reset)
        gateway = SimulatedGateway(world, rooms.gateway)
        self.worker = self._make_worker(gateway)
        rooms.set_addresses(world.network.peer(world.node_id).addresses)
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
        self.app = create_app(self._dependencies(gateway))
        rooms.calls.serve(CallApi, self.app.peers.handle)
        self.worker.start()
        self.data.start()

    async def _disown(self) -> None:
        try:
            await self.worker.disown()
        except SkulkError:
            return  # the master was lost meanwhile; the worker says the same again once it runs
        self.world.problems.extend(
            f"{item.instance_id} is ready in a node that has just begun"
            for item in self.state.instances.values()
            if item.phase == "ready"
            and all(shard.node_id == self.world.node_id for shard in item.plan.shards)
        )

    async def stop(self) -> None:
        """End in good order, as `skulkd.node` does."""
        self.app.stop()
        await _end_requests()
        machine = self.world.machine
        is_held = any(
            max(item.mood.gone_s, item.mood.spawn_s) > _HELD_S for item in machine.living()
        )
        late = await self.worker.close(6.0)
        # One that the kernel does not start, or does not let go, is told and not waited for.
        if late and not is_held:
            self.world.problems.append(f"a stop left {', '.join(late)}")
        await self.data.close()
        async with asyncio.timeout(_STOP_S):
            await self.rooms.close()
            await self.rooms.journal.close()
        await self.transport.close()
        late = await self.tasks.close(1.0)
        if late:
            self.world.problems.append(f"a stop left tasks {', '.join(late)}")
        # What an earlier life left, and this one had no time to find, is the next one's.
        left = [item for item in machine.living() if self._has_started(item)]
        if not is_held and any(item.exit_status is None for item in left):
            self.world.problems.append(f"a stop left processes {[item.pid for item in left]}")
        for process in left:
            process.signal(signal.SIGKILL)

    async def die(self) -> None:
        """End without any order: what it still does reaches neither disk nor process."""
        self.disk.cut()
        self.world.network.detach(self.world.node_id)
        if self.launcher is not None:
            self.launcher.cut()
        while dying := _tasks_of_node():
            for task in dying:
                task.cancel()
            await asyncio.wait(dying, timeout=10.0)

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
                journal=journal,
                on_death=self._on_death,
                engine_of=self._engine_of,
                machine=world.machine,
                probe=probe_simulated,
                make_launcher=self._make_launcher,
                make_sockets_directory=lambda _path: None,
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
            node_id=world.node_id,
            name=world.name,
            hostname=world.name,
            boot_id=f"{world.n_lives:016x}",
            version="simulated",
            role=world.role,
        )
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
            is_reachable=self.rooms.mastership.is_reachable,
            models=models,
            listeners=FakeListeners(),
            cluster=SimulatedCluster(face, self.rooms, self.transport, world.clock),
            logs=FakeLogs(),
            peers=PeerApiClient(self.rooms.calls),
            cancels=self.data.cancels,
            random=world.chance,
        )

    def _check_recovered(self, state: ClusterState) -> None:
        problems = self.world.problems
        problems.extend(f"recovered: {what}" for what in violations(state))
        for command_id, seq in self.world.durable.items():
            result = repeated(state, command_id)
            if result is None or result.seq != seq:
                problems.append(f"{command_id}, durable at seq {seq}, came back as {result}")

    def _check_event(self, sequenced: SequencedEvent, state: ClusterState) -> None:
        self.n_events += 1
        problems = self.world.problems
        problems.extend(event_violations(self._before, sequenced))
        problems.extend(f"seq {state.seq}: {what}" for what in violations(state))
        self._check_removed(sequenced)
        self._before = state
        if sequenced.command_id is not None:
            self.world.committed[sequenced.command_id] = sequenced.seq
        planned_bytes = sum(
            shard.memory.needed_bytes
            for instance in state.instances.values()
            if instance.phase not in {"failed", "stopping"}
            for shard in instance.plan.shards
        )
        if planned_bytes > self.world.machine.total_bytes:
            problems.append(f"seq {state.seq}: plans take {planned_bytes} bytes")

    def _on_reset(self, state: ClusterState) -> None:
        self._before = state
        self.world.problems.extend(
            f"reset to seq {state.seq}: {what}" for what in violations(state)
        )

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
        self.world.problems.append(f"a part of the node died: {story}")


async def _end_requests() -> None:
    """Give requests a moment, then end them, as the server does when it closes."""
    requests = _tasks_of_node(("request/",))
    if requests:
        await asyncio.wait(requests, timeout=_REQUESTS_S)
        for task in requests:
            task.cancel()


def _tasks_of_node(owners: tuple[str, ...] = _OWNERS) -> list[asyncio.Task[object]]:
    """Find what runs for the node that lives now, in an order that repeats."""
    me = asyncio.current_task()
    found = [task for task in asyncio.all_tasks() if task is not me and not task.done()]
    mine = [task for task in found if task.get_name().startswith(owners)]
    return sorted(mine, key=lambda task: task.get_name())


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
