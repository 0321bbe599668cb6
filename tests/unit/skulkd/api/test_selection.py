"""Which copy of a model serves a request, when copies lie on several nodes."""

import random
from collections import Counter
from collections.abc import Collection, Mapping

import pytest

from protocol.control_api import ErrorDocument, read_answer
from protocol.errors import SkulkError
from protocol.ids import InstanceId, ModelId
from protocol.instances import Instance, Phase
from protocol.readings import InstanceReading, Readings
from protocol.state import ClusterState
from skulkd.api.selection import Sight, choose, placed_instances
from tests.support.api_harness import Api, with_api
from tests.support.builders import (
    MODEL,
    a_failure,
    a_member,
    a_node_id,
    a_plan,
    a_state,
    an_instance,
    an_instance_id,
)
from tests.support.fake_ports import NODE, FakeDaemon, make_card, make_instance, make_state


def three(*instances: Instance) -> ClusterState:
    return a_state(members=[a_member(1), a_member(2), a_member(3)], instances=instances)


def copy_on(node: int, phase: Phase = "ready") -> Instance:
    """Make the copy on a node; both have the same number."""
    return an_instance(node, node=node, phase=phase)


def chosen(
    state: ClusterState,
    *,
    unreachable: Collection[int] = (),
    in_flight: Mapping[InstanceId, int] | None = None,
    readings: Readings | None = None,
    seed: int = 1,
    warm: Mapping[InstanceId, int] | None = None,
) -> list[int]:
    """Choose on node 1; gives the nodes in the order in which they would be asked."""
    away = {a_node_id(number) for number in unreachable}
    sight = Sight(
        node_id=a_node_id(1),
        is_reachable=lambda node_id: node_id not in away,
        in_flight=in_flight or {},
        readings=readings or Readings(),
        now_s=0.0,
    )
    # ruff: ignore[suspicious-non-cryptographic-random-usage] - seeded, so that a failure repeats
    order = choose(state, MODEL, sight, random.Random(seed), lambda _: warm or {})
    numbers = {a_node_id(number): number for number in (1, 2, 3)}
    return [numbers[instance.plan.shards[0].node_id] for instance in order]


def refused(state: ClusterState, *, unreachable: Collection[int] = ()) -> SkulkError:
    with pytest.raises(SkulkError) as caught:
        chosen(state, unreachable=unreachable)
    return caught.value


def test_only_copies_that_can_be_reached_are_asked() -> None:
    state = three(copy_on(1), copy_on(2), copy_on(3))
    for seed in range(20):
        assert sorted(chosen(state, unreachable={2}, seed=seed)) == [1, 3]
    assert chosen(state, unreachable={1, 2}) == [3]


def test_of_two_equal_copies_the_one_that_takes_no_network_is_asked_first() -> None:
    state = three(copy_on(1), copy_on(2))
    assert {chosen(state, seed=seed)[0] for seed in range(50)} == {1}


def test_the_copy_here_is_left_when_another_is_less_loaded() -> None:
    state = three(copy_on(1), copy_on(2))
    for seed in range(50):
        assert chosen(state, in_flight={an_instance_id(1): 1}, seed=seed) == [2, 1]
    reading = InstanceReading(
        instance_id=an_instance_id(1),
        node_id=a_node_id(1),
        at_s=0.0,
        in_flight=0,
        queued=2,
        slots=1,
    )
    told = Readings(instances={reading.instance_id: reading})
    assert chosen(state, readings=told) == [2, 1]


def test_of_equally_busy_copies_the_one_that_has_read_most_of_the_prompt_is_asked() -> None:
    state = three(copy_on(1), copy_on(2), copy_on(3))
    warm = {an_instance_id(2): 1, an_instance_id(3): 5}
    for seed in range(50):
        assert chosen(state, warm=warm, seed=seed)[0] == 3
        busy = {an_instance_id(3): 1}
        assert chosen(state, warm=warm, in_flight=busy, seed=seed)[0] != 3
        assert chosen(state, warm=warm, unreachable={3}, seed=seed)[0] == 2


