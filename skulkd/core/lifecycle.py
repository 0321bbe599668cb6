"""The machine of one runner: from wanted to serving to gone.

It owns no process, socket or file: its inputs say what happened, its effects say what to do, and
its shell (worker/supervisor) executes them. One machine is one attempt of one rank.

    phase     its step       left by                  no-progress deadline
    --------  -------------  -----------------------  --------------------------------
    pending   -              tick after the backoff   the backoff
    download  FetchArtifact  ArtifactReady            600 s (the store's own is shorter)
    stage     StageArtifact  Staged                   120 s, more for large models
    spawn     SpawnProcess   Spawned                  10 s in all
    load      WatchLoad      Loaded                   60 s, more for large models
    probe     ProbeEngine    ProbeAnswered            60 s in all
    ready     -              Stop, Drained, Exited    none; once it drains, the end of that
    stopping  SignalGroup    GroupGone                5 s from SIGTERM to SIGKILL
    stopped   -              terminal: after Stop
    failed    -              terminal: after a failure, which may come in every phase

A failure is said at once (`FailureReached`), before the process group is gone: an operator learns
of it within 2 s, while the memory it held is free only at the terminal. Deadlines measure the
absence of progress, never total time: a slow load is left alone. `Stop` is honoured in every phase;
one that is ready may be given time for the requests that it has, and then stays `ready` until they
have ended (`Drained`) or the time is over. A further `Stop` may shorten it.
Without a process the machine ends at once; with one only when its whole group is gone, and from
SIGTERM on SIGKILL is repeated every 5 s, so that the machine always has a deadline until it ends.
A spawn under way cannot be called back: its outcome is awaited, then torn down.

Inputs that do not belong to the phase (a late answer, a doubled exit) change nothing.
"""

from dataclasses import dataclass
from typing import Final, Literal, assert_never, final

