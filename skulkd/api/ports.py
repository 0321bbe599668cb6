"""What the API needs of the rest of the daemon; `skulkd/node.py` plugs it in."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from protocol.admin_api import NodeConfig, SettingValue
from protocol.cards import ModelCard
from protocol.cluster_api import (
    ClusterDocument,
    Invitation,
    InvitationKind,
    JoinBody,
    Joined,
    LogsDocument,
)
from protocol.control_api import TransferStatus
from protocol.data_frames import Frame, TakeChunk
from protocol.ids import CommandId, InstanceId, ModelId, NodeId
from protocol.nodes import NodeHealth
from protocol.peer_messages import ApiAnswer, CallApi, TermPair
from protocol.placements import PlacementOutcome, PlacementRequest
from protocol.readings import Readings
from protocol.storage_api import FoundModelView, FoundSource, StorageDocument
from protocol.tasks import ChatTask, VectorTask
from protocol.verify_api import VerifyStatus
from skulkd.api.cluster_look import ClusterLook
from skulkd.core.link_probe import ProbeRun


class Inference(Protocol):
    """Takes tasks to the worker that serves an instance, wherever it is."""

    def chat(
        self, instance_id: InstanceId, task: ChatTask, take: TakeChunk | None = None
    ) -> AsyncGenerator[Frame]:
        """Serve one task: `Started`, `Chunk`s in order, then exactly one terminal.

        Nothing is raised but `CancelledError`; closing the iterator cancels the task and frees
        its slot. A terminal with `engine.busy`, `engine.draining` or `engine.gone` before
        `Started` may be retried.

        Args:
            instance_id: Of the instance that serves it.
            task: What to serve.
            take: May be given chunks behind `Started` that arrive while the iterator is awaited,
                in their order among all frames. What it raises comes out of the iterator.
        """
        ...

    def vectors(self, instance_id: InstanceId, task: VectorTask) -> AsyncGenerator[Frame]:
        """Serve one task for vectors: as `chat`, but that each `Chunk` holds vectors alone.

        All chunks together hold one for each text of the task, in their order. `Finished` has the
        tokens of all texts.
        """
        ...

    def cancel(self, command_id: CommandId) -> bool:
        """End a task with `request.cancelled`; False when no such task is known here."""
        ...


class TokenCounts(Protocol):
    """Counts prompts for the instances of this node."""

    async def count_tokens(self, instance_id: InstanceId, task: ChatTask) -> int:
        """Count the tokens of a task's prompt as its model's template renders it, tools included.

        No slot is taken. Images are estimated, from above: engines count them only as they read.

        Raises:
            SkulkError: `engine.gone` where the instance is not ready here; `engine.unsupported`,
                `engine.request_failed`.
        """
        ...


class Placements(Protocol):
    """Plans placements on this node's replica and readings."""

    async def preview(self, request: PlacementRequest, *, wait_s: float) -> PlacementOutcome:
        """Plan; while facts are missing, wait for them up to `wait_s` seconds.

        Raises:
            PlacementError: `placement.unknown_model`.
        """
        ...


class ReadingsView(Protocol):
    """The last value of every reading."""

    @property
    def readings(self) -> Readings:
        """A snapshot."""
        ...


class HealthView(Protocol):
    """The health of every member, derived from State and readings."""

    def node_health(self) -> Mapping[NodeId, NodeHealth]:
        """Derive it now; cheap."""
        ...


