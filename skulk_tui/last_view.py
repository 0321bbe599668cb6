"""The last view of each saved cluster, shown at the next start until a node has answered.

One file for each saved cluster in the state directory, readable by its owner alone, of a bounded
size, replaced whole or not at all. It holds nodes, links and placed models as they were seen last:
no rate and no age, which would only be wrong, no error's text, and no key. A file that cannot be
read counts for nothing.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, final

from pydantic import ConfigDict, Field, ValidationError

from protocol.base import FrozenModel
from protocol.errors import ClientError
from protocol.session import Rows, kind_of_row, row_key
from skulk_tui.formatting import rfc3339
from skulk_tui.own_files import read_text, replace_file
from skulk_tui.seat import Seat
from skulk_tui.tasks import run_blocking
from skulk_tui.view_state import NOTHING, SAVED, Changes, ViewState

MAX_BYTES: Final = 1 << 20
MAX_ROWS: Final = 4096
SAVE_EVERY_S: Final = 300.0
"""While the link is well; and once more when the program ends."""
_VERSION: Final = 1
_LATEST_MS: Final = 200_000_000_000_000
"""A later date, some thousand years on, may be more than a calendar holds."""
_FOLDER: Final = "views"
_LEFT_OUT: Final[Mapping[str, Mapping[str, Any]]] = {
    "cluster": {"tokens_per_s": True},
    "node": {
        "member": {"silent_s": True, "link_reason": True},
        "health": True,
        "resources": {
            "reading_age_s": True,
            "cpu_ratio": True,
            "loop_lag_s": True,
            "accelerators": {"__all__": {"busy_ratio", "watts", "celsius", "mhz"}},
        },
    },
    "link": {"silent_s": True},
    "instance": {
        "tokens_per_s": True,
        "in_flight": True,
        "queued": True,
        "waiting": True,
        "progress": True,
        "failure": True,
    },
}
"""Kinds of rows that are kept, and what is left out of each."""
_log = logging.getLogger(__name__)


class SavedView(FrozenModel):
    """What a file holds; its validator is built when it is first used, after the first paint."""

    model_config = ConfigDict(defer_build=True)

    version: Literal[1]
    at_ms: Annotated[int, Field(ge=0, le=_LATEST_MS)]
    """When it was live last: milliseconds since 1970."""
    rows: Annotated[dict[str, dict[str, Any]], Field(max_length=MAX_ROWS)]
    """Documents by the keys of the session's rows; read only once they are shown."""


def rows_to_keep(view: ViewState) -> dict[str, dict[str, Any]]:
    """Give the documents that are kept of a view, as JSON values by their rows' keys."""
    kept: dict[str, FrozenModel] = {} if view.head is None else {"cluster": view.head}
    kept |= {row_key("node", node.member.node_id): node for node in view.nodes}
    kept |= {row_key("link", f"{edge.source}/{edge.target}"): edge for edge in view.links}
    kept |= {row_key("instance", one.instance_id): one for one in view.instances}
    return {
        key: document.model_dump(
            mode="json", exclude_none=True, exclude=dict(_LEFT_OUT[kind_of_row(key)])
        )
        for key, document in kept.items()
    }


def show_saved(view: ViewState, saved: SavedView, now: float) -> Changes:
    """Put saved rows into a view that has none, until the first ones come from a node."""
    if view.head is not None:
        return NOTHING
    fields: dict[str, object] = {
        "type": "rows", "id": SAVED, "cursor": "", "is_snapshot": True, "rows": saved.rows,
        "at_ms": saved.at_ms,
    }  # fmt: skip
    return view.apply_rows(Rows.unchecked(fields), now)


def write_view(state_dir: Path, cluster: str, rows: Mapping[str, object], at_ms: int) -> None:
    """Replace the file of a cluster; blocking.

    Raises:
        ClientError: `client.usage`: it would be too large, or the disk does not allow it.
    """
    path = _path(state_dir, cluster)
    text = json.dumps({"version": _VERSION, "at_ms": at_ms, "rows": rows}, separators=(",", ":"))
    if len(text) > MAX_BYTES or len(rows) > MAX_ROWS:  # in ASCII, as JSON is written here
        message = f"{path} is not written: the view of this cluster is too large to be kept"
        raise ClientError("client.usage", message)
    replace_file(path, text)


def read_view(state_dir: Path, cluster: str) -> SavedView | None:
    """Read the file of a cluster; None where there is none. Blocking.

    Raises:
        ClientError: `client.usage`: it cannot be read, or is of another version.
    """
    path = _path(state_dir, cluster)
    text = read_text(path, max_bytes=MAX_BYTES)
    if text is None:
        return None
    try:
        return SavedView.model_validate_json(text)
    except ValidationError as wrong:
        first = wrong.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        message = f"{path} holds no view of a cluster: {where}: {first['msg']}"
        raise ClientError("client.usage", message) from wrong


def _path(state_dir: Path, cluster: str) -> Path:
    # A profile's name is made of letters, digits, `_` and `-`.
    return state_dir / _FOLDER / f"{cluster}.json"


@final
class LastView:
    """Keeps the view of the saved cluster in front, and brings it back.

    Args:
        seat: The run; without a saved cluster or a state directory nothing is kept.
    """

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._live: tuple[str, int] | None = None
        """Which cluster was live last, and when."""
        self._saved_at: float | None = None
        self.note = "none was kept"
        """What came of it, for `:debug`."""

    async def recall(self) -> Changes:
        """Put the saved view of the cluster in front where nothing newer is; gives what changed."""
        seat, cluster = self._seat, self._seat.profile
        self.note = "none was kept"
        if seat.state_dir is None or not cluster:
            return NOTHING
        try:
            saved = await run_blocking(read_view, seat.state_dir, cluster)
        except ClientError as wrong:
            self._tell(wrong.message)
            return NOTHING
        if saved is None or seat.profile != cluster:
            return NOTHING
        self._tell(f"of {rfc3339(saved.at_ms)}, {len(saved.rows)} rows")
        return show_saved(seat.view, saved, seat.now())

    def look(self) -> bool:
        """Note that the view is live, where it is; says whether it is time to save it."""
        seat = self._seat
        if seat.link.view.word != "live" or not seat.profile or seat.state_dir is None:
            return False
        self._live = (seat.profile, seat.clock.wall_ms())
        return self._saved_at is None or seat.now() - self._saved_at >= SAVE_EVERY_S

    async def save(self) -> None:
        """Write what was seen last, if this cluster was live in this run."""
        seat = self._seat
        if self._live is None or seat.state_dir is None or self._live[0] != seat.profile:
            return
        cluster, at_ms = self._live
        self._saved_at = seat.now()
        rows = rows_to_keep(seat.view)
        if not rows or seat.view.saved_at_ms is not None:
            return
        try:
            await run_blocking(write_view, seat.state_dir, cluster, rows, at_ms)
        except ClientError as wrong:
            self._tell(wrong.message)

    def _tell(self, note: str) -> None:
        self.note = note
        _log.debug("the saved view: %s", note)
