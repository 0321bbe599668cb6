"""Builds what stands on a node's rooms: store, worker, data path and what the API needs of them."""

import importlib
import logging
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from protocol.errors import RunnerError
from protocol.ids import NodeId
from protocol.readings import NoDownloads
from skulkd.api.base_urls import Surroundings
from skulkd.api.cards_elsewhere import CardsElsewhere
from skulkd.api.certificate import ServedCertificate
from skulkd.api.dependencies import ApiDependencies, NodeFace
from skulkd.api.image_fetch import RemoteImages
from skulkd.api.listeners import ApiListeners, LookAround
from skulkd.api.node_admin import LocalAdmin
from skulkd.api.node_cluster import ClusterRoomsAccess, NodeCluster
from skulkd.api.node_health import DerivedHealth
from skulkd.api.node_joining import JoiningAccess, NodeJoining
from skulkd.api.node_logs import NodeLogFiles
from skulkd.api.node_models import NodeModels
from skulkd.api.node_names import name_of
from skulkd.api.node_sight import NodeSight
from skulkd.api.open_door import OpenDoor
from skulkd.api.peer_api_client import PeerApiClient
from skulkd.api.previews import PreviewService
from skulkd.api.request_meters import RequestMeters
from skulkd.cluster.addresses import (
    MachineAddresses,
    PeerAddress,
    parse_cluster,
    parse_peer,
    split_address,
)
from skulkd.cluster.closed_transport import ClosedTransport
from skulkd.cluster.cluster_door import ClusterDoor, DoorParts, DoorSettings, DoorTransport
from skulkd.cluster.discovery import Discovery
from skulkd.cluster.file_client import FileClient
from skulkd.cluster.file_plane import FilePlane
from skulkd.cluster.file_server import FileServer
from skulkd.cluster.guests import GuestDialler
from skulkd.cluster.interfaces import read_machine
from skulkd.cluster.join_guest import JoinGuest
from skulkd.cluster.link_paths import read_paths
from skulkd.cluster.peer_holdings import ReadHoldings
from skulkd.cluster.reach import WayBack
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.cluster.tailnet import find_tailnet
from skulkd.cluster.tunnels import Tunnels
from skulkd.config import LoadedSettings, Settings
from skulkd.core.health import Switches
from skulkd.data_rooms import DataRooms
from skulkd.link_rooms import LinkRooms
from skulkd.own_membership import OwnMembership
from skulkd.rooms import Rooms
from skulkd.runtime.choices import KeptChoices
from skulkd.runtime.clock import SystemClock
from skulkd.runtime.disk import Disk
from skulkd.runtime.home import Home
from skulkd.runtime.identity import Identity
from skulkd.runtime.tasks import OnDeath, Tasks, run_blocking
from skulkd.worker.readings import JournalStatus
from skulkd.worker.run import run_bounded
from skulkd.worker.service import WorkerService, WorkerSettings, WorkerSurroundings
from skulkd.worker.verifications import Verifications
from store.layout import StoreLayout
from store.peer_pull import PeerSources
from store.rate_limit import TransferRates
from store.service import Store

_log = logging.getLogger(__name__)


def operator_peers(settings: Settings) -> tuple[PeerAddress, ...]:
    """Read `--peer`, which has been checked when the settings were loaded."""
    return tuple(map(parse_peer, settings.peers))


def door_settings(settings: Settings, kept_base_port: int) -> DoorSettings:
    """Say where this node listens for others, once it is open."""
    return DoorSettings(
        address=parse_cluster(settings.cluster_address),
        bind=settings.bind,
        advertise=settings.advertise,
        kept_base_port=kept_base_port,
    )


def door_parts(
    settings: Settings,
    identity: Identity,
    face: NodeFace,
    *,
    clock: SystemClock,
    rng: random.Random,
    on_death: OnDeath,
) -> DoorParts:
    """Say what opening takes: libraries that a node that is alone never loads."""

    def make_transport() -> DoorTransport:
        from skulkd.cluster.zmq_transport import ZmqTransport

        return ZmqTransport(
            identity.keys,
            boot_id=face.boot_id,
            build=face.version,
            cluster_id=lambda: identity.cluster_id,
            clock=clock,
            rng=rng,
            on_death=on_death,
        )

    def make_discovery() -> Discovery:
        from skulkd.cluster.mdns_discovery import MdnsDiscovery

        return MdnsDiscovery(identity.node_id)

    return DoorParts(
        load=_load_libraries,
        make_transport=make_transport,
        make_discovery=make_discovery if settings.mdns else None,
        read_machine=read_machine,
    )


def way_back(settings: Settings, identity: Identity, face: NodeFace, door: ClusterDoor) -> WayBack:
    """Say how guests are dialled back."""
    named = (split_address(peer.address)[0] for peer in operator_peers(settings))
    return WayBack(
        make_dialler=_make_dialler,
        keys=identity.keys,
        build=face.version,
        is_neighbour=door.is_neighbour,
        named_hosts=frozenset(named),
    )