class Listeners(Protocol):
    """The HTTP listeners of this node."""

    async def open_api(self, host: str, *, persist: bool) -> tuple[str, ...]:
        """Listen on a further address (`0.0.0.0` for all); returns the URLs now served.

        Raises:
            ConfigError: `config.port_busy`, `config.invalid`.
            RequestError: `request.forbidden` while State holds no API key.
        """
        ...

    async def close_api(self) -> tuple[str, ...]:
        """Listen on loopback only again; returns the URLs now served."""
        ...

    def urls(self) -> tuple[str, ...]:
        """Where this node is served now."""
        ...

    def base_urls(self) -> tuple[str, ...]:
        """What works from another machine, the best first; none while only loopback is served."""
        ...

    def names(self) -> frozenset[str]:
        """Names of this node besides the machine's own, in lower case; cheap."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogModel:
    """A card that counts here, and whether its files are here."""

    card: ModelCard
    origin: Literal["custom", "installed", "bundled", "elsewhere"]
    """`elsewhere` is a card that only another node has."""
    installed: bool


class Models(Protocol):
    """This node's catalogue and files."""

    async def catalog(self) -> tuple[CatalogModel, ...]:
        """Give every card in force, sorted by id."""
        ...

    async def elsewhere(self, model_id: ModelId) -> CatalogModel | None:
        """Find the card of a model that no card in force names on the other nodes."""
        ...

    async def import_file(self, path: str, model_id: ModelId | None) -> ModelCard:
        """Make a card for a GGUF file that is used where it lies, and keep it as a custom card.

        Raises:
            StoreError: `store.gguf_invalid`, `store.gguf_truncated`, `store.not_found`,
                `store.card_invalid`, `store.disk_failed`.
        """
        ...

    async def remove_card(self, model_id: ModelId) -> bool:
        """Forget a custom card; False when there is none of that id here."""
        ...

    async def found(self, sources: tuple[FoundSource, ...]) -> tuple[FoundModelView, ...]:
        """Look for model files that other programs left on this machine."""
        ...

    async def start_download(self, model_id: ModelId) -> TransferStatus:
        """Begin a transfer, or join the one under way; returns at once.

        Raises:
            StoreError: `store.not_found`, `store.no_space`, `store.source_unavailable`,
                `store.offline`, `store.downloads_disabled`.
        """
        ...

    async def download_status(self, model_id: ModelId) -> TransferStatus:
        """Say how far a transfer is, or how the last one ended.

        Raises:
            StoreError: `store.not_found` for a model that no card names.
        """
        ...

    async def pause_download(self, model_id: ModelId, by: str) -> TransferStatus:
        """Pause the transfer under way, for a placement or a pull, until it is resumed.

        Idempotent; `by` says for people who wants it.

        Raises:
            StoreError: `store.no_transfer` when none is under way, `store.not_found`.
        """
        ...

    async def resume_download(self, model_id: ModelId) -> TransferStatus:
        """Go on with a paused transfer; one that runs or is complete is left as it is.

        Raises:
            StoreError: `store.no_transfer` when there is none, `store.not_found`.
        """
        ...

    async def cancel_download(self, model_id: ModelId) -> TransferStatus:
        """End a transfer and keep what it fetched; a model without one is left as it is."""
        ...

    async def verify(self, model_id: ModelId) -> VerifyStatus:
        """Begin to hash a model's files again, or join what is under way; returns at once.

        Raises:
            StoreError: `store.not_found`.
        """
        ...

    async def verify_status(self, model_id: ModelId) -> VerifyStatus:
        """Say how far that is, or how the last one ended."""
        ...

    async def cancel_verify(self, model_id: ModelId) -> VerifyStatus:
        """End it; what was found so far is nothing."""
        ...

    async def remove(self, model_id: ModelId) -> int:
        """Delete a model's files; returns the bytes freed.

        Raises:
            StoreError: `store.not_found`, `store.in_use`, `store.disk_failed`.
        """
        ...

    async def storage(self) -> StorageDocument:
        """Say what lies on the models volume; `in_use` is filled in by the API."""
        ...


