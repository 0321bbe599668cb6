"""The connections between two nodes: one lane a port, called as the port, and one more for files.

Files have a connection of their own on the bulk port, dialled when the first is sent: on a wire of
1 Gbit/s a token that shares the connection waits 18 ms behind the bytes that the kernel has taken,
and 1 ms beside it (docs/decisions/0009).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from protocol.envelope import MAX_PAYLOAD_BYTES, PLANE_MARK, PLANE_PORT, PORTS, Plane, Port

Lane = Literal["election", "cluster", "bulk", "files"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRules:
    """How one lane is set up."""

    port: Port
    planes: tuple[Plane, ...]
    """The first one's queue is emptied first."""
    n_ahead: int
    """Frames that ZeroMQ may hold for the kernel. Few where frames are large: what it holds is
    ahead of every queue."""
    heartbeat_s: float | None = None
    """Between two questions of ZeroMQ's whether the other end still answers; None asks never."""


LANES: Final[Mapping[Lane, LaneRules]] = {
    "election": LaneRules(port="election", planes=("election",), n_ahead=64, heartbeat_s=3.5),
    # A host that is gone, or a process that stands still, is noticed on the election lane, which
    # then takes the others along. Another lane that has been lost alone is found by the kernels,
    # whose questions wake nobody.
    "cluster": LaneRules(port="cluster", planes=("control", "events"), n_ahead=16),
    "bulk": LaneRules(port="bulk", planes=("data", "telemetry"), n_ahead=64),
    "files": LaneRules(port="bulk", planes=("files",), n_ahead=8),
}

PLANE_LANE: Final[Mapping[Plane, Lane]] = {
    plane: lane for lane, rules in LANES.items() for plane in rules.planes
}

MARKED_PLANES: Final[Mapping[Port, Mapping[int, Plane]]] = {
    port: {PLANE_MARK[plane]: plane for plane in PLANE_MARK if PLANE_PORT[plane] == port}
    for port in PORTS
}
"""By port, which plane a frame's first byte names."""

MAX_FRAME_BYTES: Final[Mapping[Port, int]] = {
    port: 1 + max(MAX_PAYLOAD_BYTES[plane] for plane in marks.values())
    for port, marks in MARKED_PLANES.items()
}
"""A connection that sends a longer one is cut before it has been read."""


INBOX_AHEAD: Final[Mapping[Port, int]] = {"election": 64, "cluster": 16, "bulk": 64}
"""Frames of one connection that wait to be read; after that, its sender waits."""


def port_number(base_port: int, port: Port) -> int:
    """Give the number of a port."""
    return base_port + PORTS.index(port)
