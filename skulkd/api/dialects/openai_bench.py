"""A chat completion with what it took: OpenAI's whole answer with two members more."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final, Literal, final

from protocol.data_frames import Chunk, Finished
from protocol.errors import RequestError
from protocol.ids import NodeId
from protocol.tasks import ChatTask
from skulkd.api.dialects.chat_dialect import StreamWriter
from skulkd.api.dialects.framing import Framing
from skulkd.api.dialects.openai_chat import OpenAiCall
from skulkd.api.dialects.openai_chat_output import ChatAnswer

_MS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """What else the model's instances were doing when the request came."""

    n_in_flight: int
    serves_several: bool
    """One of them has more than one slot."""


Power = Callable[[], Mapping[NodeId, float]]
"""Gives the watts that the accelerators of each node of the model draw now, where it tells."""


@final
@dataclass(frozen=True, slots=True)
class BenchCall:
    """One request whose answer says what it took; a `ChatCall`."""

    call: OpenAiCall
    neighbours: Neighbours
    power: Power

    @property
    def dialect(self) -> Literal["openai"]:
        """Whose errors it ends with."""
        return "openai"

    @property
    def framing(self) -> Framing:
        """As for any chat."""
        return self.call.framing

    @property
    def task(self) -> ChatTask:
        """What is to be done."""
        return self.call.task

    @property
    def refuses_by_status(self) -> bool:
        """There is no stream."""
        return self.call.refuses_by_status

    @property
    def shrinks_to_window(self) -> bool:
        """A budget that cannot be is refused."""
        return self.call.shrinks_to_window

    def stream(self, created_s: int) -> StreamWriter:
        """Make what a stream would take; there is none."""
        return self.call.stream(created_s)

    def answer(self, created_s: int) -> "BenchAnswer":
        """Make what gathers frames into a whole answer."""
        return BenchAnswer(self.call.answer(created_s), self.neighbours, self.power)


@final
class BenchAnswer:
    """Gathers the frames of one task, and measures.

    Args:
        answer: Of a chat without measures.
        neighbours: Told in the answer.
        power: Asked with each piece of output.
    """

    def __init__(self, answer: ChatAnswer, neighbours: Neighbours, power: Power) -> None:
        self._answer = answer
        self._neighbours = neighbours
        self._power = power
        self._watts: dict[NodeId, list[float]] = {}

    def add(self, chunk: Chunk) -> None:
        """Take a piece of output."""
        self._answer.add(chunk)
        for node_id, watts in self._power().items():
            self._watts.setdefault(node_id, []).append(watts)

    def document(self, finished: Finished, elapsed_s: float) -> bytes:
        """Give the whole answer as JSON; `power_usage` is null where no node tells any."""
        chat = self._answer.document(finished, elapsed_s).removesuffix(b"}")
        stats = json.dumps(_stats(finished, elapsed_s, self._neighbours)).encode()
        power = json.dumps(self._power_usage()).encode()
        return chat + b',"generation_stats":' + stats + b',"power_usage":' + power + b"}"

    def _power_usage(self) -> dict[str, Any] | None:
        """Tell the mean while there was output; which nodes they are is not a client's business."""
        nodes = [fmean(watts) for watts in self._watts.values()]
        if not nodes:
            return None
        return {
            "total_watts": round(sum(nodes), 1),
            "node_watts": [round(watts, 1) for watts in nodes],
        }


def refuse_several(call: OpenAiCall) -> None:
    """Refuse a request for several answers: their times would be one another's.

    Raises:
        RequestError: `request.unsupported_field`.
    """
    if len(call.tasks) > 1:
        raise RequestError(
            "request.unsupported_field",
            "`n`: a benchmark measures one answer",
            remediation="Leave it out, or send several requests.",
            details={"param": "n"},
        )


def _stats(finished: Finished, elapsed_s: float, neighbours: Neighbours) -> dict[str, Any]:
    """Tell what the engine says of its times; null where it does not."""
    usage = finished.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "cached_prompt_tokens": usage.cached_tokens,
        "generation_tokens": usage.completion_tokens,
        "prompt_ms": usage.prompt_ms,
        "generation_ms": usage.generation_ms,
        "prompt_tps": _rate(usage.prompt_tokens - usage.cached_tokens, usage.prompt_ms),
        "generation_tps": _rate(usage.completion_tokens, usage.generation_ms),
        "request_ms": round(elapsed_s * _MS, 3),
        "serving_batches": neighbours.serves_several,
        "in_flight_at_admission": neighbours.n_in_flight,
    }


def _rate(n_tokens: int, took_ms: float | None) -> float | None:
    return round(n_tokens * _MS / took_ms, 2) if took_ms else None
