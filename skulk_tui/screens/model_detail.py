"""One model: what runs of it, what its card says, where its files lie, what went wrong."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final, final

from textual.events import Resize

from protocol.cluster_api import ClusterStorage
from protocol.control_api import CardDocument, InstanceView
from protocol.errors import SkulkError
from skulk_tui.changes import Change
from skulk_tui.client import path_of
from skulk_tui.lines import line, span, toned
from skulk_tui.screens.cluster_rows import short_model
from skulk_tui.screens.model_detail_rows import FILE_COLUMNS, file_rows, model_lines, past_lines
from skulk_tui.screens.models_rows import entry_of, instances_of
from skulk_tui.screens.plan_changes import retry, stop
from skulk_tui.screens.plan_inputs import one_instance
from skulk_tui.screens.plan_phases import run_blocks
from skulk_tui.screens.store_rows import Disks, disks_of
from skulk_tui.screens.view import Handler, Values, View
from skulk_tui.seat import Seat
from skulk_tui.table_model import Ref, TableModel
from skulk_tui.view_state import Changes
from skulk_tui.widgets.block_pane import BlockPane
from skulk_tui.widgets.pane import Pane, TablePane, TextPane

_WIDTH: Final = 80
"""Until the layout is known."""


@final
class ModelDetail(View):
    """A model's detail."""

    view_id: ClassVar[str] = "model"
    title: ClassVar[str] = "Model"

    def __init__(self, seat: Seat, ref: Ref | None = None) -> None:
        super().__init__(seat, ref)
        dash = seat.glyphs.rule
        self.disks = Disks()
        self._card: CardDocument | None = None
        self._problem: SkulkError | None = None
        self.runs = BlockPane(
            "runs", "Runs", empty=("it is not placed; 2 plans where it could go",), dash=dash
        )
        self.facts = TextPane("figures", "Model", dash=dash)
        self.files = TablePane(
            "files",
            "Files",
            TableModel(FILE_COLUMNS, sort="node"),
            empty=("no answer about the disks has come yet",),
            dash=dash,
        )
        self.past = TextPane("past", "Failures", dash=dash)

    @property
    def _model_id(self) -> str:
        return self.ref.id if self.ref else ""

    def panes(self) -> Sequence[Pane]:
        """What runs first: Enter opens it."""
        return (self.runs, self.facts, self.files, self.past)

    def handlers(self) -> Mapping[str, Handler]:
        """Give what the keys of this view do."""
        return {
            "placement.open_run": self._open,
            "placement.open": self._open,
            "placement.stop": lambda values: self._change(values, stop),
            "placement.retry": lambda values: self._change(values, retry),
        }

    def on_shown(self) -> None:
        """Ask for the card and the disks."""
        self.run_worker(self._ask, group="ask", exclusive=True, exit_on_error=False)

    async def _ask(self) -> None:
        link = self.seat.link
        try:
            path = path_of("/models/cards/{}", self._model_id)
            self._card = await link.request("GET", path, CardDocument)
            answer = await link.request("GET", "/store/storage", ClusterStorage)
            self.disks = disks_of(answer, at=self.seat.now())
            self._problem = None
        except SkulkError as error:
            self._problem = error
        self.commit(None)

    def commit(self, changes: Changes | None) -> None:
        """Show what changed."""
        del changes
        view = self.seat.view
        width = self.runs.size.width or self.size.width or _WIDTH
        instances = instances_of(view, self._model_id)
        self.runs.show(run_blocks(instances, view, self.seat.glyphs, width))
        self.runs.note = f"{len(instances)} placed" if instances else ""
        entry = entry_of(view, self._model_id)
        card = None if self._card is None else self._card.card
        if entry is None:
            self.facts.show((toned(" no card here names this model any more", "warn"),))
        else:
            lines = [*model_lines(entry, card, view, self.disks)]
            if self._problem is not None:
                lines.append(line(span(f" {self._problem.message}", "warn")))
            self.facts.show(lines, title=short_model(self._model_id))
        self.files.model.set_rows(file_rows(self._model_id, self.disks, view))
        if self.disks.at is not None:
            self.files.empty = ("no disk has its files; n in 4 Store fetches them",)
        self.past.show(past_lines(self._model_id, view, self.past.size.width or _WIDTH))
        self.redraw()

    def on_resize(self, event: Resize) -> None:
        """Wrap anew; Textual has the base class do its part too."""
        del event
        self.call_after_refresh(self.commit, None)

    async def _open(self, values: Values) -> None:
        del values
        for ref in self.selection[:1]:
            if ref != self.ref:
                await self.seat.open_ref(ref)

    def _change(self, values: Values, plan: Callable[[Seat, InstanceView], Change]) -> None:
        named = values.get("instance", "")
        self.seat.confirm(plan(self.seat, one_instance(self.seat.view, named, self.selection)))
