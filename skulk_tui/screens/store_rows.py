"""What the screen Store shows: transfers, and which artifact lies on which disk. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from protocol.cluster_api import ClusterStorage, UnansweredNode
from protocol.control_api import TransferStatus
from protocol.storage_api import StorageDocument, StoredModelView
from skulk_tui.formatting import (
    UNKNOWN,
    date_of,
    format_bytes,
    format_duration,
    format_percent,
    format_rate,
)
from skulk_tui.glyphs import GlyphSet, bar
from skulk_tui.lines import EMPTY, Line, Span, Tone, line, span, toned
from skulk_tui.screens.cluster_rows import DISK_WARN_BYTES, short_model
from skulk_tui.table_columns import Column
from skulk_tui.table_model import Ref, TableRow
from skulk_tui.transfer_waiters import waiting_for
from skulk_tui.view_state import ViewState

TRANSFER_COLUMNS: Final = (
    Column(key="model", title="ARTIFACT", width=14, grow=2),
    Column(key="node", title="NODE", width=10, grow=1),
    Column(key="source", title="FROM", width=8, drop=3),
    Column(key="phase", title="PHASE", width=9),
    Column(key="done", title="DONE", width=15),
    Column(key="rate", title="RATE", width=10, align="right", drop=1),
    Column(key="eta", title="ETA", width=8, align="right", drop=2),
)
TRANSFER_FACETS: Final = frozenset({"node", "state", "from", "size"})
STORED_FACETS: Final = frozenset({"on", "use", "size"})
_BAR: Final = 7
_NODE_CELLS: Final = 9
_STATE_TONES: Final[Mapping[str, Tone]] = {
    "running": "plain",
    "paused": "warn",
    "complete": "good",
    "failed": "bad",
    "cancelled": "warn",
    "absent": "dim",
}


# ---- Transfers ---------------------------------------------------------------------------------


def ref_of_transfer(status: TransferStatus) -> Ref:
    """Give a transfer's identity: its node and model."""
    return Ref(
        kind="transfer",
        id=f"{status.node_id}/{status.model_id}",
        name=short_model(status.model_id),
    )


def transfer_of(ref: Ref, view: ViewState) -> TransferStatus | None:
    """Give a transfer as it is now."""
    return next((one for one in view.transfers if ref_of_transfer(one) == ref), None)


def transfer_rows(view: ViewState, glyphs: GlyphSet) -> Sequence[TableRow]:
    """Give the rows of the table of transfers: what is under way or failed, not what is done."""
    return [
        _transfer_row(one, view, glyphs)
        for one in view.transfers
        if one.state not in {"complete", "absent"}
    ]


def _transfer_row(one: TransferStatus, view: ViewState, glyphs: GlyphSet) -> TableRow:
    ratio = None if not one.total_bytes else min(1.0, one.done_bytes / one.total_bytes)
    word = one.phase or one.state
    done = UNKNOWN
    if ratio is not None:
        percent = format_percent(one.done_bytes, one.total_bytes).replace(" ", "")
        done = f"{bar(glyphs, _BAR, used=ratio)} {percent:>4}"
    node = view.name_of(one.node_id)
    return TableRow(
        ref=ref_of_transfer(one),
        cells={
            "model": line(span(short_model(one.model_id), "strong")),
            "node": line(span(node)),
            "source": line(span(one.source or UNKNOWN)),
            "phase": toned(word, _STATE_TONES[one.state]),
            "done": line(done),
            "rate": line(format_rate(one.rate_bytes_s)),
            "eta": line(format_duration(one.eta_s)),
        },
        sort={"done": ratio, "rate": one.rate_bytes_s, "eta": one.eta_s},
        facets={
            "node": node.lower(),
            "state": one.state,
            "from": one.source.lower(),
            "size": None if one.total_bytes is None else float(one.total_bytes),
        },
        full=f"{one.model_id} on {node}: {one.error.message if one.error else word}",
    )


def transfers_state(view: ViewState) -> str:
    """Say how many transfers run, and how fast all of them are."""
    running = [one for one in view.transfers if one.state == "running"]
    paused = sum(1 for one in view.transfers if one.state == "paused")
    failed = sum(1 for one in view.transfers if one.state == "failed")
    rates = [one.rate_bytes_s for one in running if one.rate_bytes_s is not None]
    parts = [f"{len(running)} active"]
    if paused:
        parts.append(f"{paused} paused")
    if failed:
        parts.append(f"{failed} failed")
    if rates:
        parts.append(format_rate(sum(rates)))
    return "   ".join(parts)


def transfer_lines(
    one: TransferStatus, view: ViewState, *, utc_offset_s: int = 0
) -> Sequence[Line]:
    """Say all of one transfer: how far, from where, and what went wrong."""
    lines: list[Line] = [
        line(
            span(short_model(one.model_id), "strong"),
            span(f" on {view.name_of(one.node_id)}  {one.phase or one.state}  "),
            span(f"{format_bytes(one.done_bytes)} of {format_bytes(one.total_bytes)}"),
            span(f"  from {one.source}" if one.source else ""),
        ),
    ]
    if one.error is not None:
        lines += [
            line(span(one.error.message, "bad")),
            line(span(one.error.remediation, "accent")),
        ]
    if one.paused is not None:
        since = date_of(one.paused.at_ms, utc_offset_s)
        lines.append(line(span(f"paused by {one.paused.by} at {since}", "warn")))
        lines += [
            line(span(f"placed and waiting for it: {instance_id}", "warn"))
            for instance_id in waiting_for(view.instances, one.model_id, one.node_id)
        ]
        lines.append(line("What has come is kept: ", Span("p", "accent"), " goes on from there."))
    if one.state in {"failed", "cancelled"}:
        lines.append(line("What has come is kept: ", Span("n", "accent"), " goes on from there."))
    elif one.state == "running" and one.rate_bytes_s is None:
        lines.append(toned("no rate has been measured yet, so there is no ETA", "dim"))
    return lines


