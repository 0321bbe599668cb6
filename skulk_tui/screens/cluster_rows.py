"""What the screen Cluster shows, as rows and lines: routes, nodes, one node's strip. Pure.

A value that no node has told is `-`, never 0.
"""

from collections.abc import Sequence
from typing import Final

from protocol.cluster_api import MemberView, NodeView
from protocol.control_api import InstanceView, LinkEdge, NodeResourcesView
from skulk_tui.formatting import (
    UNKNOWN,
    format_bytes,
    format_duration,
    format_rtt,
    format_throughput,
    presence_text,
)
from skulk_tui.glyphs import GlyphSet, bar
from skulk_tui.lines import EMPTY, Line, Span, Tone, line, span, toned
from skulk_tui.screens.move_text import move_text
from skulk_tui.table_columns import Column
from skulk_tui.table_model import Ref, TableRow
from skulk_tui.view_state import ViewState
from skulk_tui.widgets.block_pane import Block

NODE_COLUMNS: Final = (
    Column(key="name", title="NODE", width=12, grow=1),
    Column(key="live", title="LIVE", width=9),
    Column(key="mem", title="MEM", width=12),
    Column(key="gpu", title="GPU", width=4, align="right", drop=1),
    Column(key="cpu", title="CPU", width=4, align="right", drop=3),
    Column(key="runs", title="RUNS", width=14, grow=2, drop=2),
    Column(key="seen", title="SEEN", width=5, align="right"),
)
NODE_FACETS: Final = frozenset({"live", "runs", "backend", "role", "mem"})

MEMORY_WARN_RATIO: Final = 0.9
DISK_WARN_BYTES: Final = 20 << 30
_LIVENESS: Final[dict[str, tuple[str, Tone]]] = {
    "alive": ("alive", "good"),
    "suspect": ("suspect!", "warn"),
    "lost": ("lost!", "bad"),
    "left": ("left", "dim"),
    "joining": ("joining", "warn"),
}
_PHASE_TONES: Final[dict[str, Tone]] = {
    "ready": "good", "failed": "bad", "gone": "dim", "asleep": "dim",
}  # fmt: skip


def ref_of_node(view: NodeView) -> Ref:
    """Give a node's identity."""
    return Ref(kind="node", id=view.member.node_id, name=view.member.name)


def ref_of_instance(instance: InstanceView) -> Ref:
    """Give an instance's identity."""
    return Ref(kind="instance", id=instance.instance_id, name=instance.model_id)


def short_model(model_id: str) -> str:
    """Give a model's name without its organisation."""
    return model_id.rpartition("/")[2]


def presence_of(member: MemberView) -> tuple[str, Tone]:
    """Say in one word whether a node is there, and if it is whether it takes models."""
    if member.liveness == "alive" and member.eligibility != "eligible":
        return (member.eligibility, "warn" if member.eligibility == "draining" else "dim")
    return _LIVENESS[member.liveness]


def is_alert(view: NodeView) -> bool:
    """Whether a node needs somebody: not alive, or not well."""
    return view.member.liveness in {"suspect", "lost"} or (
        view.health is not None and view.health.level not in {"ok", "info"}
    )


# ---- Nodes -------------------------------------------------------------------------------------


def node_rows(view: ViewState, glyphs: GlyphSet, *, attached: str | None) -> Sequence[TableRow]:
    """Give the rows of the table of nodes."""
    runs = _runs_by_node(view)
    return [_node_row(node, runs, glyphs, attached=attached) for node in view.nodes]


