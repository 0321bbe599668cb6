"""Verifying artifacts on demand: in a thread of low priority, at a bounded rate, one at a time.

Knows what was found last of each model, until the daemon ends; what is damaged is also written
beside the files, and outlives it.
"""

import asyncio
import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final, final

from protocol.cards import ModelCard
from protocol.clock import Clock
from protocol.errors import ErrorBody, SkulkError
from protocol.ids import ModelId, NodeId
from protocol.verify_api import VerifiedFile, VerifyState, VerifyStatus
from skulkd.runtime.tasks import Tasks, run_blocking_in
from store.layout import disk_error
from store.rate_limit import RateLimit
from store.verification import ArtifactCheck, CheckedFile

_log = logging.getLogger(__name__)

RATE_BYTES_S: Final = 256 << 20
"""What is read leaves room for engines that load, and for who works at the machine."""
MAX_KEPT: Final = 64
_NICENESS: Final = 15


@dataclass(slots=True, kw_only=True)
class Verifying:
    """How far one verification is, or how it ended."""

    state: VerifyState = "waiting"
    done_bytes: int = 0
    total_bytes: int | None = None
    files: tuple[CheckedFile, ...] = ()
    ended_at_ms: int | None = None
    error: ErrorBody | None = None


@final
class Verifications:
    """The verifications of one node.

    Args:
        node_id: This node.
        open_check: Prepares one; blocks.
        clock: Paces and stamps.
        tasks: Owner.
    """

    def __init__(
        self,
        node_id: NodeId,
        open_check: Callable[[ModelCard], ArtifactCheck],
        *,
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self._node_id = node_id
        self._open_check = open_check
        self._clock = clock
        self._tasks = tasks
        self._limit = RateLimit(clock, rate_bytes_s=RATE_BYTES_S)
        self._turn = asyncio.Lock()
        self._known: dict[ModelId, Verifying] = {}
        self._running: dict[ModelId, asyncio.Task[None]] = {}

    def start(self, card: ModelCard) -> None:
        """Begin to verify a model's files; nothing when that is under way."""
        model_id = card.model_id
        if model_id not in self._running:
            self._known.pop(model_id, None)
            while len(self._known) >= MAX_KEPT:
                oldest = next((one for one in self._known if one not in self._running), None)
                if oldest is None:
                    break
                del self._known[oldest]
            verifying = self._known[model_id] = Verifying()
            task = self._tasks.start(
                self._verify(card, verifying), name=f"verify {model_id}", essential=False
            )
            self._running[model_id] = task
            task.add_done_callback(lambda _: self._running.pop(model_id, None))

    def status(self, model_id: ModelId) -> VerifyStatus:
        """Say how far a verification is, or how the last one ended."""
        known = self._known.get(model_id)
        if known is None:
            return VerifyStatus(model_id=model_id, node_id=self._node_id, state="absent")
        return VerifyStatus(
            model_id=model_id,
            node_id=self._node_id,
            state=known.state,
            done_bytes=known.done_bytes,
            total_bytes=known.total_bytes,
            files=tuple(
                VerifiedFile(path=one.path, state=one.state, size_bytes=one.size_bytes)
                for one in known.files
            ),
            ended_at_ms=known.ended_at_ms,
            error=known.error,
        )

    async def cancel(self, model_id: ModelId) -> bool:
        """End a verification and wait for its end; False when none is under way."""
        task = self._running.get(model_id)
        if task is None:
            return False
        task.cancel()
        await asyncio.wait([task])
        known = self._known[model_id]
        if known.ended_at_ms is None:  # ended before it had begun
            known.state, known.ended_at_ms = "cancelled", self._clock.wall_ms()
        return True

    async def _verify(self, card: ModelCard, verifying: Verifying) -> None:
        pool = ThreadPoolExecutor(1, thread_name_prefix="verify", initializer=_step_back)
        try:
            async with self._turn:
                verifying.state = "running"
                await self._check(card, verifying, pool)
        except asyncio.CancelledError:
            verifying.state = "cancelled"
            raise
        except OSError as error:
            _fail(verifying, disk_error(error, f"verifying {card.model_id}"))
        except SkulkError as error:
            _fail(verifying, error)
        finally:
            verifying.ended_at_ms = self._clock.wall_ms()
            pool.shutdown(wait=False)

    async def _check(self, card: ModelCard, verifying: Verifying, pool: ThreadPoolExecutor) -> None:
        check = await run_blocking_in(pool, partial(self._open_check, card))
        try:
            verifying.total_bytes = check.total_bytes
            while await run_blocking_in(pool, check.step):
                await self._limit.take(max(0, check.done_bytes - verifying.done_bytes))
                verifying.done_bytes = check.done_bytes
            settle = partial(check.settle, now_ms=self._clock.wall_ms())
            verifying.files = await run_blocking_in(pool, settle)
            verifying.done_bytes = check.total_bytes
        finally:
            # In the pool: it waits for a step that is under way.
            pool.submit(check.close)
        damaged = [one.path for one in check.results if one.state != "ok"]
        verifying.state = "damaged" if damaged else "complete"
        if damaged:
            _log.error(
                "%d files of %s are damaged: %s",
                len(damaged),
                card.model_id,
                ", ".join(damaged[:5]),
            )


def _fail(verifying: Verifying, error: SkulkError) -> None:
    verifying.state, verifying.error = "failed", error.body()


def _step_back() -> None:
    """Let everybody else go before this thread; where that cannot be, its pace has to do."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
