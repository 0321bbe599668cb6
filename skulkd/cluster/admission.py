"""Who may connect: a table of keys, asked once a connection by ZeroMQ and once a frame by us."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, final

from protocol.envelope import Port
from protocol.ids import NodeId
from skulkd.cluster.stranger_list import NO_MEMBER
from skulkd.cluster.transport import Peer

GUEST_PREFIX: Final = "guest/"
_MAX_REMOVED: Final = 256

OWN_KEY: Final = "it has this node's own key: a copy of its home runs elsewhere"
REMOVED: Final = "its key was a member's, and it has been removed"
GUEST_BEYOND: Final = "an invitation lets its guest in on the election port only"


class Verdict(NamedTuple):
    """What becomes of one who dials."""

    user_id: str | None
    """The name under which all its frames arrive; None when it is refused."""
    reason: str = ""
    """Why it is refused."""


@final
class Admission:
    """The keys that are admitted now.

    Args:
        own_key: This node's public key.
    """

    def __init__(self, own_key: bytes) -> None:
        self._own_key = own_key
        self._members: dict[bytes, NodeId] = {}
        self._guests: Mapping[bytes, str] = {}
        self._guest_names: frozenset[str] = frozenset()
        self._removed: dict[bytes, None] = {}

    def set_members(self, peers: Iterable[Peer]) -> None:
        """Admit exactly these as members; those of before are remembered as removed."""
        before, self._members = self._members, {peer.public_key: peer.node_id for peer in peers}
        for key in self._members:
            self._removed.pop(key, None)
        for key in before.keys() - self._members.keys():
            self._removed[key] = None
        while len(self._removed) > _MAX_REMOVED:
            del self._removed[next(iter(self._removed))]

    def set_guests(self, keys: Mapping[bytes, str]) -> None:
        """Admit exactly these as guests, each with its name."""
        self._guests = dict(keys)
        self._guest_names = frozenset(self._guests.values())

    def judge(self, port: Port, public_key: bytes) -> Verdict:
        """Decide about one who has proved to have the secret half of a key.

        A member that this node asks to be let in again dials back as a guest does.
        """
        if public_key in self._guests and port == "election":
            return Verdict(GUEST_PREFIX + self._guests[public_key])
        if public_key in self._members:
            return Verdict(self._members[public_key])
        if public_key in self._guests:
            return Verdict(None, GUEST_BEYOND)
        if public_key == self._own_key:
            return Verdict(None, OWN_KEY)
        return Verdict(None, REMOVED if public_key in self._removed else NO_MEMBER)

    def guest_of(self, user_id: str) -> str | None:
        """Give the name of a guest whose key is still admitted."""
        name = user_id.removeprefix(GUEST_PREFIX)
        return name if name != user_id and name in self._guest_names else None
