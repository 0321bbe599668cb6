"""Records about the cluster as tables and lines for people. Pure."""

import json
from collections.abc import Sequence

from skulk_tui.cli.cluster_records import (
    ClusterRecord,
    EventRecord,
    InvitationRecord,
    LogLineRecord,
    MemberRecord,
    StrangerRecord,
)
from skulk_tui.cli.output import Column, Table, key_values
from skulk_tui.formatting import (
    UNKNOWN,
    format_duration,
    format_rtt,
    joined,
    one_line,
    presence_text,
)

_KEY_SHOWN = 16


def cluster_tables(cluster: ClusterRecord) -> tuple[Table, ...]:
    """The cluster, its members, and what an operator should look at."""
    return (
        key_values(cluster_pairs(cluster)),
        *members_tables(cluster.members),
        duplicates_table(cluster),
        strangers_table(cluster.strangers),
    )


def cluster_pairs(cluster: ClusterRecord) -> list[tuple[str, str]]:
    """Write what there is to say of the cluster as a whole."""
    names = {member.node_id: member.name for member in cluster.members}
    quorum = f"{cluster.voters_alive} of {cluster.voters} voters alive"
    pairs = [
        ("cluster", cluster.cluster_id),
        ("answered by", f"{cluster.name} ({cluster.role})"),
        ("master", _master(cluster, names)),
        ("policy", cluster.policy),
        ("quorum", quorum if cluster.is_majority else f"{quorum}: no majority"),
        ("committed", f"seq {cluster.commit_seq} of {cluster.appended_seq} ({cluster.journal})"),
        ("cluster ports", _ports(cluster)),
    ]
    if cluster.is_open:
        pairs += [("dialled at", joined(cluster.advertised)), ("mdns", _mdns(cluster))]
    if cluster.missing:
        pairs += [("not bound", "; ".join(cluster.missing))]
    divergence = cluster.divergence
    if divergence is not None:
        counted = f"{divergence.discarded} events after seq {divergence.seq} were discarded"
        what = one_line(divergence.message) or counted
        pairs += [("log replaced", f"{what}, {divergence.at or UNKNOWN}")]
    return pairs


def _master(cluster: ClusterRecord, names: dict[str, str]) -> str:
    if cluster.master is None:
        last = cluster.last_master
        return "none" if last is None else f"none; the last one was {names.get(last, last)}"
    minority = ", elected by a minority" if cluster.is_minority else ""
    return f"{names.get(cluster.master, cluster.master)} (term {cluster.term}{minority})"


def _ports(cluster: ClusterRecord) -> str:
    if not cluster.is_open or cluster.base_port is None:
        return "closed; `skulk cluster invite` opens them"
    ports = f"{cluster.base_port}-{cluster.base_port + 2}"
    return f"{ports} on {joined(cluster.bound)}"


def _mdns(cluster: ClusterRecord) -> str:
    if cluster.mdns != "running":
        return f"{cluster.mdns}: {cluster.mdns_reason}" if cluster.mdns_reason else cluster.mdns
    return f"running, {cluster.mdns_seen} others seen"


def members_tables(members: Sequence[MemberRecord]) -> tuple[Table, ...]:
    """One row per member, and one per link that is not as it should be, with the reason."""
    return _members_table(members), _links_table(members)


def _links_table(members: Sequence[MemberRecord]) -> Table:
    return Table(
        (Column("NODE", least=8), Column("WHY THE LINK IS NOT UP", least=20, wraps=True)),
        tuple(
            (one.name, one.link_reason) for one in members if one.link_reason and one.link != "up"
        ),
    )


