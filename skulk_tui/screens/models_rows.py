"""What the screen Models lists: the models with their sizes and states, and the nodes. Pure.

A value that no node has told is `-`, never 0.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from protocol.cluster_api import NodeView
from protocol.control_api import InstanceView, TransferStatus
from protocol.instances import LOADING_PHASES
from protocol.models_api import ModelEntry
from skulk_tui.formatting import UNKNOWN, format_duration, format_percent
from skulk_tui.lines import Line, Span, Tone, line, span, toned
from skulk_tui.screens.cluster_rows import is_alert, presence_of, ref_of_node, short_model
from skulk_tui.screens.store_rows import Disks
from skulk_tui.table_columns import Column
from skulk_tui.table_model import Ref, TableRow
from skulk_tui.view_state import ViewState
from skulk_tui.wish import Wish

MODEL_COLUMNS: Final = (
    Column(key="model", title="MODEL", width=13, grow=1),
    Column(key="size", title="SIZE", width=4, align="right"),
    Column(key="on", title="ON", width=4, align="right"),
    Column(key="state", title="STATE", width=7, drop=1),
    Column(key="quant", title="QUANT", width=7, drop=2),
    Column(key="family", title="FAMILY", width=8, drop=3),
)
MODEL_FACETS: Final = frozenset({"fits", "on", "size", "family", "backend", "state"})
WHERE_COLUMNS: Final = (
    Column(key="node", title="NODE", width=14, grow=1),
    Column(key="free", title="FREE", width=7, align="right"),
    Column(key="live", title="LIVE", width=8, drop=1),
    Column(key="backends", title="ENGINES", width=17, drop=2),
)

_GIB: Final = 1 << 30
_MIB: Final = 1 << 20
Verdicts = Mapping[str, bool]
"""By model, as far as plans have been made: whether it fits somewhere."""


def ref_of_model(entry: ModelEntry) -> Ref:
    """Give a model's identity."""
    return Ref(kind="model", id=entry.id, name=entry.id)


def entry_of(view: ViewState, model_id: str) -> ModelEntry | None:
    """Give a model as the catalogue has it now."""
    return next((one for one in view.models if one.id == model_id), None)


def instances_of(view: ViewState, model_id: str) -> Sequence[InstanceView]:
    """Give the instances of a model."""
    return [one for one in view.instances if one.model_id == model_id]


def short_size(n_bytes: int | None) -> str:
    """Write a size in four cells: `43G`, `145M`, `1.2T` is `1229G`."""
    if n_bytes is None:
        return UNKNOWN
    return f"{n_bytes / _GIB:.0f}G" if n_bytes >= _GIB else f"{n_bytes / _MIB:.0f}M"


# ---- Models ------------------------------------------------------------------------------------


def model_rows(view: ViewState, disks: Disks, verdicts: Verdicts) -> Sequence[TableRow]:
    """Give a row for each model that has a card."""
    return [_model_row(entry, view, disks, fits=verdicts.get(entry.id)) for entry in view.models]


def _model_row(entry: ModelEntry, view: ViewState, disks: Disks, *, fits: bool | None) -> TableRow:
    held = disks.holdings.get(entry.id, {})
    running = [shard.node_id for one in instances_of(view, entry.id) for shard in one.plan.shards]
    nodes = {*held, *running}
    word, tone = state_of_model(entry, view, n_held=len(held))
    asked = len(disks.documents)
    return TableRow(
        ref=ref_of_model(entry),
        cells={
            "model": line(span(short_model(entry.id), "strong")),
            "size": line(short_size(entry.storage_size_bytes)),
            "on": line(f"{len(held)}/{asked}" if asked else UNKNOWN),
            "state": toned(word, tone),
            "quant": line(span(entry.quantization or UNKNOWN)),
            "family": line(span(entry.family or UNKNOWN)),
        },
        sort={"size": entry.storage_size_bytes, "on": len(held) if asked else None},
        facets={
            "fits": None if fits is None else "yes" if fits else "no",
            "on": " ".join(view.name_of(node) for node in nodes).lower(),
            "size": float(entry.storage_size_bytes),
            "family": entry.family.lower(),
            "backend": " ".join(entry.backends),
            "state": word,
        },
        full=f"{entry.id}  {entry.quantization}  {word}",
    )