# ---- On disk -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Disks:
    """What the nodes have told of their disks."""

    documents: tuple[StorageDocument, ...] = ()
    unanswered: tuple[UnansweredNode, ...] = ()
    at: float | None = None
    """When they told it; None before."""
    holdings: Mapping[str, Mapping[str, StoredModelView]] = field(
        default_factory=dict[str, Mapping[str, StoredModelView]]
    )
    """By model, then by node."""


def disks_of(answer: ClusterStorage, *, at: float) -> Disks:
    """Sort an answer by model."""
    own = StorageDocument.model_validate(
        answer.model_dump(include=set(StorageDocument.model_fields))
    )
    documents = (own, *answer.others)
    holdings: dict[str, dict[str, StoredModelView]] = {}
    for document in documents:
        for item in document.items:
            holdings.setdefault(item.model_id, {})[document.node_id] = item
    return Disks(documents=documents, unanswered=answer.unanswered, at=at, holdings=holdings)


def stored_columns(disks: Disks, view: ViewState) -> Sequence[Column]:
    """Give the matrix's columns: one for each node, by pages, and a count that always stays."""
    nodes = [
        Column(
            key=document.node_id,
            title=view.name_of(document.node_id),
            width=_NODE_CELLS,
            is_sortable=False,
            is_paged=True,
        )
        for document in disks.documents
    ]
    return (
        Column(key="model", title="ARTIFACT", width=16, grow=1),
        Column(key="size", title="SIZE", width=9, align="right"),
        Column(key="use", title="USE", width=7),
        Column(key="count", title="ON", width=4, align="right"),
        *nodes,
    )


def stored_rows(disks: Disks, view: ViewState, glyphs: GlyphSet) -> Sequence[TableRow]:
    """Give the matrix's rows: which artifact lies whole where, and how far others are."""
    under_way: dict[tuple[str, str], TransferStatus] = {
        (one.model_id, one.node_id): one
        for one in view.transfers
        if one.state in {"running", "paused"}
    }
    models = {*disks.holdings, *(model for model, _ in under_way)}
    return [_stored_row(model, disks, under_way, view, glyphs) for model in sorted(models)]


def _stored_row(
    model: str,
    disks: Disks,
    under_way: Mapping[tuple[str, str], TransferStatus],
    view: ViewState,
    glyphs: GlyphSet,
) -> TableRow:
    held = disks.holdings.get(model, {})
    size = max((item.size_bytes for item in held.values()), default=None)
    is_used = any(item.in_use for item in held.values())
    cells: dict[str, Line] = {
        "model": line(span(short_model(model), "strong")),
        "size": line(format_bytes(size)),
        "use": toned("in use", "good") if is_used else toned("unused", "dim"),
        "count": line(f"{len(held)}/{len(disks.documents)}"),
    }
    for document in disks.documents:
        item, coming = held.get(document.node_id), under_way.get((model, document.node_id))
        cells[document.node_id] = _holding_cell(item, coming, glyphs)
    return TableRow(
        ref=Ref(kind="stored", id=model, name=short_model(model)),
        cells=cells,
        sort={"size": size, "count": float(len(held))},
        facets={
            "on": " ".join(view.name_of(node) for node in held).lower(),
            "use": "used" if is_used else "unused",
            "size": None if size is None else float(size),
        },
        full=f"{model} on {', '.join(view.name_of(node) for node in held) or 'no node'}",
    )


def _holding_cell(
    item: StoredModelView | None, coming: TransferStatus | None, glyphs: GlyphSet
) -> Line:
    if item is not None and item.damaged and coming is None:
        return toned("x damaged", "bad")
    if item is not None and not item.damaged:
        mark = "link" if item.linked else glyphs.held
        return toned(mark, "good" if item.in_use else "plain")
    if coming is not None:
        percent = format_percent(coming.done_bytes, coming.total_bytes).replace(" ", "")
        return toned(percent, "warn")
    return toned(glyphs.absent, "dim")


def free_line(disks: Disks, view: ViewState, node_ids: Collection[str]) -> Line:
    """Say how much room the disks of some nodes have; what is low has a mark."""
    if not disks.documents:
        return EMPTY
    silent = [one.name or one.node_id for one in disks.unanswered]
    parts: list[Span] = [span(f" {name} did not answer ", "bad") for name in silent]
    parts.append(Span(" free: ", "dim"))
    for document in disks.documents:
        if document.node_id not in node_ids:
            continue
        free = document.disk_free_bytes
        is_low = free is not None and free < DISK_WARN_BYTES
        text = f"{view.name_of(document.node_id)} {format_bytes(free)}{'!' if is_low else ''}  "
        parts.append(span(text, "warn" if is_low else "plain"))
    return tuple(parts)


def nodes_holding(disks: Disks, model: str) -> Iterable[tuple[str, StoredModelView]]:
    """Give node and entry of each copy."""
    return disks.holdings.get(model, {}).items()
