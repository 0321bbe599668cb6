"""Finds two processes that live on one key: a home that was copied to another machine.

A process draws a boot id at each start and repeats it every few seconds. After a restart the former
boot id is never heard again; of two that live, each is heard after the other.
"""

from dataclasses import dataclass, replace
from typing import Final, final

from protocol.ids import NodeId
from skulkd.cluster.link_views import Duplicate

OVERLAP_S: Final = 0.5
"""Both must have lived this long together: frames of a process that has ended may be read late."""
KEPT_S: Final = 60.0
_MAX_BOOTS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Boot:
    address: str
    first_s: float
    last_s: float


@final
class BootWatch:
    """The boot ids of one node."""

    def __init__(self, node_id: NodeId) -> None:
        self._node_id = node_id
        self._boots: dict[str, _Boot] = {}

    def note(self, boot_id: str, address: str, *, now_s: float) -> None:
        """Remember that a boot id was heard, and where its process listens: `HOST:BASE`."""
        known = self._boots.get(boot_id)
        if known is None:
            known = _Boot(address=address, first_s=now_s, last_s=now_s)
        self._boots[boot_id] = replace(known, address=address, last_s=now_s)
        if len(self._boots) > _MAX_BOOTS:
            oldest = min(self._boots, key=lambda one: self._boots[one].last_s)
            del self._boots[oldest]

    def duplicate(self, now_s: float) -> Duplicate | None:
        """Name two that have lived at the same time within the last minute."""
        recent = sorted(
            (
                (boot_id, boot)
                for boot_id, boot in self._boots.items()
                if now_s - boot.last_s <= KEPT_S
            ),
            key=lambda item: item[1].first_s,
        )
        for number, (boot_id, boot) in enumerate(recent):
            for other_id, other in recent[number + 1 :]:
                together_s = min(boot.last_s, other.last_s) - other.first_s
                if together_s > OVERLAP_S:
                    return Duplicate(
                        node_id=self._node_id,
                        boot_ids=(boot_id, other_id),
                        addresses=(boot.address, other.address),
                        last_seen_s=min(boot.last_s, other.last_s),
                    )
        return None
