"""Making a bundle from the screen Diag: what it will hold, how far it is, and where it lies."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, final

from protocol.base import FrozenModel
from protocol.control_api import StateDocument
from protocol.ids import NodeId
from skulk_tui.cli.bundle_archive import StoppedError, bundle_name, write_bundle
from skulk_tui.cli.bundle_documents import Collected
from skulk_tui.cli.bundle_wish import BundleWish
from skulk_tui.cli.operation_records import BundleRecord
from skulk_tui.cli.session import parse_duration
from skulk_tui.cli.suggestions import node_ids_of
from skulk_tui.client import Query
from skulk_tui.clock import SystemClock
from skulk_tui.formatting import format_bytes
from skulk_tui.lines import EMPTY, Line, Span, line, span, toned, wrapped
from skulk_tui.screens.view import Values
from skulk_tui.seat import Seat
from skulk_tui.session_link import SessionLink
from skulk_tui.table_model import Ref
from skulk_tui.tasks import run_blocking, wait_on_loop
from skulk_tui.widgets.pane import TextPane

DocumentT = TypeVar("DocumentT", bound=FrozenModel)

MAX_NODES: Final = 10
"""Of one bundle, unless they are named: as `skulk diag bundle` has it."""
_FOLDER: Final = "bundles"
_PRIVATE: Final = 0o700


@final
class LinkAsked:
    """Asks over the one session of this program, from a thread; see `bundle_documents.Asked`."""

    def __init__(self, link: SessionLink, loop: asyncio.AbstractEventLoop) -> None:
        self._link = link
        self._loop = loop

    def get(self, path: str, kind: type[DocumentT], *, query: Query | None = None) -> DocumentT:
        """Ask for a document; blocking.

        Raises:
            SkulkError: It is not to be had.
        """
        return wait_on_loop(self._loop, self._link.request("GET", path, kind, query=query))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the operator asked for; empty is all nodes, and the last thousand lines."""

    nodes: str = ""
    since: str = ""

    @property
    def cli(self) -> str:
        """The same as a command."""
        nodes = f" --nodes {self.nodes}" if self.nodes else ""
        since = f" --since {self.since}" if self.since else ""
        return f"skulk diag bundle{nodes}{since}"


