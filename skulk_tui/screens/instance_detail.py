"""One instance: its shards as they come up, its figures, its failures, and its engine's log."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final, final

from textual.events import Resize

from protocol.control_api import InstanceView
from protocol.errors import ClientError
from skulk_tui.changes import Change
from skulk_tui.lines import toned
from skulk_tui.screens.cluster_rows import short_model
from skulk_tui.screens.instance_detail_rows import (
    SHARD_COLUMNS,
    failure_of,
    instance_lines,
    instance_of,
    shard_rows,
    trouble_lines,
)
from skulk_tui.screens.plan_changes import retry, stop
from skulk_tui.screens.plan_inputs import one_instance
from skulk_tui.screens.view import Handler, Values, View
from skulk_tui.seat import Seat
from skulk_tui.table_model import Ref, TableModel
from skulk_tui.view_state import Changes
from skulk_tui.widgets.log_pane import LogPane
from skulk_tui.widgets.pane import Pane, TablePane, TextPane

_BACKLOG: Final = 200
_MOST_SHARDS: Final = 5
"""Rows of shards that are shown before they scroll, where panes stand one below the other."""
_WIDTH: Final = 80
"""Until the layout is known."""


@final
class InstanceDetail(View):
    """An instance's detail."""

    view_id: ClassVar[str] = "instance"
    title: ClassVar[str] = "Instance"

    def __init__(self, seat: Seat, ref: Ref | None = None) -> None:
        super().__init__(seat, ref)
        dash = seat.glyphs.rule
        self.shards = TablePane(
            "shards",
            "Shards",
            TableModel(SHARD_COLUMNS),
            empty=("this instance is placed no more; 2 shows the models",),
            dash=dash,
        )
        self.facts = TextPane("figures", "Instance", dash=dash)
        self.trouble = TextPane("trouble", "Failures", dash=dash)
        self.tail = LogPane("tail", "Engine log", dash=dash)
        self._log_id: int | None = None

    @property
    def _instance_id(self) -> str:
        return self.ref.id if self.ref else ""

    @property
    def selection(self) -> tuple[Ref, ...]:
        """Actions are about the instance, in whatever pane the keyboard is."""
        return () if self.ref is None else (self.ref,)

    def panes(self) -> Sequence[Pane]:
        """Shards first: Enter opens their node."""
        return (self.shards, self.facts, self.trouble, self.tail)

    def handlers(self) -> Mapping[str, Handler]:
        """Give what the keys of this view do."""
        return {
            "placement.open_run": self._open_node,
            "placement.open": self._open_model,
            "placement.stop": lambda values: self._change(values, stop),
            "placement.retry": lambda values: self._change(values, retry),
        }

    def on_shown(self) -> None:
        """Follow the engine's log."""
        if self._log_id is None and self._instance_id:
            self._log_id = self.seat.link.subscribe(
                "logs", instance_id=self._instance_id, backlog=_BACKLOG
            )

    def on_hidden(self) -> None:
        """Follow it no more."""
        if self._log_id is not None:
            self.seat.link.unsubscribe(self._log_id)
            self._log_id = None

    def commit(self, changes: Changes | None) -> None:
        """Show what changed."""
        if changes is None or changes.keys:
            self._show_instance()
        if self._log_id is not None and (changes is None or self._log_id in changes.line_ids):
            refusal = self.seat.link.error_of(self._log_id)
            self.tail.show(self.seat.view.lines(self._log_id), refusal=refusal)

    def _show_instance(self) -> None:
        view = self.seat.view
        item = instance_of(view, self._instance_id)
        failure = failure_of(view, self._instance_id)
        self.shards.model.set_rows(() if item is None else shard_rows(item, view))
        self.shards.redraw()
        if item is None:
            self.facts.show((toned(" this instance is placed no more", "warn"),))
        else:
            self.facts.show(instance_lines(item, view), title=short_model(item.model_id))
        told = item.failure if item is not None and item.failure is not None else failure
        self.trouble.set_class(told is not None, "told")
        width = self.trouble.size.width or self.size.width or _WIDTH
        self.trouble.show(trouble_lines(told, width))
        # As many rows as there are shards, so that the rest has room.
        n_shards = max(1, min(_MOST_SHARDS, self.shards.model.n_all))
        self.shards.styles.height = "1fr" if self.has_class("wide") else 2 + n_shards

    def on_resize(self, event: Resize) -> None:
        """Wrap anew; Textual has the base class do its part too."""
        del event
        self.call_after_refresh(self._show_instance)

    async def _open_node(self, values: Values) -> None:
        del values
        cursor = self.shards.model.cursor
        if cursor is not None:
            node_id = cursor.id.partition(" ")[2]
            await self.seat.open_ref(Ref(kind="node", id=node_id, name=cursor.name))

    async def _open_model(self, values: Values) -> None:
        del values
        item = instance_of(self.seat.view, self._instance_id)
        if item is not None:
            await self.seat.open_ref(Ref(kind="model", id=item.model_id, name=item.model_id))

    def _change(self, values: Values, plan: Callable[[Seat, InstanceView], Change]) -> None:
        named = values.get("instance", "")
        if not named and instance_of(self.seat.view, self._instance_id) is None:
            raise ClientError(
                "client.usage",
                "this instance is placed no more",
                remediation="2 shows the models, and what runs.",
            )
        self.seat.confirm(plan(self.seat, one_instance(self.seat.view, named, self.selection)))
