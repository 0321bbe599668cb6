"""What nodes tell of their links to the documents about them. Pure."""

from collections.abc import Iterator, Mapping

from protocol.ids import NodeId
from protocol.link_api import LinkNode, LinksDocument, LinkView, ProbeFailure, ProbeView
from protocol.readings import LinkReading, LinksReading, Readings
from protocol.state import ClusterState
from skulkd.api.cluster_look import ClusterLook
from skulkd.core.link_probe import ProbeRun

_Directions = Mapping[tuple[NodeId, NodeId], LinkReading]
"""What a node tells of a peer, by these two."""


def links_document(
    own: NodeId,
    state: ClusterState,
    look: ClusterLook,
    readings: Readings,
    probe: ProbeRun | None,
    *,
    now: float,
) -> LinksDocument:
    """Show the links between all members.

    Args:
        own: This node.
        state: The replica's, for the names.
        look: Who is alive; in the order of the document.
        readings: What nodes tell.
        probe: What this node was asked to measure last.
        now: On the clock of the readings.
    """
    told = {
        (node_id, link.peer): link
        for node_id, reading in readings.links.items()
        for link in reading.links
    }
    ids = [one.node_id for one in look.members]
    return LinksDocument(
        node_id=own,
        nodes=tuple(
            LinkNode(
                node_id=one.node_id,
                name=state.members[one.node_id].name,
                liveness=one.liveness,
            )
            for one in look.members
        ),
        links=tuple(_links(ids, told, readings.links, now)),
        probe=None if probe is None else probe_view(probe),
    )


def _links(
    ids: list[NodeId],
    told: _Directions,
    readings: Mapping[NodeId, LinksReading],
    now: float,
) -> Iterator[LinkView]:
    for source in ids:
        for target in ids:
            there, back = told.get((source, target)), told.get((target, source))
            if source != target and (there is not None or back is not None):
                at_s = None if there is None else readings[source].at_s
                yield _link(source, target, there, back, at_s, now)


def _link(
    source: NodeId,
    target: NodeId,
    there: LinkReading | None,
    back: LinkReading | None,
    at_s: float | None,
    now: float,
) -> LinkView:
    """Put together what the source tells of the way there, and the target of what came."""
    rate_at_s = None if back is None else back.rate_at_s
    return LinkView(
        source=source,
        target=target,
        state=None if there is None else there.state,
        interface=None if there is None else there.interface,
        kind=None if there is None else there.kind,
        nominal_bits_s=None if there is None else there.nominal_bits_s,
        rtt_median_ms=None if there is None else there.rtt_median_ms,
        rtt_p99_ms=None if there is None else there.rtt_p99_ms,
        rate_bytes_s=None if back is None else back.rate_bytes_s,
        rate_age_s=_ago(rate_at_s, now),
        told_ago_s=_ago(at_s, now),
    )


def _ago(at_s: float | None, now: float) -> float | None:
    return None if at_s is None else round(max(0.0, now - at_s), 3)


def probe_view(run: ProbeRun) -> ProbeView:
    """Show how far a series is."""
    is_over = run.ended_ms is not None
    return ProbeView(
        state="running" if not is_over else "done" if run.error is None else "failed",
        began_ms=run.began_ms,
        ended_ms=run.ended_ms,
        n_pairs=len(run.pairs),
        n_tried=len(run.done) // 2,
        current=run.current,
        failures=tuple(
            ProbeFailure(source=one.source, target=one.target, error=one.error)
            for one in run.done
            if one.error is not None
        ),
        error=run.error,
    )
