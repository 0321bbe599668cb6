"""State and readings to a node's health: reasons with what to do about each; derived, never kept.

Every reason names a command or a setting. The level of the node is that of its worst reason.
"""

from dataclasses import dataclass
from typing import Final

from protocol.ids import NodeId
from protocol.nodes import HealthReason, Level, Member, NodeHealth
from protocol.readings import NodeReading, Readings
from protocol.state import ClusterState
from skulkd.core.cluster_health import ClusterSight, member_reasons, own_reasons
from skulkd.core.facts import SCRIPTED_BACKEND
from skulkd.core.placement.explain import size_text

DISK_WARN_BYTES: Final = 10_000_000_000
DISK_ERROR_BYTES: Final = 2_000_000_000
STALE_READING_S: Final = 15.0
LOOP_LAG_WARN_S: Final = 1.0
_LEVELS: Final[tuple[Level, ...]] = ("ok", "warning", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """What the operator switched on or off on a node; shown where it explains what is missing."""

    has_worker: bool = True
    has_api: bool = True
    has_downloads: bool = True
    is_offline: bool = False
    wants_open_api: bool = False
    """A listener beyond loopback is configured."""
    certificate_left_s: float | None = None
    """How long the API's certificate is valid still, once it should have been renewed."""


def node_health(
    state: ClusterState,
    readings: Readings,
    node_id: NodeId,
    *,
    now_s: float,
    switches: Switches | None = None,
    sight: ClusterSight | None = None,
) -> NodeHealth:
    """Say how well a node is.

    Args:
        state: Facts, conflicts, instances.
        readings: What moves.
        node_id: Whose health.
        now_s: Monotonic seconds on the clock of the readings.
        switches: The node's own settings; None for another node, whose settings are not known.
        sight: What the node that answers sees of the cluster; None where there is none to see.
    """
    member = state.members.get(node_id)
    reasons: list[HealthReason] = []
    if member is None:
        reasons.append(
            _reason("node.unknown", "error", f"{node_id} is not a member", "Let it join first.")
        )
    else:
        reasons.extend([] if sight is None else member_reasons(member, sight))
        reasons.extend(_capability_reasons(member))
    # Readings of a node that is away are old because it is away, which is said already.
    if member is None or member.presence == "present":
        reasons.extend(_reading_reasons(readings.nodes.get(node_id), now_s))
    reasons.extend(_instance_reasons(state, node_id))
    if sight is not None and sight.node_id == node_id:
        reasons.extend(own_reasons(state, sight))
    reasons.extend(_switch_reasons(state, switches or Switches()))
    worst = max((_LEVELS.index(reason.level) for reason in reasons), default=0)
    return NodeHealth(level=_LEVELS[worst], reasons=tuple(reasons))


def _capability_reasons(member: Member) -> list[HealthReason]:
    if member.role == "management":
        return []
    if member.facts is None:
        return [
            _reason(
                "node.facts_missing",
                "warning",
                "the first probe of engines and devices has not ended",
                "Wait some seconds; if it lasts, read the node's log, with `--log-level debug`.",
            )
        ]
    reasons = [
        _reason(conflict.code, conflict.level, conflict.message, conflict.remediation)
        for conflict in member.capabilities.conflicts
    ]
    if not set(member.capabilities.backends) - {SCRIPTED_BACKEND}:
        reasons.append(
            _reason(
                "node.no_engine",
                "error",
                "no usable engine: only the scripted one can be placed here",
                "Install skulkd with its default engine (xllamacpp), or set "
                "SKULK_LLAMA_SERVER_BIN to a llama-server.",
            )
        )
    return reasons


def _reading_reasons(reading: NodeReading | None, now_s: float) -> list[HealthReason]:
    if reading is None:
        return [
            _reason(
                "node.reading_missing",
                "warning",
                "no reading of memory and disk has come in yet",
                "Wait some seconds; nothing is placed on the node until then.",
            )
        ]
    reasons: list[HealthReason] = []
    age_s = now_s - reading.at_s
    if age_s > STALE_READING_S:
        reasons.append(
            _reason(
                "node.reading_stale",
                "warning",
                f"the last reading of memory and disk is {age_s:.0f} s old",
                "Read the node's log; its collector is stuck or the node is out of reach.",
            )
        )
    reasons.extend(_disk_reasons(reading))
    if not reading.journal_durable:
        reasons.append(
            _reason(
                "journal.not_durable",
                "error",
                f"the journal cannot be written; {reading.journal_unwritten} records are in "
                "memory only and go with the next restart",
                "Free space or repair the disk that holds the home; writing resumes by itself.",
            )
        )
    if reading.loop_lag_s is not None and reading.loop_lag_s > LOOP_LAG_WARN_S:
        reasons.append(
            _reason(
                "node.overloaded",
                "warning",
                f"the daemon's event loop lags by {reading.loop_lag_s:.1f} s",
                "Lower the load of the machine, or the number of threads of its engines.",
            )
        )
    return reasons


def _disk_reasons(reading: NodeReading) -> list[HealthReason]:
    free_bytes = reading.disk_free_bytes
    if free_bytes is None:
        return [
            _reason(
                "disk.unknown",
                "warning",
                "the models volume does not answer, so nothing is fetched or placed",
                "See that it is mounted and readable (`models_dir`); it is looked at every two "
                "seconds.",
            )
        ]
    if free_bytes >= DISK_WARN_BYTES:
        return []
    is_full = free_bytes < DISK_ERROR_BYTES
    return [
        _reason(
            "disk.full" if is_full else "disk.low",
            "error" if is_full else "warning",
            f"the models volume has {size_text(free_bytes)} free"
            + ("; nothing is fetched any more" if is_full else ""),
            "Remove models that are not used (`skulk models rm`), or enlarge the volume.",
        )
    ]


def _instance_reasons(state: ClusterState, node_id: NodeId) -> list[HealthReason]:
    reasons: list[HealthReason] = []
    for instance in state.instances.values():
        failure = instance.failure
        if failure is None or not failure.final or failure.node_id != node_id:
            continue
        reasons.append(
            _reason(
                "instance.failed",
                "warning",
                f"{instance.model_id} failed in phase {failure.phase}: {failure.error.message}",
                failure.error.remediation
                or f"Place it again, or remove it (`skulk stop {instance.instance_id}`).",
            )
        )
    return reasons


def _switch_reasons(state: ClusterState, switches: Switches) -> list[HealthReason]:
    reasons: list[HealthReason] = []
    if switches.wants_open_api and not state.api_keys:
        reasons.append(
            _reason(
                "api.no_key",
                "error",
                "the API stays on loopback: no API key exists",
                "Make one: `skulk keys create NAME`.",
            )
        )
    left_s = switches.certificate_left_s
    if left_s is not None:
        is_over = left_s <= 0
        when = "has expired" if is_over else f"expires in {left_s / 3600:.1f} h"
        reasons.append(
            _reason(
                "api.certificate",
                "error" if is_over else "warning",
                f"the API's certificate {when}",
                "Renew it in the files of `tls_cert` and `tls_key`: the next connection takes it"
                " up, and the log says so where it cannot be used.",
            )
        )
    off = (
        ("worker.off", switches.has_worker, "no models run here", "--no-worker"),
        ("api.off", switches.has_api, "no HTTP API is served here", "--no-api"),
        ("downloads.off", switches.has_downloads, "nothing is downloaded here", "--no-downloads"),
        ("network.off", not switches.is_offline, "no call leaves the cluster", "--offline"),
    )
    reasons.extend(
        _reason(code, "ok", message, f"Start skulkd without {flag} to change that.")
        for code, is_on, message, flag in off
        if not is_on
    )
    return reasons


def _reason(code: str, level: Level, message: str, remediation: str) -> HealthReason:
    return HealthReason(code=code, level=level, message=message, remediation=remediation)