def _members_table(members: Sequence[MemberRecord]) -> Table:
    return Table(
        (
            Column("NODE", least=8),
            Column("LIVENESS"),
            Column("ROLE", drop=1),
            Column("LINK"),
            Column("HEARD", right=True, drop=2),
            Column("RTT MS", right=True, drop=5),
            Column("ADDRESS", least=12, drop=3),
            Column("BUILD", drop=4),
            Column("API PORT", right=True, wide_only=True),
            Column("SINCE", wide_only=True),
            Column("ID", wide_only=True),
            Column("PUBLIC KEY", wide_only=True),
        ),
        tuple(
            (
                one.name,
                presence_text(one.liveness, one.eligibility),
                f"{one.role}, master" if one.is_master else one.role,
                "itself" if one.is_self else one.link or UNKNOWN,
                "here" if one.is_self else _ago(one.silent_s),
                "here" if one.is_self else format_rtt(one.rtt_median_ms),
                one.dialled or joined(one.addresses),
                one.build or UNKNOWN,
                str(one.api_port) if one.api_port else "none",
                one.since or UNKNOWN,
                one.node_id,
                one.public_key,
            )
            for one in members
        ),
    )


def _ago(seconds: float | None) -> str:
    return "never" if seconds is None else f"{format_duration(seconds)} ago"


def strangers_table(strangers: Sequence[StrangerRecord]) -> Table:
    """One row per stranger and address."""
    return Table(
        (
            Column("STRANGER", least=12),
            Column("KEY"),
            Column("TRIES", right=True, drop=1),
            Column("LAST", right=True),
            Column("WHY", least=20, wraps=True),
        ),
        tuple(
            (
                one.address,
                one.public_key[:_KEY_SHOWN],
                str(one.tries),
                _ago(one.last_ago_s),
                one.reason,
            )
            for one in strangers
        ),
    )


def duplicates_table(cluster: ClusterRecord) -> Table:
    """One row per key that two daemons share."""
    return Table(
        (
            Column("COPIED IDENTITY", least=12),
            Column("AT", least=16),
            Column("SEEN", right=True),
            Column("REMEDY", least=20, wraps=True),
        ),
        tuple(
            (
                one.name or one.node_id,
                joined(one.addresses),
                _ago(one.last_ago_s),
                "Stop one of them; give it a home of its own and let it join anew.",
            )
            for one in cluster.duplicates
        ),
    )


def invitations_table(invitations: Sequence[InvitationRecord]) -> Table:
    """One row per invitation."""
    return Table(
        (
            Column("INVITATION"),
            Column("KIND"),
            Column("STATE"),
            Column("USES LEFT", right=True),
            Column("EXPIRES"),
            Column("BY", least=8),
            Column("CREATED", drop=1),
        ),
        tuple(
            (
                one.token_id,
                one.kind,
                "valid" if one.is_valid else "used up" if one.uses_left == 0 else "expired",
                str(one.uses_left),
                one.expires_at or UNKNOWN,
                one.inviter,
                one.created_at or UNKNOWN,
            )
            for one in invitations
        ),
    )


def log_text(line: LogLineRecord) -> str:
    """Write one line of a log in one line."""
    if line.level is None and line.at is None:
        return line.message
    extra = dict(line.extra)
    exception = extra.pop("exception", None)
    if line.command_id is not None:
        extra = {"command_id": line.command_id, **extra}
    rest = "".join(f" {key}={_value(value)}" for key, value in extra.items())
    room = (line.logger or UNKNOWN).removeprefix("skulkd.")
    text = f"{line.at or UNKNOWN} {line.level or UNKNOWN:<8} {room}: {line.message}{rest}"
    return text if exception is None else f"{text}\n{exception}".replace("\n", "\n    ")


def _value(value: object) -> str:
    return one_line(value) if isinstance(value, str) else json.dumps(value)


def event_text(event: EventRecord) -> str:
    """Write one event in one line: where, when, what, and its fields."""
    fields = {key: value for key, value in event.event.items() if key != "kind"}
    content = json.dumps(fields, ensure_ascii=False, separators=(",", ":")) if fields else ""
    return f"{event.term}.{event.seq} {event.at or UNKNOWN} {event.kind} {content}".rstrip()
