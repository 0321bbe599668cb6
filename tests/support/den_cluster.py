"""A home cluster of four machines, as a session tells of it: rows, lines and answers for screens.

`den-01` is attached to and is master; `den-02` and `rack-a6k` share a large model with it;
`attic-mini` runs a small one and is suspect; one stranger was refused at the door.
"""

from typing import Final

from protocol.cluster_api import LogLineView, MemberView, NodeView, StrangerView
from protocol.control_api import (
    AcceleratorView,
    HealthReasonView,
    InstanceView,
    LinkEdge,
    NodeHealthView,
    NodeResourcesView,
    ProgressView,
    RunnerView,
    TransferStatus,
)
from protocol.errors import ErrorBody
from protocol.ids import ModelId
from protocol.instances import InstanceFailure, Phase
from protocol.link_api import LinkNode, LinksDocument, LinkView, ProbeView
from protocol.models_api import ModelEntry
from protocol.placements import MemoryArithmetic, Plan, ShardAssignment
from protocol.readings import LinkKind
from protocol.session import ClusterHead, RowTopic, row_key
from protocol.state import PlacementFailure
from tests.support import cluster_documents as of_cluster
from tests.support.builders import (
    GIB,
    MIB,
    NOW_MS,
    a_cluster_id,
    a_digest,
    a_node_id,
    a_public_key,
    an_instance_id,
)
from tests.support.scripted_session import ScriptedSession

NAMES: Final = ("den-01", "den-02", "rack-a6k", "attic-mini")
LLAMA: Final = ModelId("bartowski/Llama-3.3-70B-Instruct-GGUF")
QWEN: Final = ModelId("Qwen/Qwen2.5-7B-Instruct-GGUF")
SMALL: Final = ModelId("HuggingFaceTB/SmolLM2-135M-Instruct-GGUF")

_MEMORY_GIB: Final = {1: (64, 13), 2: (64, 20), 3: (48, 5), 4: (24, 18)}
"""In all, and free."""
_ACCELERATORS: Final = {
    1: (
        AcceleratorView(
            name="NVIDIA RTX 4090", memory_bytes=24 * GIB, free_bytes=9 * GIB, busy_ratio=0.71,
            watts=287.4, celsius=64.0, mhz=2520.0,
        ),
        AcceleratorView(
            name="NVIDIA RTX 4090", memory_bytes=24 * GIB, free_bytes=9 * GIB, busy_ratio=0.68,
            watts=279.0, celsius=61.0, mhz=2505.0,
        ),
    ),
    2: (AcceleratorView(name="NVIDIA RTX 4090", memory_bytes=24 * GIB, free_bytes=8 * GIB,
                        busy_ratio=0.66),),
    3: (AcceleratorView(name="NVIDIA RTX A6000", memory_bytes=48 * GIB, free_bytes=5 * GIB,
                        busy_ratio=0.88),),
    4: (),
}  # fmt: skip
_LAYERS: Final = {1: (0, 32), 2: (32, 56), 3: (56, 80)}

Documents = dict[str, object]


def den_head(**changes: object) -> ClusterHead:
    """Make the cluster in short."""
    fields: dict[str, object] = {
        "name": "home-lab",
        "cluster_id": a_cluster_id(),
        "policy": "availability",
        "term": 7,
        "seq": 8817,
        "master": a_node_id(1),
        "voters": 4,
        "alive": 4,
        "ready": 2,
        "tokens_per_s": 37.3,
        "alerts": 1,
    }
    return ClusterHead.model_validate(fields | changes)


def den_member(number: int, **changes: object) -> MemberView:
    """Make one of the four machines as a member."""
    is_suspect = number == len(NAMES)
    fields: dict[str, object] = {
        "name": NAMES[number - 1],
        "public_key": a_public_key(number),
        "addresses": (f"10.0.0.{10 + number}:12416",),
        "liveness": "suspect" if is_suspect else "alive",
        "silent_s": None if number == 1 else 2.9 if is_suspect else 0.4,
    }
    return of_cluster.a_member_view(number, **(fields | changes))


