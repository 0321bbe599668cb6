"""What a guest and a member say to each other before the guest is a member: one payload each way.

By a token: `JoinRequest`, answered by `Welcome`. By a code of six words first `GuestProof`,
answered by `HostProof`, so that nobody says anything of itself to somebody who does not know the
code. Before a guest is admitted the member dials it back and asks `JoinQuestion`, answered by
`JoinConfirmed`, of whoever has the key that the guest has named. In place of any answer stands
`JoinRefusal`.

The two fields `wire` and `build` of every payload are read whatever the wire version, so that two
nodes that cannot understand each other can still say why.
"""

from typing import Annotated, Final, Literal, cast

from pydantic import Field, StringConstraints, TypeAdapter

from protocol.base import FrozenModel
from protocol.codec import decode_values, unpack
from protocol.envelope import WIRE_VERSION
from protocol.errors import DetailValue
from protocol.hello import OtherWire, ShortText, shown_build
from protocol.ids import ClusterIdField, NodeIdField
from protocol.nodes import AddressField, PublicKeyField, Role
from protocol.peer_messages import MAX_MEMBERS, BootId, Number

MAX_JOIN_BYTES: Final = 64 << 10
_MAX_VALUES: Final = 8192
"""A guest is trusted with less of the loop's time than a member; a welcome has some 2,500."""
MAX_REFUSAL_CHARS: Final = 1000
"""Of a refusal's message, and of its remedy."""

Wire = Annotated[int, Field(strict=True)]
Proof = Annotated[bytes, Field(min_length=32, max_length=32)]
Addresses = Annotated[tuple[AddressField, ...], Field(max_length=16)]
MemberName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
"""As settings have it; it is shown on terminals before anybody has vouched for it."""
RefusalText = Annotated[str, StringConstraints(max_length=MAX_REFUSAL_CHARS)]


class GuestProof(FrozenModel):
    """The guest knows the code, and this is its own public key."""

    kind: Literal["guest_proof"] = "guest_proof"
    wire: Wire = WIRE_VERSION
    build: ShortText
    public_key: PublicKeyField
    proof: Proof


class HostProof(FrozenModel):
    """The member knows the code too."""

    kind: Literal["host_proof"] = "host_proof"
    wire: Wire = WIRE_VERSION
    build: ShortText
    proof: Proof


class JoinRequest(FrozenModel):
    """The guest asks to become a member, and says what others must know of it."""

    kind: Literal["join_request"] = "join_request"
    wire: Wire = WIRE_VERSION
    build: ShortText
    cluster_id: ClusterIdField | None = None
    """Which one its token names; None with a code, which names none."""
    node_id: NodeIdField
    public_key: PublicKeyField
    boot_id: BootId
    name: MemberName
    role: Role = "full"
    addresses: Annotated[tuple[AddressField, ...], Field(min_length=1, max_length=16)]
    """Where it listens already: the member dials it before it answers."""
    api_port: Annotated[int, Field(ge=0, le=65535)] = 0
    api_tls: bool = False


class JoinQuestion(FrozenModel):
    """A member asks who has a guest's node key whether it is the one that wants to join.

    On a connection that the member has dialled, to nobody but the holder of that key, and with its
    own key.
    """

    kind: Literal["join_question"] = "join_question"
    wire: Wire = WIRE_VERSION
    build: ShortText
    digest: Proof
    """SHA-256 of the payload with the `JoinRequest`."""


class JoinConfirmed(FrozenModel):
    """It is, with this very request, and it has asked this very member."""

    kind: Literal["join_confirmed"] = "join_confirmed"
    wire: Wire = WIRE_VERSION
    build: ShortText
    digest: Proof


class FellowMember(FrozenModel):
    """A member that the new one shall dial."""

    node_id: NodeIdField
    public_key: PublicKeyField
    name: MemberName
    addresses: Addresses = ()


class Welcome(FrozenModel):
    """The guest is a member. The log has the rest, once it has dialled the others."""

    kind: Literal["welcome"] = "welcome"
    wire: Wire = WIRE_VERSION
    build: ShortText
    cluster_id: ClusterIdField
    members: Annotated[tuple[FellowMember, ...], Field(min_length=1, max_length=MAX_MEMBERS)]
    """The member that answers, the master, and others as far as they have room in a payload."""
    master: NodeIdField | None = None
    term: Number = 0


class JoinRefusal(FrozenModel):
    """The guest is not let in; an error that a later build may know and this one may not."""

    kind: Literal["join_refusal"] = "join_refusal"
    wire: Wire = WIRE_VERSION
    build: ShortText
    code: Annotated[str, StringConstraints(pattern=r"^[a-z]{1,20}\.[a-z_]{1,40}$")]
    message: RefusalText
    remediation: RefusalText = ""
    details: Annotated[dict[str, DetailValue], Field(max_length=16)] = {}


GuestMessage = GuestProof | JoinRequest | JoinQuestion
"""What is said to a node by one that dials it with a key admitted for this alone."""
HostMessage = HostProof | Welcome | JoinConfirmed | JoinRefusal
"""What is answered."""

_GUEST: Final[TypeAdapter[GuestMessage]] = TypeAdapter(
    Annotated[GuestMessage, Field(discriminator="kind")]
)
_HOST: Final[TypeAdapter[HostMessage]] = TypeAdapter(
    Annotated[HostMessage, Field(discriminator="kind")]
)


def read_guest(data: bytes) -> GuestMessage | OtherWire:
    """Read what the one that has dialled says.

    Raises:
        ProtocolError: `protocol.bad_frame`, `protocol.too_large`.
    """
    return _other_wire(data) or unpack(
        _GUEST, data, max_bytes=MAX_JOIN_BYTES, max_values=_MAX_VALUES
    )


def read_host(data: bytes) -> HostMessage | OtherWire:
    """Read what is answered.

    Raises:
        ProtocolError: `protocol.bad_frame`, `protocol.too_large`.
    """
    return _other_wire(data) or unpack(
        _HOST, data, max_bytes=MAX_JOIN_BYTES, max_values=_MAX_VALUES
    )


def _other_wire(data: bytes) -> OtherWire | None:
    values = decode_values(data, max_bytes=MAX_JOIN_BYTES, max_values=_MAX_VALUES)
    if not isinstance(values, dict):
        return None
    fields = cast("dict[str, object]", values)
    wire, build = fields.get("wire"), fields.get("build")
    if type(wire) is not int or wire == WIRE_VERSION:
        return None
    return OtherWire(wire, shown_build(build))
