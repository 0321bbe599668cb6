"""A worker with a real log of one node, real processes and no HTTP: for stories about engines."""

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import final

from protocol.cards import ModelCard, ScriptedSection, card_digest
from protocol.commands import Command, CommandReply, PlaceInstance, StopInstance
from protocol.data_frames import Chunk, Frame
from protocol.events import InstanceFailed, SequencedEvent
from protocol.ids import CommandId, InstanceId, command_id_of
from protocol.instances import Instance, InstanceFailure, Phase
from protocol.placements import PlacementRequest
from protocol.state import ClusterState
from protocol.tasks import ChatMessage, ChatTask
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.core.lifecycle import Deadlines
from skulkd.core.placement.planner import plan
from skulkd.eventlog.replica import Replica
from skulkd.runtime.choices import Choices, ChoicesFile, KeptChoices
from skulkd.runtime.clock import SystemClock
from skulkd.runtime.disk import RealDisk
from skulkd.runtime.tasks import Tasks
from skulkd.worker.readings import JournalStatus
from skulkd.worker.service import WorkerService, WorkerSettings, WorkerSurroundings
from store.layout import StoreLayout
from store.service import Store
from tests.support.builders import a_member, a_node_id, a_scripted_card, a_state
from tests.support.lone_log import MemoryLog

WAIT_S = 20.0


@final
class LocalWorker:
    """One worker, and the log it works for."""

    def __init__(
        self, home: Path, *, deadlines: Deadlines | None = None, state: ClusterState | None = None
    ) -> None:
        self.node_id = a_node_id(1)
        self.clock = SystemClock()
        self.table = ReadingsTable()
        self.tasks = Tasks("log", on_death=self._on_death)
        self.deaths: list[str] = []
        self.failures: list[InstanceFailure] = []
        self.replica = Replica(state or a_state(members=[a_member(1, has_facts=False)]))
        self.replica.subscribe(self._note)
        self._log = MemoryLog(self.node_id, self.replica, lambda: self.table.readings, self.clock)
        store = Store(StoreLayout(home / "models"), clock=self.clock)
        (home / "models").mkdir(parents=True, exist_ok=True)
        self.service = WorkerService(
            WorkerSettings(
                node_id=self.node_id,
                home=home,
                models_dir=home / "models",
                environment={"PATH": os.environ["PATH"]},
                build="test",
                deadlines=deadlines or Deadlines(),
            ),
            WorkerSurroundings(
                gateway=self,
                view=self.replica,
                store=store,
                table=self.table,
                clock=self.clock,
                disk=RealDisk(),
                choices=KeptChoices(ChoicesFile(RealDisk(), home / "choices.json"), Choices()),
                journal=lambda: JournalStatus(durable=True, unwritten=0),
                on_death=self._on_death,
            ),
        )

    def mint_command_id(self) -> CommandId:
        return command_id_of(self.node_id, secrets.token_bytes(20))

    async def submit(self, command: Command) -> CommandReply:
        return self._log.submit(command)

    async def begin(self) -> None:
        self._log.begin()
        self.service.start()

    async def wait_for(self, condition: Callable[[], bool], *, within_s: float = WAIT_S) -> None:
        async with asyncio.timeout(within_s):
            while not condition():
                await asyncio.sleep(0.005)
        assert not self.deaths, self.deaths

    async def place(self, card: ModelCard, *, context_tokens: int | None = None) -> InstanceId:
        """Plan and place; does not wait for the engine."""
        await self.wait_for(lambda: self.replica.state.members[self.node_id].facts is not None)
        await self.wait_for(lambda: bool(self.table.readings.nodes))
        request = PlacementRequest(model_id=card.model_id, context_tokens=context_tokens)
        outcome = plan(request, card, card_digest(card), self.replica.state, self.table.readings)
        assert outcome.plans, outcome
        command = PlaceInstance(
            command_id=self.mint_command_id(), request=request, plan=outcome.plans[0], card=card
        )
        await self.submit(command)
        return InstanceId(command.command_id)

    async def place_ready(
        self, card: ModelCard, *, context_tokens: int | None = None
    ) -> InstanceId:
        instance_id = await self.place(card, context_tokens=context_tokens)
        await self.wait_phase(instance_id, "ready")
        return instance_id

    async def stop(self, instance_id: InstanceId) -> None:
        """Stop an instance and wait until it is gone."""
        command = StopInstance(command_id=self.mint_command_id(), instance_id=instance_id)
        await self.submit(command)
        await self.wait_for(lambda: instance_id not in self.replica.state.instances)

    def instance(self, instance_id: InstanceId) -> Instance:
        return self.replica.state.instances[instance_id]

    async def wait_phase(
        self, instance_id: InstanceId, phase: Phase, *, within_s: float = WAIT_S
    ) -> None:
        await self.wait_for(lambda: self.instance(instance_id).phase == phase, within_s=within_s)

    def pid(self, instance_id: InstanceId) -> int:
        pid = self.instance(instance_id).runners[0].pid
        assert pid is not None
        return pid

    def task(self, content: str = "hello", *, max_tokens: int | None = None) -> ChatTask:
        return ChatTask(
            command_id=self.mint_command_id(),
            model_id=a_scripted_card().model_id,
            messages=(ChatMessage(role="user", content=content),),
            max_tokens=max_tokens,
        )

    def _note(self, sequenced: SequencedEvent, _state: ClusterState) -> None:
        if isinstance(sequenced.event, InstanceFailed):
            self.failures.append(sequenced.event.failure)

    def _on_death(self, story: str, _error: BaseException) -> None:
        self.deaths.append(story)


def scripted(**script: object) -> ModelCard:
    """Make the card of a script; times in milliseconds, as `protocol.cards` says."""
    return a_scripted_card(scripted=ScriptedSection.model_validate(script))


def text_of(frames: Sequence[Frame]) -> str:
    return "".join(frame.text for frame in frames if isinstance(frame, Chunk))


@asynccontextmanager
async def worker_in(
    home: Path, *, deadlines: Deadlines | None = None, state: ClusterState | None = None
) -> AsyncGenerator[LocalWorker]:
    worker = LocalWorker(home, deadlines=deadlines, state=state)
    await worker.begin()
    try:
        yield worker
        assert not worker.deaths, worker.deaths
    finally:
        late = await worker.service.close()
        await worker.tasks.close(1.0)
    assert late == ()


def run(story: Callable[[], Awaitable[None]], *, limit_s: float = 60.0) -> None:
    """Run a story on the event loop of the main thread, which is where engines are spawned."""

    async def bounded() -> None:
        async with asyncio.timeout(limit_s):
            await story()

    asyncio.run(bounded())
