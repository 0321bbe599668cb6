"""The composition root: wires the rooms of one node together, in order, and ends them in reverse.

Nothing here decides anything. What must hold: HTTP answers before engines are looked for, no engine
is started before our own port has answered as us, and the death of any essential task ends the
process with that task's story.
"""

import asyncio
import logging
import os
import random
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final, final

from protocol.commands import AdmitMember, Command, CommandReply
from protocol.errors import ConfigError
from protocol.ids import CommandId, command_id_of
from protocol.nodes import Role
from protocol.readings import NoDownloads
from skulkd.api.app import create_app
from skulkd.api.auth import is_loopback
from skulkd.api.dependencies import ApiDependencies, NodeFace
from skulkd.api.lone_node import LoneNode
from skulkd.api.node_health import DerivedHealth
from skulkd.api.node_logs import NodeLogFiles
from skulkd.api.node_models import NodeModels
from skulkd.api.open_door import OpenDoor
from skulkd.api.own_port import wait_own_port
from skulkd.api.previews import PreviewService
from skulkd.api.server import ApiListeners, ApiServer
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.config import LoadedSettings, Settings
from skulkd.core.health import Switches
from skulkd.eventlog.durable_log import DurableLog
from skulkd.eventlog.journal_term import TermFile, TermVote
from skulkd.eventlog.replica import Replica
from skulkd.eventlog.sequencer import Sequencer
from skulkd.runtime.choices import Choices, ChoicesFile
from skulkd.runtime.clock import SystemClock
from skulkd.runtime.disk import RealDisk
from skulkd.runtime.home import Home
from skulkd.runtime.identity import Identity
from skulkd.runtime.tasks import Tasks, run_blocking, timeout
from skulkd.worker.readings import JournalStatus
from skulkd.worker.service import WorkerService, WorkerSettings, WorkerSurroundings
from store.layout import StoreLayout
from store.service import Store

_log = logging.getLogger(__name__)

_API_STOP_S: Final = 1.5
_WORKER_STOP_S: Final = 6.0
_LOG_STOP_S: Final = 1.5
_TASKS_STOP_S: Final = 0.5
"""In all less than the ten seconds that a service manager and an operator are promised."""


@final
class LocalGateway:
    """Takes commands to the master, which is this node for as long as it is alone.

    Args:
        identity: Whose short id begins each command id.
        sequencer: Decides.
    """

    def __init__(self, identity: Identity, sequencer: Sequencer) -> None:
        self._node_id = identity.node_id
        self._sequencer = sequencer

    def mint_command_id(self) -> CommandId:
        """Make a new id."""
        return command_id_of(self._node_id, secrets.token_bytes(20))

    async def submit(self, command: Command) -> CommandReply:
        """Have a command decided and committed; see `CommandGateway`."""
        return await self._sequencer.submit(command)