def den_node(number: int, *, member: MemberView | None = None, **changes: object) -> NodeView:
    """Make one of the four machines; `changes` are of its resources."""
    total_gib, free_gib = _MEMORY_GIB[number]
    fields: dict[str, object] = {
        "name": NAMES[number - 1],
        "role": "full",
        "backends": ("llama_server-cuda",) if number < len(NAMES) else ("llama_server-cpu",),
        "memory_total_bytes": total_gib * GIB,
        "memory_available_bytes": free_gib * GIB,
        "accelerators": _ACCELERATORS[number],
        "disk_total_bytes": 900 * GIB,
        "disk_free_bytes": (19 if number == 1 else 410) * GIB,
        "cpu_ratio": {1: 0.31, 2: 0.27, 3: 0.22, 4: 0.12}[number],
        "loop_lag_s": 0.001,
        "reading_age_s": 2.9 if number == len(NAMES) else 0.4,
    }
    return NodeView(
        member=member or den_member(number),
        health=den_health(number),
        resources=NodeResourcesView.model_validate(fields | changes),
    )


def den_health(number: int) -> NodeHealthView:
    """Make the health of a machine: the first one's disk is nearly full."""
    if number != 1:
        return NodeHealthView(level="ok")
    low = HealthReasonView(
        code="disk_low",
        level="warn",
        message="19.0 GiB are free for models",
        remediation="remove a model that is not used: `skulk models rm MODEL`",
    )
    return NodeHealthView(level="warn", reasons=(low,))


def den_stranger() -> StrangerView:
    """Make who was refused at the door."""
    return StrangerView(
        public_key="0f" * 32,
        address="10.0.0.77",
        reason="unknown key",
        first_ago_s=600.0,
        last_ago_s=12.0,
        tries=7,
    )


def den_plan(model_id: ModelId, layers: dict[int, tuple[int, int]], *, layer_mib: int) -> Plan:
    """Make a plan over some of the machines; `layers` is half-open, by machine."""
    context_tokens = 16384
    return Plan(
        plan_id=a_digest(f"plan {model_id} {sorted(layers)}"),
        model_id=model_id,
        card_digest=a_digest(f"card {model_id}"),
        shape="single" if len(layers) == 1 else "rpc",
        engine="llama_server",
        backend="llama_server-cuda" if 1 in layers else "llama_server-cpu",
        context_tokens=context_tokens,
        slots=4,
        shards=tuple(
            ShardAssignment(
                rank=rank,
                node_id=a_node_id(number),
                layer_start=start,
                layer_end=end,
                memory=MemoryArithmetic(
                    weights_bytes=(end - start) * layer_mib * MIB,
                    kv_cache_bytes=(end - start) * context_tokens * 4096,
                    overhead_bytes=400 * MIB,
                    reserved_bytes=0,
                    available_bytes=_MEMORY_GIB[number][1] * GIB + 40 * GIB,
                    pool="vram" if number < len(NAMES) else "ram",
                    kv_bytes_per_token=(end - start) * 4096,
                    context_tokens=context_tokens,
                ),
            )
            for rank, (number, (start, end)) in enumerate(sorted(layers.items()))
        ),
    )