def state_of_model(entry: ModelEntry, view: ViewState, *, n_held: int = 0) -> tuple[str, Tone]:
    """Say the furthest that a model has come: ready, on its way, failed, fetched, on disk."""
    instances = instances_of(view, entry.id)
    ready = [one for one in instances if one.phase == "ready"]
    within_reach = [one for one in ready if not one.unreachable_nodes]
    if within_reach:
        return (f"ready {len(ready)}" if len(ready) > 1 else "ready", "good")
    if ready:
        return ("away!", "bad")
    loading = [one for one in instances if one.phase in LOADING_PHASES]
    if loading:
        return (loading[0].phase, "warn")
    if instances:
        one = instances[0]
        return (one.phase, "bad" if one.phase == "failed" else "dim")
    return _state_on_disk(entry, view, n_held=n_held)


def _state_on_disk(entry: ModelEntry, view: ViewState, *, n_held: int) -> tuple[str, Tone]:
    running = [one for one in view.transfers if one.model_id == entry.id]
    coming = next((one for one in running if one.state == "running"), None)
    if coming is None and any(one.state == "paused" for one in running):
        return ("paused", "warn")
    if coming is not None:
        return (_fetched(coming), "warn")
    if n_held or entry.installed:
        return ("on disk", "plain")
    return (UNKNOWN, "dim")


def _fetched(coming: TransferStatus) -> str:
    percent = format_percent(coming.done_bytes, coming.total_bytes).replace(" ", "")
    return "fetch" if percent == UNKNOWN else f"get {percent}"


# ---- Where -------------------------------------------------------------------------------------


def where_rows(view: ViewState, wish: Wish | None) -> Sequence[TableRow]:
    """Give a row for each node: whether it is picked, what is free, what it can run."""
    return [_where_row(node, wish) for node in view.nodes if node.member.role != "management"]


def _where_row(node: NodeView, wish: Wish | None) -> TableRow:
    member, resources = node.member, node.resources
    is_picked = wish is not None and member.node_id in wish.nodes
    is_excluded = wish is not None and member.node_id in wish.excluded_nodes
    mark = "[x] " if is_picked else "[-] " if is_excluded else "[ ] "
    total = resources.memory_total_bytes if resources else None
    free = resources.memory_available_bytes if resources else None
    backends = " ".join(resources.backends) if resources else ""
    word, tone = presence_of(member)
    return TableRow(
        ref=ref_of_node(node),
        cells={
            "node": line(Span(mark, "accent"), span(member.name, "strong")),
            "free": line(_free(free, total)),
            "live": toned(word, "warn" if is_alert(node) else tone),
            "backends": line(span(backends or UNKNOWN)),
        },
        sort={"node": member.name.lower(), "free": free},
        full=f"{member.name}  {backends or 'no engine'}  {word}",
    )


def _free(free: int | None, total: int | None) -> str:
    if free is None or total is None:
        return UNKNOWN
    return f"{free / _GIB:.0f}/{total / _GIB:.0f}G"


def inputs_line(wish: Wish | None) -> Line:
    """Say what is asked of the planner besides the nodes."""
    if wish is None:
        return ()
    context = "auto" if wish.context_tokens is None else str(wish.context_tokens)
    slots = "auto" if wish.slots is None else str(wish.slots)
    backend = f"  {wish.backend}" if wish.backend else ""
    if wish.on_demand and wish.ttl_s is not None:
        backend += f"  on demand {format_duration(wish.ttl_s)}"
    if wish.priority:
        backend += f"  priority {wish.priority}"
    return line(
        Span(" shape ", "dim"), shape_word(wish), Span("  ctx ", "dim"), context,
        Span("  slots ", "dim"), slots, span(backend),
    )  # fmt: skip


def shape_word(wish: Wish) -> str:
    """Write the shape that is asked for as people do."""
    return "auto" if wish.shape is None else "one" if wish.shape == "single" else wish.shape


def picked_note(wish: Wish | None) -> str:
    """Say how many nodes are picked, or that the planner chooses."""
    if wish is None:
        return ""
    parts = [f"{len(wish.nodes)} picked" if wish.nodes else "any node"]
    if wish.excluded_nodes:
        parts.append(f"{len(wish.excluded_nodes)} left out")
    return ", ".join(parts)