@final
class Node:
    """One node, from start to stop.

    Args:
        loaded: Its settings.
        home: Opened and locked; closed by whoever opened it.
        identity: Who it is.
    """

    def __init__(self, loaded: LoadedSettings, home: Home, identity: Identity) -> None:
        self._settings = loaded.settings
        self._home = home
        self._identity = identity
        self._disk = RealDisk()
        self._clock = SystemClock()
        self._table = ReadingsTable()
        self._random = random.Random(secrets.randbits(64))  # ruff: ignore[suspicious-non-cryptographic-random-usage]  chooses between instances
        self._tasks = Tasks("node", on_death=self._on_death)
        self._stop_asked = asyncio.Event()
        self._has_died = False
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

    async def run(self) -> int:
        """Start, serve until asked to stop, stop; returns the process's exit code.

        Raises:
            SkulkError: The node could not start.
        """
        async with AsyncExitStack() as stack:
            self._on_stop(stack, "tasks", _TASKS_STOP_S, partial(self._tasks.close, _TASKS_STOP_S))
            await self._start(stack)
            await self._stop_asked.wait()
            _log.info("stopping")
        return 1 if self._has_died else 0

    def _on_death(self, story: str, error: BaseException) -> None:
        _log.critical("the node ends, because one of its parts has died: %s\n%s", error, story)
        self._has_died = True
        self._stop_asked.set()

    async def _start(self, stack: AsyncExitStack) -> None:
        log, sequencer, replica = await self._start_log(stack)
        gateway = LocalGateway(self._identity, sequencer)
        store = await self._open_store()
        worker = self._make_worker(gateway, replica, store, log)
        self._on_stop(stack, "worker", _WORKER_STOP_S, partial(worker.close, _WORKER_STOP_S))
        await worker.disown()
        # Before the first request: a placement on a cluster without members would be refused.
        await gateway.submit(
            AdmitMember(
                command_id=gateway.mint_command_id(),
                node_id=self._identity.node_id,
                name=self._settings.name,
                public_key=self._face.public_key,
                role=self._face.role,
            )
        )
        if self._settings.serve_api:
            await self._start_api(stack, gateway, replica, store, worker)
        worker.start()

    async def _start_log(self, stack: AsyncExitStack) -> tuple[DurableLog, Sequencer, Replica]:
        log, state, recovered = await DurableLog.open(
            self._disk,
            self._home.journal,
            cluster_id=self._identity.cluster_id,
            clock=self._clock,
            tasks=self._tasks,
        )
        self._on_stop(stack, "journal", _LOG_STOP_S, log.close)
        term = await run_blocking(self._claim_term, state.term)
        replica = Replica(state)
        sequencer = Sequencer(
            node_id=self._identity.node_id,
            term=term,
            replica=replica,
            store=log,
            readings=lambda: self._table.readings,
            clock=self._clock,
            tasks=self._tasks,
        )
        await sequencer.begin_term()
        self._on_stop(stack, "sequencer", _LOG_STOP_S, sequencer.close)
        _log.info(
            "node %s is master of term %d, at seq %d after %d records",
            self._identity.node_id, term, replica.state.seq, recovered.n_records,
        )  # fmt: skip
        return log, sequencer, replica

    def _claim_term(self, last_term: int) -> int:
        """Vote for ourselves, durably, in a term that nobody has seen: a cluster of one elects.

        Raises:
            ConfigError: `config.home_unusable`.
        """
        path = self._home.path / "term"
        file = TermFile(self._disk, path)
        try:
            term = max(file.read().term, last_term) + 1
            file.write(TermVote(term=term, voted_for=self._identity.node_id))
        except OSError as error:
            raise ConfigError(
                "config.home_unusable",
                f"the vote of this node cannot be kept in {path}: {error.strerror or error}",
                remediation="Make room in the home, and see that this user may write there.",
                details={"file": str(path), "errno": error.errno},
            ) from error
        return term

    async def _open_store(self) -> Store:
        store = Store(
            StoreLayout(self._settings.models_dir),
            clock=self._clock,
            downloads_enabled=self._settings.downloads,
            offline=self._settings.offline,
        )
        for rest in await run_blocking(store.recover):
            _log.info("%s: %s", rest.path, rest.problem)
        return store

    def _make_worker(
        self, gateway: LocalGateway, replica: Replica, store: Store, log: DurableLog
    ) -> WorkerService:
        def journal() -> JournalStatus:
            health = log.health()
            return JournalStatus(durable=health.mode == "durable", unwritten=health.n_unwritten)

        settings = self._settings
        return WorkerService(
            WorkerSettings(
                node_id=self._identity.node_id,
                home=self._home.path,
                models_dir=settings.models_dir,
                environment=os.environ,
                build=self._face.version,
                role=self._face.role,
                backends=settings.backends,
                llama_server_bin=settings.llama_server_bin,
                no_downloads=_no_downloads(settings),
                max_output_tokens=settings.max_output_tokens,
            ),
            WorkerSurroundings(
                gateway=gateway,
                view=replica,
                store=store,
                table=self._table,
                clock=self._clock,
                disk=self._disk,
                journal=journal,
                on_death=self._on_death,
            ),
        )

    async def _start_api(
        self,
        stack: AsyncExitStack,
        gateway: LocalGateway,
        replica: Replica,
        store: Store,
        worker: WorkerService,
    ) -> None:
        """Serve; returns once our own port answers as us."""
        host, port = self._settings.api_address()
        choices_file = ChoicesFile(self._disk, self._home.path / "choices.json")
        choices = await run_blocking(choices_file.read)
        is_local = host is None or is_loopback(host)
        server = ApiServer(clock=self._clock)
        door = OpenDoor(server, replica, choices.open_host if is_local else host)

        async def keep(open_host: str | None) -> None:
            await run_blocking(choices_file.write, Choices(open_host=open_host))
            door.want(open_host)

        listeners = ApiListeners(server, replica, keep)
        app = create_app(self._behind_api(gateway, replica, store, worker, door, listeners))
        await server.start(app, port=port, host=host if is_local else None)
        self._on_stop(stack, "api", _API_STOP_S, partial(server.close, _API_STOP_S))
        self._tasks.start(door.run(), name="open door")
        _log.info("serving at %s", ", ".join(server.urls()))
        answering = host if host is not None and is_local else "127.0.0.1"
        await wait_own_port(answering, server.port, boot_id=self._face.boot_id, clock=self._clock)

    def _behind_api(
        self,
        gateway: LocalGateway,
        replica: Replica,
        store: Store,
        worker: WorkerService,
        door: OpenDoor,
        listeners: ApiListeners,
    ) -> ApiDependencies:
        node_id = self._identity.node_id
        models = NodeModels(
            node_id=node_id,
            store=store,
            models_dir=self._settings.models_dir,
            downloads=worker.transfers,
            state=replica,
            readings=self._table,
            environment=os.environ,
            home=Path.home(),
        )
        health = DerivedHealth(
            node_id=node_id,
            state=replica,
            readings=self._table,
            switches=lambda: self._switches(door),
            clock=self._clock,
        )
        placements = PreviewService(
            node_id=node_id, state=replica, readings=self._table, models=models, clock=self._clock
        )
        alone = LoneNode(self._face, replica)
        logs = NodeLogFiles(node_id=node_id, name=self._settings.name, directory=self._home.logs)
        return ApiDependencies(
            face=self._face,
            clock=self._clock,
            tasks=self._tasks,
            gateway=gateway,
            state=replica,
            readings=self._table,
            health=health,
            placements=placements,
            inference=worker,
            is_reachable=lambda peer: peer == node_id,
            models=models,
            listeners=listeners,
            cluster=alone,
            logs=logs,
            peers=alone,
            random=self._random,
            allowed_hosts=self._settings.allowed_hosts,
            max_concurrent_requests=self._settings.max_concurrent_requests,
        )

    def _switches(self, door: OpenDoor) -> Switches:
        return Switches(
            has_worker=self._settings.worker,
            has_api=self._settings.serve_api,
            has_downloads=self._settings.downloads,
            is_offline=self._settings.offline,
            wants_open_api=door.wanted_host is not None,
        )

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
                async with timeout(within_s + 0.5):
                    late = await close()
            except TimeoutError:
                _log.error("%s was not closed within %g s", name, within_s)
                return
            if late:
                _log.warning("%s was closed, but for %s", name, late)

        stack.push_async_callback(bounded)


def _no_downloads(settings: Settings) -> NoDownloads | None:
    if settings.offline:
        return "offline"
    return None if settings.downloads else "disabled"
