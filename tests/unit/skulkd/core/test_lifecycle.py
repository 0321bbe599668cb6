import pytest

from protocol.instances import Phase
from skulkd.core.lifecycle import (
    ArtifactReady,
    CancelStep,
    Deadlines,
    DeviceLost,
    Drained,
    Effect,
    FailureReached,
    FetchArtifact,
    GroupGone,
    Input,
    Loaded,
    PhaseReached,
    ProbeAnswered,
    ProbeEngine,
    Progressed,
    RankLost,
    RefuseRequests,
    RunnerMachine,
    RunnerSpec,
    SignalGroup,
    Spawned,
    SpawnProcess,
    StageArtifact,
    Staged,
    StepFailed,
    Stop,
    WatchLoad,
)
from skulkd.core.reconcile import RunnerKey
from skulkd.core.runner_errors import Exited
from tests.support.builders import GIB, MIB, a_node_id, an_error, an_instance_id

PATH: tuple[tuple[Phase, Input | None], ...] = (
    ("pending", None),
    ("download", ArtifactReady()),
    ("stage", Staged()),
    ("spawn", Spawned(pid=42)),
    ("load", Loaded()),
    ("probe", ProbeAnswered()),
)
STEPS: tuple[Phase, ...] = ("download", "stage", "spawn", "load", "probe")
WITHOUT_PROCESS: tuple[Phase, ...] = ("pending", "download", "stage")
WITH_PROCESS: tuple[Phase, ...] = ("load", "probe", "ready")


def machine(*, size_bytes: int = 100 * MIB, delay_s: float = 0.0) -> RunnerMachine:
    spec = RunnerSpec(
        key=RunnerKey(an_instance_id(), 0, 1),
        node_id=a_node_id(),
        size_bytes=size_bytes,
        delay_s=delay_s,
    )
    return RunnerMachine(spec, now=0.0)


def advanced_to(phase: Phase, *, size_bytes: int = 100 * MIB) -> RunnerMachine:
    runner = machine(size_bytes=size_bytes)
    for reached, done in PATH:
        if runner.phase == phase:
            break
        assert runner.phase == reached
        if done is None:
            runner.tick(now=0.0)
        else:
            runner.handle(done, now=0.0)
    assert runner.phase == phase
    return runner


def codes(effects: list[Effect]) -> list[str]:
    return [effect.error.code for effect in effects if isinstance(effect, FailureReached)]


def test_a_runner_goes_through_its_phases_one_step_each() -> None:
    runner = machine()
    assert runner.tick(now=0.0) == [PhaseReached(phase="download", pid=None), FetchArtifact()]
    expected: tuple[tuple[Input, Effect, Effect | None], ...] = (
        (ArtifactReady(), PhaseReached(phase="stage", pid=None), StageArtifact()),
        (Staged(), PhaseReached(phase="spawn", pid=None), SpawnProcess()),
        (Spawned(pid=42), PhaseReached(phase="load", pid=42), WatchLoad()),
        (Loaded(), PhaseReached(phase="probe", pid=42), ProbeEngine()),
        (ProbeAnswered(), PhaseReached(phase="ready", pid=42), None),
    )
    for given, reached, step in expected:
        effects = [reached] if step is None else [reached, step]
        assert runner.handle(given, now=0.0) == effects
    assert runner.deadline is None


def test_the_backoff_is_waited_for_in_pending() -> None:
    runner = machine(delay_s=5.0)
    assert runner.deadline == pytest.approx(5.0)
    assert runner.tick(now=4.9) == []
    assert runner.tick(now=5.0)[0] == PhaseReached(phase="download", pid=None)


@pytest.mark.parametrize("phase", WITHOUT_PROCESS)
def test_stop_without_a_process_ends_at_once(phase: Phase) -> None:
    runner = advanced_to(phase)
    effects = runner.handle(Stop(), now=1.0)
    assert runner.phase == "stopped"
    assert effects[-1] == PhaseReached(phase="stopped", pid=None)
    assert (CancelStep(phase=phase) in effects) == (phase != "pending")


