"""Reports of what boots take: idempotent, of the present attempt, under a key that is looked up."""

import pytest

from protocol.errors import RequestError, SkulkError
from protocol.events import MemoryMeasured
from protocol.instances import Instance
from protocol.state import ClusterState
from skulkd.core.memory_decisions import report
from skulkd.core.senders import check_sender
from tests.support.builders import MIB, a_member, a_node_id, a_runner, a_state, an_instance
from tests.support.measured_boots import a_boot_key, a_memory_report, some_memory


def a_cluster(instance: Instance) -> ClusterState:
    state = a_state(members=[a_member(), a_member(2)])
    return state.model_copy(update={"instances": {instance.instance_id: instance}})


def test_what_a_ready_runner_takes_is_noted_under_its_key() -> None:
    instance = an_instance()
    (event,) = report(a_cluster(instance), a_memory_report(instance))
    assert isinstance(event, MemoryMeasured)
    assert event.key == a_boot_key(instance)
    assert event.memory == some_memory()


def test_the_same_or_less_of_the_same_boot_changes_nothing_and_more_does() -> None:
    known = a_runner("ready").model_copy(update={"memory": some_memory(400 * MIB)})
    instance = an_instance().model_copy(update={"runners": (known,)})
    state = a_cluster(instance)
    for size, n_events in ((400, 0), (300, 0), (401, 1)):
        assert len(report(state, a_memory_report(instance, total_bytes=size * MIB))) == n_events


def test_a_late_report_and_one_of_a_runner_that_is_not_ready_change_nothing() -> None:
    instance = an_instance()
    again = instance.model_copy(update={"attempt": 2})
    assert report(a_cluster(again), a_memory_report(instance)) == ()
    loading = an_instance(phase="load")
    assert report(a_cluster(loading), a_memory_report(loading)) == ()


@pytest.mark.parametrize(
    "other",
    [{"context_tokens": 512}, {"slots": 7}, {"layer_end": 9}, {"rank": 1}, {"engine": "mlx"}],
)
def test_a_key_that_no_plan_would_look_up_is_refused(other: dict[str, object]) -> None:
    instance = an_instance()
    key = a_boot_key(instance).model_copy(update=other)
    with pytest.raises(RequestError) as refused:
        report(a_cluster(instance), a_memory_report(instance, key=key))
    assert refused.value.details == {"fields": next(iter(other))}


def test_a_node_reports_for_itself_only() -> None:
    instance = an_instance()
    state, command = a_cluster(instance), a_memory_report(instance)
    check_sender(state, a_node_id(1), command)
    with pytest.raises(SkulkError):
        check_sender(state, a_node_id(2), command)
