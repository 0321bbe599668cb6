"""What a model's detail shows: what the card says, where its files lie, what went wrong. Pure."""

from collections.abc import Sequence
from typing import Final

from protocol.cards import ModelCard
from protocol.instances import InstanceFailure
from protocol.models_api import ModelEntry
from protocol.state import PlacementFailure
from protocol.storage_api import StoredModelView
from skulk_tui.formatting import UNKNOWN, format_bytes, format_count, rfc3339
from skulk_tui.lines import Line, Span, line, span, toned, wrapped
from skulk_tui.screens.models_rows import state_of_model
from skulk_tui.screens.plan_phases import failure_lines
from skulk_tui.screens.store_rows import Disks, nodes_holding
from skulk_tui.table_columns import Column
from skulk_tui.table_model import Ref, TableRow
from skulk_tui.view_state import ViewState

FILE_COLUMNS: Final = (
    Column(key="node", title="NODE", width=11, grow=1),
    Column(key="size", title="SIZE", width=8, align="right"),
    Column(key="use", title="USE", width=8),
    Column(key="path", title="PATH", width=16, grow=3, drop=1),
)
_MOST_TOLD: Final = 3
"""Failures and refusals that are shown, the newest first."""


def model_lines(
    entry: ModelEntry, card: ModelCard | None, view: ViewState, disks: Disks
) -> Sequence[Line]:
    """Say what the model is, from the catalogue and, once it has come, the whole card."""
    word, tone = state_of_model(entry, view, n_held=len(list(nodes_holding(disks, entry.id))))
    window = f", {format_count(entry.context_window)} served now" if entry.context_window else ""
    length = f"{format_count(entry.context_length)} tokens" if entry.context_length else UNKNOWN
    rows: list[tuple[str, Line]] = [
        ("model", line(span(entry.id, "strong"))),
        ("state", toned(word, tone)),
        ("size", line(format_bytes(entry.storage_size_bytes))),
        ("family", line(span(f"{entry.family or UNKNOWN}, {entry.quantization or UNKNOWN}"))),
        ("context", line(length, window)),
        ("can", line(span(", ".join(entry.capabilities) or UNKNOWN))),
        ("engines", line(span(" ".join(entry.backends) or "any that takes its format"))),
        ("source", line(span(f"{entry.source}, {entry.license or 'licence not told'}"))),
    ]
    rows += _card_rows(card)
    return [line(Span(f" {name:<9}", "dim"), *content) for name, content in rows]


def _card_rows(card: ModelCard | None) -> Sequence[tuple[str, Line]]:
    if card is None:
        return [("card", toned("the whole card has not come yet", "dim"))]
    kv = UNKNOWN
    if card.gguf_cache_geometry is not None:
        kv = f"{format_bytes(card.gguf_cache_geometry.kv_bytes_per_token())} a token"
    return [
        ("layers", line(f"{card.n_layers}, hidden size {card.hidden_size}")),
        ("cache", line(kv)),
        ("file", line(span(card.gguf_file or UNKNOWN))),
    ]


def file_rows(model_id: str, disks: Disks, view: ViewState) -> Sequence[TableRow]:
    """Give a row for each node that has the files."""
    return [
        _file_row(node_id, item, view.name_of(node_id))
        for node_id, item in nodes_holding(disks, model_id)
    ]


def _file_row(node_id: str, item: StoredModelView, name: str) -> TableRow:
    use = "in use" if item.in_use else "imported" if item.linked else "idle"
    return TableRow(
        ref=Ref(kind="node", id=node_id, name=name),
        cells={
            "node": line(span(name, "strong")),
            "size": line(format_bytes(item.size_bytes)),
            "use": toned(use, "good" if item.in_use else "plain"),
            "path": line(span(item.path or UNKNOWN)),
        },
        sort={"size": item.size_bytes},
        full=f"{name}  {item.path}",
    )


def past_lines(model_id: str, view: ViewState, width: int) -> Sequence[Line]:
    """Say which placements of the model failed or were refused, the newest first."""
    told: list[tuple[int, Sequence[Line]]] = [
        (one.at_ms, _failed(one, view, width)) for one in view.failures if one.model_id == model_id
    ]
    told += [(one.at_ms, _refused(one, width)) for one in view.refusals if one.model_id == model_id]
    told.sort(key=lambda item: -item[0])
    lines = [piece for _, lines in told[:_MOST_TOLD] for piece in lines]
    return lines or [toned(" no placement of it has failed", "good")]


def _failed(failure: InstanceFailure, view: ViewState, width: int) -> Sequence[Line]:
    where = "" if failure.node_id is None else f" on {view.name_of(failure.node_id)}"
    head = line(Span(f" {rfc3339(failure.at_ms)} ", "dim"), span(f"{failure.instance_id}{where}"))
    return [head, *failure_lines(failure, width)]


def _refused(refusal: PlacementFailure, width: int) -> Sequence[Line]:
    told = [
        line(Span(f" {rfc3339(refusal.at_ms)} ", "dim"), span(refusal.instance_id), " refused"),
        line(Span("   "), span(refusal.error.message, "warn")),
        line(Span("   "), span(refusal.error.remediation, "accent")),
    ]
    return [piece for item in told for piece in wrapped(item, max(20, width - 1))]
