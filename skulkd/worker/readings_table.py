"""The last value of every reading: last write wins, readers get an immutable snapshot."""

from dataclasses import replace
from typing import Final, TypeVar, final

from protocol.ids import InstanceId, ModelId, NodeId
from protocol.readings import (
    InstanceReading,
    NodeReading,
    PhaseProgress,
    Readings,
    TransferReading,
)

K = TypeVar("K")
V = TypeVar("V")

MAX_KEYS: Final = 4096
"""Of one kind; beyond it the value that was renewed longest ago is dropped."""


@final
class ReadingsTable:
    """Implements `skulkd.api.ports.ReadingsView`.

    A snapshot is never changed: each write makes a new one, which costs a copy of one small
    dictionary at a few writes a second and nothing on the reading side.

    Args:
        max_keys: Values kept of each kind.
    """

    def __init__(self, *, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._readings = Readings()

    @property
    def readings(self) -> Readings:
        """The newest snapshot."""
        return self._readings

    def put_node(self, reading: NodeReading) -> None:
        """Renew what moves on one node."""
        nodes = self._with(self._readings.nodes, reading.node_id, reading)
        self._readings = replace(self._readings, nodes=nodes)

    def put_progress(self, progress: PhaseProgress) -> None:
        """Renew how far a runner is."""
        key = (progress.instance_id, progress.rank)
        self._readings = replace(
            self._readings, progress=self._with(self._readings.progress, key, progress)
        )

    def put_transfer(self, reading: TransferReading) -> None:
        """Renew how far a download is."""
        key = (reading.node_id, reading.model_id)
        self._readings = replace(
            self._readings, transfers=self._with(self._readings.transfers, key, reading)
        )

    def put_instance(self, reading: InstanceReading) -> None:
        """Renew what an instance does."""
        instances = self._with(self._readings.instances, reading.instance_id, reading)
        self._readings = replace(self._readings, instances=instances)

    def drop_runner(self, instance_id: InstanceId, rank: int) -> None:
        """Forget a runner that is gone."""
        key = (instance_id, rank)
        self._readings = replace(
            self._readings,
            progress=_without(self._readings.progress, key),
            instances=_without(self._readings.instances, instance_id),
        )

    def drop_transfer(self, node_id: NodeId, model_id: ModelId) -> None:
        """Forget a download that ended."""
        transfers = _without(self._readings.transfers, (node_id, model_id))
        self._readings = replace(self._readings, transfers=transfers)

    def _with(self, values: dict[K, V], key: K, value: V) -> dict[K, V]:
        # The renewed key goes to the end, so that the first one is the stalest.
        renewed = {**_without(values, key), key: value}
        if len(renewed) > self._max_keys:
            del renewed[next(iter(renewed))]
        return renewed


def _without(values: dict[K, V], key: K) -> dict[K, V]:
    return {other: value for other, value in values.items() if other != key}
