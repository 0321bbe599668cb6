"""The rooms of one node that make it a member: its log, its elections, its way to others.

Wired here once, for the daemon and for the simulator alike. What surrounds them (disk, clock,
transport) is given; what stands on them (worker, API) is built by whoever opened them.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, final

from protocol.commands import AdmitMember, Command, CommandReply
from protocol.errors import ConfigError, SkulkError
from protocol.events import MemberLeft, MemberLost, MemberRemoved, SequencedEvent
from protocol.ids import CommandId, NodeId
from protocol.nodes import Role
from protocol.state import ClusterState
from skulkd.cluster.guests import GuestDoor
from skulkd.cluster.link_views import LinkViews
from skulkd.cluster.mastership import Mastership
from skulkd.cluster.mastership_ports import MastershipClock, MastershipPorts, VoteKeeper
from skulkd.cluster.peer_calls import ControlCalls
from skulkd.cluster.peer_directory import PeerDirectory
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.cluster.telemetry import Telemetry
from skulkd.cluster.transport import Peer, Transport
from skulkd.core.election_inputs import ElectionSpec
from skulkd.eventlog.cluster_gateway import ClusterGateway, GatewayLimits
from skulkd.eventlog.cluster_log import ClusterLog
from skulkd.eventlog.durable_log import DurableLog
from skulkd.eventlog.journal import JournalLimits
from skulkd.eventlog.journal_recovery import Recovered
from skulkd.eventlog.replica import Replica
from skulkd.runtime.disk import Disk
from skulkd.runtime.identity import Identity
from skulkd.runtime.rounds import Rounds
from skulkd.runtime.tasks import Tasks, sleep, timeout

_log = logging.getLogger(__name__)

_RENEW_RETRY_S: Final = 2.0
_KNOWN_S: Final = 1.0
"""How long a start waits for a cluster that counts this node in; it serves what it has without."""
_ALONE_S: Final = 10.0
"""The same for a node that is alone: a placement on a cluster without members is refused."""
_LOOK_S: Final = 0.05


class RoomsTransport(Transport, GuestDoor, LinkViews, Protocol):
    """The way to the other nodes, and the door for guests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomsSpec:
    """Which node it is."""

    identity: Identity
    name: str
    role: Role
    boot_id: str
    priority: int = 50
    seeds: tuple[Peer, ...] = ()
    """Members of the cluster that has admitted this node; a node without any founded its own."""
    operator_addresses: tuple[str, ...] = ()
    journal: Path
    journal_limits: JournalLimits | None = None
    gateway_limits: GatewayLimits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomsParts:
    """What surrounds the rooms."""

    disk: Disk
    clock: MastershipClock
    transport: RoomsTransport
    keeper: VoteKeeper
    table: ReadingsTable
    rng: random.Random
    random_bytes: Callable[[int], bytes]
    tasks: Tasks


