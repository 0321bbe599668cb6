"""Reporting to the master what happened here: in order, until it is taken.

A report may have to wait for a master. Whatever led to it is over by then and does not wait along;
the commands are idempotent, so that sending one again does no harm. Without a master nobody decides
on a further attempt, so what can wait is bounded by a handful of reports for each runner.
"""

import asyncio
import logging
from collections.abc import Hashable
from typing import Final, final

from protocol.commands import Command
from protocol.errors import SkulkError
from skulkd.eventlog.gateway import CommandGateway
from skulkd.runtime.tasks import Tasks, sleep

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 0.1
_LAST_PAUSE_S: Final = 2.0
_LATER: Final = frozenset(
    {
        "cluster.no_master",
        "cluster.no_quorum",
        "cluster.not_durable",
        "cluster.peer_timeout",
        "cluster.peer_unreachable",
        "cluster.stopping",
        "request.overloaded",
    }
)
"""Nobody has looked at the report itself yet."""


@final
class Reporter:
    """One queue of reports.

    Args:
        gateway: Takes commands to the master.
        tasks: Owner of the task that sends.
    """

    def __init__(self, gateway: CommandGateway, tasks: Tasks) -> None:
        self._gateway = gateway
        self._queue: asyncio.Queue[tuple[Command, Hashable]] = asyncio.Queue()
        self._pending: set[Hashable] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        tasks.start(self._send_all(), name="reports")

    def put(self, command: Command, *, key: Hashable = None) -> None:
        """Send a command after those before it; returns at once.

        Args:
            command: What to report.
            key: A report with a key that one still waiting has is dropped: it says the same.
        """
        if key is not None:
            if key in self._pending:
                return
            self._pending.add(key)
        self._idle.clear()
        self._queue.put_nowait((command, key))

    @property
    def is_sending(self) -> bool:
        """Whether a report has been neither taken nor refused yet."""
        return not self._idle.is_set()

    async def wait_idle(self) -> None:
        """Wait until every report has been taken or refused."""
        await self._idle.wait()

    async def _send_all(self) -> None:
        while True:
            command, key = await self._queue.get()
            await self._send(command)
            self._pending.discard(key)
            if self._queue.empty():
                self._idle.set()

    async def _send(self, command: Command) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                await self._gateway.submit(command)
            except SkulkError as error:
                if error.code not in _LATER:
                    _log.info(
                        "a report was not taken: %s",
                        error.message,
                        extra={"kind": command.kind, "code": error.code},
                    )
                    return
            else:
                return
            await sleep(pause_s)
            pause_s = min(_LAST_PAUSE_S, pause_s * 2)
