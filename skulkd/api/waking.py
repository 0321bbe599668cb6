"""Requests for on-demand models: one load for all who ask, and a bounded wait until it is there.

A request that finds its model asleep has the master wake it, and waits. It waits for the facts in
this node's replica, not for the answer to its wish: whoever is master when the engine is ready, all
who wait learn of it. What the wait ends with is what the request would have been refused with.

An engine may be unloaded in the moment in which a request is on its way to it. It then refuses the
request before it has begun, and the request wakes it again: `again`.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, final

from protocol.commands import WakeInstance
from protocol.errors import EngineError, ErrorCode, SkulkError
from protocol.events import SequencedEvent
from protocol.ids import InstanceId, ModelId
from protocol.instances import LOADING_PHASES, Instance, InstanceFailure
from protocol.state import ClusterState
from skulkd.api.dependencies import ApiDependencies
from skulkd.api.http import Request
from skulkd.api.selection import Look, failed, loading, placed_instances, why_not
from skulkd.runtime.tasks import timeout

WHOLE_WAIT_S: Final = 60.0
"""How long a request waits that hears nothing meanwhile: then it gets the loading document."""
STREAM_WAIT_S: Final = 600.0
"""How long a stream waits, which is kept alive meanwhile."""
MAX_WAITING: Final = 256
"""Requests of this node's clients that wait for a model at a time."""
LOST_S: Final = 15.0
"""How long a request goes on waiting that waits already, while the node is out of reach."""
_LOOK_S: Final = 0.5
"""Between two looks when the log says nothing: a node may have come into reach."""
_BUSY_RETRY_S: Final = 5
_MAX_DIGITS: Final = 4
_LATER: Final[frozenset[ErrorCode]] = frozenset({
    "cluster.no_master", "cluster.no_quorum", "cluster.not_durable", "cluster.peer_timeout",
    "cluster.peer_unreachable", "placement.facts_missing", "placement.memory_in_use",
})  # fmt: skip
"""A wish refused with one of these may be granted in a moment."""


def wait_of(request: Request, usual_s: float) -> float:
    """Read how long a client waits: `Prefer: wait=SECONDS` (RFC 7240), at most STREAM_WAIT_S."""
    for part in (request.headers.get(b"prefer") or b"").split(b","):
        name, _, value = part.partition(b"=")
        seconds = value.partition(b";")[0].strip()
        if name.strip().lower() == b"wait" and seconds.isdigit() and len(seconds) <= _MAX_DIGITS:
            return min(float(seconds), STREAM_WAIT_S)
    return usual_s