@pytest.mark.parametrize("phase", WITH_PROCESS)
def test_stop_with_a_process_ends_when_its_group_is_gone(phase: Phase) -> None:
    runner = advanced_to(phase)
    effects = runner.handle(Stop(), now=1.0)
    assert effects[-1] == SignalGroup(signal="SIGTERM")
    assert runner.phase == "stopping"
    assert runner.tick(now=5.9) == []
    assert runner.tick(now=6.0) == [SignalGroup(signal="SIGKILL")]
    assert runner.tick(now=11.0) == [SignalGroup(signal="SIGKILL")]
    assert runner.handle(Exited(signal="SIGKILL"), now=11.0) == []
    assert runner.handle(GroupGone(), now=11.1) == [PhaseReached(phase="stopped", pid=42)]
    assert (runner.ended, runner.deadline) == (True, None)


def test_a_spawn_under_way_is_awaited_and_then_torn_down() -> None:
    runner = advanced_to("spawn")
    assert CancelStep(phase="spawn") in runner.handle(Stop(), now=1.0)
    assert runner.phase == "stopping"
    assert runner.handle(Spawned(pid=42), now=2.0) == [SignalGroup(signal="SIGTERM")]
    runner.handle(GroupGone(), now=2.1)
    assert runner.phase == "stopped"


def test_a_spawn_under_way_that_fails_after_stop_ends_as_stopped() -> None:
    runner = advanced_to("spawn")
    runner.handle(Stop(), now=1.0)
    error = an_error("runner.spawn_failed")
    runner.handle(StepFailed(phase="spawn", error=error), now=2.0)
    assert (runner.phase, runner.failure) == ("stopped", None)


def test_a_second_stop_does_not_prolong_the_first() -> None:
    runner = advanced_to("ready")
    runner.handle(Stop(), now=1.0)
    assert runner.handle(Stop(), now=5.0) == []
    assert runner.deadline == pytest.approx(6.0)


def test_a_ready_runner_that_drains_stays_so_until_its_requests_have_ended() -> None:
    runner = advanced_to("ready")
    assert runner.deadline is None
    assert runner.handle(Drained(), now=1.0) == []
    assert runner.handle(Stop(drain_s=60.0), now=1.0) == [RefuseRequests()]
    assert (runner.phase, runner.deadline) == ("ready", 61.0)
    assert runner.tick(now=60.9) == []
    effects = runner.handle(Drained(), now=10.0)
    assert effects == [PhaseReached(phase="stopping", pid=42), SignalGroup(signal="SIGTERM")]
    assert runner.deadline == pytest.approx(15.0)


def test_a_drain_ends_at_its_deadline_which_counts_from_the_first_word() -> None:
    runner = advanced_to("ready")
    runner.handle(Stop(drain_s=60.0), now=1.0)
    assert runner.handle(Stop(drain_s=60.0), now=30.0) == []
    assert runner.deadline == pytest.approx(61.0)
    assert runner.handle(Stop(drain_s=10.0), now=31.0) == []
    assert runner.deadline == pytest.approx(41.0)
    assert runner.tick(now=41.0)[-1] == SignalGroup(signal="SIGTERM")
    assert runner.phase == "stopping"


def test_a_drain_is_cut_short_by_a_plain_stop_and_by_the_end_of_its_engine() -> None:
    runner = advanced_to("ready")
    runner.handle(Stop(drain_s=60.0), now=1.0)
    assert runner.handle(Stop(), now=2.0)[-1] == SignalGroup(signal="SIGTERM")
    dying = advanced_to("ready")
    dying.handle(Stop(drain_s=60.0), now=1.0)
    assert isinstance(dying.handle(Exited(exit_code=1), now=2.0)[0], FailureReached)


