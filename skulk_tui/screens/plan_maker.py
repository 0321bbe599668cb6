"""Asks the planner while the operator changes what is wanted; the newest wish alone counts."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, final

from textual.timer import Timer
from textual.widget import Widget
from textual.worker import Worker

from protocol.control_api import PreviewsDocument
from protocol.errors import SkulkError
from skulk_tui.cli.plan_notes import differences
from skulk_tui.screens.plan_rows import Made
from skulk_tui.seat import Seat
from skulk_tui.view_state import ViewState
from skulk_tui.wish import Wish

PLAN_DELAY_S: Final = 0.15
"""From the last change of what is wanted to the question."""
PLAN_OLD_S: Final = 30.0
"""After which a plan is made anew even though nothing has told of a change: readings move."""


@final
class PlanMaker:
    """One question at a time, put when the operator pauses.

    Args:
        owner: Whose timers and workers it uses; they end with it.
        seat: The run.
        on_news: Called when there is an answer, a refusal, or a question under way.
    """

    def __init__(self, owner: Widget, seat: Seat, on_news: Callable[[], None]) -> None:
        self._owner = owner
        self._seat = seat
        self._on_news = on_news
        self._timer: Timer | None = None
        self._worker: Worker[None] | None = None
        self.wish: Wish | None = None
        self.made: Made | None = None
        self.problem: SkulkError | None = None

    @property
    def is_making(self) -> bool:
        """Whether an answer to the present wish is awaited."""
        return self._timer is not None or self._worker is not None

    @property
    def current(self) -> Made | None:
        """The answer to the present wish; None until it is there."""
        return self.made if self.made is not None and self.made.wish == self.wish else None

    def want(self, wish: Wish | None) -> None:
        """Wish for something; the same as before changes nothing."""
        if wish == self.wish:
            return
        if wish is None or self.wish is None or wish.model_id != self.wish.model_id:
            self.made = None
        self.wish = wish
        self.problem = None
        self.remake()

    def remake(self) -> None:
        """Ask anew, a moment from now; a question under way is given up."""
        self.rest()
        if self.wish is not None:
            self._timer = self._owner.set_timer(PLAN_DELAY_S, self._start)
        self._on_news()

    def remake_if_old(self) -> None:
        """Ask anew where the answer is old."""
        if self.is_making or self.wish is None:
            return
        if self.made is None or self._seat.now() - self.made.at >= PLAN_OLD_S:
            self.remake()

    def rest(self) -> None:
        """Give up the question under way."""
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        if self._worker is not None:
            self._worker.cancel()
            self._worker = None

    async def settled(self) -> Made:
        """Ask at once, and give the answer to the present wish.

        Raises:
            SkulkError: The node's, or the link's.
        """
        self.rest()
        wish = self.wish
        if wish is None:
            raise AssertionError("nothing is wished for")
        made = await self._ask(wish)
        if self.wish == wish:
            self._take(made)
        return made

    def _start(self) -> None:
        self._timer = None
        if self.wish is not None and self._seat.link.view.may_change:
            self._worker = self._owner.run_worker(
                partial(self._make, self.wish), exit_on_error=False
            )
        self._on_news()

    async def _make(self, wish: Wish) -> None:
        try:
            made = await self._ask(wish)
        except SkulkError as error:
            if self.wish == wish:
                self.problem, self.made = error, None
        except asyncio.CancelledError:
            raise  # superseded; whoever did so has put the next question
        else:
            if self.wish == wish:
                self._take(made)
        self._worker = None
        self._on_news()

    async def _ask(self, wish: Wish) -> Made:
        document = await self._seat.link.request(
            "GET", "/instance/previews", PreviewsDocument, query=wish.query()
        )
        return Made(wish=wish, document=document, at=self._seat.now())

    def _take(self, made: Made) -> None:
        before = self.current
        self.problem = None
        self.made = with_changes(made, before, self._seat.view)
        self._on_news()


def with_changes(made: Made, before: Made | None, view: ViewState) -> Made:
    """Note what is another than it was in the last answer to the same wish."""
    if before is None:
        return made
    then, now = before.best, made.best
    if then is None and now is not None:
        changes = ("it fits now",)
    elif then is not None and now is None:
        changes = ("it fits nowhere any more",)
    elif then is not None and now is not None and then.plan_id != now.plan_id:
        changes = tuple(differences(then, now, name_of=view.name_of))
    else:
        changes = before.changes
    return Made(wish=made.wish, document=made.document, at=made.at, changes=changes)


Situation = tuple[tuple[object, ...], ...]
"""What a plan depends on and rows tell; readings are left out, because they always move."""


def situation_of(view: ViewState) -> Situation:
    """Give what makes a plan old when it changes: who is there, and what is placed and held."""
    nodes = tuple(
        (
            node.member.node_id,
            node.member.liveness,
            node.member.role,
            node.resources.backends if node.resources else (),
        )
        for node in view.nodes
    )
    placed = tuple((one.instance_id, one.phase) for one in view.instances)
    fetched = tuple((one.node_id, one.model_id, one.state) for one in view.transfers)
    return (nodes, placed, fetched)