from protocol.errors import ErrorBody
from protocol.ids import NodeId
from protocol.instances import Phase
from protocol.readings import PhaseProgress
from skulkd.core.progress import ProgressTracker
from skulkd.core.reconcile import RunnerKey
from skulkd.core.runner_errors import (
    Exited,
    device_lost,
    engine_hung,
    exit_error,
    load_stalled,
    phase_stalled,
    probe_unanswered,
    spawn_late,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long a phase may go without progress, in seconds."""

    download_s: float = 600.0
    stage_s: float = 120.0
    spawn_s: float = 10.0
    load_s: float = 60.0
    """The least; see `slowest_bytes_s`."""
    probe_s: float = 60.0
    group_s: float = 90.0
    """How long the driver of a pooled model waits for its donors, in all."""
    terminate_s: float = 5.0
    """From SIGTERM to SIGKILL, and from one SIGKILL to the next."""
    slowest_bytes_s: float = 20e6
    """A disk slower than this looks like a hang: stage and load may be silent for size / this."""

    def silent_load_s(self, size_bytes: int) -> float:
        """Give how long a load of this size may say nothing."""
        return max(self.load_s, size_bytes / self.slowest_bytes_s)

    def silent_stage_s(self, size_bytes: int) -> float:
        """Give how long staging (verifying) this size may say nothing."""
        return max(self.stage_s, size_bytes / self.slowest_bytes_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSpec:
    """What the machine has to know of the runner it drives."""

    key: RunnerKey
    node_id: NodeId
    size_bytes: int
    """What is loaded; scales the deadlines."""
    delay_s: float = 0.0
    """How long to wait before anything is done: the breaker's backoff."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Somebody no longer wants the runner, in whatever phase it is."""

    drain_s: float = 0.0
    """How long a ready one may go on with the requests that it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """The last request of a runner that takes no further ones has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactReady:
    """All files are here, verified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Files, memory and ports are as the launch needs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawned:
    """The process exists."""

    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The engine says that the model is loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswered:
    """One real request came back over the path that clients use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFailed:
    """The step of the present phase (fetch, stage, spawn, load, probe) failed with an error."""

    phase: Phase
    """The phase that the step belonged to; a late failure of an earlier step is ignored."""
    error: ErrorBody


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """The step of the present phase got on: more bytes, or something else to say."""

    done_bytes: int | None = None
    total_bytes: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLost:
    """Another rank of the instance is gone, without which this one is of no use."""

    error: ErrorBody


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupGone:
    """No process of the group is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hung:
    """A ready engine answers nobody any more, though its process lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLost:
    """What the engine computes on is gone; it may go on with the CPU, and must not."""

    name: str


Input = (
    Stop
    | Drained
    | ArtifactReady
    | Staged
    | Spawned
    | Loaded
    | ProbeAnswered
    | StepFailed
    | Progressed
    | Exited
    | Hung
    | DeviceLost
    | RankLost
    | GroupGone
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseReached:
    """Report the phase (`ReportPhase`), unless it is `failed`: that was reported as a failure."""

    phase: Phase
    pid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureReached:
    """Report the failure (`ReportFailure`) now; the process may still be going."""

    phase: Phase
    """Where it failed."""
    error: ErrorBody
    exit_code: int | None
    signal: str | None
    log_tail: tuple[str, ...]
    was_ready: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchArtifact:
    """Have the store bring the files; answer ArtifactReady, Progressed or StepFailed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageArtifact:
    """Check files, live memory and ports; answer Staged, Progressed or StepFailed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnProcess:
    """Start the process; answer Spawned or StepFailed, and Exited whenever it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchLoad:
    """Poll the engine and its memory; answer Progressed, Loaded or StepFailed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeEngine:
    """Send one real request; answer ProbeAnswered or StepFailed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelStep:
    """End the step of this phase; of `spawn` alone an answer is still awaited."""

    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseRequests:
    """Take no further request; answer Drained when the last one has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalGroup:
    """Send a signal to the whole process group; answer GroupGone once it is empty."""

    signal: Literal["SIGTERM", "SIGKILL"]


Effect = (
    PhaseReached
    | FailureReached
    | FetchArtifact
    | StageArtifact
    | SpawnProcess
    | WatchLoad
    | ProbeEngine
    | CancelStep
    | RefuseRequests
    | SignalGroup
)

_TERMINAL: Final[frozenset[Phase]] = frozenset({"stopped", "failed"})
_ON_DEVICE: Final[frozenset[Phase]] = frozenset({"load", "probe", "ready"})
"""In which an engine holds a device; one that begins later meets no build that computes on it."""
_STEPS: Final[frozenset[Phase]] = frozenset({"download", "stage", "spawn", "load", "probe"})


@final
class RunnerMachine:
    """Drives one runner through its phases.

    Args:
        spec: Which runner, how large, how long to wait first.
        now: Monotonic seconds.
        deadlines: How long each phase may go without progress.

    Invariant: `deadline` is None only in `ready`, until it drains, and once `ended`.
    """

    def __init__(self, spec: RunnerSpec, *, now: float, deadlines: Deadlines | None = None) -> None:
        self._spec = spec
        self._deadlines = deadlines or Deadlines()
        self._phase: Phase = "pending"
        self._since_s = now
        self._deadline: float | None = now + spec.delay_s
        self._process: Literal["none", "spawning", "alive"] = "none"
        self._pid: int | None = None
        self._failure: FailureReached | None = None
        self._tracker = ProgressTracker(now=now)

    @property
    def spec(self) -> RunnerSpec:
        """Which runner this is."""
        return self._spec

    @property
    def phase(self) -> Phase:
        """Where it stands."""
        return self._phase

    @property
    def pid(self) -> int | None:
        """The process's id, from Spawned on."""
        return self._pid

    @property
    def failure(self) -> FailureReached | None:
        """What went wrong, as it was reported."""
        return self._failure

    @property
    def ended(self) -> bool:
        """Whether the phase is terminal; inputs change nothing any more."""
        return self._phase in _TERMINAL

    @property
    def deadline(self) -> float | None:
        """The earliest time at which `tick` wants to be called."""
        return self._deadline

    def progress(self, *, now: float) -> PhaseProgress:
        """Say how far the present phase is; rate and remaining time only once measured."""
        key = self._spec.key
        shown = self._tracker.shown(now=now)
        return PhaseProgress(
            instance_id=key.instance_id,
            node_id=self._spec.node_id,
            rank=key.rank,
            attempt=key.attempt,
            phase=self._phase,
            since_s=self._since_s,
            at_s=now,
            done_bytes=shown.done_bytes,
            total_bytes=shown.total_bytes,
            rate_bytes_s=shown.rate_bytes_s,
            eta_s=shown.eta_s,
            note=shown.note,
        )

    def handle(self, given: Input, *, now: float) -> list[Effect]:
        """Take what happened; returns what to do, in order."""
        if self.ended:
            return []
        match given:
            case Stop():
                return self._stop(given, now)
            case Drained():
                return self._drained(now)
            case Exited():
                return self._exited(given, now)
            case Hung() | DeviceLost() | RankLost():
                return self._failing(given, now)
            case GroupGone():
                return self._group_gone(now)
            case Spawned():
                return self._spawned(given, now)
            case StepFailed():
                return self._step_failed(given, now)
            case Progressed():
                self._progressed(given, now)
                return []
            case _:
                return self._step_done(given, now)

    def tick(self, *, now: float) -> list[Effect]:
        """Let time pass; does nothing before the deadline."""
        if self._deadline is None or now < self._deadline:
            return []
        if self._phase == "pending":
            return self._enter("download", now)
        if self._phase == "ready":
            return self._tear_down(now, signal="SIGTERM", step_over=False)
        if self._phase == "stopping":
            self._deadline = now + self._deadlines.terminate_s
            if self._process == "alive":
                return [SignalGroup(signal="SIGKILL")]
            return [CancelStep(phase="spawn")]
        return self._fail(self._overdue(now), now)

    def _overdue(self, now: float) -> ErrorBody:
        size_bytes = self._spec.size_bytes
        match self._phase:
            case "stage":
                return phase_stalled("stage", self._deadlines.silent_stage_s(size_bytes))
            case "spawn":
                return spawn_late(self._deadlines.spawn_s)
            case "load":
                silent_s = self._deadlines.silent_load_s(size_bytes)
                return load_stalled(silent_s, self._tracker.shown(now=now).done_bytes, size_bytes)
            case "probe":
                return probe_unanswered(self._deadlines.probe_s)
            case _:  # of the phases with a deadline, only `download` is left
                return phase_stalled(self._phase, self._deadlines.download_s)

    def _step_done(
        self, given: ArtifactReady | Staged | Loaded | ProbeAnswered, now: float
    ) -> list[Effect]:
        match given:
            case ArtifactReady():
                return self._advance("download", "stage", now)
            case Staged():
                return self._advance("stage", "spawn", now)
            case Loaded():
                return self._advance("load", "probe", now)
            case ProbeAnswered():
                return self._advance("probe", "ready", now)
            case _:
                assert_never(given)

    def _advance(self, from_phase: Phase, to_phase: Phase, now: float) -> list[Effect]:
        return self._enter(to_phase, now) if self._phase == from_phase else []

    def _enter(self, phase: Phase, now: float) -> list[Effect]:
        self._phase = phase
        self._since_s = now
        self._tracker = ProgressTracker(now=now)
        self._deadline = self._silence_ends(now)
        effects: list[Effect] = [PhaseReached(phase=phase, pid=self._pid)]
        match phase:
            case "download":
                effects.append(FetchArtifact())
            case "stage":
                effects.append(StageArtifact())
            case "spawn":
                self._process = "spawning"
                effects.append(SpawnProcess())
            case "load":
                effects.append(WatchLoad())
            case "probe":
                effects.append(ProbeEngine())
            case "asleep" | "pending" | "ready" | "stopping" | "stopped" | "failed":
                pass
        return effects

    def _silence_ends(self, now: float) -> float | None:
        size_bytes = self._spec.size_bytes
        match self._phase:
            case "pending":
                return now + self._spec.delay_s
            case "download":
                return now + self._deadlines.download_s
            case "stage":
                return now + self._deadlines.silent_stage_s(size_bytes)
            case "spawn":
                return now + self._deadlines.spawn_s
            case "load":
                return now + self._deadlines.silent_load_s(size_bytes)
            case "probe":
                return now + self._deadlines.probe_s
            case "stopping":
                return now + self._deadlines.terminate_s
            case "asleep" | "ready" | "stopped" | "failed":
                return None

    def _progressed(self, given: Progressed, now: float) -> None:
        moved = self._tracker.advance(
            done_bytes=given.done_bytes, total_bytes=given.total_bytes, note=given.note, now=now
        )
        # Spawn and probe are bounded in all: what they could show is not progress.
        if moved and self._phase in {"download", "stage", "load"}:
            self._deadline = self._silence_ends(now)

    def _spawned(self, given: Spawned, now: float) -> list[Effect]:
        if self._process != "spawning":
            return []
        self._process = "alive"
        self._pid = given.pid
        if self._phase == "spawn":
            return self._enter("load", now)
        self._deadline = now + self._deadlines.terminate_s
        return [SignalGroup(signal="SIGTERM")]

    def _step_failed(self, given: StepFailed, now: float) -> list[Effect]:
        if given.phase == "spawn" and self._process == "spawning":
            self._process = "none"
            if self._phase == "stopping":
                return self._end(now)
        if given.phase != self._phase or self._phase not in _STEPS:
            return []
        return self._fail(given.error, now, step_over=True)

    def _exited(self, given: Exited, now: float) -> list[Effect]:
        if self._process == "none" or self._phase == "stopping":
            return []
        self._process = "alive"  # until its group is gone: it may have left children behind
        return self._fail(exit_error(given, self._phase), now, exited=given)

    def _group_gone(self, now: float) -> list[Effect]:
        if self._process != "alive":
            return []
        if self._phase == "stopping":
            self._process = "none"
            return self._end(now)
        gone = Exited()
        effects = self._fail(exit_error(gone, self._phase), now, exited=gone)
        self._process = "none"
        return [effect for effect in effects if not isinstance(effect, SignalGroup)] + self._end(
            now
        )

    def _stop(self, given: Stop, now: float) -> list[Effect]:
        if self._phase == "stopping":
            return []
        if self._phase != "ready" or given.drain_s <= 0.0:
            return self._tear_down(now, signal="SIGTERM", step_over=False)
        until = now + given.drain_s
        if self._deadline is not None:
            self._deadline = min(self._deadline, until)
            return []
        self._deadline = until
        return [RefuseRequests()]

    def _drained(self, now: float) -> list[Effect]:
        if self._phase != "ready" or self._deadline is None:
            return []
        return self._tear_down(now, signal="SIGTERM", step_over=False)

    def _failing(self, given: Hung | DeviceLost | RankLost, now: float) -> list[Effect]:
        """End an engine whose process lives and is of no use."""
        if isinstance(given, RankLost):
            return [] if self._phase == "stopping" else self._fail(given.error, now)
        if isinstance(given, DeviceLost):
            return self._fail(device_lost(given.name), now) if self._phase in _ON_DEVICE else []
        return self._fail(engine_hung(), now) if self._phase == "ready" else []

    def _fail(
        self,
        error: ErrorBody,
        now: float,
        *,
        exited: Exited | None = None,
        step_over: bool = False,
    ) -> list[Effect]:
        self._failure = FailureReached(
            phase=self._phase,
            error=error,
            exit_code=None if exited is None else exited.exit_code,
            signal=None if exited is None else exited.signal,
            log_tail=() if exited is None else exited.log_tail,
            was_ready=self._phase == "ready",
        )
        torn = self._tear_down(
            now, signal="SIGTERM" if exited is None else "SIGKILL", step_over=step_over
        )
        return [self._failure, *torn]

    def _tear_down(
        self, now: float, *, signal: Literal["SIGTERM", "SIGKILL"], step_over: bool
    ) -> list[Effect]:
        effects: list[Effect] = []
        if self._phase in _STEPS and not step_over:
            effects.append(CancelStep(phase=self._phase))
        if self._process == "none":
            return effects + self._end(now)
        effects.extend(self._enter("stopping", now))
        if self._process == "alive":
            effects.append(SignalGroup(signal=signal))
        return effects

    def _end(self, now: float) -> list[Effect]:
        return self._enter("stopped" if self._failure is None else "failed", now)
