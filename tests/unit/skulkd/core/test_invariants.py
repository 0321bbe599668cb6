import pytest

from protocol.events import ApiKeyRevoked, Event, InstanceRemoved, MasterElected, RunnerPhaseChanged
from protocol.state import ClusterState
from skulkd.core.invariants import event_violations, violations
from tests.support.builders import (
    a_failure,
    a_key_id,
    a_node_id,
    a_plan,
    a_runner,
    a_sequenced,
    a_state,
    an_instance,
    an_instance_id,
    some_arithmetic,
)


def test_a_sound_state_violates_nothing() -> None:
    assert violations(a_state(instances=[an_instance()])) == ()


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (a_state(failures=tuple(a_failure() for _ in range(65))), "65 failures"),
        (a_state(instances=[an_instance(1), an_instance(2)]), "copies"),
        (a_state(instances=[an_instance(attempt=2, failure=a_failure())]), "failed for good"),
        (
            a_state(instances=[an_instance().model_copy(update={"attempt": 2})]),
            "runner of attempt 1",
        ),
        (
            a_state(instances=[an_instance().model_copy(update={"runners": (a_runner(node=2),)})]),
            "plan does not say",
        ),
        (
            a_state(
                instances=[an_instance(plan=a_plan(memory=some_arithmetic(available_bytes=1)))]
            ),
            "too large",
        ),
    ],
)
def test_what_does_not_hold_is_named(state: ClusterState, words: str) -> None:
    (found,) = violations(state)
    assert words in found


@pytest.mark.parametrize(
    "event",
    [
        InstanceRemoved(instance_id=an_instance_id(9)),
        RunnerPhaseChanged(instance_id=an_instance_id(9), runner=a_runner()),
        ApiKeyRevoked(key_id=a_key_id(9)),
    ],
)
def test_an_event_about_the_unknown_cannot_be_next(event: Event) -> None:
    assert len(event_violations(a_state(), a_sequenced(event))) == 1


def test_the_position_only_goes_forward() -> None:
    elected = MasterElected(master=a_node_id())
    assert event_violations(a_state(), a_sequenced(elected)) == ()
    assert len(event_violations(a_state(), a_sequenced(elected, seq=12))) == 1
    assert len(event_violations(a_state(), a_sequenced(elected, term=0))) == 1
    assert len(event_violations(a_state(), a_sequenced(elected, at_ms=0))) == 1