@final
class Waking:
    """Wakes on-demand instances for the requests of this node's clients.

    Args:
        deps: The rest of the daemon.
        look: Says what this node sees of the instances.
    """

    def __init__(self, deps: ApiDependencies, look: Look) -> None:
        self._deps = deps
        self._look = look
        self._wishes: dict[InstanceId, asyncio.Task[SkulkError | None]] = {}
        self._n_waiting = 0

    @property
    def n_waiting(self) -> int:
        """How many requests wait for a model to be loaded."""
        return self._n_waiting

    def deadline_s(self, wait_s: float) -> float:
        """Give the time until which a request waits that may wait so long."""
        return self._deps.clock.monotonic_s() + wait_s

    async def awake(
        self, candidates: tuple[Instance, ...], deadline_s: float
    ) -> tuple[Instance, ...]:
        """Give those that are ready; where none is, have one loaded and wait for it.

        Args:
            candidates: As `selection.choose` gives them.
            deadline_s: Until when to wait.

        Raises:
            SkulkError: `request.instance_loading` when the time is over; why none can be loaded;
                `engine.busy` when too many wait.
        """
        if candidates[0].ttl_ms is None or candidates[0].phase == "ready":
            return candidates
        if self._n_waiting >= MAX_WAITING:
            raise EngineError(
                "engine.busy",
                f"{self._n_waiting} requests wait here for models to be loaded, which is as many "
                "as this node keeps",
                remediation="Retry after the given time.",
                retry_after_s=_BUSY_RETRY_S,
            )
        self._n_waiting += 1
        try:
            with self._news() as news:
                return await self._until_ready(candidates, deadline_s, news)
        finally:
            self._n_waiting -= 1

    async def again(
        self, candidates: tuple[Instance, ...], refusal: SkulkError, deadline_s: float
    ) -> tuple[Instance, ...]:
        """Give whom to ask now that all have refused a request before they began with it.

        Args:
            candidates: Who was asked.
            refusal: What the last of them said.
            deadline_s: Until when to wait.

        Raises:
            SkulkError: `refusal`, unless one of them was just unloaded; as `awake`.
        """
        left_s = deadline_s - self._deps.clock.monotonic_s()
        on_demand = tuple(item for item in candidates if item.ttl_ms is not None)
        if not on_demand or refusal.code == "engine.busy" or left_s <= 0.0:
            raise refusal
        with self._news() as news:
            await _wait(news, min(_LOOK_S, left_s))
        state = self._deps.state.state
        now = tuple(state.instances.get(item.instance_id, item) for item in on_demand)
        return await self.awake(now, deadline_s)

    async def _until_ready(
        self, candidates: tuple[Instance, ...], deadline_s: float, news: asyncio.Event
    ) -> tuple[Instance, ...]:
        before = {item.instance_id: item.failure for item in candidates}
        seen_s = self._deps.clock.monotonic_s()
        in_the_way: SkulkError | None = None
        while True:
            news.clear()
            state, sight = self._deps.state.state, self._look()
            # One that was placed, or moved, meanwhile does as well.
            known = _waited_for(state, candidates[0].model_id)
            seen = [item for item in known if sight.reaches(item)]
            ready = tuple(item for item in seen if item.phase == "ready")
            if ready:
                return ready
            coming = [item for item in seen if item.phase in LOADING_PHASES]
            asleep = [item for item in seen if item.phase == "asleep"]
            left_s = deadline_s - sight.now_s
            if coming or asleep:
                seen_s = sight.now_s
            elif seen == known or left_s <= 0.0 or sight.now_s - seen_s > LOST_S:
                raise why_not(state, candidates[0].model_id, sight)
            if left_s <= 0.0:
                raise in_the_way or loading(state, (coming or asleep)[0], sight)
            in_the_way = None
            if asleep and not coming:
                in_the_way = await self._wake_one(asleep, before, left_s)
            await _wait(news, min(_LOOK_S, left_s))

    async def _wake_one(
        self,
        asleep: list[Instance],
        before: dict[InstanceId, InstanceFailure | None],
        left_s: float,
    ) -> SkulkError | None:
        """Have the first one woken that may be.

        Returns:
            What holds its memory, while that answers somebody.

        Raises:
            SkulkError: Why none is.
        """
        refusal: SkulkError | None = None
        for instance in asleep:
            failure = instance.failure
            known = before.setdefault(instance.instance_id, failure)
            if failure is not None and failure != known:
                refusal = failed(instance, failure)  # it has been woken for this request
                continue
            wish = self._wish(instance.instance_id)
            await asyncio.wait({wish}, timeout=left_s)
            answer = wish.result() if wish.done() else None
            if answer is None or answer.code in _LATER:
                is_held = answer is not None and answer.code == "placement.memory_in_use"
                return answer if is_held else None
            refusal = answer
        if refusal is not None:
            raise refusal
        return None

    @contextmanager
    def _news(self) -> Generator[asyncio.Event]:
        """Give what is set whenever the state has changed."""
        news = asyncio.Event()

        def on_event(_event: SequencedEvent, _state: ClusterState) -> None:
            news.set()

        def on_reset(_state: ClusterState) -> None:
            news.set()

        unsubscribe = self._deps.state.subscribe(on_event, on_reset)
        try:
            yield news
        finally:
            unsubscribe()

    def _wish(self, instance_id: InstanceId) -> "asyncio.Task[SkulkError | None]":
        """Give the one wish that is under way for an instance."""
        wish = self._wishes.get(instance_id)
        if wish is None:
            wish = self._wishes[instance_id] = self._deps.tasks.start(
                self._submit(instance_id), name=f"wake {instance_id}", essential=False
            )
            wish.add_done_callback(lambda _: self._wishes.pop(instance_id))
        return wish

    async def _submit(self, instance_id: InstanceId) -> SkulkError | None:
        gateway = self._deps.gateway
        command = WakeInstance(command_id=gateway.mint_command_id(), instance_id=instance_id)
        try:
            await gateway.submit(command)
        except SkulkError as error:
            return error
        return None


def _waited_for(state: ClusterState, model_id: ModelId) -> list[Instance]:
    placed = placed_instances(state, model_id)
    return [item for item in placed if item.ttl_ms is not None or item.phase == "ready"]


async def _wait(news: asyncio.Event, seconds: float) -> None:
    try:
        async with timeout(seconds):
            await news.wait()
    except TimeoutError:
        return
