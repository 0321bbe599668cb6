"""The steps of a runner's phases that take time: fetch, check memory, watch a load, probe.

Each is one coroutine that may be cancelled at any moment and raises a `SkulkError` when it fails.
They know no lifecycle; `supervisor` turns what they say into inputs of the machine.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol, final, get_args

from engines.base import Endpoint, EngineClient, EngineStatistics
from protocol.cards import Compute, EngineName, ModelCard
from protocol.clock import Clock
from protocol.data_frames import Failed, Finished
from protocol.errors import EngineError, RunnerError, SkulkError, StoreError, error_of
from protocol.ids import CommandId, ModelId
from protocol.nodes import EngineFacts
from protocol.placements import Plan
from protocol.tasks import ChatMessage, ChatTask
from skulkd.core.model_capabilities import sees
from skulkd.runtime.port_holder import holder_of
from skulkd.runtime.tasks import run_blocking, sleep
from skulkd.worker.launchers.base import EngineProcess, ProcessUsage
from skulkd.worker.token_budget import UNMEASURED, TemplateSize, template_size
from store.progress import TransferProgress

COMPUTES: Final[tuple[Compute, ...]] = get_args(Compute)
NO_FILE: Final = Path("/dev/null")
"""What an engine is given whose card has no weights: a script."""
MEMORY_TOLERANCE: Final = 0.10
"""A plan is an estimate; what is missing of it may be this share."""
HOST_BYTES: Final = 256 << 20
"""What an engine's process takes of RAM though its model is on a GPU: its code, the driver's share,
buffers. The weights it reads can be dropped again."""
ANSWER_S: Final = 240.0
"""One that serves a single request at a time may not say how it is while it reads a long prompt."""
ANSWER_PAUSE_S: Final = 2.0
SETTLE_S: Final = 10.0
"""How long after a runner has ended its memory may still be on its way back."""
_MEMORY_POLL_S: Final = 0.25
_FIRST_POLL_S: Final = 0.01
_LAST_POLL_S: Final = 0.25
PROGRESS_STEP_BYTES: Final = 1 << 20
"""Less growth than this is no progress: a hung process still allocates a little to say so."""


class Artifact(Protocol):
    """Complete files of a model."""

    @property
    def entry(self) -> Path:
        """The file that the engine is given."""
        ...

    @property
    def projector(self) -> Path | None:
        """What makes images readable to the model."""
        ...

    @property
    def size_bytes(self) -> int:
        """All files."""
        ...


class ArtifactStore(Protocol):
    """What the worker asks of the store."""

    def locate(self, card: ModelCard) -> Artifact | None:
        """Find complete files; reads no weights."""
        ...

    async def ensure(
        self, card: ModelCard, progress: Callable[[TransferProgress], None] | None = None
    ) -> Artifact:
        """Have the files complete here; callers that want the same share one transfer.

        Raises:
            StoreError: As `store.service.Store.ensure` says.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """How far a load seems to be."""

    done_bytes: int
    note: str


def needs_files(card: ModelCard) -> bool:
    """Tell whether a card stands for files; a script is in the card itself."""
    return card.source is not None or card.scripted is None


class EngineFiles(NamedTuple):
    """What an engine is given of a model's files."""

    entry: Path
    projector: Path | None = None


async def find_files(store: ArtifactStore, card: ModelCard, engine: EngineName) -> EngineFiles:
    """Find the files that the engine is given.

    Raises:
        StoreError: `store.incomplete`.
    """
    if not needs_files(card):
        return EngineFiles(NO_FILE)
    artifact = await run_blocking(store.locate, card)
    if artifact is None:
        raise StoreError(
            "store.incomplete",
            f"the files of {card.model_id} are no longer as they were when they were verified",
            remediation=f"Fetch them again: `skulk models pull {card.model_id}`.",
        )
    if not sees(card, engine) or card.scripted is not None:
        return EngineFiles(artifact.entry)
    if artifact.projector is None:
        named = card.vision.projector_file if card.vision is not None else None
        raise StoreError(
            "store.incomplete",
            f"the card of {card.model_id} has images shown through {named}, which is not among "
            "its files",
            remediation="Correct `projector_file` in the card, or leave its [vision] table out.",
        )
    return EngineFiles(artifact.entry, artifact.projector)


