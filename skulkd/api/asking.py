"""Asking the instances of a model for an answer, until one has begun with it.

It lies in the path of every token: a chunk passes through one generator here.
"""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final, final

from protocol.data_frames import Chunk, Failed, Finished, Frame, Started, TakeChunk
from protocol.errors import ErrorBody, ErrorCode, SkulkError, error_of
from protocol.ids import InstanceId
from protocol.instances import Instance
from protocol.tasks import ChatTask
from skulkd.api.dependencies import ApiDependencies
from skulkd.api.waking import Waking
from skulkd.core.model_capabilities import heeded

RETRIED: Final[frozenset[ErrorCode]] = frozenset({"engine.busy", "engine.draining", "engine.gone"})
"""Refusals before a beginning, after which another instance may be asked."""
NO_TERMINAL: Final = "the stream of this task ended without saying how"
_NO_TERMINAL_BODY: Final = ErrorBody(code="engine.gone", message=NO_TERMINAL)

NoteWarm = Callable[[Instance, ChatTask, tuple[Instance, ...]], None]


@dataclass(frozen=True, slots=True)
class Serving:
    """Who serves a request, and until when it waits for one that has just been unloaded."""

    candidates: tuple[Instance, ...]
    deadline_s: float
    asker: str
    """Whose request it is."""


@final
class Asking:
    """Asks for the clients of this node.

    Args:
        deps: The rest of the daemon.
        waking: Wakes what was unloaded in the moment in which it was asked.
        note_warm: Told which of several instances reads a prompt.
    """

    def __init__(self, deps: ApiDependencies, waking: Waking, note_warm: NoteWarm) -> None:
        self._deps = deps
        self._waking = waking
        self._note_warm = note_warm
        self.in_flight: Final[dict[InstanceId, int]] = {}
        """Requests of this node's clients that are with each instance."""

    async def frames(
        self, task: ChatTask, serving: Serving, take: TakeChunk
    ) -> AsyncGenerator[Frame]:
        """Serve by the first candidate that admits the task; give exactly one terminal."""
        task = task.changed({"asker": serving.asker})
        left, refusal = list(serving.candidates), _NO_TERMINAL_BODY
        while left:
            instance = left.pop(0)
            has_started = False
            self.count(instance.instance_id, 1)
            wanted = heeded(instance.card, task)
            frames = self._deps.inference.chat(instance.instance_id, wanted, take)
            try:
                async for frame in frames:
                    if isinstance(frame, Chunk):  # nearly all are
                        has_started = True
                        yield frame
                        continue
                    if isinstance(frame, Started):
                        has_started = True
                        self._note_warm(instance, task, serving.candidates)
                    elif isinstance(frame, Failed):
                        refusal = frame.error
                        if not has_started and refusal.code in RETRIED:
                            break  # the next candidate; nothing has reached the client
                        yield frame
                        return
                    yield frame
                    if isinstance(frame, Finished):
                        return
                else:
                    yield Failed(_NO_TERMINAL_BODY)
                    return
            finally:
                self.count(instance.instance_id, -1)
                await frames.aclose()
            if not left:
                left, refusal = await self._whom_next(serving, refusal)
        yield Failed(refusal)

    async def _whom_next(
        self, serving: Serving, refusal: ErrorBody
    ) -> tuple[list[Instance], ErrorBody]:
        """Say who is asked once all have refused; mostly nobody, and what the client then hears."""
        try:
            again = await self._waking.again(
                serving.candidates, error_of(refusal), serving.deadline_s
            )
        except SkulkError as error:
            return [], error.body()
        return list(again), refusal

    def count(self, instance_id: InstanceId, change: int) -> None:
        """Note that so many more requests of this node's clients are with an instance."""
        count = self.in_flight.get(instance_id, 0) + change
        if count > 0:
            self.in_flight[instance_id] = count
        else:
            self.in_flight.pop(instance_id, None)
