"""What `--watch` looks at: things by identity, what each is now, and what has changed. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from protocol.ids import NodeId
from protocol.session import ClusterHead
from skulk_tui.cli.answers import (
    Names,
    check_record,
    instance_record,
    model_record,
    transfer_record,
    view_record,
)
from skulk_tui.cli.cluster_answers import member_record
from skulk_tui.cli.cluster_records import MemberRecord
from skulk_tui.cli.records import (
    CheckRecord,
    HeadRecord,
    InstanceRecord,
    ModelRecord,
    NodeRecord,
    TransferRecord,
)
from skulk_tui.cli.tables import model_state
from skulk_tui.formatting import joined, presence_text
from skulk_tui.view_state import ViewState

ChangeWord = Literal["added", "modified", "deleted"]
_DOWNLOAD_STEP = 10
"""Percent: a download is told of in so many words only when it has come that much further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One thing at one moment."""

    kind: str
    """As the listing of its verb has it."""
    name: str
    record: object
    said: str
    """How it is, in words; without readings that never rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """What became of one thing."""

    word: ChangeWord
    thing: Watched
    is_told: bool
    """Whether the words changed, not only a reading."""


Picture = Mapping[tuple[str, str], Watched]
"""Things by kind and id."""


def changes_between(before: Picture, after: Picture) -> list[Changed]:
    """List what is new, other or gone, in the order of the pictures."""
    changes: list[Changed] = []
    for key, thing in after.items():
        old = before.get(key)
        if old is None:
            changes.append(Changed(word="added", thing=thing, is_told=True))
        elif old.record != thing.record:
            is_told = old.said != thing.said
            changes.append(Changed(word="modified", thing=thing, is_told=is_told))
    changes += [
        Changed(word="deleted", thing=thing, is_told=True)
        for key, thing in before.items()
        if key not in after
    ]
    return changes


# ---- Pictures ----------------------------------------------------------------------------------


def names_in(view: ViewState) -> Names:
    """Give the name of each node."""
    return {node.member.node_id: node.member.name for node in view.nodes}


def head_of(view: ViewState) -> Picture:
    """Give the cluster itself; empty before anything of it has come."""
    head = view.head
    if head is None:
        return {}
    record = head_record(head, names_in(view))
    return {
        ("cluster", record.cluster_id): Watched(
            kind="cluster", name=head.name or record.cluster_id, record=record, said=_head(record)
        )
    }


def head_record(head: ClusterHead, names: Mapping[NodeId, str]) -> HeadRecord:
    """Give the cluster in short."""
    return HeadRecord(
        cluster_id=head.cluster_id,
        master=head.master,
        master_name=None if head.master is None else names.get(head.master, head.master),
        term=head.term,
        policy=head.policy,
        is_minority=head.is_minority,
        voters=head.voters,
        voters_alive=head.alive,
    )


def _head(record: HeadRecord) -> str:
    master = f"master {record.master_name} in term {record.term}"
    if record.master is None:
        master = f"no master in term {record.term}"
    minority = ", elected by a minority" if record.is_minority else ""
    return f"{master}{minority}, {record.voters_alive} of {record.voters} voters alive"


def nodes_of(view: ViewState) -> Picture:
    """Give the nodes."""
    records = [view_record(node) for node in view.nodes]
    return {
        ("nodes", one.node_id): Watched(kind="nodes", name=one.name, record=one, said=_node(one))
        for one in records
    }


def _node(one: NodeRecord) -> str:
    parts = [
        presence_text(one.liveness, one.eligibility),
        f"{one.role}, master" if one.is_master else one.role,
    ]
    parts += [f"health {one.health}"]
    # Their numbers never rest; the code stays for as long as the reason does.
    parts += [reason.code for reason in one.reasons if reason.level != "ok"]
    return ", ".join(parts)


def members_of(view: ViewState) -> Picture:
    """Give the members."""
    records = [member_record(node.member) for node in view.nodes]
    return {
        ("members", one.node_id): Watched(
            kind="members", name=one.name, record=one, said=_member(one)
        )
        for one in records
    }


def _member(one: MemberRecord) -> str:
    parts = [
        presence_text(one.liveness, one.eligibility),
        f"{one.role}, master" if one.is_master else one.role,
    ]
    if one.link is not None:
        reason = f" ({one.link_reason})" if one.link_reason else ""
        parts += [f"link {one.link}{reason}"]
    return ", ".join(parts)


def checks_of(view: ViewState) -> Picture:
    """Give what is wrong with the nodes."""
    records = [check_record(view_record(node)) for node in view.nodes]
    return {
        ("checks", one.node_id): Watched(kind="checks", name=one.name, record=one, said=_check(one))
        for one in records
    }


def _check(one: CheckRecord) -> str:
    reasons = [reason for reason in one.reasons if reason.level != "ok"]
    liveness = () if one.liveness == "alive" else (one.liveness,)
    return ", ".join([one.verdict, *liveness, *(reason.code for reason in reasons)])


def instances_of(view: ViewState) -> Picture:
    """Give what is placed."""
    names = names_in(view)
    records = [instance_record(one, names) for one in view.instances]
    return {
        ("instances", one.instance_id): Watched(
            kind="instances", name=one.instance_id, record=one, said=_instance(one)
        )
        for one in records
    }


def _instance(one: InstanceRecord) -> str:
    parts = [f"{one.model_id} {one.phase} on {joined(one.node_names)}"]
    if one.attempt > 1:
        parts += [f"attempt {one.attempt}"]
    if one.unreachable_names:
        parts += [f"{joined(one.unreachable_names)} out of reach"]
    if one.failure is not None:
        parts += [f"{one.failure.code}: {one.failure.message}", one.failure.remediation]
    return "; ".join(part for part in parts if part)


def transfers_of(view: ViewState) -> Picture:
    """Give the downloads, those that are over too."""
    names = names_in(view)
    records = [transfer_record(one) for one in view.transfers]
    return {
        ("transfers", f"{one.node_id}/{one.model_id}"): Watched(
            kind="transfers", name=one.model_id, record=one, said=_transfer(one, names)
        )
        for one in records
    }


def _transfer(one: TransferRecord, names: Mapping[NodeId, str]) -> str:
    where = names.get(NodeId(one.node_id), one.node_id)
    if one.paused_by is not None:
        return f"paused on {where} by {one.paused_by}"
    if one.state != "running":
        return f"{one.state} on {where}"
    far = ""
    if one.total_bytes:
        percent = 100 * one.done_bytes // one.total_bytes
        far = f", {percent - percent % _DOWNLOAD_STEP} %"
    return f"{one.phase or one.state} on {where}{far}"


def models_of(view: ViewState) -> Picture:
    """Give the catalogue."""
    records = [model_record(entry) for entry in view.models]
    return {
        ("models", one.model_id): Watched(
            kind="models", name=one.model_id, record=one, said=_model(one)
        )
        for one in records
    }


def _model(one: ModelRecord) -> str:
    return model_state(one)


def records_in(picture: Picture) -> Sequence[object]:
    """Give the records alone."""
    return [thing.record for thing in picture.values()]
