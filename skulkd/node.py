"""The composition root: wires the rooms of one node together, in order, and ends them in reverse.

Nothing here decides anything. What must hold: HTTP answers before engines are looked for, no engine
is started before our own port has answered as us, and the death of any essential task ends the
process with that task's story.
"""

import asyncio
import logging
import random
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from importlib.metadata import version
from typing import Final, final

from protocol.cluster_api import JoinBody
from protocol.errors import ErrorCode, SkulkError
from protocol.ids import NodeId
from protocol.nodes import Role
from protocol.peer_messages import CallApi
from skulkd.api.app import create_app
from skulkd.api.auth import is_loopback
from skulkd.api.certificate import ServedCertificate, certificate_files
from skulkd.api.dependencies import ApiDependencies, NodeFace
from skulkd.api.listeners import ApiListeners
from skulkd.api.node_joining import NodeJoining
from skulkd.api.node_names import name_of
from skulkd.api.open_door import OpenDoor
from skulkd.api.own_port import wait_own_port
from skulkd.api.server import ApiServer
from skulkd.cluster.closed_transport import ClosedTransport
from skulkd.cluster.cluster_door import ClusterDoor
from skulkd.cluster.discovery import Announcement, cluster_hash_of
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.cluster.transport import Peer
from skulkd.cluster.tunnels import Tunnels
from skulkd.config import LoadedSettings
from skulkd.eventlog.cluster_change import change_cluster
from skulkd.eventlog.journal_term import TermFile
from skulkd.node_parts import (
    NodeParts,
    door_parts,
    door_settings,
    look_around,
    operator_peers,
    way_back,
)
from skulkd.own_membership import OwnMembership
from skulkd.rooms import Rooms, RoomsParts, RoomsSpec
from skulkd.runtime.choices import Choices, ChoicesFile, KeptChoices
from skulkd.runtime.clock import SystemClock
from skulkd.runtime.disk import RealDisk
from skulkd.runtime.home import Home
from skulkd.runtime.identity import Identity
from skulkd.runtime.logind import LogindSleep
from skulkd.runtime.logs import node_name
from skulkd.runtime.tasks import Tasks, run_blocking, sleep, timeout
from skulkd.worker.service import WorkerService
from store.rate_limit import TransferRates

_log = logging.getLogger(__name__)

_API_STOP_S: Final = 1.5
_WORKER_STOP_S: Final = 5.0
_ROOMS_STOP_S: Final = 1.5
_TRANSPORT_STOP_S: Final = 0.5
_TASKS_STOP_S: Final = 0.3
_GRACE_S: Final = 0.2
"""In all less than the ten seconds that a service manager and an operator are promised."""
_JOIN_RETRY_S: Final = 10.0
_HOPELESS: Final[frozenset[ErrorCode]] = frozenset(
    {
        "cluster.full",
        "cluster.has_past",
        "cluster.removed",
        "cluster.token_expired",
        "cluster.token_invalid",
        "cluster.token_unknown",
        "cluster.token_used",
        "config.invalid",
        "config.port_busy",
    }
)
"""Why a join fails that fails again until it is begun anew. Not a cluster without a master, a
member that is busy or away, a firewall that is about to be opened."""

_MakeDependencies = Callable[[OpenDoor, ApiListeners], ApiDependencies]


