"""Desired versus observed: what a worker has to do about the runners on its node.

`desired_runners` reads from the state what this node should run, `reconcile` compares it with the
processes the worker knows and answers with actions. Both are functions of values: a lost message
costs one round, never correctness, and a second call on the same values gives the same actions. The
worker keeps a runner that has ended in its observation until `ForgetRunner` names it, so that a
runner is neither started twice nor lost between the report of its end and the master's answer.

What each pair leads to:

    desired             observed                     action
    running, attempt n  nothing, never reported      StartRunner
    running, attempt n  nothing, reported before     RenewAttempt (a daemon before us ran it)
    running, attempt n  attempt n, alive             none; GoToSleep once it was idle for its time,
                                                 or for that which its requests have asked for
    running, attempt n  attempt n, failed            none (the master decides what follows)
    running, attempt n  ready or failed, not known   ReportAgain, once the word must have arrived
    running, attempt n  attempt n, stopped           ForgetRunner, then as with nothing
    running, attempt n  another attempt, alive       StopRunner; its memory is needed
    running, attempt n  another attempt, ended       ForgetRunner, then as with nothing
    asleep              alive, answers somebody      WakeAgain; it is not touched
    asleep              alive, answers nobody        StopRunner
    asleep              ended, or nothing            ForgetRunner, ReportGone
    stopped             alive                        StopRunner, with the time for its requests
    stopped             ended, or nothing            ForgetRunner, ReportGone
    whatever            stopping                     none; it ends by itself
    not at all          alive                        StopRunner
    not at all          ended                        ForgetRunner
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from protocol.cards import ModelCard
from protocol.ids import InstanceId, NodeId
from protocol.instances import DesiredPhase, Instance, Phase
from protocol.placements import Plan
from protocol.state import ClusterState
from protocol.tasks import KEEP_ALWAYS
from skulkd.core.breaker import backoff_s
from skulkd.core.move_decisions import holds_back

ENDED_PHASES: Final[frozenset[Phase]] = frozenset({"stopped", "failed"})
_LASTING: Final[frozenset[Phase]] = frozenset({"ready", "failed"})
"""No later phase follows by itself, whose report would make up for a lost one."""
REPEAT_S: Final = 5.0
"""After so long without an effect, a report counts as lost."""

StopReason = Literal["unwanted", "asleep", "superseded", "unknown"]


class RunnerKey(NamedTuple):
    """One attempt of one rank of an instance: what a process belongs to."""

    instance_id: InstanceId
    rank: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredRunner:
    """A runner as the state wants it on this node."""

    key: RunnerKey
    wish: DesiredPhase
    """`stopped`, `asleep`: the instance waits for the word that this rank is gone."""
    drain_s: float = 0.0
    """While it is being stopped: how long what it is answering may take."""
    ttl_s: float | None = None
    """While it is running: after so long without a request it may go; None is never."""
    plan: Plan
    card: ModelCard
    delay_s: float = 0.0
    """How long the attempt waits before it starts (the breaker's backoff)."""
    reported: Phase | None = None
    """The phase that the state holds for this attempt; None when nothing was ever reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRunner:
    """A runner as the worker sees it; one that ended stays until it is forgotten."""

    key: RunnerKey
    phase: Phase
    is_busy: bool = False
    """It answers somebody, or somebody waits for it."""
    idle_s: float = 0.0
    """Since it became ready, or its last request ended."""
    keep_s: int | None = None
    """How long its requests want it loaded, see `protocol.tasks.KeepSeconds`."""
    said_s: float = 0.0
    """Since its phase was last reported, and the report was taken or refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRunner:
    """Make a lifecycle machine for this runner."""

    runner: DesiredRunner


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRunner:
    """Hand `Stop` to this runner's machine."""

    key: RunnerKey
    reason: StopReason
    drain_s: float = 0.0
    """How long its running requests may take. It is said anew at each look while they do: the
    machine counts from the first time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetRunner:
    """Drop a runner that has ended, with its files."""

    key: RunnerKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportGone:
    """Submit `ReportPhase(phase="stopped")`: nothing of this runner is left here."""

    key: RunnerKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportAgain:
    """Say anew how far this runner is: the state does not hold what was said.

    A master whose part of the log was given up may have refused it, such as for a removal of this
    node that never came to be.
    """

    key: RunnerKey


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewAttempt:
    """Submit `RetryInstance(after_attempt=…)`: an earlier daemon took the process with it."""

    instance_id: InstanceId
    after_attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GoToSleep:
    """Submit `SleepInstance`: nobody has asked for it for its time to live."""

    instance_id: InstanceId
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeAgain:
    """Submit `WakeInstance`: a request came before the word that it sleeps."""

    instance_id: InstanceId


Action = (
    StartRunner
    | StopRunner
    | ForgetRunner
    | ReportGone
    | ReportAgain
    | RenewAttempt
    | GoToSleep
    | WakeAgain
)


def desired_runners(
    state: ClusterState, node_id: NodeId, *, masterless_s: float = 0.0
) -> tuple[DesiredRunner, ...]:
    """Read what a node should run, and what it should say is gone.

    An instance whose failure is final is left out: what is left of it is stopped as unknown. So is
    one that waits for the instance that it replaces to be gone, and one that is not to run on
    without a master.

    Args:
        state: This node's.
        node_id: This node.
        masterless_s: For how long it has known no living master.
    """
    found: list[DesiredRunner] = []
    for instance in state.instances.values():
        wanted = instance.desired == "running"
        if wanted and instance.failure is not None and instance.failure.final:
            continue
        if wanted and holds_back(state, instance):
            continue
        stop_after_ms = instance.disconnect.stop_after_ms
        if wanted and stop_after_ms is not None and masterless_s * 1000 >= stop_after_ms:
            continue
        for shard in instance.plan.shards:
            if shard.node_id != node_id:
                continue
            reported = next((r for r in instance.runners if r.rank == shard.rank), None)
            if not wanted and reported is not None and reported.phase == "stopped":
                continue
            found.append(
                DesiredRunner(
                    key=RunnerKey(instance.instance_id, shard.rank, instance.attempt),
                    wish=instance.desired,
                    drain_s=0.0 if wanted else instance.drain_ms / 1000,
                    ttl_s=_ttl_s(instance),
                    plan=instance.plan,
                    card=instance.card,
                    delay_s=backoff_s(state, instance) if wanted else 0.0,
                    reported=None if reported is None else reported.phase,
                )
            )
    return tuple(found)


def _ttl_s(instance: Instance) -> float | None:
    if instance.ttl_ms is None or instance.pinned or instance.phase != "ready":
        return None
    return instance.ttl_ms / 1000


def reconcile(
    desired: Iterable[DesiredRunner], observed: Iterable[ObservedRunner]
) -> tuple[Action, ...]:
    """Compare, and say what to do; the same values give the same actions in the same order.

    Args:
        desired: What the state wants here; at most one entry for each (instance, rank).
        observed: What the worker has: one entry for each key, several attempts of a rank included.
    """
    left: dict[tuple[InstanceId, int], list[ObservedRunner]] = {}
    for runner in observed:
        left.setdefault((runner.key.instance_id, runner.key.rank), []).append(runner)
    actions: list[Action] = []
    for want in desired:
        present = left.pop((want.key.instance_id, want.key.rank), [])
        match want.wish:
            case "running":
                actions.extend(_wanted(want, present))
            case "asleep":
                actions.extend(_asleep(want, present))
            case "stopped":
                actions.extend(_unwanted(want, present))
    for present in left.values():
        actions.extend(_discard(present, "unknown"))
    return tuple(actions)


def _wanted(want: DesiredRunner, present: list[ObservedRunner]) -> list[Action]:
    own = [runner for runner in present if runner.key == want.key]
    others = [runner for runner in present if runner.key != want.key]
    actions = _discard(others, "superseded")
    if any(runner.phase != "stopped" for runner in own):
        actions.extend(ReportAgain(key=runner.key) for runner in own if _is_unheard(runner, want))
        actions.extend(
            GoToSleep(instance_id=want.key.instance_id, attempt=want.key.attempt)
            for runner in own
            if _is_idle(runner, want.ttl_s)
        )
        return actions
    # One that was stopped although it is wanted makes room for a new one.
    actions.extend(_discard(own, "superseded"))
    if any(runner.phase not in ENDED_PHASES for runner in others):
        return actions
    if want.reported is None:
        actions.append(StartRunner(runner=want))
    else:
        actions.append(
            RenewAttempt(instance_id=want.key.instance_id, after_attempt=want.key.attempt)
        )
    return actions


def _is_unheard(runner: ObservedRunner, want: DesiredRunner) -> bool:
    is_lasting = runner.phase in _LASTING and runner.phase != want.reported
    return is_lasting and runner.said_s >= REPEAT_S


def _is_idle(runner: ObservedRunner, ttl_s: float | None) -> bool:
    is_serving = runner.phase == "ready" and runner.key.rank == 0
    if not is_serving or ttl_s is None or runner.is_busy:
        return False
    return runner.idle_s >= stays_s(ttl_s, runner.keep_s)


def stays_s(ttl_s: float, keep_s: int | None) -> float:
    """Say how long an on-demand instance stays loaded while idle; infinite: until it is told to go.

    Args:
        ttl_s: As it was placed.
        keep_s: As its requests have said since it was loaded.
    """
    if keep_s is None:
        return ttl_s
    return math.inf if keep_s == KEEP_ALWAYS else keep_s


def _asleep(want: DesiredRunner, present: list[ObservedRunner]) -> list[Action]:
    if any(runner.is_busy for runner in present):
        return [WakeAgain(instance_id=want.key.instance_id)]
    actions = _discard(present, "asleep")
    has_ended = all(runner.phase in ENDED_PHASES for runner in present)
    if has_ended and want.reported not in {None, "failed"}:
        actions.append(ReportGone(key=want.key))
    return actions


def _unwanted(want: DesiredRunner, present: list[ObservedRunner]) -> list[Action]:
    actions = _discard(present, "unwanted", drain_s=want.drain_s)
    if all(runner.phase in ENDED_PHASES for runner in present):
        actions.append(ReportGone(key=want.key))
    return actions


def _discard(
    runners: list[ObservedRunner], reason: StopReason, *, drain_s: float = 0.0
) -> list[Action]:
    actions: list[Action] = []
    for runner in runners:
        if runner.phase in ENDED_PHASES:
            actions.append(ForgetRunner(key=runner.key))
        elif runner.phase != "stopping":
            actions.append(StopRunner(key=runner.key, reason=reason, drain_s=drain_s))
    return actions
