"""Thirty-odd machines as their own probes would tell of them, for tests of what follows from facts.

Figures are those that the systems really show: the memory of an RTX 4090 is 24,564 MiB, a DGX
Spark's tool says N/A, a Mac's GPU may wire two thirds or three quarters of the RAM. The machines
are `FLEET` of fleet_machines.py; `members_of` and `readings_of` make a cluster of any of them:

    members = members_of(FLEET)
    state = some_state(members={member.node_id: member for member in members})
    readings = readings_of(FLEET, used_ratio=0.25)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol.cards import BackendTag, Compute
from protocol.nodes import Accelerator, ConflictCode, Member, NodeFacts
from protocol.readings import AcceleratorReading, NodeReading, Readings
from skulkd.core.facts import derive
from skulkd.core.placement.memory_fit import Pool
from tests.support.builders import GIB, a_member, a_node_id

SYSTEM_BYTES: Final = GIB // 2
"""Held by the system itself, on every machine; what is free is reckoned from the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetMachine:
    """One machine, and what must follow from its facts."""

    name: str
    facts: NodeFacts
    backends: tuple[BackendTag, ...]
    """Expected of `derive`, best first; without the scripted one, which all have."""
    conflicts: tuple[ConflictCode, ...] = ()
    """Expected of `derive`, in order."""
    pools: dict[Compute, tuple[Pool, int]]
    """Expected of each compute in `backends`: where memory comes from and how much there is in
    all, when nothing runs."""

    def member(self, number: int) -> Member:
        """Give the machine as node `number` of a cluster, with what its facts let it serve."""
        capabilities = derive(self.facts)
        return a_member(number, facts=self.facts).model_copy(
            update={"name": self.name, "capabilities": capabilities}
        )

    def reading(self, number: int, *, used_ratio: float = 0.0, at_s: float = 0.0) -> NodeReading:
        """Give its last reading as node `number`.

        Args:
            number: As of `member`.
            used_ratio: Of every pool, held by other programs; 0 to 1.
            at_s: When it came in.
        """
        ram = max(0, self.facts.memory_bytes - SYSTEM_BYTES)
        return NodeReading(
            node_id=a_node_id(number),
            at_s=at_s,
            memory_available_bytes=int(ram * (1 - used_ratio)),
            accelerators=tuple(
                AcceleratorReading(free_bytes=_free(device, used_ratio))
                for device in self.facts.accelerators
            ),
            disk_free_bytes=None
            if self.facts.disk_total_bytes is None
            else self.facts.disk_total_bytes // 2,
        )


def members_of(machines: Sequence[FleetMachine]) -> tuple[Member, ...]:
    """Make them nodes 1, 2 and so on."""
    return tuple(machine.member(number) for number, machine in enumerate(machines, start=1))


def readings_of(
    machines: Sequence[FleetMachine], *, used_ratio: float = 0.0, at_s: float = 0.0
) -> Readings:
    """Give the readings of the nodes that `members_of` makes of the same machines."""
    told = [
        machine.reading(number, used_ratio=used_ratio, at_s=at_s)
        for number, machine in enumerate(machines, start=1)
    ]
    return Readings(nodes={reading.node_id: reading for reading in told})


def _free(device: Accelerator, used_ratio: float) -> int | None:
    """Only AMD's driver tells how much of lent memory is free; where nothing tells, None."""
    if device.memory_bytes is None or (device.unified and device.vendor != "amd"):
        return None
    return int(device.memory_bytes * (1 - used_ratio))
