"""Reasons why a cluster is not well, as one node sees it; pure.

What the cluster has agreed on comes from State; what only this node sees (who is silent, whose key
is used twice, how mDNS does) comes as a `ClusterSight`, which the shells fill. A node alone with
its ports closed has none of these reasons: that is how every node begins.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from protocol.ids import NodeId
from protocol.nodes import HealthReason, Level, Member
from protocol.state import ClusterState
from skulkd.core.member_decisions import voters_of

ELECTION_S: Final = 10.0
"""An election is over by then, as a rule; until then having no master is no more than a warning."""
Mdns = Literal["off", "running", "failed"]
_MS: Final = 1000
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_DAY_S: Final = 86_400
_SHOW: Final = "`skulk cluster members` shows who is there and how the links are."


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateIdentity:
    """Two daemons that live on one key: a home was copied."""

    node_id: NodeId
    addresses: tuple[str, ...]
    """Where they were seen."""
    last_ago_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedLog:
    """This node's log did not agree with its master's, and was replaced by it."""

    at_ms: int
    """Wall clock."""
    term: int
    seq: int
    """The last position at which both agreed, as far as that is known."""
    n_discarded: int
    """Events of this node that are gone."""
    is_of_states: bool = False
    """The logs agreed, and what they led to did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSight:
    """What one node sees of its cluster, now."""

    node_id: NodeId
    """Who looks."""
    now_ms: int
    """Wall clock, for ages of what State has stamped."""
    is_open: bool
    """Its cluster ports are bound."""
    master: NodeId | None
    """Whom it leads or follows; None while no living master is known."""
    masterless_s: float = 0.0
    """Since when none is known; 0 with one."""
    silent_s: Mapping[NodeId, float] = field(default_factory=dict[NodeId, float])
    """Members that it does not hear at the moment, and for how long it has not."""
    link_reasons: Mapping[NodeId, str] = field(default_factory=dict[NodeId, str])
    """Why the way to a member is not up, in words."""
    is_durable_elsewhere: bool = True
    """What is committed now is on another member's disk too."""
    duplicates: tuple[DuplicateIdentity, ...] = ()
    replaced_log: ReplacedLog | None = None
    mdns: Mdns = "running"
    mdns_reason: str = ""
    """Why it is not running, in words."""


def member_reasons(member: Member, sight: ClusterSight) -> list[HealthReason]:
    """Say why a member may not be there."""
    found = [
        _duplicate(member, seen) for seen in sight.duplicates if seen.node_id == member.node_id
    ]
    away_s = max(0, sight.now_ms - member.since_ms) / _MS
    match member.presence:
        case "joining":
            found.append(
                _reason(
                    "member.joining",
                    "ok",
                    f"{member.name} was admitted {age_text(away_s)} ago and has not come yet"
                    f"{_link(member, sight)}",
                    "If it does not come: let its ports be reached, look at its log, or remove it "
                    "(`skulk cluster remove`).",
                )
            )
        case "lost":
            found.append(
                _reason(
                    "member.lost",
                    "error",
                    f"{member.name} has been lost for {age_text(away_s)}"
                    f"{_link(member, sight)}; what runs there cannot be used",
                    "Look at that machine and the network to it; it returns by itself. If it is "
                    "gone for good: `skulk cluster remove`.",
                )
            )
        case "left":
            found.append(
                _reason(
                    "member.left",
                    "ok",
                    f"{member.name} said goodbye {age_text(away_s)} ago",
                    "Start skulkd there; it takes part again by itself.",
                )
            )
        case "present":
            found.extend(_suspect(member, sight))
    return found


def own_reasons(state: ClusterState, sight: ClusterSight) -> list[HealthReason]:
    """Say what is not well with the cluster as this node is in it."""
    if not sight.is_open:
        return []
    found = [*_master_reasons(state, sight), *_log_reasons(state, sight)]
    if sight.mdns == "failed":
        found.append(
            _reason(
                "mdns.failed",
                "warning",
                "mDNS does not work here, so nodes that are new or have moved are not found by "
                f"themselves: {sight.mdns_reason or 'no reason is known'}",
                "Members are still dialled at their last addresses; name others with --peer.",
            )
        )
    elif sight.mdns == "off":
        found.append(
            _reason(
                "mdns.off",
                "ok",
                "this node neither announces itself nor looks for others by mDNS",
                "Start skulkd without --no-mdns to change that; until then use --peer.",
            )
        )
    return found


