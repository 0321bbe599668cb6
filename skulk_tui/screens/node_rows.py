"""What a node's detail shows, as lines. Pure."""

from collections.abc import Sequence

from protocol.cluster_api import NodeView
from protocol.control_api import AcceleratorView, EngineBuildView, NodeResourcesView
from skulk_tui.formatting import (
    UNKNOWN,
    format_bytes,
    format_duration,
    format_throughput,
    presence_text,
    rfc3339,
)
from skulk_tui.glyphs import GlyphSet, bar
from skulk_tui.lines import Line, Span, line, span, toned
from skulk_tui.screens.cluster_rows import ref_of_instance
from skulk_tui.table_columns import Column
from skulk_tui.table_model import TableRow
from skulk_tui.view_state import ViewState

RUN_COLUMNS = (
    Column(key="model", title="MODEL", width=20, grow=2),
    Column(key="layers", title="LAYERS", width=9),
    Column(key="memory", title="MEMORY", width=9, align="right"),
    Column(key="phase", title="PHASE", width=9),
    Column(key="load", title="SLOTS", width=8, drop=1),
    Column(key="rate", title="TOK/S", width=6, align="right", drop=2),
    Column(key="pid", title="PID", width=7, align="right", drop=2),
)


def facts_lines(node: NodeView, glyphs: GlyphSet) -> Sequence[Line]:
    """Say what the machine is and how it is."""
    member, resources = node.member, node.resources
    presence = presence_text(member.liveness, member.eligibility)
    rows: list[tuple[str, Line]] = [
        ("id", line(member.node_id)),
        ("role", line(member.role)),
        ("presence", line(f"{presence}, since {rfc3339(member.since_ms) or UNKNOWN}")),
        ("link", _link(node)),
        ("addresses", line(span("  ".join(member.addresses) or UNKNOWN))),
        ("skulkd", line(span(member.build or UNKNOWN))),
    ]
    if resources is None:
        rows.append(("readings", toned("none has come from this node yet", "dim")))
    else:
        rows += [
            ("backends", line(span("  ".join(resources.backends) or "none that can be used"))),
            *_engines(resources.engines),
            ("memory", _memory(resources.memory_total_bytes, resources.memory_available_bytes,
                               glyphs)),
            *_accelerators(resources.accelerators),
            ("disk", line(f"{format_bytes(resources.disk_free_bytes)} free of "
                          f"{format_bytes(resources.disk_total_bytes)}")),
            ("processors", line(_processors(resources))),
            ("event loop", line(f"{format_duration(resources.loop_lag_s)} behind")),
            ("journal", toned("durable", "good") if resources.journal_durable
             else toned(f"not durable, {resources.journal_unwritten} events unwritten", "bad")),
            ("reading", line(f"{format_duration(resources.reading_age_s)} old")),
        ]  # fmt: skip
    return [line(Span(f" {name:<13}", "dim"), *content) for name, content in rows]


def _link(node: NodeView) -> Line:
    member = node.member
    if member.is_self:
        return line("attached here")
    words = f"{member.link or UNKNOWN}"
    if member.silent_s is not None:
        words += f", heard {format_duration(member.silent_s)} ago"
    reason = f"  {member.link_reason}" if member.link_reason else ""
    return line(span(words, "plain" if member.link == "up" else "warn"), span(reason, "warn"))


def _memory(total: int | None, free: int | None, glyphs: GlyphSet) -> Line:
    if not total or free is None:
        return toned(UNKNOWN, "dim")
    used = (total - free) / total
    return line(f"{bar(glyphs, 20, used=used)} {100 * used:.0f}%  ",
                f"{format_bytes(free)} free of {format_bytes(total)}")  # fmt: skip


def _engines(builds: Sequence[EngineBuildView]) -> Sequence[tuple[str, Line]]:
    """Give each build that was found, and how; the scripted one is part of skulk."""
    told = [_engine(build) for build in builds if build.engine != "scripted"]
    names = ("engines", *("" for _ in told))
    return tuple(zip(names, told, strict=False))