@final
class Rooms:
    """See the module; made by `open`, ended by `close`."""

    def __init__(
        self, spec: RoomsSpec, parts: RoomsParts, journal: DurableLog, appended: ClusterState
    ) -> None:
        self._spec = spec
        self._parts = parts
        self.clock: Final = parts.clock
        self.rounds: Final = Rounds()
        self.journal: Final = journal
        self.calls: Final = ControlCalls(parts.transport, rng=parts.rng, tasks=parts.tasks)
        self.log: Final = ClusterLog(
            journal,
            appended,
            transport=parts.transport,
            calls=self.calls,
            readings=lambda: parts.table.readings,
            clock=parts.clock,
            tasks=parts.tasks,
            rounds=self.rounds,
        )
        self.directory: Final = PeerDirectory(
            parts.transport,
            appended=lambda: self.log.appended,
            seeds=spec.seeds,
            operator_addresses=spec.operator_addresses,
        )
        self.telemetry: Final = Telemetry(
            parts.transport, parts.table, parts.clock, rounds=self.rounds
        )
        self.mastership: Mastership
        self.gateway: ClusterGateway
        self._addresses: tuple[str, ...] = ()
        self._api_port = 0
        self._is_api_tls = False
        self._is_stale = asyncio.Event()
        """What the cluster knows of this node is not what it would say now."""
        self._wake_watchers: list[Callable[[], None]] = []
        self._is_known = asyncio.Event()
        self.is_turned_away: Final = asyncio.Event()
        """The master has said that this node was removed, and nothing of the cluster is here."""
        self.is_refused = False
        """The last that a master said of this node is that it was removed."""
        self.known_seq: int | None = None
        """Where the log was when the cluster first counted this node in, in this life."""

    @classmethod
    async def open(cls, spec: RoomsSpec, parts: RoomsParts) -> "tuple[Rooms, Recovered]":
        """Replay the journal and build everything; nothing is sent before `start`.

        Raises:
            ClusterError: `cluster.journal_corrupt`.
            ConfigError: `config.downgrade`, `config.home_unusable`.
        """
        journal, appended, recovered = await DurableLog.open(
            parts.disk,
            spec.journal,
            cluster_id=spec.identity.cluster_id,
            clock=parts.clock,
            tasks=parts.tasks,
            limits=spec.journal_limits,
        )
        rooms = cls(spec, parts, journal, appended)
        await rooms._elect()
        return rooms, recovered

    @property
    def replica(self) -> Replica:
        """What is committed."""
        return self.log.replica

    @property
    def node_id(self) -> NodeId:
        """This node."""
        return self._spec.identity.node_id

    def start(self) -> None:
        """Dial the others and take part in elections."""
        self.log.on_append(self.directory.refresh)
        self.replica.subscribe(self._on_event, self._on_reset)
        self.directory.refresh()
        self.mastership.start()
        self._is_stale.set()
        self._parts.tasks.start(self._keep_known(), name="keep known")

    def set_addresses(self, addresses: tuple[str, ...]) -> None:
        """Say where this node can be dialled, `HOST:BASE`; the others are told."""
        self._addresses = addresses
        self._is_stale.set()

    def set_api(self, port: int, *, is_tls: bool) -> None:
        """Say where this node serves HTTP, and whether over TLS; the others are told."""
        if (port, is_tls) != (self._api_port, self._is_api_tls):
            self._api_port, self._is_api_tls = port, is_tls
            self._is_stale.set()

    async def arrive(self) -> bool:
        """Wait a moment until the cluster counts this node as present.

        A node that is alone waits until it does; one that has fellows serves without them.

        Returns:
            Whether it does.

        Raises:
            ConfigError: `config.home_unusable`; this node is alone and cannot keep its own vote.
        """
        waited_s = 0.0
        while not self._is_known.is_set() and waited_s < (_ALONE_S if self.is_alone else _KNOWN_S):
            with suppress(TimeoutError):
                async with timeout(_LOOK_S):
                    await self._is_known.wait()
            waited_s += _LOOK_S
            error = self.mastership.vote_error
            if self.is_alone and error is not None and not self._is_known.is_set():
                raise ConfigError(
                    "config.home_unusable",
                    f"this node's vote for itself cannot be kept: {error}",
                    remediation="Make room in the home, and see that this user may write there.",
                ) from error
        return self._is_known.is_set()

    @property
    def is_known(self) -> bool:
        """Whether the cluster has counted this node in since it started."""
        return self._is_known.is_set()

    @property
    def is_shut_out(self) -> bool:
        """Whether fellows answer, and none of them admits this node's key."""
        transport = self._parts.transport
        fellows = self.log.appended.members.keys() - {self.node_id}
        infos = [info for peer in fellows if (info := transport.peer_info(peer)) is not None]
        return any(info.is_denied for info in infos) and not transport.peers()

    @property
    def is_alone(self) -> bool:
        """Whether this node's cluster has no other member."""
        return not self._spec.seeds and self.log.appended.members.keys() <= {self.node_id}

    def on_wake(self, watcher: Callable[[], None]) -> None:
        """Add one who is told when the machine has slept; must not block."""
        self._wake_watchers.append(watcher)

    async def before_sleep(self) -> None:
        """Say goodbye and fall silent: the machine is about to be suspended."""
        _log.info("the machine goes to sleep; this node says goodbye")
        await self.mastership.fall_asleep()

    def after_sleep(self) -> None:
        """Take part again, and have the cluster count this node in at once."""
        _log.info("the machine is awake; this node takes part again")
        self.mastership.wake_up()
        self._is_stale.set()
        for watcher in self._wake_watchers:
            watcher()

    async def close(self) -> None:
        """Say goodbye, see to the end of what was decided, and close the journal."""
        await self.mastership.farewell()
        self.gateway.close()
        await self.log.close()
        self.telemetry.close()

    def own_entry(self, command_id: CommandId) -> AdmitMember:
        """What this node says of itself, to be a present member."""
        spec = self._spec
        return AdmitMember(
            command_id=command_id,
            node_id=self.node_id,
            name=spec.name,
            public_key=spec.identity.keys.public_key.hex(),
            addresses=self._addresses,
            api_port=self._api_port,
            api_tls=self._is_api_tls,
            role=spec.role,
        )

    async def _elect(self) -> None:
        spec, parts = self._spec, self._parts
        self.mastership = await Mastership.open(
            ElectionSpec(
                node_id=self.node_id,
                boot_id=spec.boot_id,
                priority=spec.priority,
                is_founder=not spec.seeds,
            ),
            MastershipPorts(
                transport=parts.transport,
                log=self.log,
                keeper=parts.keeper,
                clock=parts.clock,
                submit=self._submit,
                mint=self._mint,
                own_entry=self.own_entry,
                rounds=self.rounds,
            ),
            rng=parts.rng,
            tasks=parts.tasks,
        )
        self.gateway = ClusterGateway(
            node_id=self.node_id,
            log=self.log,
            masters=self.mastership,
            calls=self.calls,
            limits=spec.gateway_limits,
            random_bytes=parts.random_bytes,
        )
        self.log.attach(self.mastership)

    async def _submit(self, command: Command) -> CommandReply:
        return await self.gateway.submit(command)

    def _mint(self) -> CommandId:
        return self.gateway.mint_command_id()

    async def _keep_known(self) -> None:
        """Tell the cluster what this node says of itself, as often as that changes."""
        while True:
            await self._is_stale.wait()
            self._is_stale.clear()
            try:
                reply = await self.gateway.submit(self.own_entry(self.gateway.mint_command_id()))
            except SkulkError as error:
                _log.info("the cluster does not know this node yet: %s", error.message)
                if error.code == "cluster.removed":
                    self.is_refused = True
                    if not self.log.appended.members:
                        self.is_turned_away.set()
                self._is_stale.set()
                await sleep(_RENEW_RETRY_S)
            else:
                self.is_refused = False
                if self.known_seq is None:
                    self.known_seq = reply.seq
                self._is_known.set()

    def _on_event(self, sequenced: SequencedEvent, state: ClusterState) -> None:
        del state
        event = sequenced.event
        if isinstance(event, MemberLost | MemberLeft | MemberRemoved):
            self.telemetry.forget(event.node_id)

    def _on_reset(self, state: ClusterState) -> None:
        del state
        self.directory.refresh()
