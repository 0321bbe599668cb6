"""Model files on their way here, whoever wants them: a placement, or an operator's pull.

An operator may pause one: everybody who waits for it then waits on, while nothing is fetched, no
lock is held and no peer serves it. What has come stays in staging; the next fetch goes on from it.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, final

from protocol.cards import ModelCard
from protocol.clock import Clock
from protocol.commands import ReportDownload
from protocol.errors import ErrorBody, SkulkError
from protocol.ids import ModelId, NodeId
from protocol.readings import TransferReading
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.eventlog.gateway import CommandGateway
from skulkd.runtime.tasks import Tasks, run_blocking, timeout
from skulkd.worker.pauses import Pauses
from skulkd.worker.reporter import Reporter
from skulkd.worker.steps import Artifact, ArtifactStore
from store.progress import TransferProgress

_log = logging.getLogger(__name__)

NOTE_EVERY_S: Final = 60.0
"""How often a placement is told anew that it waits for a paused transfer: news is what keeps it
from being taken for one that hangs."""

OnProgress = Callable[[int | None, int | None, str], None]
"""Gets bytes done, bytes in all, and what is being done."""


@dataclass(eq=False, slots=True)
class _Fetch:
    """One caller's fetch, which a pause ends."""

    scope: asyncio.Timeout = field(default_factory=lambda: timeout(None))
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@final
class Transfers:
    """The transfers of this node; the store sees to it that one artifact is fetched once.

    Args:
        node_id: This node.
        store: Fetches.
        table: Shows how far it is.
        reporter: Tells the cluster how it ended.
        gateway: Mints ids for those reports.
        clock: Stamps readings.
        tasks: Owner of the pulls.
        pauses: Which transfers are paused.
    """

    def __init__(
        self,
        node_id: NodeId,
        store: ArtifactStore,
        *,
        table: ReadingsTable,
        reporter: Reporter,
        gateway: CommandGateway,
        clock: Clock,
        tasks: Tasks,
        pauses: Pauses,
    ) -> None:
        self._node_id = node_id
        self.store = store
        self._table = table
        self._reporter = reporter
        self._gateway = gateway
        self._clock = clock
        self._tasks = tasks
        self.pauses: Final = pauses
        self._waiting: dict[ModelId, int] = {}
        self._fetching: dict[ModelId, list[_Fetch]] = {}
        self._pausing = asyncio.Lock()
        self._pulls: dict[ModelId, asyncio.Task[None]] = {}

    def pulled(self) -> tuple[ModelId, ...]:
        """List the models that operators are pulling now."""
        return tuple(self._pulls)

    def pull(self, card: ModelCard) -> bool:
        """Begin to fetch a model that nobody has placed; False when that is under way already.

        How it ends is reported to the cluster, and stands in State.
        """
        if card.model_id in self._pulls:
            return False
        task = self._tasks.start(self._pull(card), name=f"pull {card.model_id}", essential=False)
        self._pulls[card.model_id] = task
        task.add_done_callback(lambda _: self._pulls.pop(card.model_id, None))
        return True

    async def cancel_pull(self, model_id: ModelId) -> bool:
        """End a pull and wait for its end; what was fetched is kept. False when there is none.

        A placement that waits for the same files goes on; where they are paused, it waits on. With
        nobody waiting, a paused transfer is given up.

        Raises:
            ConfigError: `config.home_unusable`: it stays paused.
        """
        is_ended = await self._end_pull(model_id)
        if model_id in self._waiting:
            return is_ended
        return await self.pauses.drop(model_id) or is_ended

    async def end_pulls(self) -> None:
        """End all pulls, because the daemon stops: what is paused stays paused."""
        for model_id in self.pulled():
            await self._end_pull(model_id)

    async def pause(self, model_id: ModelId, by: str) -> bool:
        """Stop fetching a model until it is resumed; returns once nothing is fetched any more.

        Idempotent. Who waits for the files waits on.

        Args:
            model_id: Whose files.
            by: Who wants it.

        Returns:
            Whether it is paused: False when nothing is under way, or it ended just now.

        Raises:
            StoreError: `store.in_use`: too many are paused.
            ConfigError: `config.home_unusable`; it goes on then.
        """
        async with self._pausing:
            if self.pauses.get(model_id) is not None:
                return True
            if model_id not in self._waiting:
                return False
            shown = self._table.readings.transfers.get((self._node_id, model_id))
            # Kept before it is stopped: what an operator was told holds also after a power cut.
            await self.pauses.put(model_id, by, shown)
            for fetch in tuple(self._fetching.get(model_id, ())):
                fetch.scope.reschedule(asyncio.get_running_loop().time())
                await fetch.ended.wait()
            if model_id not in self._waiting:
                await self.pauses.drop(model_id)
                return False
            self.pauses.show(model_id)
        _log.info("the transfer of %s is paused by %s", model_id, by)
        return True

    async def resume(self, card: ModelCard) -> bool:
        """Go on with a paused transfer; False when it is not paused.

        Whoever waits for it goes on; where nobody does, as after a restart, it is pulled.

        Raises:
            ConfigError: `config.home_unusable`: it stays paused.
        """
        async with self._pausing:
            if not await self.pauses.drop(card.model_id):
                return False
            if card.model_id not in self._waiting:
                self.pull(card)
        _log.info("the transfer of %s goes on", card.model_id)
        return True

    async def ensure(self, card: ModelCard, on_progress: OnProgress | None = None) -> Artifact:
        """Have a model's files complete here.

        Raises:
            StoreError: As `store.service.Store.ensure` says.
        """
        present = await run_blocking(self.store.locate, card)
        if present is not None:
            await self.pauses.drop(card.model_id)
            return present

        def show(progress: TransferProgress) -> None:
            self._put(card.model_id, progress)
            if on_progress is None:
                return
            if progress.phase == "wait":
                # The bytes of the node that is waited for, and not ours.
                on_progress(None, None, _note(progress))
            else:
                on_progress(progress.done_bytes, progress.total_bytes, _note(progress))

        self._waiting[card.model_id] = self._waiting.get(card.model_id, 0) + 1
        try:
            artifact = await self._fetch(card, show, on_progress)
        except SkulkError as error:
            self._report(card.model_id, 0, error.body())
            raise
        finally:
            self._waiting[card.model_id] -= 1
            if not self._waiting[card.model_id]:
                del self._waiting[card.model_id]
                if self.pauses.get(card.model_id) is None:
                    self._table.drop_transfer(self._node_id, card.model_id)
        self._report(card.model_id, artifact.size_bytes, None)
        return artifact

    async def _fetch(
        self,
        card: ModelCard,
        show: Callable[[TransferProgress], None],
        on_progress: OnProgress | None,
    ) -> Artifact:
        """Fetch, as long as it is not paused, and again after each pause."""
        while True:
            while self.pauses.get(card.model_id) is not None:
                self.pauses.show(card.model_id)
                if on_progress is not None:
                    on_progress(None, None, self.pauses.note(card.model_id))
                with suppress(TimeoutError):
                    async with timeout(NOTE_EVERY_S):
                        await self.pauses.wait_dropped(card.model_id)
            artifact = await self._fetch_until_paused(card, show)
            if artifact is not None:
                return artifact

    async def _fetch_until_paused(
        self, card: ModelCard, show: Callable[[TransferProgress], None]
    ) -> Artifact | None:
        fetch = _Fetch()
        fetching = self._fetching.setdefault(card.model_id, [])
        fetching.append(fetch)
        try:
            async with fetch.scope:
                return await self.store.ensure(card, show)
        except TimeoutError:
            if not fetch.scope.expired():
                raise
            return None
        finally:
            fetch.ended.set()
            fetching.remove(fetch)
            if not fetching:
                self._fetching.pop(card.model_id, None)

    async def _end_pull(self, model_id: ModelId) -> bool:
        task = self._pulls.get(model_id)
        if task is None:
            return False
        task.cancel()
        await asyncio.wait([task])
        return True

    async def _pull(self, card: ModelCard) -> None:
        try:
            await self.ensure(card)
        except SkulkError as error:
            _log.warning(
                "pull of %s failed: %s", card.model_id, error.message, extra={"code": error.code}
            )

    def _put(self, model_id: ModelId, progress: TransferProgress) -> None:
        self._table.put_transfer(
            TransferReading(
                node_id=self._node_id,
                model_id=model_id,
                at_s=self._clock.monotonic_s(),
                phase=progress.phase,
                done_bytes=progress.done_bytes,
                total_bytes=progress.total_bytes,
                rate_bytes_s=progress.rate_bytes_s,
                eta_s=progress.eta_s,
                source=progress.source,
            )
        )

    def _report(self, model_id: ModelId, size_bytes: int, error: ErrorBody | None) -> None:
        self._reporter.put(
            ReportDownload(
                command_id=self._gateway.mint_command_id(),
                node_id=self._node_id,
                model_id=model_id,
                size_bytes=size_bytes,
                error=error,
            ),
            key=("download", model_id, None if error is None else error.code),
        )


def _note(progress: TransferProgress) -> str:
    """Say what is being done, so that it changes whenever something is.

    Phases after the download count from zero again, which the runner's own count never does.
    """
    if progress.phase == "wait":
        done = f"{progress.done_bytes} bytes"
        if progress.total_bytes:
            done = f"{progress.done_bytes / progress.total_bytes:.0%}"
        return f"waiting for {progress.source}, {done}"
    if progress.phase == "download" or not progress.total_bytes:
        return f"{progress.phase} from {progress.source}"
    return f"{progress.phase}, {progress.done_bytes / progress.total_bytes:.0%}"
