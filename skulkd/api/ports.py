"""What the API needs of the rest of the daemon; `skulkd/node.py` plugs it in."""

from collections.abc import AsyncIterator
from typing import Protocol

from protocol.data_frames import Frame
from protocol.ids import CommandId, InstanceId
from protocol.placements import PlacementOutcome, PlacementRequest
from protocol.readings import Readings
from protocol.tasks import ChatTask


class Inference(Protocol):
    """Takes tasks to the worker that serves an instance, wherever it is."""

    def chat(self, instance_id: InstanceId, task: ChatTask) -> AsyncIterator[Frame]:
        """Serve one task: `Started`, `Chunk`s in order, then exactly one terminal.

        Nothing is raised but `CancelledError`; closing the iterator cancels the task and frees
        its slot. A terminal with `engine.busy` or `engine.gone` before `Started` may be retried.
        """
        ...

    def cancel(self, command_id: CommandId) -> bool:
        """End a task with `request.cancelled`; False when no such task is known here."""
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
