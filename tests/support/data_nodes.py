"""Nodes of a simulated network that serve each other's requests, each with a scripted worker."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Final, final

from protocol.data_frames import Chunk, Failed, Finished, Frame, Started, TakeChunk, Usage
from protocol.errors import ErrorBody
from protocol.events import SequencedEvent
from protocol.ids import CommandId, InstanceId, NodeId
from protocol.state import ClusterState
from protocol.tasks import ChatMessage, ChatTask, EmbeddingTask, Task, VectorTask
from skulkd.api.cancels import ClusterCancels
from skulkd.api.remote_inference import ClusterInference
from skulkd.cluster.data_link import DataLinks
from skulkd.cluster.peer_calls import ControlCalls
from skulkd.cluster.simulated import SimulatedNetwork, SimulatedTransport
from skulkd.cluster.transport import Transport
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.tasks import Tasks, sleep
from skulkd.worker.data_server import DataServer
from skulkd.worker.tombstones import Tombstones
from tests.support.builders import (
    MODEL,
    a_command_id,
    a_member,
    a_node_id,
    a_state,
    an_instance,
    an_instance_id,
)

USAGE: Final = Usage(prompt_tokens=3, completion_tokens=4)


@dataclass(kw_only=True)
class Script:
    """What a worker says to every task."""

    n_chunks: int = 20
    pause_s: float = 0.05
    """Before each chunk; 0 is as fast as they are taken."""
    chunk: Chunk = field(default_factory=lambda: Chunk("word "))
    queue_s: float = 0.0
    """Before `Started`."""
    slots: int = 64
    refusal: ErrorBody | None = None
    dies_after: int | None = None


@final
class ScriptedWorker:
    """Implements `skulkd.api.ports.Inference` with slots, tombstones, and no engine."""

    def __init__(self) -> None:
        self.script = Script()
        self.tasks: list[Task] = []
        self.n_running = 0
        self.n_said = 0
        self._open: dict[CommandId, asyncio.Event] = {}
        self._tombstones = Tombstones()
        self._clock = LoopClock(asyncio.get_running_loop())

    def chat(
        self, instance_id: InstanceId, task: ChatTask, take: TakeChunk | None = None
    ) -> AsyncGenerator[Frame]:
        return self._serve(task, take)

    def vectors(self, instance_id: InstanceId, task: VectorTask) -> AsyncGenerator[Frame]:
        return self._serve(task, None)

    async def _serve(self, task: Task, take: TakeChunk | None) -> AsyncGenerator[Frame]:
        script = self.script
        if self._tombstones.take(task.command_id, now=self._clock.monotonic_s()):
            yield Failed(_cancelled())
            return
        self.tasks.append(task)
        if script.refusal is not None:
            yield Failed(script.refusal)
            return
        if self.n_running >= script.slots:
            yield Failed(ErrorBody(code="engine.busy", message="all slots are taken"))
            return
        self.n_running += 1
        ended = self._open[task.command_id] = asyncio.Event()
        try:
            async for frame in self._say(script):
                if ended.is_set():
                    yield Failed(_cancelled())
                    return
                if take is None or not isinstance(frame, Chunk) or not take(frame):
                    yield frame
        finally:
            self.n_running -= 1
            del self._open[task.command_id]

    async def _say(self, script: Script) -> AsyncGenerator[Frame]:
        await sleep(script.queue_s)
        yield Started(prompt_tokens=3)
        for index in range(script.n_chunks):
            await sleep(script.pause_s)
            if index == script.dies_after:
                yield Failed(ErrorBody(code="runner.exited", message="exit status 9"))
                return
            self.n_said += 1
            yield script.chunk
        yield Finished("stop", USAGE)

    def cancel(self, command_id: CommandId) -> bool:
        ended = self._open.get(command_id)
        if ended is None:
            self._tombstones.add(command_id, now=self._clock.monotonic_s())
            return False
        ended.set()
        return True


@final
class StillState:
    """A replica that nothing changes."""

    def __init__(self, state: ClusterState) -> None:
        self.state = state

    def subscribe(
        self,
        on_event: Callable[[SequencedEvent, ClusterState], None],
        on_reset: Callable[[ClusterState], None] | None = None,
    ) -> Callable[[], None]:
        return lambda: None

    def recent(self, after_seq: int, limit: int) -> tuple[SequencedEvent, ...]:
        return ()


def state_of_nodes(n_nodes: int) -> ClusterState:
    """Give a state in which instance `n` is ready on node `n`."""
    numbers = range(1, n_nodes + 1)
    return a_state(
        members=[a_member(number) for number in numbers],
        instances=[an_instance(number, node=number) for number in numbers],
    )


@final
class DataNode:
    """One node's data plane, with both sides."""

    def __init__(self, transport: Transport, state: ClusterState) -> None:
        self.deaths: list[str] = []
        self.transport = transport
        self.tasks = Tasks("data", on_death=lambda story, _: self.deaths.append(story))
        self.worker = ScriptedWorker()
        self.links = DataLinks(transport, self.tasks)
        self.server = DataServer(self.links, self.worker, self.tasks)
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
        rng = random.Random(transport.node_id)
        self.inference = ClusterInference(StillState(state), self.worker, self.links, rng)
        calls = ControlCalls(transport, rng=rng, tasks=self.tasks)
        self.cancels = ClusterCancels(transport.node_id, StillState(state), calls, self.tasks)
        self.cancels.add_here(self.inference.cancel)
        self.cancels.add_here(self.server.cancel)

    @property
    def node_id(self) -> NodeId:
        return self.transport.node_id

    async def die(self) -> None:
        """End without a word, as by kill -9."""
        await self.transport.close()
        self.links.close()
        await self.tasks.close(1.0)

    async def close(self) -> None:
        self.server.close()
        self.links.close()
        assert await self.tasks.close(1.0) == ()
        await self.transport.close()
        assert self.deaths == []


