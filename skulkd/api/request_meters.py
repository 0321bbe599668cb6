"""What this node counts of its clients' requests; it lies in the path of every token.

A piece of output costs one look at the loop's time, and the first one of a turn a search among a
dozen bounds. All else is done once a request, and all that is shown is put together when somebody
asks (skulkd/api/metrics.py).
"""

from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, final

from protocol.clock import Clock
from protocol.data_frames import Usage
from protocol.errors import ErrorCode, SkulkError
from protocol.ids import ModelId
from protocol.tasks import FinishReason
from skulkd.core.meters import ByModel, Histogram

WHOLE_BOUNDS_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
FIRST_BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
GAP_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0)

Outcome = FinishReason | ErrorCode
"""How a request ended: the reason of a good end, or the code of an error. Closed sets both."""
HttpKey = tuple[str, str, str, int]
"""Path of the route as the table writes it, method, dialect, status."""


@final
class ModelMeters:
    """What is counted of one model's requests."""

    __slots__ = (
        "cached_tokens", "completion_tokens", "first_s", "gaps_s", "prompt_tokens", "whole_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.first_s: Final = Histogram(FIRST_BOUNDS_S)
        self.gaps_s: Final = Histogram(GAP_BOUNDS_S)
        self.whole_s: Final = Histogram(WHOLE_BOUNDS_S)


@final
class RequestMeters:
    """What is counted of all requests that clients make of this node.

    Args:
        clock: Times them.
    """

    def __init__(self, clock: Clock) -> None:
        self._now_s = clock.monotonic_s
        self.http: Final[dict[HttpKey, int]] = {}
        """Answers by what was asked."""
        self.outcomes: Final[dict[tuple[str, Outcome], int]] = {}
        """Requests that an engine was asked to serve, by dialect and how they ended."""
        self.models: Final = ByModel(ModelMeters)
        self.n_open = 0
        """Requests that an engine has been asked to serve, and that have not ended."""

    def count_http(self, key: HttpKey) -> None:
        """Count an answer; of a stream, its beginning."""
        self.http[key] = self.http.get(key, 0) + 1

    def begin(self, model_id: ModelId, dialect: str) -> "RequestMeter":
        """Begin to time a request that a placed model is about to serve."""
        self.n_open += 1
        return RequestMeter(self, self.models.of(model_id), dialect, self._now_s)


@final
class RequestMeter:
    """One request on its way; made by `RequestMeters.begin`.

    As a context manager it ends with its block, for what leaves that without having ended it.

    Args:
        meters: Of all requests.
        model: Of those to the same model.
        dialect: That its client speaks.
        now_s: Tells the time.
    """

    __slots__ = ("_began_s", "_dialect", "_gaps", "_has_ended", "_meters",
                 "_model", "_now_s", "turn_s")  # fmt: skip

    def __init__(
        self, meters: RequestMeters, model: ModelMeters, dialect: str, now_s: Callable[[], float]
    ) -> None:
        self._meters = meters
        self._model = model
        self._gaps = model.gaps_s
        self._dialect = dialect
        self._now_s = now_s
        self._began_s = now_s()
        self.turn_s: float | None = None
        """When the last pieces came, by the loop."""
        self._has_ended = False

    @property
    def elapsed_s(self) -> float:
        """How long it has taken so far."""
        return self._now_s() - self._began_s

    def pieces_at(self, turn_s: float) -> None:
        """Pieces of output go to a client that gets them one by one.

        Args:
            turn_s: The time of the loop, which stands still while it hands on what came together:
                with that of the last call nothing happens, and a caller may spare itself the call.
        """
        last_s, self.turn_s = self.turn_s, turn_s
        if last_s == turn_s:
            return
        if last_s is None:
            self._model.first_s.observe(self._now_s() - self._began_s)
        else:
            self._gaps.observe(turn_s - last_s)

    def finish(self, reason: FinishReason, usage: Usage) -> None:
        """It has ended well; the first end counts."""
        model = self._model
        if not self._has_ended:
            model.prompt_tokens += usage.prompt_tokens
            model.cached_tokens += usage.cached_tokens
            model.completion_tokens += usage.completion_tokens
        self.end(reason)

    def end(self, outcome: Outcome) -> None:
        """It has ended; the first end counts."""
        if self._has_ended:
            return
        self._has_ended = True
        meters = self._meters
        key: tuple[str, Outcome] = (self._dialect, outcome)
        meters.outcomes[key] = meters.outcomes.get(key, 0) + 1
        meters.n_open -= 1
        self._model.whole_s.observe(self._now_s() - self._began_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it by what leaves the block."""
        if isinstance(error, SkulkError):
            self.end(error.code)
        elif isinstance(error, Exception):
            self.end("internal.bug")
        else:
            self.end("request.cancelled")