def _node_row(
    node: NodeView, runs: dict[str, list[str]], glyphs: GlyphSet, *, attached: str | None
) -> TableRow:
    member, resources = node.member, node.resources
    total = resources.memory_total_bytes if resources else None
    free = resources.memory_available_bytes if resources else None
    used_ratio = None if not total or free is None else (total - free) / total
    word, tone = presence_of(member)
    marks = (" " + glyphs.master if member.is_master else "") + (
        " " + glyphs.attached if member.node_id == attached else ""
    )
    age = resources.reading_age_s if resources else None
    busiest = busiest_accelerator(resources)
    own_runs = runs.get(member.node_id, [])
    return TableRow(
        ref=ref_of_node(node),
        cells={
            "name": line(span(member.name, "strong"), Span(marks, "accent")),
            "live": toned(word, tone),
            "mem": _memory_cell(total, free, used_ratio),
            "gpu": _ratio_cell(busiest),
            "cpu": _ratio_cell(resources.cpu_ratio if resources else None),
            "runs": line(span(", ".join(own_runs) or UNKNOWN)),
            "seen": toned(_age(age), "dim"),
        },
        sort={
            "mem": used_ratio,
            "gpu": busiest,
            "cpu": resources.cpu_ratio if resources else None,
            "seen": age,
        },
        facets={
            "live": presence_text(member.liveness, member.eligibility),
            "runs": " ".join(own_runs).lower(),
            "backend": " ".join(resources.backends) if resources else "",
            "role": member.role,
            "mem": float(total) if total else None,
        },
        full=f"{member.name}  {member.node_id}  {', '.join(own_runs)}",
    )


def busiest_accelerator(resources: NodeResourcesView | None) -> float | None:
    """Say how busy the busiest accelerator of a node is, 0 to 1; None where none tells."""
    devices = resources.accelerators if resources else ()
    return max((one.busy_ratio for one in devices if one.busy_ratio is not None), default=None)


def _memory_cell(total: int | None, free: int | None, ratio: float | None) -> Line:
    if total is None or free is None or ratio is None:
        return toned(UNKNOWN, "dim")
    used = f"{(total - free) / (1 << 30):.0f}/{total / (1 << 30):.0f}G {100 * ratio:.0f}%"
    is_high = ratio >= MEMORY_WARN_RATIO
    return toned(used + ("!" if is_high else ""), "warn" if is_high else "plain")


def _ratio_cell(ratio: float | None) -> Line:
    return toned(UNKNOWN, "dim") if ratio is None else line(f"{100 * ratio:.0f}%")


def _age(age_s: float | None) -> str:
    return UNKNOWN if age_s is None else f"{age_s:.0f}s"


def _runs_by_node(view: ViewState) -> dict[str, list[str]]:
    runs: dict[str, list[str]] = {}
    for instance in view.instances:
        for shard in instance.plan.shards:
            names = runs.setdefault(shard.node_id, [])
            name = short_model(instance.model_id)
            if name not in names:
                names.append(name)
    return runs


# ---- Routes ------------------------------------------------------------------------------------


def route_blocks(view: ViewState, glyphs: GlyphSet) -> Sequence[Block]:
    """Give a block for each placed model: what it is, and the way a token takes."""
    return [
        Block(
            ref=ref_of_instance(item),
            lines=(_route_head(item, view), _route_way(item, view, glyphs)),
        )
        for item in view.instances
    ]


def _route_head(item: InstanceView, view: ViewState) -> Line:
    n_nodes = len({shard.node_id for shard in item.plan.shards})
    shape = "one node" if n_nodes == 1 else f"{item.plan.shape} x{n_nodes}"
    moves, load = move_text(item, view), ""
    if item.in_flight is not None:
        load = f"  {item.in_flight} of {item.slots} slots"
        if item.queued:
            load += f", {item.queued} waiting"
    if item.tokens_per_s:
        load += f"  {format_throughput(item.tokens_per_s)}"
    return line(
        span(short_model(item.model_id), "strong"),
        f"  {shape}  ",
        toned(item.phase, _PHASE_TONES.get(item.phase, "warn"))[0],
        *_progress(item),
        span(f"  {moves}" if moves else "", "warn"),
        span(load),
        span(f"  {item.failure.error.message}" if item.failure else "", "bad"),
    )


def _progress(item: InstanceView) -> Line:
    loading = [part for part in item.progress if part.total_bytes]
    if item.phase == "ready" or not loading:
        return EMPTY
    done = sum(part.done_bytes or 0 for part in loading)
    total = sum(part.total_bytes or 0 for part in loading)
    return line(f"  {100 * done // total}% of {format_bytes(total)}")