@final
class BundlePane(TextPane):
    """The sub-tab Bundle.

    Args:
        seat: The run.
    """

    def __init__(self, seat: Seat) -> None:
        super().__init__("bundle", "Bundle", dash=seat.glyphs.rule)
        self._seat = seat
        self._wanted = Wanted()
        self._is_stopped = threading.Event()
        self._n_asked = 0
        self._asking_for = ""
        self._is_making = False
        self._record: BundleRecord | None = None
        self._failed: dict[str, str] = {}

    @property
    def is_making(self) -> bool:
        """Whether one is being made now."""
        return self._is_making

    @property
    def selection(self) -> tuple[Ref, ...]:
        """The last archive: `y` copies where it lies."""
        made = self._record
        return () if made is None else (Ref(kind="file", id=made.path, name=Path(made.path).name),)

    def want(self, values: Values) -> None:
        """Take which nodes and what time it should be about.

        Raises:
            ClientError: `client.usage`: that is no duration.
        """
        if values.get("since"):
            parse_duration(values["since"], "since")
        self._wanted = Wanted(nodes=values.get("nodes", ""), since=values.get("since", ""))

    def redraw_text(self) -> None:
        """Show what is known now."""
        width = max(20, self.size.width)
        text = [piece for item in self._text() for piece in wrapped(item, width)]
        self.show(text, state="making" if self._is_making else "")

    # ---- Making one ----

    async def make(self) -> None:
        """Make one; what cannot be had is left out and named.

        Raises:
            SkulkError: The node cannot be asked, a node is not known, or the disk does not allow.
        """
        if self._is_making:
            return
        self._is_making, self._record, self._n_asked = True, None, 0
        self._failed = {}
        self._is_stopped.clear()
        self._asking_for = "who is there"
        self.redraw_text()
        try:
            await self._make()
        finally:
            self._is_making = False
            self.redraw_text()

    async def _make(self) -> None:
        seat = self._seat
        state = await seat.link.request("GET", "/state", StateDocument)
        now_ms = seat.clock.wall_ms()
        wish = self._wish(state, now_ms)
        loop = asyncio.get_running_loop()
        tell = self._teller(loop.call_soon_threadsafe)
        collected = Collected(LinkAsked(seat.link, loop), wish, SystemClock(), tell=tell)
        path = (seat.state_dir or Path()) / _FOLDER / bundle_name(now_ms)
        path.parent.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
        record, _ = await run_blocking(write_bundle, path, collected, wish, state, now_ms=now_ms)
        self._record, self._failed = record, collected.failed
        how = "in part" if record.partial or record.failed else "whole"
        seat.tell(f"the bundle is made, {how}: {record.path}", level="good")

    def _wish(self, state: StateDocument, now_ms: int) -> BundleWish:
        wanted = self._wanted
        chosen = node_ids_of(state, (wanted.nodes,)) if wanted.nodes else tuple(state.members)
        left_out: tuple[NodeId, ...] = ()
        if not wanted.nodes:
            chosen, left_out = chosen[:MAX_NODES], chosen[MAX_NODES:]
        since_ms = None
        if wanted.since:
            since_ms = now_ms - int(parse_duration(wanted.since, "since") * 1000)
        return BundleWish(nodes=chosen, left_out=left_out, since_ms=since_ms)

    def stop(self) -> None:
        """Ask for no more; what has been collected is kept, and said to be a part."""
        self._is_stopped.set()

    def _teller(self, on_loop: Callable[..., object]) -> Callable[[str], None]:
        def tell(text: str) -> None:
            if self._is_stopped.is_set():
                raise StoppedError
            on_loop(self._advance, text)

        return tell

    def _advance(self, text: str) -> None:
        self._n_asked += 1
        self._asking_for = text.removeprefix("asking for ")
        if self.is_mounted:
            self.redraw_text()

    def on_unmount(self) -> None:
        """Ask for no more: the screen goes."""
        self.stop()

    # ---- What is shown ----

    def _text(self) -> Sequence[Line]:
        wanted, n_nodes = self._wanted, len(self._seat.view.nodes)
        who = wanted.nodes or f"all {n_nodes}" + (
            f", at most {MAX_NODES}" if n_nodes > MAX_NODES else ""
        )
        n_asked = len(wanted.nodes.split(",")) if wanted.nodes else min(n_nodes, MAX_NODES)
        size = BundleWish(nodes=(NodeId(""),) * n_asked).at_most_bytes
        rows = (
            ("nodes", who),
            ("window", f"the last {wanted.since}" if wanted.since else "the last 1,000 lines"),
            ("holds", "state, events, and of each node: identity, health, settings, log"),
            ("removed", "API keys, invitations, prompts, names of home folders; counted inside"),
            ("size", f"at most {format_bytes(size)} before compression"),
        )
        lines = [line(Span(f" {name:<9}", "dim"), span(text)) for name, text in rows]
        lines.append(line(Span(" command  ", "dim"), span(wanted.cli, "accent")))
        # What was made last stands above all that a further one would hold.
        return [*self._progress_lines(), EMPTY, *lines]

    def _progress_lines(self) -> Sequence[Line]:
        if self._is_making:
            return (
                line(Span(f" {self._n_asked} ", "strong"), span(f"asking for {self._asking_for}")),
                line(Span(" x", "accent"), " stops; what has come is kept"),
            )
        made = self._record
        if made is None:
            return (
                line(Span(" enter", "accent"), " makes it;",
                     Span(" :bundle nodes A,B since 10m", "accent"), " narrows it down"),
            )  # fmt: skip
        partial = toned(" it was stopped: this is a part of it", "warn") if made.partial else EMPTY
        return [
            line(Span(" made     ", "dim"), span(made.path, "strong")),
            line(
                f"          {format_bytes(made.size_bytes)}, {made.files} documents,"
                f" {made.removed} removals"
            ),
            *([partial] if partial else []),
            line(Span(" y", "accent"), " copies where it lies; review it before you share it:"),
            line(span(f" tar --zstd -xf {Path(made.path).name}", "accent")),
            *(
                line(Span(" missing  ", "dim"), span(f"{name}: {why}", "warn"))
                for name, why in self._failed.items()
            ),
        ]