def den_instance(
    number: int = 1, phase: Phase = "ready", *, plan: Plan | None = None, **changes: object
) -> InstanceView:
    """Make an instance: 1 is the large model over three machines, 2 the small one on the fourth."""
    large = den_plan(LLAMA, _LAYERS, layer_mib=550)
    placed = plan or (large if number == 1 else den_plan(QWEN, {4: (0, 28)}, layer_mib=270))
    nodes = [shard.node_id for shard in placed.shards]
    on_its_way = phase not in {"ready", "failed", "stopping"}
    progress = [
        ProgressView(
            rank=rank,
            node_id=node_id,
            attempt=1,
            phase=phase,
            phase_s=4.5,
            done_bytes=5 * GIB,
            total_bytes=14 * GIB,
            rate_bytes_s=80.0 * MIB,
            eta_s=115.0,
        )
        for rank, node_id in enumerate(nodes)
    ]
    fields: dict[str, object] = {
        "instance_id": an_instance_id(number),
        "model_id": placed.model_id,
        "phase": phase,
        "desired": "running",
        "attempt": 1,
        "plan": placed,
        "runners": tuple(
            RunnerView(
                rank=rank, node_id=node, attempt=1, phase=phase, since_ms=NOW_MS, pid=4320 + rank
            )
            for rank, node in enumerate(nodes)
        ),
        "progress": tuple(progress) if on_its_way else (),
        "placed_at_ms": NOW_MS + number,
        "context_token_limit": placed.context_tokens,
        "slots": placed.slots,
        "in_flight": 3 if phase == "ready" else None,
        "queued": 0 if phase == "ready" else None,
    }
    return InstanceView.model_validate(fields | changes)


def den_failure(number: int = 3) -> InstanceFailure:
    """Make the failure of an instance on attic-mini."""
    return InstanceFailure(
        instance_id=an_instance_id(number),
        model_id=SMALL,
        node_id=a_node_id(4),
        attempt=3,
        phase="load",
        error=ErrorBody(
            code="runner.out_of_memory",
            message="the kernel ended the engine while it loaded: 6.1 GiB of 6.0 GiB were in use",
            remediation="give it less context: `--context 4096`",
        ),
        signal="SIGKILL",
        log_tail=("loading tensors", "killed"),
        at_ms=NOW_MS,
        final=True,
    )


def den_refusal(number: int = 4) -> PlacementFailure:
    """Make a placement that could not be made."""
    error = ErrorBody(
        code="placement.no_fit",
        message="attic-mini lacks 12.0 GiB",
        remediation="free memory there, or choose another node",
    )
    return PlacementFailure(
        instance_id=an_instance_id(number), model_id=LLAMA, at_ms=NOW_MS, error=error
    )


def den_models() -> tuple[ModelEntry, ...]:
    """Make the catalogue."""

    def entry(
        model_id: ModelId, size_bytes: int, tags: tuple[str, ...], **more: object
    ) -> ModelEntry:
        fields: dict[str, object] = {
            "id": model_id,
            "owned_by": model_id.partition("/")[0],
            "name": model_id.rpartition("/")[2],
            "tasks": ("TextGeneration",),
            "capabilities": ("text",),
            "tags": tags,
            "quantization": "Q4_K_M",
            "storage_size_bytes": size_bytes,
            "context_length": 32768,
            "backends": ("llama_server",),
            "source": "hub",
            "license": "Apache-2.0",
            **dict.fromkeys(tags, True),
        }
        return ModelEntry.model_validate(fields | more)

    run = ("installed", "placed", "ready")
    return (
        entry(LLAMA, 43 * GIB, run, family="llama", context_window=16384),
        entry(QWEN, 8 * GIB, run, family="qwen", context_window=16384),
        entry(SMALL, 145 * MIB, (), family="llama", quantization="Q8_0"),
    )


def den_transfer(state: str = "running", **changes: object) -> TransferStatus:
    """Make a download to rack-a6k."""
    is_running = state == "running"
    fields: dict[str, object] = {
        "model_id": QWEN,
        "node_id": a_node_id(3),
        "state": state,
        "phase": "download" if is_running else "",
        "done_bytes": 3 * GIB,
        "total_bytes": 8 * GIB,
        "rate_bytes_s": 80.0 * MIB if is_running else None,
        "eta_s": 64.0 if is_running else None,
        "source": "den-02",
    }
    return TransferStatus.model_validate(fields | changes)


