"""What the program for tests on a pty shows: apart from it, because it imports Textual."""

import os
import random
import string
import time
from collections.abc import Callable, Mapping
from typing import Final

from rich.segment import Segment
from textual import events
from textual.app import ComposeResult
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget

from skulk_tui.clipboard import Clipboard, clipboard_choice
from skulk_tui.crashes import QuietApp
from skulk_tui.driver import SkulkDriver
from skulk_tui.own_files import state_dir
from skulk_tui.terminal import Terminal, ThemeName
from skulk_tui.themes import THEMES

HANGS_S: Final = 60.0


class Board(Widget):
    """Rows of text as they are."""

    rows: tuple[str, ...] = ("<starting>",)

    def render_line(self, y: int) -> Strip:
        text = self.rows[y] if y < len(self.rows) else ""
        return Strip([Segment(text[: self.size.width].ljust(self.size.width), self.rich_style)])


class TerminalApp(QuietApp[None]):
    CSS = """
    Screen { background: $background; }
    Board { width: 100%; height: 100%; color: $success; background: $surface; }
    """

    def __init__(self, theme: ThemeName, terminal: Terminal, *, hz: float, copied: str) -> None:
        super().__init__(
            driver_class=SkulkDriver, ansi_color=True if terminal.colour_depth == "none" else None
        )
        for each in THEMES.values():
            self.register_theme(each)
        self.theme = THEMES[theme].name
        self._greeting = f"ready> <{theme}> <{terminal.glyphs.name}"
        self._hz = hz
        self._copied = copied
        self._word = "starting"
        self._board = Board()
        self._known_size: Size | None = None
        self._randomness = random.Random(1)  # ruff: ignore[suspicious-non-cryptographic-random-usage]  digits to look at
        self._clipboard_under_test = Clipboard(
            clipboard_choice(os.environ),
            environ=os.environ,
            send=self._send,
            state_dir=state_dir(os.environ),
        )

    def compose(self) -> ComposeResult:
        yield self._board

    def on_mount(self) -> None:
        self.say(self._greeting)
        if self._hz:
            self.set_interval(1 / self._hz, self._draw_new_values)

    def say(self, word: str) -> None:
        self._word = word
        self._board.rows = (f"<{word}>", *self._board.rows[1:])
        self._board.refresh()

    async def on_key(self, event: events.Key) -> None:
        keys: Mapping[str, Callable[[], object]] = {
            "q": lambda: self.exit(return_code=0),
            "x": self._crash,
            "w": lambda: self.run_worker(self._fail(), exit_on_error=False),
            "h": self._hang,
            "ctrl+z": self.action_suspend_process,
        }
        if event.key == "y":
            self.say((await self._clipboard_under_test.copy(self._copied)).said)
        elif event.key in keys:
            keys[event.key]()
        else:
            self.say(f"key {event.key}")

    def on_paste(self, event: events.Paste) -> None:
        self.say(f"paste {len(event.text)}")

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self.say(f"mouse {event.screen_x:.0f} {event.screen_y:.0f}")

    def on_resize(self, event: events.Resize) -> None:
        if self._known_size is not None and event.size != self._known_size:
            self.say(f"size {event.size.width}x{event.size.height}")
        self._known_size = event.size

    def _send(self, text: str) -> None:
        if self._driver is not None:
            self._driver.write(text)

    def _draw_new_values(self) -> None:
        if getattr(self._driver, "backlog", 0) > 1:
            return
        digits = (
            "".join(self._randomness.choices(string.digits, k=self.size.width))
            for _ in range(self.size.height - 1)
        )
        self._board.rows = (f"<{self._word}>", *digits)
        self._board.refresh()

    def _crash(self) -> None:
        message = "asked to"
        raise KeyError(message)

    def _hang(self) -> None:
        self.say("hanging")
        self.set_timer(0.3, lambda: time.sleep(HANGS_S))

    async def _fail(self) -> None:
        message = "in a worker"
        raise ValueError(message)
