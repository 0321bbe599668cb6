"""Reconciling ends: whatever a worker finds, a few rounds lead to what the state wants."""

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.instances import PHASE_ORDER, Phase
from skulkd.core.reconcile import (
    ENDED_PHASES,
    Action,
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
    reconcile,
)
from tests.support.builders import a_plan, a_scripted_card, an_instance_id

PHASES: tuple[Phase, ...] = (*PHASE_ORDER, "stopping", "stopped", "failed")
keys = st.builds(
    RunnerKey, st.integers(1, 3).map(an_instance_id), st.integers(0, 1), st.integers(1, 3)
)
observations = st.dictionaries(keys, st.sampled_from(PHASES), max_size=8)
PLAN, CARD = a_plan(), a_scripted_card()


@st.composite
def desires(draw: st.DrawFn) -> dict[tuple[str, int], DesiredRunner]:
    wanted: dict[tuple[str, int], DesiredRunner] = {}
    for key in draw(st.lists(keys, max_size=6)):
        wanted[key.instance_id, key.rank] = DesiredRunner(
            key=key,
            wish=draw(st.sampled_from(("running", "asleep", "stopped"))),
            plan=PLAN,
            card=CARD,
            reported=draw(st.none() | st.sampled_from(PHASES[:-3])),
        )
    return wanted


class World:
    """State and worker in miniature: carries actions out at once."""

    def __init__(
        self, desired: dict[tuple[str, int], DesiredRunner], observed: dict[RunnerKey, Phase]
    ) -> None:
        self.desired = dict(desired)
        self.observed = dict(observed)
        self.started: list[RunnerKey] = []

    def step(self) -> tuple[Action, ...]:
        actions = reconcile(
            list(self.desired.values()),
            [ObservedRunner(key=key, phase=phase) for key, phase in self.observed.items()],
        )
        for action in actions:
            self.carry_out(action)
        for key, phase in self.observed.items():
            if phase == "stopping":
                self.observed[key] = "stopped"
        return actions

    def carry_out(self, action: Action) -> None:
        match action:
            case StartRunner(runner=runner):
                assert runner.key not in self.observed
                self.started.append(runner.key)
                self.observed[runner.key] = "pending"
            case StopRunner(key=key):
                assert self.observed[key] not in ENDED_PHASES
                self.observed[key] = "stopping"
            case ForgetRunner(key=key):
                assert self.observed[key] in ENDED_PHASES
                del self.observed[key]
            case ReportGone(key=key):
                self.desired.pop((key.instance_id, key.rank), None)
            case GoToSleep() | WakeAgain() | ReportAgain():
                # Nothing here has a time to live, is busy, or has just reported.
                raise AssertionError(action)
            case RenewAttempt(instance_id=instance_id, after_attempt=after_attempt):
                self.renew(instance_id, after_attempt)

    def renew(self, instance_id: str, after_attempt: int) -> None:
        for place, runner in self.desired.items():
            if place[0] == instance_id and runner.key.attempt == after_attempt:
                key = runner.key._replace(attempt=after_attempt + 1)
                self.desired[place] = DesiredRunner(key=key, wish=runner.wish, plan=PLAN, card=CARD)


@settings(max_examples=300, deadline=None)
@given(desires(), observations)
def test_reconciling_reaches_a_fixed_point_that_is_what_is_wanted(
    desired: dict[tuple[str, int], DesiredRunner], observed: dict[RunnerKey, Phase]
) -> None:
    world = World(desired, observed)
    for _ in range(12):
        before = (dict(world.observed), dict(world.desired))
        if not world.step() and before == (world.observed, world.desired):
            break
    assert world.step() == ()
    running = {runner.key for runner in world.desired.values() if runner.wish == "running"}
    assert set(world.observed) == running
    assert all(runner.wish != "stopped" for runner in world.desired.values())
    assert len(set(world.started)) == len(world.started)


@settings(max_examples=200, deadline=None)
@given(desires(), observations)
def test_no_rank_ever_has_two_live_runners_that_were_started_here(
    desired: dict[tuple[str, int], DesiredRunner], observed: dict[RunnerKey, Phase]
) -> None:
    world = World(desired, observed)
    for _ in range(12):
        world.step()
        for started in world.started:
            alive = [
                key
                for key, phase in world.observed.items()
                if key[:2] == started[:2] and phase not in ENDED_PHASES
            ]
            assert len(alive) <= 1