class ClusterControl(Protocol):
    """Membership as an operator steers it; what is an ordinary command goes by the gateway."""

    def status(self) -> ClusterDocument:
        """Show the cluster as this node sees it now; cheap, and never older than its state."""
        ...

    def look(self) -> ClusterLook:
        """Show only what moves: who is there and how they are reached; cheaper than `status`."""
        ...

    async def invite(self, kind: InvitationKind, *, uses: int, ttl_s: int | None) -> Invitation:
        """Make an invitation that this node admits guests by, and open a node that is closed.

        Args:
            kind: A token, or six words to be spoken.
            uses: How many guests it admits; 1 for a code.
            ttl_s: How long; None for as long as is usual for its kind.

        Raises:
            ConfigError: `config.port_busy`, `config.invalid`: the node cannot be opened.
            SkulkError: What the master refused with, or `cluster.no_master`.
        """
        ...

    async def join(self, wish: JoinBody) -> Joined:
        """Become a member of another cluster.

        Returns once that cluster has admitted this node and the choice is kept; the rooms of this
        node then start anew, after the answer has had a moment (0.2 s) to leave.

        Raises:
            ClusterError: `cluster.join_failed`, saying which direction and port failed and what
                would open it; nothing has changed then.
            SkulkError: The token or code is not one, or this node has a past and `discard` is not
                set.
        """
        ...

    async def handover(self, node_id: NodeId | None) -> TermPair:
        """On the master: have another member elected; returns the new term once it is known.

        Args:
            node_id: Who shall be master; None for the member that is closest behind.

        Raises:
            ClusterError: There is no member that could take over, or it was not elected in time.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """Which lines of which log of this node."""

    instance_id: InstanceId | None = None
    """None is the daemon's own log."""
    after: str | None = None
    """Where an earlier answer ended; None for the last lines."""
    limit: int = 100
    command_id: CommandId | None = None
    """Only the lines that carry it, from the oldest on."""


LogMark = tuple[tuple[int, int], ...]
"""How far a log has come: as long as it stays the same, there are no further lines."""


class NodeLogs(Protocol):
    """The logs that lie on this node."""

    async def mark(self, query: LogQuery) -> LogMark:
        """Say how far a log has come, without reading it.

        Raises:
            RequestError: `request.not_found`, the instance has no log here.
        """
        ...

    async def read(self, query: LogQuery) -> LogsDocument:
        """Read lines, oldest first, at most `limit` and half a mebibyte.

        Raises:
            RequestError: `request.not_found`, the instance has no log here; `request.invalid`,
                `after` is no position of this log.
        """
        ...


class NodeAdmin(Protocol):
    """Running this node, as an operator does."""

    async def config(self) -> NodeConfig:
        """Show its settings.

        Raises:
            ConfigError: `config.invalid`; its settings file cannot be read.
        """
        ...

    async def configure(
        self, changes: Mapping[str, SettingValue | None], *, dry_run: bool
    ) -> NodeConfig:
        """Change its settings file, once that has been checked as at a start.

        Raises:
            ConfigError: `config.unknown_key`, `config.invalid`, `config.home_unusable`; nothing has
                changed then.
        """
        ...

    def restart(self) -> None:
        """Begin anew, after the answer has had a moment to leave.

        Raises:
            ClusterError: `cluster.restart_pending`.
        """
        ...


class Probes(Protocol):
    """Measuring what the cluster's links carry."""

    @property
    def last(self) -> ProbeRun | None:
        """The series that goes on at this node, else the last one that did."""
        ...

    async def start(self, pairs: tuple[tuple[NodeId, NodeId], ...], *, even_busy: bool) -> ProbeRun:
        """Begin to measure; returns once the master has let this node.

        Raises:
            ClusterError: `cluster.probe_busy`, `cluster.no_master`, `cluster.peer_unreachable`,
                `cluster.peer_timeout`.
        """
        ...


class PeerApi(Protocol):
    """Control requests to the HTTP API of another node, over the cluster's own connections."""

    async def call(self, node_id: NodeId, request: CallApi, *, timeout_s: float) -> ApiAnswer:
        """Have a request answered there; an error of the route is an answer too.

        Raises:
            ClusterError: `cluster.peer_unreachable`, `cluster.peer_timeout`.
        """
        ...
