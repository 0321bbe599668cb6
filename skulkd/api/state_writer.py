"""`GET /state` as bytes: what has not changed since the last time is not written anew.

The document is `views.state_document`'s, field for field. Of a hundred nodes' state nearly all is
the same from one answer to the next: each part is kept with the values it was written from, and
used again only as long as those are the same objects, which the replica never changes. What moves
all the time (ages, silence, free memory) is put together by hand, without a model for each node.
"""

from collections.abc import Callable, Mapping
from json.encoder import encode_basestring_ascii
from math import isfinite
from typing import Final, NamedTuple, final

from pydantic import TypeAdapter

from protocol.control_api import AcceleratorView, InstanceView, StateDocument
from protocol.ids import InstanceId, NodeId
from protocol.nodes import Member, NodeHealth
from protocol.readings import NodeReading, Readings
from protocol.state import ClusterState
from skulkd.api.cluster_look import ClusterLook
from skulkd.api.dependencies import NodeFace
from skulkd.api.views import (
    accelerator_views,
    instance_view,
    known_resources,
    node_health_view,
    transfer_views,
)

_ACCELERATORS: Final = TypeAdapter(tuple[AcceleratorView, ...])
_INSTANCES: Final = TypeAdapter(dict[InstanceId, InstanceView])
_MOVING: Final = frozenset(
    {"master", "members", "instances", "transfers", "topology", "liveness", "node_health",
     "node_resources"}
)  # fmt: skip
_OF_READING: Final = frozenset(
    {"memory_available_bytes", "accelerators", "disk_free_bytes", "cpu_ratio", "loop_lag_s",
     "journal_durable", "journal_unwritten", "reading_age_s"}
)  # fmt: skip
_WELL: Final = b'{"level":"ok","reasons":[]}'


class _Written(NamedTuple):
    """What one member says of itself."""

    member: Member
    entry: bytes
    """In `members`."""
    resources: str
    """The beginning of its entry in `nodeResources`; the rest moves."""


@final
class StateWriter:
    """Writes the states of one node, one after the other.

    Args:
        face: This node.
    """

    def __init__(self, face: NodeFace) -> None:
        self._face = face
        self._members: dict[NodeId, _Written] = {}
        self._agreed: tuple[ClusterState, bytes] | None = None

    def write(
        self,
        state: ClusterState,
        readings: Readings,
        health: Mapping[NodeId, NodeHealth],
        look: ClusterLook,
        *,
        now: float,
        is_reachable: Callable[[NodeId], bool],
    ) -> bytes:
        """Write the document; see `views.state_document`."""
        written = self._written(state.members)
        views = {
            instance_id: instance_view(instance, readings, now=now, is_reachable=is_reachable)
            for instance_id, instance in state.instances.items()
        }
        transfers = [view.model_dump_json(by_alias=True) for view in transfer_views(readings)]
        members = (_pair(node_id, one.entry) for node_id, one in written.items())
        well = (_pair(node_id, _health(item)) for node_id, item in health.items())
        resources = (
            _pair(
                node_id,
                (one.resources + _reading(one.member, readings.nodes.get(node_id), now)).encode(),
            )
            for node_id, one in written.items()
        )
        return b"".join((
            self._agreed_part(state),
            b',"master":', _text(look.master).encode(),
            b',"members":{', b",".join(members),
            b'},"instances":', _INSTANCES.dump_json(views, by_alias=True),
            b',"transfers":[', ",".join(transfers).encode(),
            b'],"topology":', _topology(self._face.node_id, look),
            b',"liveness":{', _liveness(look),
            b'},"nodeHealth":{', b",".join(well),
            b'},"nodeResources":{', b",".join(resources),
            b"}}",
        ))  # fmt: skip

    def _agreed_part(self, state: ClusterState) -> bytes:
        """Write what all nodes agree on beside members and instances, without the last brace."""
        if self._agreed is None or self._agreed[0] is not state:
            document = StateDocument(
                node_id=self._face.node_id,
                boot_id=self._face.boot_id,
                cluster_id=state.cluster_id,
                term=state.term,
                seq=state.seq,
                at_ms=state.at_ms,
                failures=state.failures,
                placement_failures=state.placement_failures,
                launches=state.launches,
                downloads=state.downloads,
                custom_models=tuple(sorted(state.cards)),
                api_keys=len(state.api_keys),
                settings=state.settings,
            )
            text = document.model_dump_json(by_alias=True, exclude=set(_MOVING))
            self._agreed = (state, text.encode()[:-1])
        return self._agreed[1]

    def _written(self, members: Mapping[NodeId, Member]) -> dict[NodeId, _Written]:
        before = self._members
        self._members = {
            node_id: one
            if (one := before.get(node_id)) is not None and one.member is member
            else _write_member(member)
            for node_id, member in members.items()
        }
        return self._members


