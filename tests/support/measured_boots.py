"""Measured boots for tests: keys, figures and reports as a worker makes them."""

from protocol.commands import ReportMemory
from protocol.instances import Instance
from protocol.measurements import BootKey, MeasuredMemory
from protocol.nodes import NodeFacts
from skulkd.core.placement.backends import build_for
from skulkd.core.placement.measured import boot_key, place_of
from skulkd.core.placement.memory_fit import compute_of
from tests.support.builders import MIB, a_command_id, an_instance, some_facts


def a_boot_key(instance: Instance | None = None, facts: NodeFacts | None = None) -> BootKey:
    """Make the key of an instance's first rank, as its worker does."""
    booted = instance or an_instance()
    made, shard = booted.plan, booted.plan.shards[0]
    build = build_for(facts or some_facts(), made.backend)
    assert build is not None
    return boot_key(
        booted.card,
        build,
        facts or some_facts(),
        compute=compute_of(made.backend),
        context_tokens=made.context_tokens,
        slots=made.slots,
        place=place_of(made, shard),
    )


def some_memory(total_bytes: int = 400 * MIB) -> MeasuredMemory:
    """Make what a process of the CPU was seen to take."""
    return MeasuredMemory(total_bytes=total_bytes, mapped_bytes=MIB, source="process")


def a_memory_report(
    instance: Instance | None = None,
    *,
    total_bytes: int = 400 * MIB,
    command: int = 70,
    key: BootKey | None = None,
) -> ReportMemory:
    """Report what the first rank of an instance was seen to take."""
    booted = instance or an_instance()
    return ReportMemory(
        command_id=a_command_id(command),
        instance_id=booted.instance_id,
        node_id=booted.plan.shards[0].node_id,
        rank=0,
        attempt=booted.attempt,
        key=key or a_boot_key(booted),
        memory=some_memory(total_bytes),
    )
