from dataclasses import replace

import pytest

from protocol.instances import DesiredPhase, DisconnectPolicy, Phase
from protocol.tasks import KEEP_ALWAYS
from skulkd.core.reconcile import (
    REPEAT_S,
    DesiredRunner,
    ForgetRunner,
    GoToSleep,
    ObservedRunner,
    RenewAttempt,
    ReportAgain,
    ReportGone,
    RunnerKey,
    StartRunner,
    StopRunner,
    WakeAgain,
    desired_runners,
    reconcile,
)
from tests.support.builders import (
    a_failure,
    a_node_id,
    a_plan,
    a_scripted_card,
    a_state,
    an_instance,
    an_instance_id,
)


def key(number: int = 1, attempt: int = 1) -> RunnerKey:
    return RunnerKey(an_instance_id(number), 0, attempt)


def wants(
    number: int = 1,
    *,
    attempt: int = 1,
    wish: DesiredPhase = "running",
    reported: Phase | None = None,
    ttl_s: float | None = None,
) -> DesiredRunner:
    return DesiredRunner(
        key=key(number, attempt),
        wish=wish,
        ttl_s=ttl_s,
        plan=a_plan(),
        card=a_scripted_card(),
        reported=reported,
    )


def sees(
    number: int = 1,
    *,
    attempt: int = 1,
    phase: Phase = "ready",
    is_busy: bool = False,
    idle_s: float = 0.0,
    said_s: float = 0.0,
) -> ObservedRunner:
    return ObservedRunner(
        key=key(number, attempt), phase=phase, is_busy=is_busy, idle_s=idle_s, said_s=said_s
    )


def test_a_runner_that_was_never_seen_is_started() -> None:
    assert reconcile([wants()], []) == (StartRunner(runner=wants()),)


def test_a_runner_that_an_earlier_daemon_had_gets_a_new_attempt() -> None:
    renewed = RenewAttempt(instance_id=an_instance_id(), after_attempt=1)
    assert reconcile([wants(reported="ready")], []) == (renewed,)


def test_a_runner_that_is_there_is_left_alone_and_so_is_one_whose_end_is_being_judged() -> None:
    for phase in ("pending", "load", "ready", "stopping", "failed"):
        assert reconcile([wants(reported="load")], [sees(phase=phase)]) == ()


def test_a_report_without_effect_is_said_again_after_a_while() -> None:
    again = ReportAgain(key=key())
    for phase in ("ready", "failed"):
        assert reconcile([wants(reported="load")], [sees(phase=phase, said_s=REPEAT_S)]) == (again,)
        assert reconcile([wants(reported="load")], [sees(phase=phase, said_s=REPEAT_S - 1)]) == ()
        assert reconcile([wants(reported=phase)], [sees(phase=phase, said_s=REPEAT_S)]) == ()
    # The next phase makes up for it.
    assert reconcile([wants(reported="spawn")], [sees(phase="load", said_s=REPEAT_S)]) == ()


def test_an_older_attempt_is_stopped_before_the_new_one_starts() -> None:
    want = wants(attempt=2)
    assert reconcile([want], [sees(phase="ready")]) == (StopRunner(key=key(), reason="superseded"),)
    assert reconcile([want], [sees(phase="stopping")]) == ()
    assert reconcile([want], [sees(phase="failed")]) == (
        ForgetRunner(key=key()),
        StartRunner(runner=want),
    )


def test_a_wanted_runner_that_was_stopped_gets_a_new_attempt() -> None:
    assert reconcile([wants(reported="ready")], [sees(phase="stopped")]) == (
        ForgetRunner(key=key()),
        RenewAttempt(instance_id=an_instance_id(), after_attempt=1),
    )


def test_an_unwanted_runner_is_stopped_then_reported_gone() -> None:
    want = wants(wish="stopped", reported="ready")
    assert reconcile([want], [sees()]) == (StopRunner(key=key(), reason="unwanted"),)
    assert reconcile([want], [sees(phase="stopping")]) == ()
    assert reconcile([want], [sees(phase="stopped")]) == (
        ForgetRunner(key=key()),
        ReportGone(key=key()),
    )
    assert reconcile([want], []) == (ReportGone(key=key()),)


def test_the_time_for_its_requests_is_said_at_each_look_while_a_runner_drains() -> None:
    stopping = an_instance(stopping=True).model_copy(update={"drain_ms": 1500})
    desired = desired_runners(a_state(instances=[stopping]), a_node_id(1))
    assert [(want.wish, want.drain_s) for want in desired] == [("stopped", 1.5)]
    drained = StopRunner(key=key(), reason="unwanted", drain_s=1.5)
    assert reconcile(desired, [sees()]) == reconcile(desired, [sees()]) == (drained,)


def test_an_unknown_runner_is_stopped_then_forgotten() -> None:
    assert reconcile([], [sees()]) == (StopRunner(key=key(), reason="unknown"),)
    assert reconcile([], [sees(phase="failed")]) == (ForgetRunner(key=key()),)


