"""The last value of every reading: last write wins, readers get an immutable snapshot."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar, final

from protocol.ids import InstanceId, ModelId, NodeId
from protocol.readings import (
    HoldingsReading,
    InstanceReading,
    LinksReading,
    NodeReading,
    PhaseProgress,
    Reading,
    ReadingKey,
    Readings,
    TransferReading,
    key_of,
)

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R", bound=Reading)

MAX_KEYS: Final = 4096
"""Of one kind; beyond it the value that was renewed longest ago is dropped."""

OnReading = Callable[[NodeId, ReadingKey, Reading | None], None]
"""Gets whose reading was renewed, its key, and the value; None when it has been dropped. Called
inside the write; must not block or raise."""


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
        self._watchers: list[OnReading] = []

    @property
    def readings(self) -> Readings:
        """The newest snapshot."""
        return self._readings

    def subscribe(self, watcher: OnReading) -> Callable[[], None]:
        """Tell of every write from now on; returns what ends the subscription."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def put(self, reading: Reading) -> None:
        """Renew any reading."""
        match reading:
            case NodeReading():
                self.put_node(reading)
            case PhaseProgress():
                self.put_progress(reading)
            case TransferReading():
                self.put_transfer(reading)
            case InstanceReading():
                self.put_instance(reading)
            case HoldingsReading():
                self.put_holdings(reading)
            case LinksReading():
                self.put_links(reading)

    def put_node(self, reading: NodeReading) -> None:
        """Renew what moves on one node."""
        nodes = self._with(self._readings.nodes, reading.node_id, reading)
        self._readings = replace(self._readings, nodes=nodes)
        self._tell(reading)

    def put_progress(self, progress: PhaseProgress) -> None:
        """Renew how far a runner is."""
        key = (progress.instance_id, progress.rank)
        self._readings = replace(
            self._readings, progress=self._with(self._readings.progress, key, progress)
        )
        self._tell(progress)

    def put_transfer(self, reading: TransferReading) -> None:
        """Renew how far a download is."""
        key = (reading.node_id, reading.model_id)
        self._readings = replace(
            self._readings, transfers=self._with(self._readings.transfers, key, reading)
        )
        self._tell(reading)

    def put_instance(self, reading: InstanceReading) -> None:
        """Renew what an instance does."""
        instances = self._with(self._readings.instances, reading.instance_id, reading)
        self._readings = replace(self._readings, instances=instances)
        self._tell(reading)

    def put_holdings(self, reading: HoldingsReading) -> None:
        """Renew which models' files a node holds."""
        holdings = self._with(self._readings.holdings, reading.node_id, reading)
        self._readings = replace(self._readings, holdings=holdings)
        self._tell(reading)

    def put_links(self, reading: LinksReading) -> None:
        """Renew how a node reaches the others."""
        links = self._with(self._readings.links, reading.node_id, reading)
        self._readings = replace(self._readings, links=links)
        self._tell(reading)

    def drop_runner(self, node_id: NodeId, instance_id: InstanceId, rank: int) -> None:
        """Forget a runner of a node that is gone, and what its instance did there."""
        self.drop(node_id, ("progress", instance_id, rank))
        self.drop(node_id, ("instance", instance_id, 0))

    def drop_transfer(self, node_id: NodeId, model_id: ModelId) -> None:
        """Forget a download that ended."""
        self.drop(node_id, ("transfer", model_id, 0))

    def drop(self, node_id: NodeId, key: ReadingKey) -> None:
        """Forget one reading of a node; one that another node has put meanwhile stays."""
        kind, name, rank = key
        readings = self._readings
        match kind:
            case "node":
                changed = replace(readings, nodes=_less(readings.nodes, node_id, node_id))
            case "progress":
                place = (InstanceId(name), rank)
                changed = replace(readings, progress=_less(readings.progress, place, node_id))
            case "transfer":
                transfer = (node_id, ModelId(name))
                changed = replace(readings, transfers=_less(readings.transfers, transfer, node_id))
            case "instance":
                instance_id = InstanceId(name)
                changed = replace(
                    readings, instances=_less(readings.instances, instance_id, node_id)
                )
            case "holdings":
                changed = replace(readings, holdings=_less(readings.holdings, node_id, node_id))
            case "links":
                changed = replace(readings, links=_less(readings.links, node_id, node_id))
        if _n_values(changed) < _n_values(readings):
            self._readings = changed
            for watcher in self._watchers:
                watcher(node_id, key, None)

    def of_node(self, node_id: NodeId) -> tuple[Reading, ...]:
        """List what is known of a node; its own reading comes first."""
        readings = self._readings
        kinds = (
            readings.nodes,
            readings.holdings,
            readings.links,
            readings.instances,
            readings.progress,
            readings.transfers,
        )
        return tuple(
            reading for kind in kinds for reading in kind.values() if reading.node_id == node_id
        )

    def _tell(self, reading: Reading) -> None:
        if self._watchers:
            key = key_of(reading)
            for watcher in self._watchers:
                watcher(reading.node_id, key, reading)

    def _with(self, values: dict[K, V], key: K, value: V) -> dict[K, V]:
        # The renewed key goes to the end, so that the first one is the stalest.
        renewed = _without(values, key)
        renewed[key] = value
        if len(renewed) > self._max_keys:
            del renewed[next(iter(renewed))]
        return renewed


def _less(values: dict[K, R], key: K, node_id: NodeId) -> dict[K, R]:
    """Give the values without the key, if it is this node's."""
    reading = values.get(key)
    if reading is None or reading.node_id != node_id:
        return values
    return _without(values, key)


def _without(values: dict[K, V], key: K) -> dict[K, V]:
    # Copied as a whole: that is ten times faster than entry by entry, and nodes renew often.
    rest = values.copy()
    rest.pop(key, None)
    return rest


def _n_values(readings: Readings) -> int:
    return (
        len(readings.nodes)
        + len(readings.progress)
        + len(readings.transfers)
        + len(readings.instances)
        + len(readings.holdings)
        + len(readings.links)
    )