def age_text(seconds: float) -> str:
    """Write how long something has lasted, in the largest unit that fits twice."""
    for unit_s, unit in ((_DAY_S, "days"), (_HOUR_S, "h"), (_MINUTE_S, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def _suspect(member: Member, sight: ClusterSight) -> list[HealthReason]:
    silent_s = sight.silent_s.get(member.node_id)
    if silent_s is None or member.node_id == sight.node_id:
        return []
    return [
        _reason(
            "member.suspect",
            "warning",
            f"{member.name} has not been heard for {age_text(silent_s)}{_link(member, sight)}",
            "Wait some seconds: it is heard again, or declared lost. " + _SHOW,
        )
    ]


def _duplicate(member: Member, seen: DuplicateIdentity) -> HealthReason:
    places = " and ".join(seen.addresses) or "unknown addresses"
    return _reason(
        "node.duplicate_identity",
        "error",
        f"two daemons use the identity of {member.name}: {places}, the last time "
        f"{age_text(seen.last_ago_s)} ago",
        "A home was copied. Stop the copy, give it an empty home (--home), and let it join as a "
        "node of its own (`skulk cluster invite`).",
    )


def _master_reasons(state: ClusterState, sight: ClusterSight) -> list[HealthReason]:
    found: list[HealthReason] = []
    if sight.master is None:
        found.append(_no_master(state, sight))
    elif state.is_minority_term:
        found.append(
            _reason(
                "cluster.minority",
                "warning",
                f"{_name(state, sight.master)} was elected master by half of the voters or fewer; "
                "what is decided now gives way to what a majority decides",
                "Bring the other members back, or remove those that are gone for good (`skulk "
                "cluster remove`).",
            )
        )
    return found


def _no_master(state: ClusterState, sight: ClusterSight) -> HealthReason:
    voters = voters_of(state)
    n_heard = len(voters - sight.silent_s.keys())
    n_needed = len(voters) // 2 + 1
    if state.settings.policy == "quorum" and n_heard < n_needed:
        return _reason(
            "cluster.no_quorum",
            "error",
            f"{n_heard} of {len(voters)} voters are heard and {n_needed} are needed: nothing can "
            f"be changed; the last master was {_name(state, state.master)}",
            "Bring members back; what is loaded goes on serving. " + _SHOW,
        )
    return _reason(
        "cluster.no_master",
        "error" if sight.masterless_s >= ELECTION_S else "warning",
        f"no master has been known for {age_text(sight.masterless_s)}: nothing can be changed; "
        f"the last one was {_name(state, state.master)}",
        "One is elected within seconds as a rule; what is loaded goes on serving. " + _SHOW,
    )


def _log_reasons(state: ClusterState, sight: ClusterSight) -> list[HealthReason]:
    found: list[HealthReason] = []
    if len(voters_of(state)) > 1 and not sight.is_durable_elsewhere:
        found.append(
            _reason(
                "journal.local_only",
                "warning",
                "what is decided now is on one disk only: no other member keeps up",
                "Bring another member back. " + _SHOW,
            )
        )
    if sight.replaced_log is not None:
        found.append(_diverged(sight.replaced_log, sight.now_ms))
    return found


def _diverged(lost: ReplacedLog, now_ms: int) -> HealthReason:
    age = age_text(max(0, now_ms - lost.at_ms) / _MS)
    if lost.is_of_states:
        return _reason(
            "cluster.diverged",
            "warning",
            f"{age} ago this node had come to another state than the master by the same events, up "
            f"to term {lost.term}, seq {lost.seq}, and took over the master's; nothing was "
            "discarded",
            "A fault of the program or of this machine's memory: report it with the log of that "
            "time (`skulk logs`), and test the memory. A restart of skulkd ends this note.",
        )
    return _reason(
        "cluster.diverged",
        "warning",
        f"{age} ago this node's log did not agree with the master's after term {lost.term}, seq "
        f"{lost.seq}, and was replaced by it; {lost.n_discarded} events were discarded",
        "Look at what runs and at the settings, and repeat what is missing; the former journal "
        "lies archived in the home. A restart of skulkd ends this note.",
    )


def _link(member: Member, sight: ClusterSight) -> str:
    reason = sight.link_reasons.get(member.node_id)
    return f" ({reason})" if reason else ""


def _name(state: ClusterState, node_id: NodeId | None) -> str:
    if node_id is None:
        return "nobody"
    member = state.members.get(node_id)
    return node_id if member is None else member.name


def _reason(code: str, level: Level, message: str, remediation: str) -> HealthReason:
    return HealthReason(code=code, level=level, message=message, remediation=remediation)
