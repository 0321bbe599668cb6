"""Keeps the listener beyond loopback open exactly while it is wanted and State holds an API key."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import final

from protocol.errors import SkulkError
from protocol.events import SequencedEvent
from protocol.state import ClusterState
from skulkd.api.server import ApiServer
from skulkd.eventlog.gateway import StateView

_log = logging.getLogger(__name__)


@final
class OpenDoor:
    """Follows the keys in State; `run` is its task.

    Args:
        server: The listeners.
        view: Says whether there is an API key.
        host: Wanted from the start; None is loopback only.
        on_opened: Awaited each time that it is open beyond loopback.
    """

    def __init__(
        self,
        server: ApiServer,
        view: StateView,
        host: str | None,
        *,
        on_opened: Callable[[], Awaitable[None]],
    ) -> None:
        self._server = server
        self._view = view
        self._host = host
        self._on_opened = on_opened
        self._changed = asyncio.Event()
        self._changed.set()

    @property
    def wanted_host(self) -> str | None:
        """Where an operator wants to listen beside loopback."""
        return self._host

    def want(self, host: str | None) -> None:
        """Set what is wanted; None is loopback only."""
        self._host = host
        self._changed.set()

    async def run(self) -> None:
        """Open and close the listener as keys come and go; never returns."""
        unsubscribe = self._view.subscribe(self._on_event, self._on_reset)
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self._settle()
        finally:
            unsubscribe()

    def _on_event(self, sequenced: SequencedEvent, state: ClusterState) -> None:
        del state
        if sequenced.event.kind in {"api_key_created", "api_key_revoked"}:
            self._changed.set()

    def _on_reset(self, state: ClusterState) -> None:
        del state
        self._changed.set()

    async def _settle(self) -> None:
        if self._host is None or not self._view.state.api_keys:
            await self._server.close_beyond_loopback()
            return
        try:
            await self._server.open(self._host)
        except SkulkError as error:
            _log.warning("%s %s", error.message, error.remediation, extra={"code": error.code})
        else:
            await self._on_opened()
