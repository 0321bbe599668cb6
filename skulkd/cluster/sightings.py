"""What is kept of what neighbours say: its form, its limits, and who is told. Pure.

Anybody on the network can say anything, as often as it likes. A neighbour is believed to the extent
that its id fits its key and its address is on a link of ours; the number of neighbours, and how
often one is told of, are bounded.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

from protocol.ids import NODE_ID_PATTERN, NodeId, node_id_of
from skulkd.cluster.addresses import MAX_BASE_PORT, InterfaceAddress, is_on_link, join_address
from skulkd.cluster.discovery import HASH_LETTERS, Announcement, Sighting

MAX_SIGHTINGS: Final = 256
MAX_ADDRESSES: Final = 8
MAX_TXT_BYTES: Final = 400
"""Of all the strings together; ours has 120."""
REPEAT_S: Final = 10.0
"""A neighbour that says the same again is told of again after this long."""
CHANGE_WINDOW_S: Final = 10.0
MAX_CHANGES: Final = 5
"""Of one neighbour, in a window."""
KEPT_S: Final = 60.0
"""When the list is full, who was heard within this time keeps its place."""

_NODE_ID: Final = re.compile(NODE_ID_PATTERN)
_HASH: Final = re.compile(rf"[a-z2-7]{{{HASH_LETTERS}}}")
_KEY: Final = re.compile(r"[0-9a-f]{64}")
_NUMBER: Final = re.compile(r"[0-9]{1,5}")


def txt_of(announcement: Announcement) -> dict[str, str]:
    """Write an announcement as the strings of a TXT record."""
    return {
        "wire": str(announcement.wire),
        "cluster": announcement.cluster_hash,
        "key": announcement.public_key.hex(),
        "base": str(announcement.base_port),
    }


def read_txt(name: str, txt: Mapping[bytes, bytes | None]) -> Announcement:
    """Read the strings of a TXT record; further ones, of later builds, are passed over.

    Args:
        name: Under which they were announced: the node's id.
        txt: The strings.

    Raises:
        ValueError: They are not of the form, or the id does not fit the key.
    """
    if sum(len(key) + len(value or b"") + 2 for key, value in txt.items()) > MAX_TXT_BYTES:
        message = "the strings are too long"
        raise ValueError(message)
    public_key = bytes.fromhex(_field(txt, b"key", _KEY))
    if _NODE_ID.fullmatch(name) is None or node_id_of(public_key) != name:
        message = "the name is not the key's"
        raise ValueError(message)
    base_port = int(_field(txt, b"base", _NUMBER))
    if not 1 <= base_port <= MAX_BASE_PORT:
        message = "the port is out of range"
        raise ValueError(message)
    return Announcement(
        node_id=NodeId(name),
        public_key=public_key,
        cluster_hash=_field(txt, b"cluster", _HASH),
        base_port=base_port,
        wire=int(_field(txt, b"wire", _NUMBER)),
    )


def _field(txt: Mapping[bytes, bytes | None], key: bytes, form: re.Pattern[str]) -> str:
    text = (txt.get(key) or b"").decode("ascii", "replace")
    if form.fullmatch(text) is None:
        message = f"{key.decode()} is not of the form"
        raise ValueError(message)
    return text


@dataclass(slots=True)
class _Known:
    sighting: Sighting
    told_s: float
    window_s: float
    """When the window of changes began."""
    n_changes: int = 0


@final
class SightingBook:
    """The neighbours of one node.

    Args:
        own_id: What this node itself says is passed over.
    """

    def __init__(self, own_id: NodeId) -> None:
        self._own_id = own_id
        self._links: tuple[InterfaceAddress, ...] = ()
        self._known: dict[NodeId, _Known] = {}
        """The one heard last comes last."""
        self.n_garbled = 0
        self.n_off_link = 0
        self.n_dropped = 0

    def set_links(self, links: Sequence[InterfaceAddress]) -> None:
        """Take these as this node's own addresses; forget who is no neighbour any more."""
        self._links = tuple(links)
        for node_id, known in list(self._known.items()):
            near = self._near_addresses(known.sighting.addresses)
            if near:
                known.sighting = replace(known.sighting, addresses=near)
            else:
                del self._known[node_id]

    def hear(
        self, name: str, txt: Mapping[bytes, bytes | None], hosts: Sequence[str], *, now_s: float
    ) -> Sighting | None:
        """Take in what somebody said.

        Args:
            name: The node id that it goes by.
            txt: The strings of its TXT record.
            hosts: Its IP addresses.
            now_s: Loop time.

        Returns:
            The neighbour, when somebody should be told of it.
        """
        if name == self._own_id:
            return None
        try:
            said = read_txt(name, txt)
        except ValueError:
            self.n_garbled += 1
            return None
        near = tuple(dict.fromkeys(host for host in hosts if is_on_link(host, self._links)))
        if not near:
            self.n_off_link += 1
            return None
        sighting = Sighting(
            node_id=said.node_id,
            public_key=said.public_key,
            cluster_hash=said.cluster_hash,
            addresses=tuple(join_address(host, said.base_port) for host in near[:MAX_ADDRESSES]),
            wire=said.wire,
            seen_s=now_s,
        )
        known = self._known.pop(said.node_id, None)
        return self._add(sighting) if known is None else self._renew(known, sighting)

    def forget(self, name: str) -> None:
        """Take a neighbour off the list: it has said goodbye."""
        self._known.pop(NodeId(name), None)

    def listed(self) -> tuple[Sighting, ...]:
        """List the neighbours, the one heard last first."""
        return tuple(known.sighting for known in reversed(self._known.values()))

    def _add(self, sighting: Sighting) -> Sighting | None:
        if len(self._known) >= MAX_SIGHTINGS:
            oldest = next(iter(self._known.values())).sighting
            if sighting.seen_s - oldest.seen_s <= KEPT_S:
                self.n_dropped += 1
                return None
            del self._known[oldest.node_id]
        self._known[sighting.node_id] = _Known(sighting, sighting.seen_s, sighting.seen_s)
        return sighting

    def _renew(self, known: _Known, sighting: Sighting) -> Sighting | None:
        self._known[sighting.node_id] = known
        if replace(known.sighting, seen_s=sighting.seen_s) == sighting:
            known.sighting = sighting
            if sighting.seen_s - known.told_s < REPEAT_S:
                return None
        elif not self._may_change(known, sighting.seen_s):
            self.n_dropped += 1
            return None
        known.sighting = sighting
        known.told_s = sighting.seen_s
        return sighting

    def _may_change(self, known: _Known, now_s: float) -> bool:
        if now_s - known.window_s >= CHANGE_WINDOW_S:
            known.window_s, known.n_changes = now_s, 0
        known.n_changes += 1
        return known.n_changes <= MAX_CHANGES

    def _near_addresses(self, addresses: Sequence[str]) -> tuple[str, ...]:
        hosts = ((one, one.rpartition(":")[0].strip("[]")) for one in addresses)
        return tuple(one for one, host in hosts if is_on_link(host, self._links))
