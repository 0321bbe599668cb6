"""Screen 2: the models, where one would go and why not elsewhere, and how it comes up there."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final, final

from textual.app import ComposeResult
from textual.containers import Container
from textual.events import Resize

from protocol.cluster_api import ClusterStorage
from protocol.control_api import InstanceView, PreviewsDocument
from protocol.errors import ClientError, SkulkError, error_of
from protocol.ids import ModelId, NodeId
from protocol.placements import Plan
from skulk_tui.changes import Change
from skulk_tui.glyphs import cut_cells
from skulk_tui.lines import Line, line, span, toned, wrapped
from skulk_tui.screens.cluster_rows import short_model
from skulk_tui.screens.models_rows import (
    MODEL_COLUMNS,
    MODEL_FACETS,
    WHERE_COLUMNS,
    inputs_line,
    instances_of,
    model_rows,
    picked_note,
    where_rows,
)
from skulk_tui.screens.plan_changes import command_name, placement, retry, stop
from skulk_tui.screens.plan_inputs import (
    applied,
    next_shape,
    one_instance,
    resized_context,
    resized_slots,
    wish_of,
)
from skulk_tui.screens.plan_maker import PlanMaker, Situation, situation_of
from skulk_tui.screens.plan_phases import run_blocks
from skulk_tui.screens.plan_rows import (
    PLAN_COLUMNS,
    Made,
    dry_run_lines,
    letter_of,
    plan_lines,
    plan_rows,
    refusal_lines,
)
from skulk_tui.screens.store_rows import Disks, disks_of
from skulk_tui.screens.view import WIDE, Handler, Values, View
from skulk_tui.seat import Seat
from skulk_tui.table_model import Ref, TableModel
from skulk_tui.view_state import Changes
from skulk_tui.widgets.block_pane import BlockPane
from skulk_tui.widgets.pane import Pane, TablePane, TextPane
from skulk_tui.wish import Wish, refused

LOOK_AGAIN_S: Final = 30.0
"""Disks are asked for: nothing tells when a file has gone."""
NARROW: Final = 80
"""Columns below which the plan stands below the list."""
_MOST_RUN_LINES: Final = 7
_MOST_PLAN_LINES: Final = 7
_SUM_LINES: Final = 5
_ROOM_FOR_SUM: Final = 12
"""Rows of the right side from which some are kept for the arithmetic."""


@final
class _FittedPane(TextPane):
    """A pane whose lines are made for its width, and anew when that changes."""

    def __init__(self, name: str, title: str, *, dash: str, fit: Callable[[], None]) -> None:
        super().__init__(name, title, dash=dash)
        self._fit = fit

    def on_resize(self, event: Resize) -> None:
        """Have the lines made; Textual has the base class do its part too."""
        del event
        self._fit()


@final
class ModelsView(View):
    """The screen Models."""

    view_id: ClassVar[str] = "models"
    title: ClassVar[str] = "Models"

    def __init__(self, seat: Seat) -> None:
        super().__init__(seat)
        dash = seat.glyphs.rule
        self.disks = Disks()
        self.maker = PlanMaker(self, seat, self._on_plan)
        self._wishes: dict[str, Wish] = {}
        self._verdicts: dict[str, bool] = {}
        self._situation: Situation | None = None
        self._asked_disks_at: float | None = None
        self._disks_problem: SkulkError | None = None
        self._is_judging = False
        self._shown_model = ""
        self.models = TablePane(
            "models",
            "Models",
            TableModel(MODEL_COLUMNS, facets=MODEL_FACETS, sort="model"),
            empty=(
                "no model has a card here;",
                "`skulk models import PATH` adds a file of yours",
            ),
            dash=dash,
        )
        self.where = TablePane(
            "where",
            "Where",
            TableModel(WHERE_COLUMNS),
            empty=("no node has answered yet",),
            dash=dash,
        )
        self.plans = TablePane("plans", "Plans", TableModel(PLAN_COLUMNS), empty=(), dash=dash)
        self.sum = _FittedPane("sum", "", dash=dash, fit=self._show_sum)
        self.runs = BlockPane("runs", "Runs", empty=("not placed",), dash=dash)
        self.line = TextPane("line", "Command", dash=dash)
        self.right = Container(self.plans, self.sum, self.runs, id="models-right")

    # ---- Layout ----

    def compose(self) -> ComposeResult:
        """Put the list to the left, the plan to the right, and the command below both."""
        with Container(id="models-main"):
            with Container(id="models-left"):
                yield self.models
                yield self.where
            yield self.right
        yield self.line

    def panes(self) -> Sequence[Pane]:
        """Models first, then what a plan is made of."""
        return (self.models, self.plans, self.where, self.sum, self.runs, self.line)

    def on_resize(self, event: Resize) -> None:
        """Mark the view `narrow`; Textual has the base class do its part too."""
        del event
        self.call_after_refresh(self._fit)

    def _fit(self) -> None:
        """Lay out for the size there is; the event may tell one that was passed through."""
        width = self.size.width
        self.set_class(0 < width < NARROW, "narrow")
        self.set_class(width >= WIDE, "wide")
        self._show_plan()

    # ---- What comes in ----

    def on_shown(self) -> None:
        """Ask for the disks, and for a plan of what the cursor is on."""
        self._ask_disks()
        self.maker.remake_if_old()

    def on_hidden(self) -> None:
        """Nobody looks: ask for nothing."""
        self.maker.rest()

    def tick(self) -> None:
        """Let ages grow; ask again for what nothing tells of."""
        if self._asked_disks_at is None or (self.seat.now() - self._asked_disks_at >= LOOK_AGAIN_S):
            self._ask_disks()
        self._follow_cursor()  # a filter moves it too
        self.maker.remake_if_old()
        self._judge_all()
        self.plans.note = self._plan_note()
        self.plans.redraw()

    def commit(self, changes: Changes | None) -> None:
        """Show what changed; a plan that this makes old is made anew."""
        del changes
        view = self.seat.view
        self.models.model.set_rows(model_rows(view, self.disks, self._verdicts))
        self.models.note = "" if self._disks_problem is None else "disks not told"
        self.models.redraw()
        self._follow_cursor()
        self._look_for_changes()
        self._show_where()
        self._fit()

    def on_moved(self) -> None:
        """Plan what the cursor has come to."""
        self._follow_cursor()
        self._show_where()
        self._show_plan()

    def _look_for_changes(self) -> None:
        situation = situation_of(self.seat.view)
        if situation == self._situation:
            return
        is_first = self._situation is None
        self._situation = situation
        if not is_first:
            self._verdicts.clear()
            self.maker.remake()

    def _follow_cursor(self) -> None:
        cursor = self.models.model.cursor
        self.maker.want(None if cursor is None else self._wish_for(cursor.id))

    def _wish_for(self, model_id: str) -> Wish:
        return self._wishes.get(model_id) or Wish(model_id=ModelId(model_id))

    def _on_plan(self) -> None:
        made = self.maker.current
        if made is not None and made.wish == Wish(model_id=made.wish.model_id):
            self._verdicts[made.wish.model_id] = bool(made.document.plans)
        self._show_plan()

    # ---- What is drawn ----

    def _show_where(self) -> None:
        wish = self.maker.wish
        self.where.model.set_rows(where_rows(self.seat.view, wish))
        self.where.note = picked_note(wish)
        self.where.foot = inputs_line(wish)
        self.where.redraw()

    def _show_plan(self) -> None:
        wish, made = self.maker.wish, self.maker.made
        model_id = "" if wish is None else wish.model_id
        self.plans.model.set_rows(plan_rows(made, self.seat.view))
        if made is not None and model_id != self._shown_model:
            self.plans.model.move_to(0)
            self._shown_model = model_id
        self.plans.note = self._plan_note()
        self.plans.empty = self._no_plan()
        self.plans.redraw()
        self._show_sum()
        self._show_runs(model_id)
        self._show_line()

    def _share_out(self, n_run_lines: int) -> None:
        """Give the plans what the runs leave, and a little to the arithmetic."""
        room = self.right.size.height or self.size.height
        n_runs = 1 + min(_MOST_RUN_LINES, n_run_lines) if n_run_lines else 0
        for_sum = _SUM_LINES if room >= _ROOM_FOR_SUM else 0
        n_plans = min(_MOST_PLAN_LINES, self.plans.model.n_all or len(self.plans.empty))
        self.plans.styles.height = min(2 + n_plans, max(3, room - n_runs - for_sum))
        self.runs.styles.height = n_runs
        self.sum.display = bool(for_sum) or not n_runs

    def _plan_note(self) -> str:
        wish, made = self.maker.wish, self.maker.made
        if wish is None:
            return ""
        name = cut_cells(short_model(wish.model_id), max(8, self.plans.size.width - 30))
        if self.maker.is_making and self.maker.current is None:
            return f"{name}  planning"
        if made is None:
            return name
        best = made.best
        age = f"{max(0.0, self.seat.now() - made.at):.0f}s old"
        return f"{name}  {best.plan_id[:4] if best else 'no plan'} {age}"

    def _no_plan(self) -> tuple[str, ...]:
        problem = self.maker.problem
        if problem is not None:
            return tuple(
                "".join(part.text for part in piece)
                for text in (problem.message, problem.remediation)
                for piece in wrapped(line(span(text)), max(20, self.plans.size.width - 3))
                if text
            )
        if self.maker.wish is None:
            return ("choose a model",)
        if not self.seat.link.view.may_change:
            return ("no plan without the link",)
        made = self.maker.made
        if made is not None and not self.maker.is_making:
            facts = ", ".join(made.document.missing_facts)
            return (f"facts are still arriving: {facts}" if facts else "no node is a candidate",)
        return ("planning",)

    def _show_sum(self) -> None:
        made, view, glyphs = self.maker.made, self.seat.view, self.seat.glyphs
        width = max(30, self.sum.size.width)
        cursor = self.plans.model.cursor
        if made is None or cursor is None:
            self.sum.show((), title="Per node")
            return
        lines: list[Line] = [
            piece
            for text in made.changes
            for piece in wrapped(line(span(f" changed: {text}", "warn")), width)
        ]
        plan, refusal = made.plan(cursor), made.refusal(cursor)
        if plan is not None:
            letter = letter_of(made.document.plans.index(plan))
            lines += plan_lines(plan, view, glyphs, width)
            self.sum.show(lines, title=f"{letter}, per node", state="used + added")
        elif refusal is not None:
            lines += refusal_lines(refusal, view, glyphs, width)
            self.sum.show(lines, title="Refused", state=refusal.error.code)

    def _show_runs(self, model_id: str) -> None:
        width = max(30, self.runs.size.width or self.size.width // 2)
        instances = instances_of(self.seat.view, model_id)
        self.runs.display = bool(instances)
        blocks = run_blocks(instances, self.seat.view, self.seat.glyphs, width)
        self._share_out(sum(len(block.lines) for block in blocks))
        self.runs.note = "x stops" if self.seat.may_change else ""
        self.runs.show(blocks)

    def _show_line(self) -> None:
        text = self._cli()
        if not text:
            self.line.show((toned(" choose a model", "dim"),))
            return
        room = max(20, self.line.size.width or self.size.width)
        self.line.show(wrapped(line(span(f" {text}", "accent")), room))

    def _cli(self) -> str:
        wish, made = self.maker.wish, self.maker.current
        if wish is None:
            return ""
        plan = made.plan(self.plans.model.cursor) if made is not None else None
        return wish.cli(command_name(self.seat.view), plan.plan_id if plan else None)

    # ---- What is asked for by itself ----

    def _ask_disks(self) -> None:
        if self.seat.link.view.may_change:
            self._asked_disks_at = self.seat.now()
            self.run_worker(self._take_disks, group="disks", exclusive=True, exit_on_error=False)

    async def _take_disks(self) -> None:
        try:
            answer = await self.seat.link.request("GET", "/store/storage", ClusterStorage)
        except SkulkError as error:
            self._disks_problem = error
        else:
            self.disks = disks_of(answer, at=self.seat.now())
            self._disks_problem = None
        self.commit(None)

    def _judge_all(self) -> None:
        """Have every model planned, once a filter asks which of them fit."""
        is_asked = any(term.facet == "fits" for term in self.models.model.filter.terms)
        if is_asked and not self._is_judging and self.seat.link.view.may_change:
            self._is_judging = True
            self.run_worker(self._judge, group="fits", exclusive=True, exit_on_error=False)

    async def _judge(self) -> None:
        try:
            for entry in self.seat.view.models:
                if entry.id in self._verdicts:
                    continue
                answer = await self.seat.link.request(
                    "GET",
                    "/instance/previews",
                    PreviewsDocument,
                    query=Wish(model_id=entry.id).query(),
                )
                self._verdicts[entry.id] = bool(answer.plans)
        except SkulkError as error:
            self.seat.tell_error(error)
        finally:
            self._is_judging = False
        self.commit(None)

    # ---- What is wanted ----

    def handlers(self) -> Mapping[str, Handler]:
        """Give what the keys and commands of this screen do."""
        return {
            "placement.plan": self._plan,
            "placement.place": self._place,
            "placement.pick": self._pick,
            "placement.shape": lambda _: self._rewish(next_shape),
            "placement.more_context": lambda _: self._resize(resized_context, 1),
            "placement.less_context": lambda _: self._resize(resized_context, -1),
            "placement.more_slots": lambda _: self._resize(resized_slots, 1),
            "placement.fewer_slots": lambda _: self._resize(resized_slots, -1),
            "placement.apply": self._apply,
            "placement.forget": self._forget,
            "placement.dry_run": self._dry_run,
            "placement.copy_line": self._copy_line,
            "placement.stop": lambda values: self._change_run(values, stop),
            "placement.retry": lambda values: self._change_run(values, retry),
            "placement.open": self._open,
            "placement.open_run": self._open,
        }

    def _rewish(self, change: Callable[[Wish], Wish]) -> None:
        """Ask for something else for the model under the cursor."""
        wish = self.maker.wish
        if wish is None:
            raise ClientError("client.usage", "no model is chosen")
        self._wish(change(wish))

    def _resize(self, change: Callable[[Wish, Made | None, int], Wish], by: int) -> None:
        self._rewish(lambda wish: change(wish, self.maker.made, by))

    def _wish(self, wish: Wish) -> None:
        self._wishes[wish.model_id] = wish
        self.maker.want(wish)
        self._show_where()
        self._show_plan()

    def _go_to(self, wish: Wish) -> None:
        """Put the cursor on a wish's model, whatever the filter hides."""
        ref = Ref(kind="model", id=wish.model_id, name=wish.model_id)
        if not self.models.model.point_at(ref):
            self.models.model.set_filter("")
            self.models.model.point_at(ref)
        self._wish(wish)
        self.models.redraw()

    def _plan(self, values: Values) -> None:
        cursor = self.models.model.cursor
        self._go_to(wish_of(values, self.seat.view, cursor.id if cursor else ""))

    def _pick(self, values: Values) -> None:
        del values
        cursor = self.where.model.cursor
        if cursor is not None:
            node_id = NodeId(cursor.id)
            self._rewish(lambda wish: wish.toggled(node_id))

    def _forget(self, values: Values) -> None:
        del values
        self._rewish(lambda wish: Wish(model_id=wish.model_id))

    def _apply(self, values: Values) -> None:
        del values
        made = self.maker.current
        if made is None:
            raise _not_yet()
        chosen = made.refusal(self.plans.model.cursor)
        refusals = made.document.refusals if chosen is None else (chosen,)
        self._rewish(lambda wish: applied(wish, refusals))

    # ---- Changes ----

    async def _place(self, values: Values) -> None:
        if values:
            self._plan(values)
            made = await self.maker.settled()
            if made.best is None:
                raise refused(made.document)
            self._confirm(made.wish, made.best)
            return
        self._follow_cursor()
        made = self.maker.current
        if made is None:
            raise self.maker.problem or _not_yet()
        plan, refusal = made.plan(self.plans.model.cursor), made.refusal(self.plans.model.cursor)
        if refusal is not None:
            raise error_of(refusal.error)
        if plan is None:
            raise refused(made.document)
        self._confirm(made.wish, plan)

    def _confirm(self, wish: Wish, plan: Plan) -> None:
        self.seat.confirm(placement(self.seat, wish, plan, on_changed=self.maker.remake))

    def _change_run(self, values: Values, plan: Callable[[Seat, InstanceView], Change]) -> None:
        named = values.get("instance", "")
        item = one_instance(self.seat.view, named, self.selection)
        self.seat.confirm(plan(self.seat, item))

    # ---- Looking ----

    async def _dry_run(self, values: Values) -> None:
        del values
        made = self.maker.current or await self.maker.settled()
        if self.seat.shell is not None:
            lines = dry_run_lines(made, self.seat.view, self.seat.glyphs)
            await self.seat.shell.show_text(f"Dry run: {made.wish.model_id}", lines)

    async def _copy_line(self, values: Values) -> None:
        del values
        text = self._cli()
        if text and self.seat.clipboard is not None:
            copied = await self.seat.clipboard.copy(text)
            self.seat.tell(copied.said)

    async def _open(self, values: Values) -> None:
        del values
        for ref in self.selection[:1]:
            await self.seat.open_ref(ref)


def _not_yet() -> ClientError:
    return ClientError(
        "client.usage",
        "there is no plan yet",
        remediation="Wait for it: the rule above the plans says when it is there.",
    )