@final
class Node:
    """One node, from start to stop.

    Args:
        loaded: Its settings.
        home: Opened and locked; closed by whoever opened it.
        identity: Who it is.
    """

    def __init__(self, loaded: LoadedSettings, home: Home, identity: Identity) -> None:
        self._loaded = loaded
        self._settings = loaded.settings
        self._home = home
        self._identity = identity
        self._disk = RealDisk()
        self._clock = SystemClock()
        self._table = ReadingsTable()
        self._random = random.Random(secrets.randbits(64))  # ruff: ignore[suspicious-non-cryptographic-random-usage]  chooses between instances, spreads delays
        self._tasks = Tasks("node", on_death=self._on_death)
        self._transport = ClosedTransport(identity.node_id)
        self._stop_asked = asyncio.Event()
        self._has_died = False
        self.wants_restart = False
        """Whether the rooms ended in order to begin anew: this node belongs to another cluster."""
        self.api_port = 0
        """Where HTTP is served; 0 before."""
        self._choices: KeptChoices
        role: Role = "full" if self._settings.worker else "management"
        self._face = NodeFace(
            node_id=identity.node_id,
            name=self._settings.name,
            hostname=socket.gethostname(),
            boot_id=secrets.token_hex(8),
            version=version("skulkd"),
            public_key=identity.keys.public_key.hex(),
            role=role,
        )

    def ask_stop(self) -> None:
        """Have `run` stop the node; idempotent."""
        self._stop_asked.set()

    async def run(self, on_ready: Callable[[], None] | None = None) -> int:
        """Start, serve until asked to stop, stop; returns the process's exit code.

        Args:
            on_ready: Called once when the node serves.

        Raises:
            SkulkError: The node could not start.
        """
        async with AsyncExitStack() as stack:
            self._on_stop(stack, "tasks", _TASKS_STOP_S, partial(self._tasks.close, _TASKS_STOP_S))
            await self._start(stack)
            if on_ready is not None:
                on_ready()
            await self._stop_asked.wait()
            _log.info("stopping")
        return 1 if self._has_died else 0

    def _on_death(self, story: str, error: BaseException) -> None:
        _log.critical("the node ends, because one of its parts has died: %s\n%s", error, story)
        self._has_died = True
        self._stop_asked.set()

    def _restart(self) -> None:
        self.wants_restart = True
        self._stop_asked.set()

    async def _start(self, stack: AsyncExitStack) -> None:
        choices_file = ChoicesFile(self._disk, self._home.path / "choices.json")
        self._choices = KeptChoices(choices_file, await run_blocking(choices_file.read))
        await self._change_cluster()
        self._on_stop(stack, "transport", _TRANSPORT_STOP_S, self._transport.close)
        rooms = await self._open_rooms(stack)
        node_name.set(lambda node_id: name_of(rooms.replica.state, NodeId(node_id)))
        door = self._make_door(rooms)
        self._on_stop(stack, "cluster ports", _TRANSPORT_STOP_S, door.close)
        parts = self._make_parts(rooms, door)
        links = parts.open_links()
        store, files = await parts.open_store(links)
        self._on_stop(stack, "files", _TRANSPORT_STOP_S, files.close)
        worker = parts.make_worker(store)
        self._on_stop(stack, "worker", _WORKER_STOP_S, partial(worker.close, _WORKER_STOP_S))
        if self._choices.now.cluster_open:
            await door.open()
        parts.membership.start()
        rooms.start()
        await self._be_known(rooms, worker)
        data = parts.open_data(store, worker, links)
        self._on_stop(stack, "data path", _TRANSPORT_STOP_S, data.close)
        joining = parts.make_joining(lambda: self.api_port)
        if self._settings.serve_api:
            await self._start_api(
                stack, partial(parts.behind_api, store, worker, data, links, joining), rooms
            )
            rooms.set_api(self.api_port, is_tls=self._settings.has_tls)
        worker.start()
        data.start()
        links.start()
        rooms.on_wake(worker.probe_again)
        self._tasks.start(LogindSleep().tell(rooms), name="hear of sleep", essential=False)
        if self._loaded.join_token is not None:
            self._tasks.start(self._join(joining, self._loaded.join_token), name="join")

    async def _change_cluster(self) -> None:
        """Make the cluster that has admitted this node its own, if there is one."""
        joining = self._choices.now.joining
        if joining is None:
            return
        self._identity = await run_blocking(
            change_cluster,
            self._disk,
            self._identity,
            joining,
            identity_file=self._home.identity_file,
            journal=self._home.journal,
            term_file=self._home.path / "term",
        )

        def arrived(kept: Choices) -> Choices:
            return kept.model_copy(update={"joining": None})

        await self._choices.change(arrived)

    async def _open_rooms(self, stack: AsyncExitStack) -> Rooms:
        seeds = self._choices.now.seeds
        rooms, recovered = await Rooms.open(
            RoomsSpec(
                identity=self._identity,
                name=self._settings.name,
                role=self._face.role,
                boot_id=self._face.boot_id,
                priority=self._settings.priority,
                seeds=tuple(
                    Peer(
                        node_id=seed.node_id,
                        public_key=bytes.fromhex(seed.public_key),
                        addresses=seed.addresses,
                    )
                    for seed in seeds
                ),
                operator_addresses=tuple(peer.address for peer in operator_peers(self._settings)),
                journal=self._home.journal,
            ),
            RoomsParts(
                disk=self._disk,
                clock=self._clock,
                transport=self._transport,
                keeper=TermFile(self._disk, self._home.path / "term"),
                table=self._table,
                rng=self._random,
                random_bytes=secrets.token_bytes,
                tasks=self._tasks,
            ),
        )
        self._on_stop(stack, "journal", _ROOMS_STOP_S, rooms.journal.close)
        self._on_stop(stack, "rooms", _ROOMS_STOP_S, rooms.close)
        _log.info(
            "node %s of cluster %s, at seq %d after %d records",
            self._identity.node_id,
            self._identity.cluster_id,
            rooms.log.appended.seq,
            recovered.n_records,
        )
        if self._settings.serve_api:
            # 0 is known only once it is bound.
            rooms.set_api(self._settings.api_address()[1], is_tls=self._settings.has_tls)
        return rooms

    def _make_door(self, rooms: Rooms) -> ClusterDoor:
        return ClusterDoor(
            self._transport,
            door_settings(self._settings, self._choices.now.base_port),
            door_parts(
                self._settings,
                self._identity,
                self._face,
                clock=self._clock,
                rng=self._random,
                on_death=self._on_death,
            ),
            announce=self._announcement,
            tasks=self._tasks,
            on_addresses=rooms.set_addresses,
            on_sighting=rooms.directory.sight,
        )

    def _make_parts(self, rooms: Rooms, door: ClusterDoor) -> NodeParts:
        membership = OwnMembership(
            identity=self._identity,
            build=self._face.version,
            rooms=rooms,
            door=self._transport,
            prover=way_back(self._settings, self._identity, self._face, door),
            choices=self._choices,
            random_bytes=secrets.token_bytes,
            restart=self._restart,
            tasks=self._tasks,
        )
        return NodeParts(
            loaded=self._loaded,
            home=self._home,
            identity=self._identity,
            face=self._face,
            rooms=rooms,
            transport=self._transport,
            door=door,
            membership=membership,
            choices=self._choices,
            table=self._table,
            disk=self._disk,
            clock=self._clock,
            rng=self._random,
            rates=TransferRates(self._clock, self._loaded.settings.transfer_rate_mb_s),
            tunnels=Tunnels(self._transport, rng=self._random),
            tasks=self._tasks,
            on_death=self._on_death,
            restart=self._restart,
        )

    def _announcement(self, base_port: int) -> Announcement:
        return Announcement(
            node_id=self._identity.node_id,
            public_key=self._identity.keys.public_key,
            cluster_hash=cluster_hash_of(self._identity.cluster_id),
            base_port=base_port,
        )

    async def _be_known(self, rooms: Rooms, worker: WorkerService) -> None:
        """Have the cluster count this node in, and take back what its last life reported."""
        if await rooms.arrive():
            try:
                await worker.disown()
            except SkulkError as error:
                # The worker says the same again once it runs.
                _log.info("runners of the last start are still in the state: %s", error.message)

    async def _start_api(
        self, stack: AsyncExitStack, dependencies: _MakeDependencies, rooms: Rooms
    ) -> None:
        """Serve; returns once our own port answers as us."""
        host, port = self._settings.api_address()
        is_local = host is None or is_loopback(host)
        certificate = await self._certificate()
        server = ApiServer(clock=self._clock, certificate=certificate)
        wanted_host = self._choices.now.open_host if is_local else host

        async def keep(open_host: str | None) -> None:
            def opened(kept: Choices) -> Choices:
                return kept.model_copy(update={"open_host": open_host})

            await self._choices.change(opened)
            door.want(open_host)

        listeners = ApiListeners(
            server,
            rooms.replica,
            keep,
            look_around=look_around(certificate),
            tasks=self._tasks,
            clock=self._clock,
        )
        door = OpenDoor(server, rooms.replica, wanted_host, on_opened=listeners.on_opened)
        app = create_app(dependencies(door, listeners))
        rooms.calls.serve(CallApi, app.peers.handle)
        await server.start(app, port=port, host=host if is_local else None)
        self._on_stop(stack, "api", _API_STOP_S, partial(server.close, _API_STOP_S))
        self._tasks.start(door.run(), name="open door")
        self.api_port = server.port
        _log.info("serving at %s", ", ".join(server.urls()))
        answering = host if host is not None and is_local else "127.0.0.1"
        await wait_own_port(answering, server.port, boot_id=self._face.boot_id, clock=self._clock)

    async def _certificate(self) -> ServedCertificate | None:
        files = certificate_files(self._settings)
        return None if files is None else await run_blocking(ServedCertificate, files, self._clock)

    async def _join(self, joining: NodeJoining, token: str) -> None:
        """Join by the invitation that this start was given, unless that is done already.

        What cannot succeed ends the node with its reason; what may is tried again.
        """
        wish = JoinBody(token=token, discard=self._loaded.discard)
        while True:
            try:
                if await joining.is_pointless(token):
                    _log.info("this node is a member already; the invitation is not used")
                    return
                await joining.join(wish, answer_s=0.0)
            except SkulkError as error:
                _log.error(
                    "joining failed: %s", error.message,
                    extra={"code": error.code, "remedy": error.remediation},
                )  # fmt: skip
                if error.code in _HOPELESS:
                    self._has_died = True
                    self._stop_asked.set()
                    return
                await sleep(_JOIN_RETRY_S)
            else:
                return

    def _on_stop(
        self,
        stack: AsyncExitStack,
        name: str,
        within_s: float,
        close: Callable[[], Awaitable[object]],
    ) -> None:
        """Have a part closed, in reverse order of starting, whatever the others do."""

        async def bounded() -> None:
            try:
                async with timeout(within_s + _GRACE_S):
                    late = await close()
            except TimeoutError:
                _log.error("%s was not closed within %g s", name, within_s)
                return
            if late:
                _log.warning("%s was closed, but for %s", name, late)

        stack.push_async_callback(bounded)