def test_only_this_nodes_ranks_are_desired() -> None:
    state = a_state(instances=[an_instance(1, node=1), an_instance(2, node=2)])
    assert [runner.key for runner in desired_runners(state, a_node_id(2))] == [key(2)]


def test_an_instance_that_failed_for_good_is_not_desired() -> None:
    state = a_state(instances=[an_instance(failure=a_failure(final=True))])
    assert desired_runners(state, a_node_id()) == ()


def test_a_retried_runner_carries_its_wait_and_nothing_reported() -> None:
    failure = a_failure(phase="ready", final=False)
    instance = an_instance(phase=None, attempt=2, failure=failure)
    (runner,) = desired_runners(a_state(instances=[instance], failures=(failure,)), a_node_id())
    assert (runner.key.attempt, runner.delay_s, runner.reported) == (2, 1.0, None)


def test_a_stopping_instance_waits_only_for_ranks_that_are_not_gone() -> None:
    (runner,) = desired_runners(a_state(instances=[an_instance(stopping=True)]), a_node_id())
    assert runner.wish == "stopped"
    gone = an_instance(stopping=True, phase="stopped")
    assert desired_runners(a_state(instances=[gone]), a_node_id()) == ()


def test_an_idle_runner_asks_for_sleep_once_its_time_is_over_and_not_while_it_answers() -> None:
    want = wants(reported="ready", ttl_s=60.0)
    asked = GoToSleep(instance_id=an_instance_id(), attempt=1)
    assert reconcile([want], [sees(idle_s=59.9)]) == ()
    assert reconcile([want], [sees(idle_s=60.0)]) == (asked,)
    assert reconcile([want], [sees(is_busy=True)]) == ()
    assert reconcile([wants(reported="ready")], [sees(idle_s=1e9)]) == ()


@pytest.mark.parametrize(
    ("keep_s", "idle_s", "goes"),
    [
        (90, 60.0, False),
        (90, 90.0, True),
        (5, 5.0, True),
        (0, 0.0, True),
        (KEEP_ALWAYS, 1e9, False),
    ],
)
def test_requests_may_say_how_long_an_on_demand_runner_stays(
    keep_s: int, idle_s: float, *, goes: bool
) -> None:
    seen = replace(sees(idle_s=idle_s), keep_s=keep_s)
    asked = GoToSleep(instance_id=an_instance_id(), attempt=1)
    assert reconcile([wants(reported="ready", ttl_s=60.0)], [seen]) == ((asked,) if goes else ())
    assert reconcile([wants(reported="ready")], [seen]) == (), "not on demand, or pinned"
    busy = replace(seen, is_busy=True)
    assert reconcile([wants(reported="ready", ttl_s=60.0)], [busy]) == ()


def test_a_sleeping_instance_is_unloaded_and_said_to_be_gone() -> None:
    want = wants(wish="asleep", reported="ready")
    assert reconcile([want], [sees()]) == (StopRunner(key=key(), reason="asleep"),)
    assert reconcile([want], [sees(phase="stopping")]) == ()
    gone = ReportGone(key=key())
    assert reconcile([want], [sees(phase="stopped")]) == (ForgetRunner(key=key()), gone)
    assert reconcile([want], []) == (gone,)


def test_a_request_that_came_before_the_word_that_it_sleeps_is_answered() -> None:
    want = wants(wish="asleep", reported="ready")
    again = WakeAgain(instance_id=an_instance_id())
    assert reconcile([want], [sees(is_busy=True)]) == (again,)


def test_one_that_was_never_asked_for_has_nothing_to_say() -> None:
    assert reconcile([wants(wish="asleep")], []) == ()
    assert reconcile([wants(wish="asleep", reported="failed")], []) == ()


def test_only_what_is_on_demand_and_ready_and_not_pinned_has_a_time_to_live() -> None:
    told = {"ttl_ms": 1500}
    ready = an_instance().model_copy(update=told)
    others = [
        an_instance(),
        an_instance(phase="load").model_copy(update=told),
        ready.model_copy(update={"pinned": True}),
    ]
    times = [
        desired_runners(a_state(instances=[one]), a_node_id())[0].ttl_s for one in (ready, *others)
    ]
    assert times == [1.5, None, None, None]


def test_what_is_not_to_run_without_a_master_is_wanted_no_more_after_its_time() -> None:
    bounded = an_instance(1).model_copy(
        update={"disconnect": DisconnectPolicy(stop_after_ms=60_000)}
    )
    state = a_state(instances=[bounded, an_instance(2)])
    me = a_node_id()
    assert len(desired_runners(state, me, masterless_s=59.9)) == 2
    (left,) = desired_runners(state, me, masterless_s=60.0)
    assert left.key.instance_id == an_instance_id(2), "without a bound it serves on"
    (stop,) = reconcile((left,), [sees(1), sees(2)])
    assert stop == StopRunner(key=key(1), reason="unknown")
    (again,) = reconcile(desired_runners(state, me)[:1], [])
    assert again == RenewAttempt(instance_id=an_instance_id(1), after_attempt=1)
