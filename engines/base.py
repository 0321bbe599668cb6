"""The engine interface: how a model runs, seen from the worker.

An engine never starts a process itself. It says what to start (`launch`), the worker's launcher
starts it, and `connect` gives a client that speaks to the running process. A client's life is:
`load_status` until loaded, one probing request, then any number of `chat`, `embed` and `rerank`
calls at a time, then `close`. The process may die at any moment; every call then ends with
`engine.gone`.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from protocol.cards import Compute, EngineName, ModelCard
from protocol.data_frames import Frame, TakeChunk
from protocol.images import ImageType
from protocol.nodes import EngineFacts
from protocol.tasks import ChatTask

Feature = Literal[
    "chat", "complete", "embed", "rerank", "logprobs", "tools", "grammar", "seed", "thinking",
    "vision",
]  # fmt: skip
"""`complete`: to go on with a text as it is. `vision`: to show images, where the card has what it
takes. `grammar`: to hold answers to a form. `tools`: to have
tools called as `tool_choice` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDescription:
    """What an engine can do, whatever the model."""

    name: EngineName
    features: frozenset[Feature]
    default_slots: int
    """Requests served at a time when nobody asks for a number."""
    image_types: frozenset[ImageType] = frozenset()
    """Which images it decodes; none without the feature `vision`."""
    overhead_bytes: int
    """Resident memory of the process beside weights and cache, measured."""


class LayerRange(NamedTuple):
    """Layers of a model that one rank holds: half-open, `start` to `end - 1`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Where one process stands among those that run a model together."""

    rank: int
    """Which this one is. Rank 0 takes the requests."""
    layers: tuple[LayerRange, ...]
    """Of all ranks, in their order."""
    ports: tuple[int, ...]
    """For each rank the port of 127.0.0.1 on this machine at which it is reached; at its own
    place the port at which this process itself is to listen."""

    @property
    def size(self) -> int:
        """How many processes there are."""
        return len(self.ports)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """What is to be loaded, and where its traces go."""

    card: ModelCard
    entry_path: Path
    """The file that the engine is given."""
    context_tokens: int
    """Window of one request, in tokens, and the pool that all slots share."""
    slots: int
    compute: Compute
    n_threads: int
    socket_path: Path
    """A free path in a directory of mode 0700, at most 100 bytes long, that ends in `.sock`."""
    build: EngineFacts
    """Which provider to use, and where it lies."""
    projector_path: Path | None = None
    """What makes images readable to the model; None where it is shown none."""
    group: Group | None = None
    """Its place among the ranks of the instance; None where one process runs the whole model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a served engine listens: a Unix socket, or a port of 127.0.0.1."""

    socket_path: Path | None = None
    port: int | None = None
    api_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """A process to start: an argv list, never a shell line; the environment is scrubbed first."""

    argv: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict[str, str])
    endpoint: Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadStatus:
    """How far the load is, as the engine itself says it; the worker adds what the OS shows."""

    loaded: bool
    done_ratio: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """What a running engine counts."""

    slots: int
    slots_busy: int
    context_tokens: int
    """Window of one request that the engine really runs with."""


class Vectors(NamedTuple):
    """What an engine made of some texts."""

    vectors: tuple[bytes, ...]
    """One a text, in their order; see `protocol.vectors`."""
    n_tokens: int
    """Of all texts together."""


class EngineClient(Protocol):
    """A connection to one engine process."""

    async def load_status(self) -> LoadStatus:
        """Ask whether the model is loaded; never raises because the process is not up yet.

        Raises:
            EngineError: `engine.request_failed` when the process answers that loading failed.
        """
        ...

    def chat(self, task: ChatTask, take: TakeChunk | None = None) -> AsyncGenerator[Frame]:
        """Serve one task: `Started`, ordered `Chunk`s, then exactly one `Finished` or `Failed`.

        The iterator raises nothing but `CancelledError`: failures are the `Failed` terminal.
        Closing it (`aclose`) or cancelling the consumer frees the engine's slot.

        Args:
            task: What to serve.
            take: May be given chunks that arrive while the iterator is awaited, in their order
                among all frames. What it raises comes out of the iterator.
        """
        ...

    async def embed(self, texts: tuple[str, ...]) -> Vectors:
        """Embed each text, in order. Whoever cancels this frees the engine.

        Raises:
            EngineError: `engine.unsupported`, `engine.request_failed` or `engine.gone`.
        """
        ...

    async def rerank(self, query: str, documents: tuple[str, ...]) -> Vectors:
        """Score how well each document answers the query: vectors of one number, in order.

        Raises:
            EngineError: `engine.unsupported`, `engine.request_failed` or `engine.gone`.
        """
        ...

    async def count_text(self, text: str) -> int:
        """Count the tokens that `embed` reads for a text, without taking a slot.

        Raises:
            EngineError: `engine.unsupported`, `engine.request_failed` or `engine.gone`.
        """
        ...

    async def count_tokens(self, task: ChatTask) -> int:
        """Count the tokens of the rendered prompt beside its images, without taking a slot.

        Raises:
            EngineError: `engine.unsupported`, `engine.request_failed` or `engine.gone`.
            RequestError: `request.invalid` when the model's template refuses the conversation.
        """
        ...

    async def statistics(self) -> EngineStatistics:
        """Ask what the engine is doing.

        Raises:
            EngineError: `engine.request_failed` or `engine.gone`.
        """
        ...

    async def close(self) -> None:
        """Close all connections; requests under way end with `engine.gone`."""
        ...


class Engine(Protocol):
    """One way of running models."""

    def describe(self) -> EngineDescription:
        """Say what this engine can do."""
        ...

    def launch(self, spec: LoadSpec) -> LaunchSpec:
        """Say which process serves this model. Pure.

        Raises:
            EngineError: `engine.unsupported` when this build cannot serve the card.
        """
        ...

    def connect(self, spec: LoadSpec, endpoint: Endpoint) -> EngineClient:
        """Make a client for the process; no connection is opened before it is used."""
        ...