def _engine(build: EngineBuildView) -> Line:
    name = " ".join(part for part in (build.engine, build.version) if part)
    seen = f"  seen by {build.seen_by}" if build.seen_by else ""
    if not build.usable:
        return line(span(f"{name}  not usable: {build.reason}", "warn"), span(seen, "dim"))
    return line(span(f"{name}  {' '.join(build.computes)}"), span(seen, "dim"))


def _processors(resources: NodeResourcesView) -> str:
    """Say how busy they are, and how many threads engines have and why."""
    busy = resources.cpu_ratio
    told = [UNKNOWN if busy is None else f"{100 * busy:.0f}% busy"]
    if resources.n_cpus is not None:
        told.append(f"{resources.n_cpus} for engines")
    if resources.n_cores is not None:
        told.append(f"{resources.n_cores} cores")
    if resources.cpu_quota is not None:
        told.append(f"quota {resources.cpu_quota:g}")
    return "  ".join(told)


def _accelerators(devices: Sequence[AcceleratorView]) -> Sequence[tuple[str, Line]]:
    names = ("accelerators", *("" for _ in devices))
    told = [line(span(_accelerator(device))) for device in devices] or [line("none")]
    return tuple(zip(names, told, strict=False))


def _accelerator(device: AcceleratorView) -> str:
    """Say of a device what its driver tells."""
    total = f" of {format_bytes(device.memory_bytes)}" if device.memory_bytes is not None else ""
    told = [
        device.name,
        f"{format_bytes(device.free_bytes)} free{total}",
        *(f"{100 * busy:.0f}%" for busy in (device.busy_ratio,) if busy is not None),
        *(f"{watts:.0f}W" for watts in (device.watts,) if watts is not None),
        *(f"{celsius:.0f}C" for celsius in (device.celsius,) if celsius is not None),
        *(f"{mhz:.0f}MHz" for mhz in (device.mhz,) if mhz is not None),
        *(("on the host's memory",) if device.unified else ()),
        *((f"seen by {device.seen_by}",) if device.seen_by else ()),
    ]
    return "  ".join(told)


def health_lines(node: NodeView) -> Sequence[Line]:
    """Say what is not well, and what helps."""
    reasons = node.health.reasons if node.health else ()
    conflicts = node.resources.capability_conflicts if node.resources else ()
    told = [(f"{one.level} {one.code}", one.message, one.remediation) for one in reasons]
    told += [(one.code, one.message, one.remediation) for one in conflicts]
    lines: list[Line] = []
    for what, message, remediation in told:
        lines += [
            line(span(f" {what}: ", "warn"), span(message)),
            line(span(f"   {remediation}", "accent")),
        ]
    return lines or [toned(" nothing is wrong here", "good")]


def run_rows(node_id: str, view: ViewState) -> Sequence[TableRow]:
    """Give what runs on a node: one row for each shard."""
    rows: list[TableRow] = []
    for item in view.instances:
        for shard in item.plan.shards:
            if shard.node_id != node_id:
                continue
            runner = next((one for one in item.runners if one.rank == shard.rank), None)
            memory = shard.memory
            taken = memory.weights_bytes + memory.kv_cache_bytes + memory.overhead_bytes
            load = UNKNOWN if item.in_flight is None else f"{item.in_flight}/{item.slots}"
            rows.append(
                TableRow(
                    ref=ref_of_instance(item),
                    cells={
                        "model": line(span(item.model_id, "strong")),
                        "layers": line(f"{shard.layer_start}-{shard.layer_end - 1}"),
                        "memory": line(format_bytes(taken)),
                        "phase": line(runner.phase if runner else item.phase),
                        "load": line(load),
                        "rate": line(format_throughput(item.tokens_per_s).partition(" ")[0]),
                        "pid": line(str(runner.pid) if runner and runner.pid else UNKNOWN),
                    },
                    sort={"memory": taken},
                )
            )
    return rows