def _route_way(item: InstanceView, view: ViewState, glyphs: GlyphSet) -> Line:
    parts: list[Span] = [Span("  ")]
    shards = sorted(item.plan.shards, key=lambda shard: shard.rank)
    for index, shard in enumerate(shards):
        if index:
            parts += _hop(shards[index - 1].node_id, shard.node_id, view.links, glyphs)
        unreachable = shard.node_id in item.unreachable_nodes
        parts.append(span(view.name_of(shard.node_id), "bad" if unreachable else "title"))
        if unreachable:
            parts.append(Span(" unreachable!", "bad"))
    return tuple(parts)


def _hop(source: str, target: str, links: Sequence[LinkEdge], glyphs: GlyphSet) -> list[Span]:
    edge = next((link for link in links if link.source == source and link.target == target), None)
    state = None if edge is None else edge.state
    words = "" if state in {"up", None} else f" {state} "
    if edge is not None and state == "up" and edge.rtt_median_ms is not None:
        words = f" {format_rtt(edge.rtt_median_ms)} ms "
    shaft = glyphs.link_fast if state == "up" else glyphs.link_slow
    tone: Tone = "plain" if state in {"up", None} else "bad"
    return [Span(f" {shaft * 2}{words}{shaft}{glyphs.link_head} ", tone)]


# ---- One node ----------------------------------------------------------------------------------


def node_strip(node: NodeView, view: ViewState, glyphs: GlyphSet) -> Sequence[Line]:
    """Give the few lines about the node under the cursor."""
    member, resources = node.member, node.resources
    lines: list[Line] = []
    if resources is None:
        lines.append(toned("no reading has come from this node yet", "dim"))
    else:
        lines.extend((_engines_line(node), _memory_line(node, glyphs)))
    lines += [
        line(span(f"{reason.level}: {reason.message}", "warn"), span(f"  {reason.remediation}"))
        for reason in (node.health.reasons if node.health else ())
    ]
    lines += [
        line(
            span(f"{conflict.code}: {conflict.observed}", "warn"), span(f"  {conflict.remediation}")
        )
        for conflict in (resources.capability_conflicts if resources else ())
    ]
    if member.link not in {None, "up"}:
        lines.append(line(span(f"link {member.link}: {member.link_reason}", "warn")))
    own = [
        item for item in view.instances if member.node_id in {s.node_id for s in item.plan.shards}
    ]
    lines += [line(span(short_model(item.model_id), "strong"), f"  {item.phase}") for item in own]
    return lines


def _engines_line(node: NodeView) -> Line:
    resources, member = node.resources, node.member
    backends = " ".join(resources.backends) if resources and resources.backends else "no engine"
    build = f"skulkd {member.build}" if member.build else ""
    lag = resources.loop_lag_s if resources else None
    return line(span(f"{backends}  {build}"), span(f"  lag {format_duration(lag)}" if lag else ""))


def _memory_line(node: NodeView, glyphs: GlyphSet) -> Line:
    resources = node.resources
    if resources is None or not resources.memory_total_bytes:
        return EMPTY
    total, free = resources.memory_total_bytes, resources.memory_available_bytes
    used = 0.0 if free is None else (total - free) / total
    parts = [
        Span(f"mem {bar(glyphs, 20, used=used)} {100 * used:.0f}%"),
        Span(f"  free {format_bytes(free)} of {format_bytes(total)}"),
    ]
    if resources.disk_free_bytes is not None:
        is_low = resources.disk_free_bytes < DISK_WARN_BYTES
        text = f"  disk {format_bytes(resources.disk_free_bytes)} free{'!' if is_low else ''}"
        parts.append(Span(text, "warn" if is_low else "plain"))
    return tuple(parts)


def strip_title(node: NodeView, *, term: int | None, attached: str | None) -> tuple[str, str]:
    """Give the strip's title and what its rule says."""
    words: list[str] = []
    if node.member.is_master:
        words.append(f"master, term {term}" if term is not None else "master")
    if node.member.role != "full":
        words.append(node.member.role)
    if node.member.node_id == attached:
        words.append("attached here")
    return node.member.name, ", ".join(words)