def compute_of(plan: Plan, rank: int = 0) -> Compute:
    """Read what a rank computes on from its backend; a bare engine name means the CPU."""
    own = next((shard.backend for shard in plan.shards if shard.rank == rank), None)
    for compute in COMPUTES:
        if (own or plan.backend) == f"{plan.engine}-{compute}":
            return compute
    return "cpu"


def choose_build(plan: Plan, builds: tuple[EngineFacts, ...], rank: int = 0) -> EngineFacts:
    """Take the first build, best first, that can do what the plan says of a rank.

    Raises:
        EngineError: `engine.unavailable`, saying why each build of the engine was passed over.
    """
    compute = compute_of(plan, rank)
    passed: list[str] = []
    for build in builds:
        if build.engine != plan.engine:
            continue
        can_share = plan.shape != "rpc" or build.rpc
        if build.usable and compute in build.computes and can_share:
            return build
        why = build.reason or f"computes on {', '.join(build.computes)} only"
        if build.usable and not can_share:
            why = "cannot share a model with other nodes (there is no rpc-server beside it)"
        passed.append(f"{build.path or build.provider}: {why}")
    raise EngineError(
        "engine.unavailable",
        f"no build of {plan.engine} on this node can compute on {compute}"
        + "".join(f"; {reason}" for reason in passed),
        remediation="Install the engine, then restart skulkd so that it is probed again.",
    )


@final
class MemoryGate:
    """Lets a runner start when the memory it was planned with is really there.

    Args:
        available_bytes: Measures what can be taken now; None is unknown.
        clock: For the waiting time.
    """

    def __init__(self, available_bytes: Callable[[], int | None], clock: Clock) -> None:
        self._available_bytes = available_bytes
        self._clock = clock
        self._settled_at_s = float("-inf")

    def on_runner_ended(self) -> None:
        """Note that memory is on its way back."""
        self._settled_at_s = self._clock.monotonic_s() + SETTLE_S

    async def wait(self, needed_bytes: int, on_wait: Callable[[str], None]) -> None:
        """Wait until the memory is there, or cannot be expected any more.

        Args:
            needed_bytes: What the plan says.
            on_wait: Told what is awaited.

        Raises:
            RunnerError: `runner.no_memory`, with the numbers.
        """
        while True:
            available_bytes = await run_blocking(self._available_bytes)
            if available_bytes is None:
                raise RunnerError(
                    "runner.no_memory",
                    "how much memory is free on this node is unknown, so nothing is started",
                    remediation="See the node's health (`skulk status`) for the failing probe.",
                )
            if available_bytes >= needed_bytes * (1 - MEMORY_TOLERANCE):
                return
            if self._clock.monotonic_s() >= self._settled_at_s:
                raise _no_memory(needed_bytes, available_bytes)
            on_wait(f"waiting for {needed_bytes} bytes; {available_bytes} are free")
            await sleep(_MEMORY_POLL_S)


async def wait_loaded(
    client: EngineClient,
    process: EngineProcess,
    size_bytes: int,
    on_progress: Callable[[LoadProgress], None],
) -> None:
    """Poll a starting engine until its model is loaded.

    What the engine says of its progress counts; beside it, what the process has read and what has
    become resident, since most engines say nothing.

    Raises:
        EngineError: `engine.request_failed` when the engine says that loading failed.
    """
    pause_s = _FIRST_POLL_S
    base: ProcessUsage | None = None
    while True:
        status = await client.load_status()
        if status.loaded:
            return
        usage = await run_blocking(process.usage)
        base = base or usage
        seen_bytes = max(
            (usage.resident_bytes or 0) - (base.resident_bytes or 0),
            (usage.read_bytes or 0) - (base.read_bytes or 0),
            int((status.done_ratio or 0.0) * size_bytes),
        )
        whole_steps = min(seen_bytes, size_bytes) // PROGRESS_STEP_BYTES
        on_progress(LoadProgress(done_bytes=whole_steps * PROGRESS_STEP_BYTES, note=status.note))
        await sleep(pause_s)
        pause_s = min(_LAST_POLL_S, pause_s * 1.5)


