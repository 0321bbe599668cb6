"""Counting and timing, as metrics need it: a few additions for each thing that happens. Pure."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar, final

from protocol.ids import ModelId

MAX_MODELS: Final = 64
"""Models of which each is counted by itself; what further ones do is counted together."""
OTHER_MODELS: Final = "(other)"
"""No model id reads so."""

T = TypeVar("T")

QUEUE_BOUNDS_S: Final = (0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@final
class Histogram:
    """How often a value lay between which bounds.

    Args:
        bounds: Upper ones, each included, in rising order; what is above the last is counted too.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds: Final = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Of each interval by itself; the last one has no upper bound."""
        self.total = 0.0
        """Of all values."""

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


@final
class ByModel(Generic[T]):
    """One meter for each model, and one for all those beyond `MAX_MODELS`.

    Args:
        make: Makes the meter of a model that is new.
    """

    __slots__ = ("_by_name", "_make")

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._by_name: dict[str, T] = {}

    def of(self, model_id: ModelId) -> T:
        """Give the meter of a model."""
        known = self._by_name.get(model_id)
        if known is not None:
            return known
        name = model_id if len(self._by_name) < MAX_MODELS else OTHER_MODELS
        return self._by_name.setdefault(name, self._make())

    def items(self) -> Iterator[tuple[str, T]]:
        """Give every name and its meter, in the order in which they came."""
        return iter(self._by_name.items())


def queue_waits() -> ByModel[Histogram]:
    """Make the meters of how long requests wait for an engine's slot."""
    return ByModel(lambda: Histogram(QUEUE_BOUNDS_S))
