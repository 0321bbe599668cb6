"""The application: Textual's life cycle around one seat, its link and its data clock.

It never ends by itself: not when the link is lost, and not when a frame makes no sense.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, final

from textual.app import App
from textual.driver import Driver
from textual.screen import Screen

from protocol.session import RowTopic
from skulk_tui.changes import Change, Option
from skulk_tui.chat_editor import edit_text
from skulk_tui.crashes import QuietApp
from skulk_tui.frames import DataClock
from skulk_tui.lines import Line
from skulk_tui.screens.asking import copy_text
from skulk_tui.screens.attaching import attach, use
from skulk_tui.screens.dialogs import LEAVE, ChoiceDialog, Dialog, ProbeDialog, TextDialog
from skulk_tui.screens.roots import DETAILS, ROOT_VIEWS
from skulk_tui.screens.seat_screen import SeatScreen
from skulk_tui.screens.view import Handler, Values
from skulk_tui.seat import Seat
from skulk_tui.table_model import Ref
from skulk_tui.terminal import ThemeName
from skulk_tui.themes import THEMES
from skulk_tui.view_state import Changes

if TYPE_CHECKING:
    from skulk_tui.last_view import LastView

_log = logging.getLogger(__name__)

ROW_TOPICS: Final[tuple[RowTopic, ...]] = (
    "cluster", "placements", "transfers", "models", "health",
)  # fmt: skip
"""Followed from the start: every screen reads them."""
TICK_S: Final = 1.0
_POLL_HZ: Final = 10.0
"""How often the data clock is asked; it decides by its own rate and the output's backlog."""
_CLOSE_S: Final = 1.0