def test_copies_elsewhere_share_what_comes() -> None:
    state = three(copy_on(2), copy_on(3))
    counts = Counter(chosen(state, seed=seed)[0] for seed in range(200))
    assert min(counts.values()) > 50
    assert set(counts) == {2, 3}


def test_an_instance_needs_all_of_its_nodes() -> None:
    whole = a_plan(node=1)
    first = whole.shards[0].model_copy(update={"layer_end": 0})
    second = whole.shards[0].model_copy(update={"rank": 1, "node_id": a_node_id(2)})
    split = whole.model_copy(update={"shards": (first, second)})
    ready = copy_on(1)
    both = (*ready.runners, ready.runners[0].model_copy(update={"rank": 1}))
    state = three(ready.model_copy(update={"plan": split, "runners": both}))
    assert chosen(state) == [1]
    assert "box-2" in refused(state, unreachable={2}).message


@pytest.mark.parametrize("phase", ["ready", "load"])
def test_b30_an_instance_on_an_unreachable_node_is_503_and_names_the_node(phase: Phase) -> None:
    error = refused(three(copy_on(2, phase)), unreachable={2})
    assert (error.code, error.retry_after_s) == ("cluster.instance_unreachable", 5)
    assert "instance on unreachable node box-2" in error.message
    assert error.details["node_id"] == a_node_id(2)


def test_b30_a_copy_that_loads_within_reach_is_the_answer_before_one_out_of_reach() -> None:
    state = three(copy_on(2), copy_on(3, "load"))
    assert refused(state, unreachable={2}).code == "request.instance_loading"


def test_b30_an_instance_out_of_reach_is_the_answer_before_one_that_failed() -> None:
    failed = an_instance(3, node=3, phase="failed", failure=a_failure(3, node=3))
    state = three(failed, copy_on(2))
    assert refused(state, unreachable={2}).code == "cluster.instance_unreachable"
    assert refused(three(failed), unreachable={2}).code == "placement.failed"


def test_b30_an_unknown_model_stays_unknown_whoever_is_away() -> None:
    assert refused(three(), unreachable={2}).code == "request.model_not_found"


def test_a_model_that_is_being_stopped_with_time_to_answer_is_503_until_it_is_gone() -> None:
    draining = copy_on(2).model_copy(update={"desired": "stopped", "drain_ms": 60_000})
    error = refused(three(draining))
    assert (error.code, error.retry_after_s) == ("engine.draining", 5)
    assert chosen(three(draining, copy_on(3))) == [3]
    assert refused(three(draining, copy_on(3, "load"))).code == "request.instance_loading"
    stopped = draining.model_copy(update={"drain_ms": 0})
    assert refused(three(stopped)).code == "request.model_not_found"


def test_b30_clients_get_503_with_retry_after_and_service_again_when_the_node_is_back() -> None:
    async def story(api: Api) -> None:
        api.daemon.unreachable.add(NODE)
        for stream in (False, True):
            reply = await api.chat(stream=stream)
            assert (reply.status_code, reply.headers["retry-after"]) == (503, "5")
            error = read_answer(ErrorDocument, reply.content).error
            assert error.skulk_code == "cluster.instance_unreachable"
            assert "instance on unreachable node alpha" in error.message
        assert (await api.chat(model="no/such")).status_code == 404
        api.daemon.unreachable.clear()
        assert (await api.chat()).status_code == 200

    with_api(story, FakeDaemon(make_instance()))


def test_a_name_with_the_tag_latest_is_the_name_without_one_unless_there_is_such_a_model() -> None:
    plain = make_instance(card=make_card("a/b"), number=1)
    tagged = make_instance(card=make_card("a/b:latest"), number=2)
    other = make_instance(card=make_card("c/d:Q4"), number=3)
    state = make_state(plain, other)
    assert placed_instances(state, ModelId("a/b:latest")) == [plain]
    assert placed_instances(state, ModelId("a/b")) == [plain]
    assert placed_instances(state, ModelId("c/d:latest")) == []
    both = make_state(plain, tagged)
    assert placed_instances(both, ModelId("a/b:latest")) == [tagged]
    assert placed_instances(both, ModelId("a/b")) == [plain]
