"""What a driver sees to before it begins: donors that are ready, of its own build."""

import random

import pytest

from protocol.errors import EngineError, ErrorBody, RunnerError
from protocol.instances import Instance, RunnerStatus
from protocol.placements import Plan
from protocol.state import ClusterState
from skulkd.cluster.simulated import SimulatedNetwork
from skulkd.cluster.tunnels import Tunnels
from skulkd.core.reconcile import RunnerKey
from skulkd.runtime.tasks import Tasks, sleep
from skulkd.runtime.virtual_time import run_virtual
from skulkd.worker.rank_group import GroupServices, RankGroup, is_donor
from tests.support.builders import (
    a_card,
    a_member,
    a_node_id,
    a_plan,
    a_runner,
    a_state,
    an_engine,
    an_instance_id,
)

CARD = a_card()
OWN = an_engine(rpc=True, version="b7")
KEY = RunnerKey(an_instance_id(), 0, 2)


def a_pool() -> Plan:
    one = a_plan(CARD)
    (first,) = one.shards
    donors = [first.model_copy(update={"rank": n, "node_id": a_node_id(n + 1)}) for n in (1, 2)]
    return one.model_copy(update={"shape": "rpc", "shards": (first, *donors)})


class World:
    """The state as the driver's node has it."""

    def __init__(self, versions: tuple[str, str] = ("b7", "b7")) -> None:
        members = [a_member(1)]
        for number, version in enumerate(versions, start=2):
            member = a_member(number)
            assert member.facts is not None
            builds = (an_engine(rpc=True, version=version),)
            facts = member.facts.model_copy(update={"engines": builds})
            members.append(member.model_copy(update={"facts": facts, "name": f"n{number}"}))
        self.state: ClusterState = a_state(members=members)
        self.put()

    def put(self, *runners: RunnerStatus) -> None:
        instance = Instance(
            instance_id=KEY.instance_id,
            model_id=CARD.model_id,
            plan=a_pool(),
            card=CARD,
            attempt=KEY.attempt,
            runners=runners,
            placed_at_ms=1,
        )
        self.state = self.state.model_copy(update={"instances": {KEY.instance_id: instance}})

    def group(self) -> RankGroup:
        # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
        rng = random.Random(1)
        transport = SimulatedNetwork(rng).attach(a_node_id(1))

        def on_lost(error: ErrorBody) -> None:
            raise AssertionError(error)

        services = GroupServices(
            tunnels=Tunnels(transport, rng=rng),
            tasks=Tasks("test", on_death=lambda _story, _error: None),
            rng=rng,
            state=lambda: self.state,
        )
        return RankGroup(services, KEY, a_pool(), on_lost)


def ready(rank: int, attempt: int = KEY.attempt) -> RunnerStatus:
    return a_runner("ready", node=rank + 1, rank=rank, attempt=attempt)


def test_a_driver_waits_for_all_donors_of_its_own_attempt() -> None:
    async def main() -> None:
        world = World()
        group = world.group()
        said: list[str] = []
        world.put(ready(1, attempt=1), ready(2, attempt=1))
        waiting = Tasks("test", on_death=lambda _story, _error: None)
        task = waiting.start(group.wait_donors(90, said.append), name="wait", essential=False)
        await sleep(10)
        world.put(ready(1))
        await sleep(10)
        assert not task.done()
        world.put(ready(1), ready(2))
        await task
        assert said[0] == "waiting for n2, n3 to lend memory"
        assert said[-1] == "waiting for n3 to lend memory"

    run_virtual(main)


def test_a_donor_that_does_not_get_ready_is_named_when_the_time_is_over() -> None:
    async def main() -> None:
        world = World()
        world.put(ready(1))
        with pytest.raises(RunnerError, match="donor n3 was not ready in 90 s") as lost:
            await world.group().wait_donors(90, lambda _note: None)
        assert lost.value.code == "runner.rank_lost"

    run_virtual(main)


def test_donors_of_another_build_are_refused_with_both_versions() -> None:
    async def main() -> None:
        World().group().check_builds(OWN)
        with pytest.raises(EngineError, match=r"b7 cannot .* n3, which has b8") as refused:
            World(("b7", "b8")).group().check_builds(OWN)
        assert refused.value.code == "engine.unsupported"

    run_virtual(main)


def test_only_ranks_that_lend_memory_are_donors() -> None:
    assert [is_donor(a_pool(), rank) for rank in range(3)] == [False, True, True]
    ring = a_pool().model_copy(update={"shape": "pipeline"})
    assert [is_donor(ring, rank) for rank in range(3)] == [False, False, False]