def den_rows() -> dict[RowTopic, Documents]:
    """Make all rows of all topics."""
    ids = [a_node_id(number) for number in range(1, len(NAMES) + 1)]
    cluster: Documents = {"cluster": den_head()}
    for number, node_id in enumerate(ids, start=1):
        cluster[row_key("node", node_id)] = den_node(number)
        if number > 1:
            cluster[row_key("link", ids[0], node_id)] = LinkEdge(
                source=ids[0],
                target=node_id,
                state="silent" if number == len(NAMES) else "up",
                address=f"10.0.0.{10 + number}:12416",
                silent_s=2.9 if number == len(NAMES) else 0.4,
            )
    stranger = den_stranger()
    cluster[row_key("stranger", stranger.public_key)] = stranger
    failure, refusal, transfer = den_failure(), den_refusal(), den_transfer()
    placements: Documents = {
        row_key("instance", view.instance_id): view for view in (den_instance(1), den_instance(2))
    }
    placements[row_key("failure", failure.instance_id)] = failure
    placements[row_key("refusal", refusal.instance_id)] = refusal
    return {
        "cluster": cluster,
        "placements": placements,
        "transfers": {row_key("transfer", transfer.node_id, transfer.model_id): transfer},
        "models": {row_key("model", entry.id): entry for entry in den_models()},
        "health": {
            row_key("health", node_id): den_health(number)
            for number, node_id in enumerate(ids, start=1)
        },
    }


def den_log_line(message: str, *, level: str = "info") -> LogLineView:
    """Make a line of den-01's log."""
    return LogLineView(
        at="2026-01-02T12:04:11.000+00:00", level=level, logger="skulkd.node", message=message
    )


def den_links(probe: ProbeView | None = None) -> LinksDocument:
    """Make the links of the four: two fast ones, a slow one, and what nobody has told."""
    ids = [a_node_id(number) for number in range(1, len(NAMES) + 1)]

    def way(
        one: int, other: int, rtt_ms: float, rate_bytes_s: float | None, kind: LinkKind
    ) -> tuple[LinkView, LinkView]:
        ends = ids[one - 1], ids[other - 1]
        there, back = (
            LinkView(
                source=source,
                target=target,
                state="up",
                kind=kind,
                rtt_median_ms=rtt_ms,
                rate_bytes_s=rate_bytes_s,
                rate_age_s=None if rate_bytes_s is None else 184.0,
            )
            for source, target in (ends, ends[::-1])
        )
        return there, back

    return LinksDocument(
        node_id=ids[0],
        nodes=tuple(
            LinkNode(node_id=node_id, name=name, liveness="alive")
            for node_id, name in zip(ids, NAMES, strict=True)
        ),
        links=(
            *way(1, 2, 0.18, 1.17e9, "ethernet"),
            *way(1, 3, 0.4, 294e6, "ethernet"),
            *way(2, 3, 0.41, None, "ethernet"),
            *way(2, 4, 6.1, 11.8e6, "wifi"),
        ),
        probe=probe,
    )


def fill(node: ScriptedSession) -> None:
    """Let a scripted node tell all of it, and answer what the cluster is usually asked."""
    for topic, rows in den_rows().items():
        node.snapshot(topic, rows)
    node.lines("events", [of_cluster.an_event(seq) for seq in (8815, 8816, 8817)])
    node.lines(
        "logs", [den_log_line("serving"), den_log_line("a reading is late", level="warning")]
    )
    members = tuple(den_member(number) for number in range(1, len(NAMES) + 1))
    strangers = (den_stranger(),)
    cluster = of_cluster.a_cluster(*members, name="home-lab", term=7, strangers=strangers)
    node.answer("GET", "/v1/cluster", cluster)
    node.answer("POST", "/v1/cluster/invite", of_cluster.an_invitation())
    node.answer("GET", "/v1/cluster/tokens", of_cluster.some_tokens())
    node.answer("GET", "/v1/cluster/links", den_links())
    node.answer("GET", "/store/storage", of_cluster.some_storage())
    node.answer("GET", "/v1/logs", of_cluster.a_page())
    node.answer("GET", "/events", of_cluster.some_events())
