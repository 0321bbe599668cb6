"""Readings between nodes: each tells every peer its own, and believes nobody about another's.

Nothing is asked for and nothing is acknowledged: a reading that is lost is said again. What a node
has not renewed for `TTL_S` is forgotten, as is all of a node that is no member any more.
"""

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import Final, final

from protocol.clock import Clock
from protocol.errors import ProtocolError
from protocol.ids import NodeId
from protocol.readings import (
    AcceleratorReading,
    LinkReading,
    LinksReading,
    NodeReading,
    Reading,
    ReadingKey,
    key_of,
)
from protocol.telemetry_wire import (
    MAX_KEYS,
    is_echo,
    pack_drop,
    pack_reading,
    transport_key,
    unpack_reading,
)
from skulkd.cluster.link_echoes import LinkEchoes
from skulkd.cluster.readings_table import ReadingsTable
from skulkd.cluster.transport import LinkState, Transport
from skulkd.runtime.rounds import RoundCall, Rounds

_log = logging.getLogger(__name__)

MIN_INTERVAL_S: Final = 0.2
"""Between two values of one reading; the last of those between is sent."""
REFRESH_S: Final = 10.0
"""A reading that does not change is said again this often."""
TTL_S: Final = 30.0
NEWS_RATIO: Final = 0.01
"""A share of free memory or disk; what moves less can wait for the refresh."""
NEWS_CPU_RATIO: Final = 0.1
NEWS_LAG_S: Final = 0.1
NEWS_CELSIUS: Final = 3.0
NEWS_WATTS: Final = 10.0
_TICK_S: Final = 5.0
_LATEST_TICK_S: Final = 6.0


@dataclass(slots=True)
class _Own:
    """A reading of this node."""

    reading: Reading
    told: Reading | None = None
    sent_at_s: float = float("-inf")
    timer: asyncio.TimerHandle | None = None


