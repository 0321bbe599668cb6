"""Plans as tables: which fit, the arithmetic of each, how fast they would be, why others do not."""

from collections.abc import Sequence
from typing import Final

from skulk_tui.cli.output import Column, Table
from skulk_tui.cli.records import CandidateRecord, SpeedRecord
from skulk_tui.formatting import UNKNOWN, format_bytes, format_count, joined

_PLAN_ID_SHOWN: Final = 12


def candidates_tables(candidates: Sequence[CandidateRecord]) -> tuple[Table, ...]:
    """Plans in order of preference, the arithmetic of every candidate, and the refusals."""
    fitting = [candidate for candidate in candidates if candidate.fits]
    plans = Table(
        (
            Column("PLAN"),
            Column("NODE", least=8),
            Column("BACKEND", least=12),
            Column("SHAPE", drop=1),
            Column("CONTEXT", right=True),
            Column("SLOTS", right=True),
            Column("TOK/S", right=True, drop=3),
            Column("TO DOWNLOAD", right=True, drop=2),
            Column("NOTE", least=12, wraps=True),
            Column("WHOLE ID", wide_only=True),
        ),
        tuple(
            (
                (candidate.plan_id or UNKNOWN)[:_PLAN_ID_SHOWN],
                joined(candidate.node_names),
                candidate.backend or UNKNOWN,
                candidate.shape or UNKNOWN,
                format_count(candidate.context_tokens),
                format_count(candidate.slots),
                predicted_text(candidate.speed),
                format_bytes(candidate.download_bytes),
                _plan_note(candidate),
                candidate.plan_id or UNKNOWN,
            )
            for candidate in fitting
        ),
    )
    refusals = Table(
        (
            Column("REFUSED", least=8),
            Column("CODE"),
            Column("WHY", least=20, wraps=True),
            Column("SMALLEST CHANGE", least=20, wraps=True),
        ),
        tuple(
            (
                joined(candidate.node_names),
                candidate.refusal_code or UNKNOWN,
                candidate.refusal or UNKNOWN,
                candidate.smallest_change or UNKNOWN,
            )
            for candidate in candidates
            if not candidate.fits
        ),
    )
    return (plans, arithmetic_table(candidates), refusals)


def predicted_text(speed: SpeedRecord | None) -> str:
    """Write a predicted rate; `?` marks one that does not rest on measurements alone."""
    if speed is None:
        return UNKNOWN
    return f"{speed.tokens_per_s:.1f}{'' if speed.measured else '?'}"


def speed_table(candidates: Sequence[CandidateRecord]) -> Table:
    """One row per rank: what a token reads, how fast; and one per plan for its links."""
    rows: list[tuple[str, ...]] = []
    for candidate in candidates:
        speed, plan_id = candidate.speed, (candidate.plan_id or UNKNOWN)[:_PLAN_ID_SHOWN]
        if speed is None:
            continue
        rows.extend(
            (
                plan_id,
                rank.node_name,
                format_bytes(rank.read_bytes),
                f"{format_bytes(rank.rate_bytes_s)}/s",
                f"{rank.ms_per_token:.1f}",
                "measured" if rank.measured else "typical of the hardware",
            )
            for rank in speed.ranks
        )
        if len(speed.ranks) > 1:
            links = "measured" if speed.links_measured else "typical of the links"
            rows.append((plan_id, "links", "", "", f"{speed.link_ms_per_token:.1f}", links))
    return Table(
        (
            Column("PLAN"),
            Column("SPEED ON", least=8),
            Column("A TOKEN READS", right=True),
            Column("AT", right=True),
            Column("MS/TOKEN", right=True),
            Column("BASIS", least=10),
        ),
        tuple(rows),
    )


def _plan_note(candidate: CandidateRecord) -> str:
    notes = ["alternative"] if candidate.alternative else []
    if candidate.context_limited_by:
        notes.append(f"context limited by {candidate.context_limited_by}")
    return "; ".join(notes)


def arithmetic_table(candidates: Sequence[CandidateRecord]) -> Table:
    """One row per share: `weights + kv cache + overhead` against `available - reserved`."""
    return Table(
        (
            Column("MEMORY ON", least=9),
            Column("POOL", drop=1),
            Column("WEIGHTS", right=True),
            Column("+ KV CACHE", right=True),
            Column("+ OVERHEAD", right=True),
            Column("= NEEDED", right=True),
            Column("AVAILABLE", right=True),
            Column("- RESERVED", right=True),
            Column("HEADROOM", right=True),
            Column("FITS"),
            Column("KV/TOKEN", right=True, wide_only=True),
            Column("LAYERS", wide_only=True),
        ),
        tuple(
            (
                share.node_name,
                share.pool,
                format_bytes(share.weights_bytes),
                format_bytes(share.kv_cache_bytes),
                format_bytes(share.overhead_bytes),
                format_bytes(share.needed_bytes),
                format_bytes(share.available_bytes),
                format_bytes(share.reserved_bytes),
                format_bytes(share.headroom_bytes),
                "yes" if candidate.fits else f"no ({candidate.broken_term or 'refused'})",
                format_bytes(share.kv_bytes_per_token),
                UNKNOWN
                if share.layer_start is None or share.layer_end is None
                else f"{share.layer_start}-{share.layer_end - 1}",
            )
            for candidate in candidates
            for share in candidate.arithmetic
        ),
    )