@pytest.mark.parametrize("phase", [*WITHOUT_PROCESS, "load", "probe"])
def test_a_runner_that_serves_nobody_yet_is_not_drained_but_stopped(phase: Phase) -> None:
    drained, stopped = advanced_to(phase), advanced_to(phase)
    effects = drained.handle(Stop(drain_s=60.0), now=1.0)
    assert effects == stopped.handle(Stop(), now=1.0)
    assert drained.phase == stopped.phase


@pytest.mark.parametrize("phase", STEPS)
def test_a_failed_step_fails_the_runner_with_its_error(phase: Phase) -> None:
    runner = advanced_to(phase)
    error = an_error("store.incomplete")
    effects = runner.handle(StepFailed(phase=phase, error=error), now=1.0)
    assert codes(effects) == ["store.incomplete"]
    assert runner.failure is not None
    assert (runner.failure.phase, runner.failure.was_ready) == (phase, False)
    runner.handle(GroupGone(), now=1.1)
    assert runner.phase == "failed"


def test_the_late_failure_of_an_earlier_step_is_ignored() -> None:
    runner = advanced_to("load")
    assert runner.handle(StepFailed(phase="stage", error=an_error()), now=1.0) == []
    assert runner.phase == "load"


@pytest.mark.parametrize("phase", WITH_PROCESS)
def test_an_exit_is_said_at_once_with_its_status_and_last_words(phase: Phase) -> None:
    runner = advanced_to(phase)
    effects = runner.handle(Exited(exit_code=3, log_tail=("bad flag: --frob", "")), now=1.0)
    failure = effects[0]
    assert isinstance(failure, FailureReached)
    assert (failure.exit_code, failure.was_ready) == (3, phase == "ready")
    assert "code 3" in failure.error.message
    assert "bad flag: --frob" in failure.error.message
    assert failure.log_tail == ("bad flag: --frob", "")
    assert SignalGroup(signal="SIGKILL") in effects
    assert runner.handle(GroupGone(), now=1.1) == [PhaseReached(phase="failed", pid=42)]


def test_a_group_that_is_gone_without_an_exit_is_a_failure_too() -> None:
    runner = advanced_to("ready")
    effects = runner.handle(GroupGone(), now=1.0)
    assert codes(effects) == ["runner.exited"]
    assert runner.phase == "failed"
    assert not any(isinstance(effect, SignalGroup) for effect in effects)


@pytest.mark.parametrize(
    ("exited", "code"),
    [
        (Exited(exit_code=1), "runner.exited"),
        (Exited(signal="SIGSEGV"), "runner.exited"),
        (Exited(signal="SIGKILL"), "runner.exited"),
        (Exited(signal="SIGKILL", oom_killed=True), "runner.out_of_memory"),
        (Exited(signal="SIGILL"), "engine.cpu_unsupported"),
        (Exited(), "runner.exited"),
    ],
)
def test_the_way_a_process_ends_names_the_error(exited: Exited, code: str) -> None:
    assert codes(advanced_to("load").handle(exited, now=1.0)) == [code]


@pytest.mark.parametrize(
    ("phase", "limit_s", "code"),
    [
        ("download", 600.0, "store.stalled"),
        ("stage", 120.0, "store.stalled"),
        ("spawn", 10.0, "runner.spawn_failed"),
        ("load", 60.0, "runner.load_stalled"),
        ("probe", 60.0, "runner.probe_failed"),
    ],
)
def test_silence_beyond_the_limit_fails_the_phase(phase: Phase, limit_s: float, code: str) -> None:
    runner = advanced_to(phase)
    assert runner.tick(now=limit_s - 0.1) == []
    assert codes(runner.tick(now=limit_s)) == [code]


def test_a_slow_load_with_progress_is_left_alone() -> None:
    runner = advanced_to("load")
    for minute in range(1, 11):
        now = 50.0 * minute
        assert runner.tick(now=now) == []
        runner.handle(Progressed(done_bytes=minute * MIB), now=now)
    assert runner.phase == "load"