@final
class SkulkTui(QuietApp[int], inherit_bindings=False):
    """`skulk tui`.

    Args:
        seat: The run; its link has not been started.
        theme: The colours to begin with.
        data_hz: How often a second new values are shown.
        driver_class: What touches the terminal; None is Textual's choice, for tests.
        on_painted: Called once, when the first frame has been drawn.
    """

    CSS_PATH = "theme.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar = []
    TITLE = "skulk"

    def __init__(
        self,
        seat: Seat,
        *,
        theme: ThemeName = "dark",
        data_hz: float = 4.0,
        driver_class: type[Driver] | None = None,
        on_painted: Callable[[], None] | None = None,
    ) -> None:
        # Without it Textual turns the 16 colours, and no colour, into 24-bit codes of its own.
        super().__init__(
            driver_class=driver_class, ansi_color=True if theme in {"ansi", "mono"} else None
        )
        self.seat = seat
        self._frames = DataClock(data_hz)
        self._on_painted = on_painted
        self._seat_screen: SeatScreen | None = None
        self._last_view: LastView | None = None
        """There once the first frame has been drawn, which must not wait for it."""
        seat.shell = self
        # Nothing here pops up over the rest: the widgets that would are not even made.
        self._disable_notifications = self._disable_tooltips = True
        self._begin_in(theme)

    # ---- Life ----

    def _begin_in(self, theme: ThemeName) -> None:
        """Choose the first colours before there is a widget: all styles are worked out once."""
        for one in THEMES.values():
            self.register_theme(one)
        self.set_reactive(App.theme, THEMES[theme].name)
        self.stylesheet.set_variables(self.get_css_variables())

    def get_default_screen(self) -> Screen[None]:
        """Give the one screen."""
        self._seat_screen = SeatScreen(self.seat, ROOT_VIEWS, DETAILS, self._handlers(), self.ask)
        return self._seat_screen

    def on_mount(self) -> None:
        """Start the clocks."""
        self.set_interval(1.0 / _POLL_HZ, self._commit)
        self.set_interval(TICK_S, self._tick)

    def on_ready(self) -> None:
        """Begin the session once something is on the screen: what it loads takes a while."""
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        for topic in ROW_TOPICS:
            self.seat.link.subscribe(topic)
        self.seat.link.start()
        self._recall_view()
        if self._on_painted is not None:
            self._on_painted()

    def _recall_view(self) -> None:
        """Show what was seen of this cluster last, until it answers."""
        if self._last_view is None:
            from skulk_tui.last_view import LastView

            self._last_view = LastView(self.seat)
        self.run_worker(
            self._show_last_view(self._last_view),
            exit_on_error=False,
            group="recall view",
            exclusive=True,
        )

    async def _show_last_view(self, last_view: "LastView") -> None:
        self.take(await last_view.recall())

    async def on_unmount(self) -> None:
        """End the session; the node does not mind if there is no time for a farewell."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                if self._last_view is not None:
                    await self._last_view.save()
                await self.seat.link.close()
        except TimeoutError:
            _log.warning("the session did not close within %g s", _CLOSE_S)

    def take(self, changes: Changes) -> None:
        """Take what the link has changed in the view; called on the loop, by the link."""
        self._frames.gather(changes)

    # ---- Clocks ----

    @property
    def backlog(self) -> int:
        """Writes that the terminal has not taken yet."""
        return int(getattr(self._driver, "backlog", 0))

    def write_to_terminal(self, sequence: str) -> None:
        """Send a sequence that is no part of a frame."""
        if self._driver is not None:
            self._driver.write(sequence)

    def _commit(self) -> None:
        changes = self._frames.take(self.seat.now(), backlog=self.backlog)
        if changes and self._seat_screen is not None:
            self._seat_screen.commit(changes)

    def _tick(self) -> None:
        if self._last_view is not None and self._last_view.look():
            self.run_worker(self._last_view.save(), exit_on_error=False, group="save view")
        if self._seat_screen is not None and self.backlog <= 1:
            self._seat_screen.tick()

    def show_changed(self) -> None:
        """Draw the rows on top and below anew."""
        if self._seat_screen is not None and self._seat_screen.is_mounted:
            self._seat_screen.redraw_rows()

    async def open_ref(self, ref: Ref) -> None:
        """Open an object's detail."""
        if self._seat_screen is not None:
            await self._seat_screen.open_ref(ref)

    def _leave(self) -> None:
        """End; one line on the usual screen says what was started here and goes on."""
        started = self.seat.started
        said = f"{started[-1][0]} goes on: skulk timeline {started[-1][1]}" if started else None
        self.exit(0, message=said)

    async def ask(self, dialog: Dialog) -> str | None:
        """Show a dialog and give its answer; Ctrl-Q there leaves the program."""
        answer = await self.push_screen_wait(dialog)
        if answer == LEAVE:
            self._leave()
            return None
        return answer

    async def show_text(self, title: str, lines: Sequence[Line]) -> None:
        """Show a text over everything until it is left."""
        await self.ask(TextDialog(title, lines, self.seat.glyphs))

    async def edit_text(self, text: str) -> str | None:
        """Have a text edited in the operator's editor; None where that was left with an error."""
        return await edit_text(self, text, self.seat.state_dir)

    async def probe_keys(self) -> None:
        """Show keys as they arrive, until the operator has seen enough."""
        await self.ask(ProbeDialog(self.seat.glyphs))

    def turn_mouse(self, *, is_on: bool) -> None:
        """Ask the terminal for the mouse, or leave it alone."""
        turn = getattr(self._driver, "turn_mouse", None)
        if turn is not None:
            turn(is_on=is_on)

    def picture(self) -> str:
        """Give what is on the screen, as SVG."""
        return self.export_screenshot(title="skulk")

    def figures(self) -> Sequence[tuple[str, str]]:
        """Give names and values of how the screen is drawn."""
        return (
            ("screen", f"{self.size.width}x{self.size.height}, theme {self.theme}"),
            ("last view", self._last_view.note if self._last_view is not None else "-"),
            ("rate", f"{self._frames.hz:g} a second at most"),
            ("backlog", f"{self.backlog} writes that the terminal has not taken"),
        )

    async def choose(self, title: str, options: Sequence[Option]) -> str | None:
        """Let the operator choose by letter; None where nothing was chosen."""
        return await self.ask(ChoiceDialog(title, options, self.seat.glyphs))

    def confirm(self, change: Change) -> None:
        """Show a change's dialog, and send it if the operator says so."""
        if self._seat_screen is not None:
            self._seat_screen.confirm(change)

    # ---- What the application itself does ----

    def _handlers(self) -> Mapping[str, Handler]:
        return {
            "app.quit": lambda _: self._leave(),
            "app.suspend": lambda _: self.action_suspend_process(),
            "app.stop": lambda _: self._stop(),
            "link.retry": lambda _: self.seat.link.retry_now(),
            "link.attach": lambda values: attach(self.seat, values),
            "link.use": self._use,
            "view.resync": lambda _: self.seat.link.mark_resync(),
            "view.theme": self._choose_theme,
            "view.rate": self._choose_rate,
        }

    def _stop(self) -> Awaitable[None] | None:
        """Stop what streams; else copy the names of the selection; else say how to leave."""
        stop, screen = self.seat.stop_streams, self._seat_screen
        if stop is not None and stop():
            return None
        selection = screen.situation.selection if screen is not None else ()
        return copy_text(self.seat, "\n".join(ref.shown for ref in selection))

    async def _use(self, values: Values) -> None:
        if await use(self.seat, values) and self._seat_screen is not None:
            self._recall_view()
            self._seat_screen.recall()
            await self._seat_screen.stack.reset()

    def _choose_theme(self, values: Values) -> None:
        chosen = [theme for name, theme in THEMES.items() if name == values["theme"]]
        self.theme = chosen[0].name  # the command's own choices are these names

    def _choose_rate(self, values: Values) -> None:
        self._frames.hz = float(values["hz"])
        self.seat.tell(f"new values are shown {values['hz']} times a second")