def _write_member(member: Member) -> _Written:
    known = known_resources(member)
    resources = known.model_dump_json(by_alias=True, exclude=set(_OF_READING))
    return _Written(member, member.model_dump_json(by_alias=True).encode(), resources[:-1])


def _reading(member: Member, reading: NodeReading | None, now: float) -> str:
    """Write what moves on a node, behind what stands in its facts."""
    accelerators = "[]"
    if member.facts is not None and member.facts.accelerators:
        views = accelerator_views(member.facts, reading.accelerators if reading else ())
        accelerators = _ACCELERATORS.dump_json(views, by_alias=True).decode()
    if reading is None:
        return f',"accelerators":{accelerators}{_NO_READING}'
    return (
        f',"accelerators":{accelerators}'
        f',"memoryAvailableBytes":{_number(reading.memory_available_bytes)}'
        f',"diskFreeBytes":{_number(reading.disk_free_bytes)}'
        f',"cpuRatio":{_number(reading.cpu_ratio)}'
        f',"loopLagS":{_number(reading.loop_lag_s)}'
        f',"journalDurable":{"true" if reading.journal_durable else "false"}'
        f',"journalUnwritten":{reading.journal_unwritten}'
        f',"readingAgeS":{round(max(0.0, now - reading.at_s), 3)}}}'
    )


_NO_READING: Final = (
    ',"memoryAvailableBytes":null,"diskFreeBytes":null,"cpuRatio":null'
    ',"loopLagS":null,"journalDurable":true,"journalUnwritten":0,"readingAgeS":null}'
)


def _health(health: NodeHealth) -> bytes:
    if health.level == "ok" and not health.reasons:
        return _WELL
    return node_health_view(health).model_dump_json(by_alias=True).encode()


def _topology(own: NodeId, look: ClusterLook) -> bytes:
    alive = [one for one in look.members if one.liveness == "alive"]
    nodes = ",".join(_text(one.node_id) for one in alive)
    head = f'{{"source":{_text(own)},"target":'
    links = ",".join(
        f'{head}{_text(one.node_id)},"state":"{one.link or "connecting"}"'
        f',"address":{_text(one.dialled)},"silentS":{_number(one.silent_s)}'
        f',"rttMedianMs":{_number(one.rtt_median_ms)},"rttLastMs":{_number(one.rtt_last_ms)}}}'
        for one in alive
        if not one.is_self
    )
    return f'{{"nodes":[{nodes}],"links":[{links}]}}'.encode()


def _liveness(look: ClusterLook) -> bytes:
    return ",".join(f'{_text(one.node_id)}:"{one.liveness}"' for one in look.members).encode()


def _pair(node_id: NodeId, entry: bytes) -> bytes:
    return b'"%b":%b' % (node_id.encode(), entry)


def _text(value: str | None) -> str:
    return "null" if value is None else encode_basestring_ascii(value)


def _number(value: float | None) -> str:
    """Write a number; one that JSON has no word for is null, as in every document."""
    return "null" if value is None or not isfinite(value) else repr(value)
