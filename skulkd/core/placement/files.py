"""Whether a node has a model's files or can get them, and how much it would have to fetch; pure."""

from protocol.cards import LocalSource, PackageSource, projector_bytes
from protocol.ids import ModelId, NodeId
from protocol.placements import Refusal
from protocol.readings import Readings
from skulkd.core.placement import refusals
from skulkd.core.placement.question import Candidate, Missing, Question, missing


def holders_in(readings: Readings, model_id: ModelId) -> frozenset[NodeId]:
    """Name the nodes that say that they hold a model's files."""
    return frozenset(
        reading.node_id
        for reading in readings.holdings.values()
        if any(holding.model_id == model_id for holding in reading.holdings)
    )


def judge_files(question: Question, candidate: Candidate) -> Refusal | Missing | None:
    """Refuse a node that cannot get the files; None when it has them or can."""
    member = candidate.member
    source = question.card.source
    is_held = question.holders is None or member.node_id in question.holders
    if isinstance(source, LocalSource) and not is_held and not _has_peer(question, member.node_id):
        return refusals.elsewhere(member, question.card, source.path)
    download_bytes = download_bytes_on(question, member.node_id)
    if download_bytes == 0:
        return None
    why = candidate.reading.no_downloads
    # What comes from another node never leaves the cluster.
    if why == "disabled" or (why == "offline" and not _has_peer(question, member.node_id)):
        return refusals.not_fetched(member, question.card, why)
    free_bytes = candidate.reading.disk_free_bytes
    if free_bytes is None:
        return missing(member, "free disk space")
    if download_bytes + refusals.DISK_RESERVE_BYTES > free_bytes:
        return refusals.no_space(member, download_bytes, free_bytes)
    return None


def download_bytes_on(question: Question, node_id: NodeId) -> int:
    """Say how much a node would have to fetch, from outside or from a peer."""
    card = question.card
    if card.scripted is not None or (question.holders is not None and node_id in question.holders):
        return 0
    if question.holders is None and isinstance(card.source, LocalSource):
        return 0
    if isinstance(card.source, PackageSource):
        return sum(file.size_bytes for file in card.source.files)
    return card.storage_size.in_bytes + projector_bytes(card)


def _has_peer(question: Question, node_id: NodeId) -> bool:
    """Say whether another node that can be reached holds the files."""
    return any(
        member.node_id != node_id
        and question.holders is not None
        and member.node_id in question.holders
        and question.is_reachable(member)
        for member in question.state.members.values()
    )