@final
class Telemetry:
    """Tells this node's readings, and keeps those of its peers in the same table.

    Args:
        transport: Its telemetry plane belongs to this object from now on.
        table: Where both kinds are; what is put there of this node is told.
        clock: Of the readings' times.
        rounds: What is said again is said with them, and so when heartbeats come anyway.
    """

    def __init__(
        self,
        transport: Transport,
        table: ReadingsTable,
        clock: Clock,
        *,
        rounds: Rounds | None = None,
    ) -> None:
        self._transport = transport
        self._table = table
        self._clock = clock
        self._own: dict[ReadingKey, _Own] = {}
        self._heard: dict[NodeId, dict[ReadingKey, float]] = {}
        """When each reading of a peer was last heard."""
        self._complained: set[NodeId] = set()
        self._is_closed = False
        self.n_refused: int = 0
        """Payloads that did not decode, and readings beyond `MAX_KEYS`."""
        for reading in table.of_node(transport.node_id):
            self._own[key_of(reading)] = _Own(reading)
        self.echoes: Final = LinkEchoes(transport, clock)
        transport.on_receive("telemetry", self._on_payload)
        transport.on_link(self._on_link)
        self._unsubscribe = table.subscribe(self._on_write)
        self._rounds = rounds or Rounds()
        self._next = self._call_tick()

    def forget(self, node_id: NodeId) -> None:
        """Drop all readings of a node that is lost, has left, or was removed."""
        for key in self._heard.pop(node_id, {}):
            self._table.drop(node_id, key)

    def close(self) -> None:
        """Tell and take nothing more, and forget all peers; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self.echoes.close()
        for peer in list(self._heard):
            self.forget(peer)
        self._next.cancel()
        self._unsubscribe()
        for own in self._own.values():
            if own.timer is not None:
                own.timer.cancel()
        self._own.clear()

    # ---- Telling ----

    def _on_write(self, node_id: NodeId, key: ReadingKey, reading: Reading | None) -> None:
        if node_id != self._transport.node_id:
            return
        own = self._own.get(key)
        if reading is None:
            if own is not None:
                self._drop(key, own)
            return
        if own is None:
            if len(self._own) >= MAX_KEYS:
                self.n_refused += 1
                return
            own = self._own[key] = _Own(reading)
        own.reading = reading
        if own.timer is None and is_news(reading, own.told):
            self._send_when_due(key, own)

    def _send_when_due(self, key: ReadingKey, own: _Own) -> None:
        wait_s = own.sent_at_s + MIN_INTERVAL_S - self._clock.monotonic_s()
        if wait_s <= 0:
            self._send(key, own)
        else:
            own.timer = asyncio.get_running_loop().call_later(wait_s, self._send, key, own)

    def _send(self, key: ReadingKey, own: _Own) -> None:
        own.timer = None
        own.told, own.sent_at_s = own.reading, self._clock.monotonic_s()
        self._tell(self._transport.peers(), key, pack_reading(own.reading, now=own.sent_at_s))

    def _drop(self, key: ReadingKey, own: _Own) -> None:
        if own.timer is not None:
            own.timer.cancel()
        del self._own[key]
        self._tell(self._transport.peers(), key, pack_drop(key))

    def _tell(self, peers: tuple[NodeId, ...], key: ReadingKey, payload: bytes) -> None:
        name = transport_key(key)
        for peer in peers:
            # Refused is as good as lost: it will be said again.
            self._transport.send(peer, "telemetry", payload, key=name)

    def _on_link(self, peer: NodeId, state: LinkState) -> None:
        if state == "up" and not self._is_closed:
            now = self._clock.monotonic_s()
            for key, own in self._own.items():
                self._tell((peer,), key, pack_reading(own.reading, now=now))

    # ---- Hearing ----

    def _on_payload(self, peer: NodeId, payload: bytes) -> None:
        if self._is_closed:
            return
        now = self._clock.monotonic_s()
        try:
            if is_echo(payload):
                self.echoes.hear(peer, payload)
                return
            told = unpack_reading(payload, peer, now=now)
        except ProtocolError as error:
            self._refuse(peer, error.message)
            return
        heard = self._heard.setdefault(peer, {})
        if told.reading is None:
            heard.pop(told.key, None)
            self._table.drop(peer, told.key)
        elif told.key in heard or len(heard) < MAX_KEYS:
            heard[told.key] = now
            self._table.put(told.reading)
        else:
            self._refuse(peer, f"it has more than {MAX_KEYS} readings")

    def _refuse(self, peer: NodeId, reason: str) -> None:
        self.n_refused += 1
        if peer not in self._complained:
            self._complained.add(peer)
            _log.warning("a reading of %s was not taken: %s", peer, reason)

    def _call_tick(self) -> RoundCall:
        return self._rounds.call(self._tick, soonest_s=_TICK_S, latest_s=_LATEST_TICK_S)

    def _tick(self) -> None:
        self._next = self._call_tick()
        now = self._clock.monotonic_s()
        for key, own in self._own.items():
            if now - own.sent_at_s > REFRESH_S - _TICK_S / 2 and own.timer is None:
                self._send(key, own)
        for peer, heard in list(self._heard.items()):
            for key in [key for key, at_s in heard.items() if now - at_s > TTL_S]:
                del heard[key]
                self._table.drop(peer, key)
            if not heard:
                del self._heard[peer]


def is_news(reading: Reading, told: Reading | None) -> bool:
    """Say whether a reading differs from the one told last by more than a node at rest moves.

    What moves less is told with the next refresh: a hundred nodes at rest would otherwise wake
    each other fifty times a second.
    """
    if isinstance(reading, LinksReading) and isinstance(told, LinksReading):
        return tuple(map(_without_rtt, reading.links)) != tuple(map(_without_rtt, told.links))
    if not isinstance(reading, NodeReading) or not isinstance(told, NodeReading):
        return True
    devices, before = reading.accelerators, told.accelerators
    return (
        _has_moved(reading.memory_available_bytes, told.memory_available_bytes)
        or _has_moved(reading.disk_free_bytes, told.disk_free_bytes)
        or len(devices) != len(before)
        or any(map(_has_device_moved, devices, before))
        or abs((reading.cpu_ratio or 0.0) - (told.cpu_ratio or 0.0)) > NEWS_CPU_RATIO
        or abs((reading.loop_lag_s or 0.0) - (told.loop_lag_s or 0.0)) > NEWS_LAG_S
        or _without_measures(reading) != _without_measures(told)
    )


def _has_moved(now: int | None, before: int | None) -> bool:
    if now is None or before is None:
        return now is not before
    return abs(now - before) > before * NEWS_RATIO


def _has_device_moved(now: AcceleratorReading, before: AcceleratorReading) -> bool:
    """Say whether a device is doing something else; its clock alone is no news."""
    return (
        _has_moved(now.free_bytes, before.free_bytes)
        or abs((now.busy_ratio or 0.0) - (before.busy_ratio or 0.0)) > NEWS_CPU_RATIO
        or abs((now.celsius or 0.0) - (before.celsius or 0.0)) > NEWS_CELSIUS
        or abs((now.watts or 0.0) - (before.watts or 0.0)) > NEWS_WATTS
    )


def _without_rtt(link: LinkReading) -> LinkReading:
    return replace(link, rtt_median_ms=None, rtt_p99_ms=None)


def _without_measures(reading: NodeReading) -> NodeReading:
    return replace(
        reading,
        at_s=0.0,
        memory_available_bytes=None,
        accelerators=(),
        disk_free_bytes=None,
        cpu_ratio=None,
        loop_lag_s=None,
    )
