"""A runner's machine always has a deadline until it serves or ends, and ends exactly once."""

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.instances import Phase
from skulkd.core.lifecycle import (
    ArtifactReady,
    Drained,
    Effect,
    FailureReached,
    GroupGone,
    Input,
    Loaded,
    PhaseReached,
    ProbeAnswered,
    Progressed,
    RefuseRequests,
    RunnerMachine,
    RunnerSpec,
    SignalGroup,
    Spawned,
    SpawnProcess,
    Staged,
    StepFailed,
    Stop,
)
from skulkd.core.reconcile import RunnerKey
from skulkd.core.runner_errors import Exited
from tests.support.builders import GIB, a_node_id, an_error, an_instance_id

STEPS: tuple[Phase, ...] = ("download", "stage", "spawn", "load", "probe")
failed_steps = st.sampled_from(STEPS).map(lambda phase: StepFailed(phase=phase, error=an_error()))
inputs: st.SearchStrategy[Input] = st.one_of(
    st.sampled_from(
        (
            ArtifactReady(),
            Staged(),
            Spawned(pid=42),
            Loaded(),
            ProbeAnswered(),
            Stop(),
            Stop(drain_s=30.0),
            Stop(drain_s=600.0),
            Drained(),
            GroupGone(),
            Exited(exit_code=1),
            Exited(signal="SIGKILL", oom_killed=True),
        )
    ),
    st.integers(0, GIB).map(lambda done: Progressed(done_bytes=done, total_bytes=GIB)),
    failed_steps,
)
steps = st.lists(st.tuples(st.floats(0.0, 700.0), st.none() | inputs), max_size=40)
happy = st.sampled_from(
    (
        [],
        [ArtifactReady()],
        [ArtifactReady(), Staged()],
        [ArtifactReady(), Staged(), Spawned(pid=1)],
    )
)


class Shell:
    """Keeps account of what a machine asked for, and checks it after every step."""

    def __init__(self, delay_s: float) -> None:
        spec = RunnerSpec(
            key=RunnerKey(an_instance_id(), 0, 1),
            node_id=a_node_id(),
            size_bytes=GIB,
            delay_s=delay_s,
        )
        self.now = 0.0
        self.machine = RunnerMachine(spec, now=0.0)
        self.effects: list[Effect] = []
        self.has_spawned = False
        self.is_draining = False

    def take(self, effects: list[Effect]) -> None:
        self.effects.extend(effects)
        self.has_spawned |= any(isinstance(effect, SpawnProcess) for effect in effects)
        if any(isinstance(effect, SignalGroup) for effect in effects):
            assert self.has_spawned
        self.is_draining |= any(isinstance(effect, RefuseRequests) for effect in effects)
        is_ready = self.machine.phase == "ready"
        is_steady = self.machine.ended or (is_ready and not self.is_draining)
        assert (self.machine.deadline is None) == is_steady

    def give(self, given: Input) -> None:
        self.take(self.machine.handle(given, now=self.now))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.take(self.machine.tick(now=self.now))

    def settle(self) -> None:
        """Stop, answer what is still under way, and let time pass until the end."""
        self.give(Stop())
        for _ in range(20):
            if self.machine.ended:
                return
            deadline = self.machine.deadline
            assert deadline is not None
            self.now = max(self.now, deadline)
            self.take(self.machine.tick(now=self.now))
            self.give(Spawned(pid=42))
            self.give(GroupGone())

    def reached(self) -> list[Phase]:
        return [effect.phase for effect in self.effects if isinstance(effect, PhaseReached)]


@settings(max_examples=400, deadline=None)
@given(st.sampled_from((0.0, 5.0)), happy, steps)
def test_every_history_ends_in_exactly_one_terminal(
    delay_s: float, opening: list[Input], story: list[tuple[float, Input | None]]
) -> None:
    shell = Shell(delay_s)
    shell.wait(delay_s)
    for given_input in opening:
        shell.give(given_input)
    for seconds, given_input in story:
        shell.wait(seconds)
        if given_input is not None:
            shell.give(given_input)
    shell.settle()
    assert shell.machine.ended
    ends = [phase for phase in shell.reached() if phase in {"stopped", "failed"}]
    assert ends == [shell.machine.phase]
    failures = [effect for effect in shell.effects if isinstance(effect, FailureReached)]
    assert len(failures) == (1 if shell.machine.phase == "failed" else 0)


@settings(max_examples=200, deadline=None)
@given(steps)
def test_phases_are_reported_in_order_and_each_once(
    story: list[tuple[float, Input | None]],
) -> None:
    order = [
        "download",
        "stage",
        "spawn",
        "load",
        "probe",
        "ready",
        "stopping",
        "stopped",
        "failed",
    ]
    shell = Shell(0.0)
    shell.wait(0.0)
    for seconds, given_input in story:
        shell.wait(seconds)
        if given_input is not None:
            shell.give(given_input)
    places = [order.index(phase) for phase in shell.reached()]
    assert places == sorted(set(places))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, GIB), max_size=30), st.floats(0.1, 59.0))
def test_a_load_is_left_alone_as_long_as_it_gets_on(reports: list[int], pause_s: float) -> None:
    shell = Shell(0.0)
    shell.wait(0.0)
    for given_input in (ArtifactReady(), Staged(), Spawned(pid=42)):
        shell.give(given_input)
    for done_bytes in sorted(set(reports) - {0}):
        shell.wait(pause_s)
        shell.give(Progressed(done_bytes=done_bytes))
    assert shell.machine.phase == "load"
