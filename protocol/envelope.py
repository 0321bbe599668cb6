"""What every connection between nodes agrees on: the wire version, the planes and their sizes."""

from collections.abc import Mapping
from typing import Final, Literal

WIRE_VERSION: Final = 1
"""Nodes with different numbers refuse each other, and say both."""

Plane = Literal["election", "control", "events", "telemetry", "data", "files"]
"""Traffic that must not hold up other traffic."""

Port = Literal["election", "cluster", "bulk"]

PORTS: Final[tuple[Port, ...]] = ("election", "cluster", "bulk")
"""In the order of their numbers: BASE, BASE+1, BASE+2."""

DEFAULT_BASE_PORT: Final = 12416

PLANE_PORT: Final[Mapping[Plane, Port]] = {
    "election": "election",
    "control": "cluster",
    "events": "cluster",
    "telemetry": "bulk",
    "data": "bulk",
    "files": "bulk",
}

MAX_PAYLOAD_BYTES: Final[Mapping[Plane, int]] = {
    "election": 64 << 10,
    "control": 4 << 20,
    "events": 2 << 20,
    "telemetry": 256 << 10,
    "data": 1 << 20,
    "files": 1 << 20,
}
"""Of one payload. A longer one is refused where it is sent."""

MAX_QUEUED_BYTES: Final[Mapping[Plane, int]] = {
    "election": 256 << 10,
    "control": 16 << 20,
    "events": 16 << 20,
    "telemetry": 1 << 20,
    "data": 8 << 20,
    "files": 8 << 20,
}
"""Towards one peer. Two payloads of any plane fit."""

HELLO_MARK: Final = 0
"""The first byte of a hello; the rest is `Hello` (protocol/hello.py)."""
PLANE_MARK: Final[Mapping[Plane, int]] = {
    "election": 1,
    "control": 2,
    "events": 3,
    "telemetry": 4,
    "data": 5,
    "files": 6,
}
"""The first byte of a frame that carries a payload; the rest is the payload."""
