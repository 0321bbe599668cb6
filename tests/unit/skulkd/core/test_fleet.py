"""What follows from facts, on every machine of the synthetic fleet."""

import pytest

from skulkd.core.facts import SCRIPTED_BACKEND, derive
from skulkd.core.placement.backends import build_for
from skulkd.core.placement.memory_fit import compute_of, pool_memory
from tests.support.builders import GIB
from tests.support.fleet import FleetMachine, members_of, readings_of
from tests.support.fleet_machines import FLEET

every_machine = pytest.mark.parametrize("machine", FLEET, ids=lambda machine: machine.name)


def test_the_fleet_has_thirty_machines_of_different_names() -> None:
    assert len({machine.name for machine in FLEET}) == len(FLEET) >= 30


@every_machine
def test_backends_and_conflicts_follow_from_the_facts(machine: FleetMachine) -> None:
    capabilities = derive(machine.facts)
    assert capabilities.backends == (*machine.backends, SCRIPTED_BACKEND)
    assert tuple(one.code for one in capabilities.conflicts) == machine.conflicts


@every_machine
def test_each_conflict_says_what_was_seen_what_was_said_and_what_to_do(
    machine: FleetMachine,
) -> None:
    for conflict in derive(machine.facts).conflicts:
        assert all((conflict.observed, conflict.declared, conflict.message, conflict.remediation))
        assert conflict.level != "ok"


@every_machine
def test_each_backend_has_a_build_and_a_pool_of_known_size(machine: FleetMachine) -> None:
    reading = machine.reading(1)
    found = {}
    for tag in machine.backends:
        build = build_for(machine.facts, tag)
        assert build is not None
        assert build.usable
        memory = pool_memory(machine.facts, compute_of(tag), reading, ())
        assert memory is not None
        found[compute_of(tag)] = (memory.pool, memory.total_bytes)
    assert found == machine.pools


@every_machine
def test_what_is_free_is_never_more_than_the_pool_nor_than_the_ram_it_comes_from(
    machine: FleetMachine,
) -> None:
    reading = machine.reading(1, used_ratio=0.5)
    for compute, (pool, total_bytes) in machine.pools.items():
        memory = pool_memory(machine.facts, compute, reading, ())
        assert memory is not None
        assert 0 < memory.free_bytes <= total_bytes
        if pool != "vram":
            assert reading.memory_available_bytes is not None
            assert memory.free_bytes <= reading.memory_available_bytes


def test_b11_unified_memory_is_the_wired_limit_or_what_is_free_now() -> None:
    mac = next(machine for machine in FLEET if machine.name == "mac-mini-m4-pro")
    free_of_limit = pool_memory(mac.facts, "metal", mac.reading(1), ())
    others_hold_half = pool_memory(mac.facts, "metal", mac.reading(1, used_ratio=0.5), ())
    assert free_of_limit is not None
    assert others_hold_half is not None
    assert (free_of_limit.pool, free_of_limit.free_bytes) == ("unified", 48 * GIB)
    assert others_hold_half.free_bytes < 32 * GIB


def test_a_cluster_of_the_whole_fleet_has_a_reading_for_every_member() -> None:
    members = members_of(FLEET)
    assert [member.name for member in members] == [machine.name for machine in FLEET]
    assert set(readings_of(FLEET).nodes) == {member.node_id for member in members}