def test_a_load_that_only_repeats_itself_makes_no_progress() -> None:
    runner = advanced_to("load")
    runner.handle(Progressed(done_bytes=MIB, note="loading"), now=1.0)
    for second in range(2, 61):
        runner.handle(Progressed(done_bytes=MIB, note="loading"), now=float(second))
    assert codes(runner.tick(now=61.0)) == ["runner.load_stalled"]


def test_the_silence_allowed_in_a_load_grows_with_its_size() -> None:
    runner = advanced_to("load", size_bytes=60 * GIB)
    assert runner.deadline == pytest.approx(60 * GIB / 20e6)
    assert Deadlines().silent_load_s(MIB) == pytest.approx(60.0)


def test_progress_shows_a_rate_and_a_remaining_time_once_measured() -> None:
    runner = advanced_to("download")
    runner.handle(Progressed(done_bytes=0, total_bytes=100), now=1.0)
    assert runner.progress(now=1.0).rate_bytes_s is None
    runner.handle(Progressed(done_bytes=20), now=3.0)
    shown = runner.progress(now=3.0)
    assert (shown.done_bytes, shown.total_bytes) == (20, 100)
    assert shown.rate_bytes_s == pytest.approx(10.0)
    assert shown.eta_s == pytest.approx(8.0)


def test_the_rate_is_of_the_last_seconds_and_falls_when_bytes_stop_coming() -> None:
    runner = advanced_to("download")
    for second in range(11):
        runner.handle(Progressed(done_bytes=100 * second, total_bytes=10_000), now=float(second))
    assert runner.progress(now=10.0).rate_bytes_s == pytest.approx(100.0)
    rate = runner.progress(now=20.0).rate_bytes_s
    assert rate is not None
    assert rate < 50.0


def test_bytes_never_run_backwards() -> None:
    runner = advanced_to("load")
    runner.handle(Progressed(done_bytes=50, total_bytes=100), now=1.0)
    runner.handle(Progressed(done_bytes=10), now=2.0)
    assert runner.progress(now=2.0).done_bytes == 50


def test_nothing_changes_after_the_end() -> None:
    runner = advanced_to("download")
    runner.handle(Stop(), now=1.0)
    for given in (Stop(), ArtifactReady(), Exited(exit_code=0), GroupGone()):
        assert runner.handle(given, now=2.0) == []
    assert runner.tick(now=1e9) == []
    assert runner.phase == "stopped"


@pytest.mark.parametrize("phase", WITH_PROCESS)
def test_b34_an_engine_whose_gpu_is_gone_is_ended_though_it_lives(phase: Phase) -> None:
    effects = advanced_to(phase).handle(DeviceLost(name="RTX 4080"), now=1.0)
    (failure,) = [effect for effect in effects if isinstance(effect, FailureReached)]
    assert (failure.error.code, failure.was_ready) == ("engine.gone", phase == "ready")
    assert "RTX 4080" in failure.error.message
    assert any(isinstance(effect, SignalGroup) for effect in effects)


@pytest.mark.parametrize("phase", WITHOUT_PROCESS)
def test_a_runner_that_holds_no_gpu_yet_goes_on(phase: Phase) -> None:
    assert advanced_to(phase).handle(DeviceLost(name="RTX 4080"), now=1.0) == []


@pytest.mark.parametrize("phase", WITH_PROCESS)
def test_a_runner_whose_other_rank_is_lost_fails_at_once_and_is_ended(phase: Phase) -> None:
    runner = advanced_to(phase)
    effects = runner.handle(RankLost(error=an_error("runner.rank_lost", "donor b")), now=1.0)
    assert codes(effects) == ["runner.rank_lost"]
    assert SignalGroup(signal="SIGTERM") in effects
    assert runner.phase == "stopping"
    assert runner.handle(RankLost(error=an_error("runner.rank_lost", "donor c")), now=1.1) == []


def test_a_runner_that_has_no_process_yet_ends_with_the_loss_of_another_rank() -> None:
    runner = advanced_to("stage")
    runner.handle(RankLost(error=an_error("runner.rank_lost", "donor b")), now=1.0)
    assert runner.phase == "failed"
