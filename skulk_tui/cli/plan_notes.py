"""Plans that a dry run showed, kept so that `--plan` can say what has changed since.

A note is a convenience: where none can be written or read, `--plan` works without the comparison.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, final

from pydantic import ValidationError

from protocol.ids import Digest, NodeId
from protocol.placements import Plan
from skulk_tui.formatting import format_bytes, format_count, joined

NOTES_KEPT: Final = 64
_NOTE_MAX_BYTES: Final = 1 << 20


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Give the directory of what may be deleted at any time."""
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "skulk"


@final
class PlanNotes:
    """One file per plan, named by its id; the oldest beyond 64 are removed.

    Args:
        directory: Where the files lie; made when first needed, for the operator alone.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def remember(self, plans: Iterable[Plan]) -> None:
        """Keep plans for a later comparison."""
        with contextlib.suppress(OSError):  # no home, a full disk: see the module's docstring
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for plan in plans:
                path = self._directory / f"{plan.plan_id}.json"
                unfinished = path.with_suffix(f".{os.getpid()}")
                unfinished.write_text(plan.model_dump_json(), encoding="utf-8")
                unfinished.replace(path)
            newest_first = sorted(self._files(), key=lambda path: -path.stat().st_mtime_ns)
            for path in newest_first[NOTES_KEPT:]:
                path.unlink(missing_ok=True)

    def recall(self, plan_id: Digest) -> Plan | None:
        """Give a remembered plan; None when there is no readable note of it."""
        try:
            with (self._directory / f"{plan_id}.json").open("rb") as file:
                return Plan.model_validate_json(file.read(_NOTE_MAX_BYTES))
        except (OSError, ValidationError):
            return None

    def whole_id(self, start: str) -> Digest | None:
        """Give the remembered id that begins so; None when none does, or several do."""
        found = [path.stem for path in self._files() if path.stem.startswith(start)]
        return Digest(found[0]) if len(found) == 1 else None

    def _files(self) -> list[Path]:
        try:
            return list(self._directory.glob("*.json"))
        except OSError:
            return []


def differences(then: Plan, now: Plan, *, name_of: Callable[[NodeId], str] = str) -> list[str]:
    """Name what differs between two plans for one model; pure.

    Args:
        then: The plan before.
        now: The plan after.
        name_of: Gives a node's name; left out, nodes are called by their ids.
    """

    def nodes(plan: Plan) -> str:
        return joined(name_of(shard.node_id) for shard in plan.shards)

    def headroom(plan: Plan) -> str:
        return format_bytes(min(shard.memory.headroom_bytes for shard in plan.shards))

    compared = (
        ("nodes", nodes(then), nodes(now)),
        ("backend", then.backend, now.backend),
        ("shape", then.shape, now.shape),
        ("context", format_count(then.context_tokens), format_count(now.context_tokens)),
        ("slots", str(then.slots), str(now.slots)),
        ("card", then.card_digest[:12], now.card_digest[:12]),
        ("smallest headroom", headroom(then), headroom(now)),
    )
    return [f"{what} {old} -> {new}" for what, old, new in compared if old != new]
