"""Whole nodes whose machines are put to sleep in good order, and wake."""

# pyright: reportPrivateUsage=false

import asyncio

import pytest

from protocol.ids import NodeId
from skulkd.runtime.virtual_time import run_virtual
from tests.support.builders import a_node_id
from tests.support.simulated_cluster_history import ClusterHistory
from tests.support.simulated_cluster_story import ClusterStory
from tests.support.simulated_node import SimulatedNode


def _masters(nodes: dict[NodeId, SimulatedNode]) -> list[NodeId]:
    return [node_id for node_id, node in nodes.items() if node.rooms.mastership.is_master]


@pytest.mark.parametrize("policy", ["availability", "quorum"])
@pytest.mark.parametrize("is_of_master", [True, False], ids=["master", "member"])
def test_a_machine_that_sleeps_leaves_at_once_and_is_back_at_once(
    policy: str, is_of_master: bool
) -> None:
    async def story() -> None:
        history = ClusterHistory(
            7,
            ClusterStory(
                n_nodes=3,
                policy="quorum" if policy == "quorum" else "availability",
                is_gentle=True,
                steps=(),
            ),
        )
        await history._found()
        running = [box.running for box in history.boxes.values()]
        nodes = {node.world.node_id: node for node in running if node is not None}
        assert set(nodes) == {a_node_id(1), a_node_id(2), a_node_id(3)}
        (master,) = _masters(nodes)
        sleeper = nodes[master if is_of_master else next(one for one in nodes if one != master)]
        others = {node_id: node for node_id, node in nodes.items() if node is not sleeper}
        sleeper_id = sleeper.world.node_id
        await sleeper.sleep.fall_asleep()
        await asyncio.sleep(2.0)
        assert len(_masters(nodes)) == len(_masters(others)) == 1
        for node in others.values():
            assert node.state.members[sleeper_id].presence == "left"
        await asyncio.sleep(10.0)
        probed = sleeper.worker.facts
        sleeper.sleep.wake_up(3600.0)
        await asyncio.sleep(3.0)
        for node in nodes.values():
            assert node.state.members[sleeper_id].presence == "present"
        assert len(_masters(nodes)) == 1
        assert sleeper.worker.facts is not probed, "the machine was looked at anew"
        await history._stop_all()
        for box in history.boxes.values():
            await box.stop()
        history._check()

    run_virtual(story, seed=7, limit_s=600.0)