@final
class DataNetwork:
    """Nodes 1 to n that know one another; instance `n` runs on node `n`."""

    def __init__(self, network: SimulatedNetwork, n_nodes: int) -> None:
        self.network = network
        self._state = state_of_nodes(n_nodes)
        transports: list[SimulatedTransport] = [
            network.attach(a_node_id(number)) for number in range(1, n_nodes + 1)
        ]
        self.nodes = [DataNode(transport, self._state) for transport in transports]

    async def connect(self) -> None:
        """Wait until every link is up."""
        self.network.introduce_all()
        while any(len(node.transport.peers()) < len(self.nodes) - 1 for node in self.nodes):
            await sleep(0.05)

    def restart(self, index: int) -> DataNode:
        """Give a node that has died a new life."""
        transport = self.network.attach(self.nodes[index].node_id)
        self.nodes[index] = DataNode(transport, self._state)
        self.network.introduce_all()
        return self.nodes[index]

    async def close(self) -> None:
        for node in self.nodes:
            await node.close()


@dataclass
class Got:
    """What one client has been told."""

    frames: list[Frame] = field(default_factory=list[Frame])
    at_s: list[float] = field(default_factory=list[float])

    def take(self, frame: Frame) -> bool:
        """Note a frame."""
        self.frames.append(frame)
        self.at_s.append(asyncio.get_running_loop().time())
        return True

    @property
    def text(self) -> str:
        return "".join(frame.text for frame in self.frames if isinstance(frame, Chunk))

    @property
    def is_over(self) -> bool:
        return bool(self.frames) and isinstance(self.frames[-1], Finished | Failed)

    @property
    def code(self) -> str:
        """How it ended."""
        last = self.frames[-1] if self.frames else None
        if isinstance(last, Failed):
            return last.error.code
        return "finished" if isinstance(last, Finished) else "open"

    def assert_ordered(self) -> None:
        """Started first, then chunks, then exactly one terminal."""
        kinds = [type(frame) for frame in self.frames]
        assert all(kind in {Finished, Failed} for kind in kinds[-1:])
        assert not any(kind in {Finished, Failed} for kind in kinds[:-1])
        assert Started not in kinds[1:]


def a_task(number: int = 1, content: str = "hello") -> ChatTask:
    return ChatTask(
        command_id=a_command_id(number),
        model_id=MODEL,
        messages=(ChatMessage(role="user", content=content),),
    )


async def ask(
    node: DataNode, instance: int, task: ChatTask, got: Got | None = None, *, pause_s: float = 0.0
) -> Got:
    """Ask as a client does that takes a pause after each frame, or takes chunks as they arrive."""
    told = got or Got()
    frames = node.inference.chat(an_instance_id(instance), task, None if pause_s else told.take)
    try:
        async for frame in frames:
            told.take(frame)
            if pause_s:
                await sleep(pause_s)
    finally:
        await frames.aclose()
    return told


def an_embedding_task(n_texts: int) -> EmbeddingTask:
    texts = tuple(f"text {number}" for number in range(n_texts))
    return EmbeddingTask(command_id=a_command_id(1), model_id=MODEL, texts=texts)


async def embed(node: DataNode, instance: int, task: EmbeddingTask, *, pause_s: float = 0.0) -> Got:
    """Ask for vectors, as a client does that takes a pause after each frame."""
    told = Got()
    frames = node.inference.vectors(an_instance_id(instance), task)
    try:
        async for frame in frames:
            told.take(frame)
            await sleep(pause_s)
    finally:
        await frames.aclose()
    return told


def _cancelled() -> ErrorBody:
    return ErrorBody(code="request.cancelled", message="the request was cancelled")
