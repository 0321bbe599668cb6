"""Who is at the other end: the first frame of every connection between nodes, repeated at times.

Its two fields `wire` and `build` are read whatever the wire version, so that two nodes that cannot
understand each other can still say why.
"""

from typing import Annotated, Final, NamedTuple, cast

from pydantic import Field, StringConstraints, TypeAdapter

from protocol.base import FrozenModel
from protocol.codec import decode_values, pack, unpack
from protocol.envelope import HELLO_MARK, PORTS, WIRE_VERSION
from protocol.errors import ProtocolError
from protocol.ids import ClusterIdField, NodeIdField

MAX_HELLO_BYTES: Final = 1024
MAX_BUILD_CHARS: Final = 64

ShortText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_BUILD_CHARS)]


class Hello(FrozenModel):
    """What a node says about itself."""

    wire: Annotated[int, Field(strict=True)]
    build: ShortText
    node_id: NodeIdField
    boot_id: ShortText
    """Drawn at each start: two of them alive on one key are two processes."""
    cluster_id: ClusterIdField
    base_port: Annotated[int, Field(ge=1, le=(1 << 16) - len(PORTS))]
    """Where it listens; its host is the one that the connection comes from."""


class OtherWire(NamedTuple):
    """A hello of another wire version."""

    wire: int
    build: str


_ADAPTER: Final = TypeAdapter(Hello)


def shown_build(build: object) -> str:
    """Give what a node of another wire version says of its build as it may be shown, else `?`."""
    is_shown = isinstance(build, str) and build.isprintable()
    return cast("str", build)[:MAX_BUILD_CHARS] if is_shown else "?"


def hello_frame(hello: Hello) -> bytes:
    """Write the frame, its mark included."""
    return bytes((HELLO_MARK,)) + pack(hello)


def read_hello(data: bytes) -> Hello | OtherWire:
    """Read what stands behind the mark.

    Raises:
        ProtocolError: `protocol.bad_frame`, `protocol.too_large`.
    """
    values = decode_values(data, max_bytes=MAX_HELLO_BYTES)
    if isinstance(values, dict):
        fields = cast("dict[str, object]", values)
        wire, build = fields.get("wire"), fields.get("build")
        if type(wire) is int and wire != WIRE_VERSION:
            return OtherWire(wire, shown_build(build))
    hello = unpack(_ADAPTER, data, max_bytes=MAX_HELLO_BYTES)
    if not hello.build.isprintable() or not hello.boot_id.isprintable():
        raise ProtocolError(
            "protocol.bad_frame",
            "a hello has a build or boot id that cannot be shown",
            remediation="Run the same build on both sides; if they are, report this.",
        )
    return hello
