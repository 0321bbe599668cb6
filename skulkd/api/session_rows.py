"""The rows of each topic of a session, from the documents that the HTTP routes give. Pure."""

import math
from collections.abc import Iterable, Mapping
from typing import Final

from protocol.base import FrozenModel
from protocol.cluster_api import ClusterDocument, NodeView, StrangerView
from protocol.control_api import (
    InstanceView,
    LinkEdge,
    NodeResourcesView,
    StateDocument,
    TransferStatus,
)
from protocol.instances import LOADING_PHASES
from protocol.models_api import ModelEntry
from protocol.session import ClusterHead, row_key
from protocol.state import DownloadOutcome
from skulkd.api.cluster_views import nodes_document

Rows = Mapping[str, FrozenModel]

CLUSTER_KEY: Final = row_key("cluster")
_FRESH_S: Final = 2.0
"""An age below this is what every living node has between two signs of life: no news."""
_STRANGER_STEP_S: Final = 10.0
_TTL_STEP_S: Final = 10


def cluster_rows(cluster: ClusterDocument, state: StateDocument) -> Rows:
    """Give who is in the cluster, how they are, and the ways between them."""
    rows: dict[str, FrozenModel] = {CLUSTER_KEY: cluster_head(cluster, state)}
    for view in nodes_document(cluster, state).items:
        rows[row_key("node", view.member.node_id)] = _calm_node(view)
    for edge in state.topology.links:
        rows[row_key("link", edge.source, edge.target)] = _calm_link(edge)
    for stranger in cluster.strangers:
        rows[row_key("stranger", stranger.public_key)] = _calm_stranger(stranger)
    return rows


def cluster_head(cluster: ClusterDocument, state: StateDocument) -> ClusterHead:
    """Give the cluster in short."""
    phases = [instance.phase for instance in state.instances.values()]
    failed = phases.count("failed")
    rates = [
        instance.tokens_per_s
        for instance in state.instances.values()
        if instance.tokens_per_s is not None and instance.phase == "ready"
    ]
    unwell = sum(1 for health in state.node_health.values() if health.level != "ok")
    return ClusterHead(
        name=cluster.name,
        cluster_id=cluster.cluster_id,
        policy=cluster.policy,
        term=cluster.term,
        seq=state.seq,
        master=cluster.master,
        is_minority=cluster.is_minority,
        voters=cluster.quorum.voters,
        alive=cluster.quorum.alive,
        ready=phases.count("ready"),
        loading=sum(1 for phase in phases if phase in LOADING_PHASES),
        failed=failed,
        tokens_per_s=round(sum(rates), 1) if rates else None,
        alerts=unwell + failed,
        is_durable=cluster.journal == "durable",
    )


def _calm_instance(view: InstanceView) -> InstanceView:
    """Tell the time to live in steps: it moves at every look, and is news to nobody."""
    if view.sleeps_in_s is None:
        return view
    steps = math.ceil(view.sleeps_in_s / _TTL_STEP_S)
    return view.model_copy(update={"sleeps_in_s": steps * _TTL_STEP_S})


def placement_rows(state: StateDocument) -> Rows:
    """Give the instances, how earlier ones failed, and what was accepted and could not be made."""
    rows: dict[str, FrozenModel] = {
        row_key("instance", instance_id): _calm_instance(view)
        for instance_id, view in state.instances.items()
    }
    for failure in state.failures:
        rows[row_key("failure", failure.instance_id)] = failure
    for refusal in state.placement_failures:
        rows[row_key("refusal", refusal.instance_id)] = refusal
    return rows


def transfer_rows(state: StateDocument) -> Rows:
    """Give the transfers of all nodes: how each last one ended, and those under way."""
    rows: dict[str, FrozenModel] = {
        row_key("transfer", ended.node_id, ended.model_id): _ended_transfer(ended)
        for ended in state.downloads.values()
    }
    for transfer in state.transfers:
        rows[row_key("transfer", transfer.node_id, transfer.model_id)] = transfer
    return rows


def health_rows(state: StateDocument) -> Rows:
    """Give the health of each node."""
    return {row_key("health", node_id): view for node_id, view in state.node_health.items()}


def model_rows(entries: Iterable[ModelEntry]) -> Rows:
    """Give the catalogue."""
    return {row_key("model", entry.id): entry for entry in entries}


def _ended_transfer(ended: DownloadOutcome) -> TransferStatus:
    return TransferStatus(
        model_id=ended.model_id,
        node_id=ended.node_id,
        state="complete" if ended.error is None else "failed",
        done_bytes=ended.size_bytes if ended.error is None else 0,
        total_bytes=ended.size_bytes,
        error=ended.error,
    )


# ---- Ages --------------------------------------------------------------------------------------
# A row is sent when it changes, and an age changes whenever somebody looks. So ages stand still
# while they say nothing: a reader adds the age of the row itself.


def _calm_age(age_s: float | None) -> float | None:
    if age_s is None:
        return None
    return 0.0 if age_s < _FRESH_S else float(int(age_s))


def _calm_node(view: NodeView) -> NodeView:
    member = view.member.model_copy(update={"silent_s": _calm_age(view.member.silent_s)})
    resources = view.resources and _calm_resources(view.resources)
    return view.model_copy(update={"member": member, "resources": resources})


def _calm_resources(resources: NodeResourcesView) -> NodeResourcesView:
    return resources.model_copy(update={"reading_age_s": _calm_age(resources.reading_age_s)})


def _calm_link(edge: LinkEdge) -> LinkEdge:
    return edge.model_copy(update={"silent_s": _calm_age(edge.silent_s)})


def _calm_stranger(stranger: StrangerView) -> StrangerView:
    return stranger.model_copy(
        update={
            "first_ago_s": stranger.first_ago_s // _STRANGER_STEP_S * _STRANGER_STEP_S,
            "last_ago_s": stranger.last_ago_s // _STRANGER_STEP_S * _STRANGER_STEP_S,
        }
    )