def look_around(certificate: ServedCertificate | None) -> LookAround:
    """Say how this node finds out by which names and addresses other machines reach it."""

    async def look() -> Surroundings:
        try:
            machine = await run_blocking(read_machine)
        except OSError as error:
            _log.warning("this machine's addresses are not known: %s", error)
            machine = MachineAddresses()
        return Surroundings(
            machine=machine,
            tailnet=await find_tailnet(machine, run=_run_program),
            certificate_names=() if certificate is None else certificate.names,
        )

    return look


async def _run_program(argv: Sequence[str], timeout_s: float) -> bytes | None:
    try:
        done = await run_bounded(argv, timeout_s)
    except RunnerError as error:
        _log.info("%s could not be asked: %s", argv[0], error.message)
        return None
    return done.stdout if done.exit_code == 0 and not done.timed_out else None


def _make_dialler() -> GuestDialler:
    from skulkd.cluster.zmq_guest_dialler import ZmqGuestDialler

    return ZmqGuestDialler()


def _load_libraries() -> None:
    importlib.import_module("skulkd.cluster.zmq_transport")


def _no_downloads(settings: Settings) -> NoDownloads | None:
    if settings.offline:
        return "offline"
    return None if settings.downloads else "disabled"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """What the parts are built from."""

    loaded: LoadedSettings
    home: Home
    identity: Identity
    face: NodeFace
    rooms: Rooms
    transport: ClosedTransport
    door: ClusterDoor
    membership: OwnMembership
    choices: KeptChoices
    table: ReadingsTable
    disk: Disk
    clock: SystemClock
    rng: random.Random
    rates: TransferRates
    tunnels: Tunnels
    tasks: Tasks
    on_death: OnDeath
    restart: Callable[[], None]

    @property
    def settings(self) -> Settings:
        """Of this node."""
        return self.loaded.settings

    def open_links(self) -> LinkRooms:
        """Make what measures the ways to the other nodes, and tells how they are."""
        return LinkRooms(
            rooms=self.rooms,
            transport=self.transport,
            read_paths=read_paths,
            table=self.table,
            clock=self.clock,
            rng=self.rng,
            tasks=self.tasks,
        )

    async def open_store(self, links: LinkRooms) -> tuple[Store, FileServer]:
        """Open the store, with the other nodes as its first source, and what gives it to them."""
        client = FileClient(self.transport, rng=self.rng)
        settings = self.settings
        store = Store(
            StoreLayout(settings.models_dir),
            clock=self.clock,
            downloads_enabled=settings.downloads,
            offline=settings.offline,
            limit=self.rates.fetching,
            peers=PeerSources(
                node_id=self.identity.node_id,
                files=client,
                holdings=ReadHoldings(
                    self.transport,
                    readings=lambda: self.table.readings,
                    name_of=self._name_of,
                ),
            ),
        )
        for rest in await run_blocking(store.recover):
            _log.info("%s: %s", rest.path, rest.problem)
        server = FileServer(
            self.transport,
            store.offers,
            on_death=self.on_death,
            limit=self.rates.serving,
        )
        FilePlane(
            self.transport,
            server=server,
            client=client,
            probes=links.probes,
            tunnels=self.tunnels,
        )
        return store, server

    def make_worker(self, store: Store) -> WorkerService:
        """Make the worker; it does nothing before it is started."""

        def journal() -> JournalStatus:
            health = self.rooms.journal.health()
            return JournalStatus(durable=health.mode == "durable", unwritten=health.n_unwritten)

        settings = self.settings
        return WorkerService(
            WorkerSettings(
                node_id=self.identity.node_id,
                home=self.home.path,
                models_dir=settings.models_dir,
                environment=os.environ,
                build=self.face.version,
                role=self.face.role,
                backends=settings.backends,
                llama_server_bin=settings.llama_server_bin,
                engine_threads=settings.engine_threads,
                no_downloads=_no_downloads(settings),
                max_output_tokens=settings.max_output_tokens,
            ),
            WorkerSurroundings(
                gateway=self.rooms.gateway,
                view=self.rooms.replica,
                store=store,
                table=self.table,
                clock=self.clock,
                disk=self.disk,
                choices=self.choices,
                journal=journal,
                on_death=self.on_death,
                rounds=self.rooms.rounds,
                has_master=lambda: self.rooms.mastership.term is not None,
                tunnels=self.tunnels,
                rng=self.rng,
            ),
        )

    def open_data(self, store: Store, worker: WorkerService, links: LinkRooms) -> DataRooms:
        """Let requests of other nodes in, and those of this one out."""
        data = DataRooms(
            rooms=self.rooms,
            transport=self.transport,
            worker=worker,
            held=store.offers.held,
            table=self.table,
            clock=self.clock,
            rng=self.rng,
            tasks=self.tasks,
        )
        links.count_elsewhere(lambda: data.inference.n_remote)
        return data

    def make_joining(self, api_port: Callable[[], int]) -> NodeJoining:
        """Make what joins other clusters.

        Args:
            api_port: Gives where HTTP is served.
        """
        return NodeJoining(
            JoiningAccess(
                identity=self.identity,
                name=self.settings.name,
                role=self.face.role,
                build=self.face.version,
                boot_id=self.face.boot_id,
                api_port=api_port,
                is_api_tls=self.settings.has_tls,
                journal=str(self.home.journal),
                state=self.rooms.replica,
                door=self.door,
                choices=self.choices,
                make_guest=self._make_guest,
                peers=operator_peers(self.settings),
                wall_ms=self.clock.wall_ms,
                is_known=lambda: self.rooms.is_known,
                is_shut_out=lambda: self.rooms.is_shut_out,
                retire=self.rooms.mastership.close,
                restart=self.restart,
            )
        )

    def behind_api(
        self,
        store: Store,
        worker: WorkerService,
        data: DataRooms,
        links: LinkRooms,
        joining: NodeJoining,
        door: OpenDoor,
        listeners: ApiListeners,
    ) -> ApiDependencies:
        """Give what the API is built from."""
        rooms, node_id = self.rooms, self.identity.node_id
        models, sight = self._make_models(store, worker), self._make_sight()
        health = DerivedHealth(
            node_id=node_id,
            state=rooms.replica,
            readings=self.table,
            switches=lambda: self._switches(door, listeners),
            clock=self.clock,
            sight=sight.look,
        )
        placements = PreviewService(
            node_id=node_id,
            state=rooms.replica,
            readings=self.table,
            models=models,
            clock=self.clock,
            unheard=sight.unheard,
        )
        return ApiDependencies(
            face=self.face,
            clock=self.clock,
            tasks=self.tasks,
            gateway=rooms.gateway,
            state=rooms.replica,
            readings=self.table,
            health=health,
            placements=placements,
            inference=data.inference,
            counts=data.counts,
            is_reachable=rooms.mastership.is_reachable,
            models=models,
            listeners=listeners,
            cluster=NodeCluster(self._cluster_access(), joining),
            logs=NodeLogFiles(node_id=node_id, name=self.settings.name, directory=self.home.logs),
            admin=LocalAdmin(
                self.loaded,
                disk=self.disk,
                tasks=self.tasks,
                restart=self.restart,
                take_up=lambda settings: self.rates.change_mb(settings.transfer_rate_mb_s),
            ),
            peers=PeerApiClient(rooms.calls),
            random=self.rng,
            images=RemoteImages(self.settings.image_url_origins, is_offline=self.settings.offline),
            allowed_hosts=self.settings.allowed_hosts,
            allowed_origins=self.settings.allowed_origins,
            max_concurrent_requests=self.settings.max_concurrent_requests,
            cancels=data.cancels,
            probes=links.series,
            meters=RequestMeters(self.clock),
            queue_waits=worker.queue_waits,
        )

    def _make_models(self, store: Store, worker: WorkerService) -> NodeModels:
        return NodeModels(
            node_id=self.identity.node_id,
            store=store,
            models_dir=self.settings.models_dir,
            downloads=worker.transfers,
            verifications=Verifications(
                self.identity.node_id, store.open_check, clock=self.clock, tasks=self.tasks
            ),
            state=self.rooms.replica,
            readings=self.table,
            environment=os.environ,
            home=Path.home(),
            elsewhere=CardsElsewhere(
                node_id=self.identity.node_id,
                state=self.rooms.replica,
                peers=PeerApiClient(self.rooms.calls),
                is_linked=lambda node_id: self.transport.link(node_id) == "up",
                clock=self.clock,
            ),
        )

    def _make_sight(self) -> NodeSight:
        return NodeSight(
            node_id=self.identity.node_id,
            log=self.rooms.log,
            masters=self.rooms.mastership,
            links=self.transport,
            door=self.door,
            clock=self.clock,
        )

    def _cluster_access(self) -> ClusterRoomsAccess:
        rooms = self.rooms
        return ClusterRoomsAccess(
            identity=self.identity,
            name=self.settings.name,
            build=self.face.version,
            transport=self.transport,
            door=self.door,
            log=rooms.log,
            mastership=rooms.mastership,
            gateway=rooms.gateway,
            host=self.membership.host,
            choices=self.choices,
            clock=self.clock,
            random_bytes=os.urandom,
            rtt_of=rooms.telemetry.echoes.rtt,
            is_durable=lambda: rooms.journal.health().mode == "durable",
        )

    def _make_guest(self) -> JoinGuest:
        return JoinGuest(
            dialler=_make_dialler(),
            clock=self.clock,
            requests=self.membership.host.own_requests,
        )

    def _name_of(self, node_id: NodeId) -> str:
        return name_of(self.rooms.replica.state, node_id)

    def _switches(self, door: OpenDoor, listeners: ApiListeners) -> Switches:
        return Switches(
            has_worker=self.settings.worker,
            has_api=self.settings.serve_api,
            has_downloads=self.settings.downloads,
            is_offline=self.settings.offline,
            wants_open_api=door.wanted_host is not None,
            certificate_left_s=listeners.certificate_left_s(),
        )