async def wait_listening(process: EngineProcess, port: int) -> None:
    """Wait until a process that we started listens on its port: it is ready for its driver."""
    pause_s = _FIRST_POLL_S
    while not await run_blocking(process.owns_listener, port):
        await sleep(pause_s)
        pause_s = min(_LAST_POLL_S, pause_s * 1.5)


async def check_listener(process: EngineProcess, endpoint: Endpoint) -> None:
    """See to it that a port is served by the process we started.

    A Unix socket lies in a directory that only we can write to, and needs no check.

    Raises:
        RunnerError: `runner.probe_failed`.
    """
    port = endpoint.port
    if port is None or await run_blocking(process.owns_listener, port):
        return
    holder = await run_blocking(holder_of, "127.0.0.1", port)
    raise RunnerError(
        "runner.probe_failed",
        f"port {port} is served by {holder or 'another process'}, not by the engine that was "
        f"started (pid {process.pid})",
        remediation=f"See who holds it (`ss -ltnp sport = :{port}`), and end that.",
        details={"port": port, "pid": process.pid, "holder": holder},
    )


async def probe(
    client: EngineClient, card: ModelCard, command_id: CommandId
) -> EngineStatistics | None:
    """Send one real request over the path that clients use; then ask what the engine runs with.

    Returns:
        The engine's own numbers; None when it does not tell.

    Raises:
        RunnerError: `runner.probe_failed`.
    """
    try:
        await _probe_task(client, card, command_id)
    except SkulkError as error:
        raise RunnerError(
            "runner.probe_failed",
            f"the engine loaded, and failed its first request: {error.message}",
            remediation=error.remediation or "Read the engine's log; `skulk ps` shows its end.",
            details={"cause": error.code},
        ) from error
    try:
        return await client.statistics()
    except SkulkError:
        return None


async def measure_template(
    client: EngineClient, card: ModelCard, command_id: CommandId
) -> TemplateSize:
    """Have two short conversations counted; the widest guess where the engine cannot count."""
    if "TextGeneration" not in card.tasks:
        return UNMEASURED
    turns = tuple(ChatMessage(role=role, content="Hi") for role in ("user", "assistant", "user"))
    try:
        counts = [
            await client.count_tokens(
                ChatTask(command_id=command_id, model_id=card.model_id, messages=turns[:n_turns])
            )
            for n_turns in (1, 3)
        ]
    except SkulkError:
        return UNMEASURED
    return template_size(*counts)


async def _probe_task(client: EngineClient, card: ModelCard, command_id: CommandId) -> None:
    if "TextGeneration" in card.tasks:
        await _probe_chat(client, card.model_id, command_id)
    elif "TextEmbedding" in card.tasks:
        await client.embed(("probe",))
    else:
        await client.rerank("probe", ("probe",))


async def _probe_chat(client: EngineClient, model_id: ModelId, command_id: CommandId) -> None:
    task = ChatTask(
        command_id=command_id,
        model_id=model_id,
        messages=(ChatMessage(role="user", content="Hi"),),
        max_tokens=1,
    )
    frames = client.chat(task)
    try:
        async for frame in frames:
            if isinstance(frame, Failed):
                raise error_of(frame.error)
            if isinstance(frame, Finished):
                return
    finally:
        await frames.aclose()
    raise EngineError("engine.request_failed", "the stream ended without a terminal")


def _no_memory(needed_bytes: int, available_bytes: int) -> RunnerError:
    return RunnerError(
        "runner.no_memory",
        f"{needed_bytes} bytes are needed and {available_bytes} are free on this node now, "
        f"{needed_bytes - available_bytes} too few (a {MEMORY_TOLERANCE:.0%} lack is tolerated, "
        "swap is not counted)",
        remediation="Free memory on the node, stop another instance, or place the model with a "
        "smaller --context.",
        details={"needed_bytes": needed_bytes, "available_bytes": available_bytes},
    )
