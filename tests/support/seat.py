"""The terminal UI under test: a real session with a scripted node, and what is on the screen."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, final

from textual.drivers.headless_driver import HeadlessDriver
from textual.events import Key, Resize
from textual.geometry import Size
from textual.keys import key_to_character
from textual.message_pump import MessagePump
from textual.pilot import Pilot
from textual.strip import Strip

from skulk_tui.actions.all_actions import ALL_ACTIONS
from skulk_tui.app import SkulkTui
from skulk_tui.clipboard import Clipboard
from skulk_tui.clock import SystemClock
from skulk_tui.flash import FlashLog
from skulk_tui.glyphs import ASCII, GlyphSet
from skulk_tui.registry import Registry
from skulk_tui.seat import Seat
from skulk_tui.session_link import SessionLink
from skulk_tui.session_socket import WebSocketConnector
from skulk_tui.target import Target
from skulk_tui.terminal import ThemeName
from skulk_tui.tls_pins import TlsTrust
from skulk_tui.view_state import Changes, ViewState
from tests.support.frames import check_frame

WAIT_S: Final = 10.0
SIZES: Final = ((60, 16), (80, 24), (160, 50))
"""Columns and rows that every screen is drawn for."""
QUIET_S: Final = 0.01
"""After keys: what they began may begin."""
REMOVED_S: Final = 1.0
SETTLED_S: Final = 0.12
"""Longer than the data clock's step here."""
_NAMES: Final = {
    " ": "space", "-": "minus", ":": "colon", "/": "slash", ".": "full_stop", ",": "comma",
    "<": "less_than_sign", ">": "greater_than_sign", "!": "exclamation_mark", "~": "tilde",
}  # fmt: skip
"""What Textual calls the keys of characters that are no letters and no digits."""


@final
class SeatUnderTest:
    """A running terminal UI.

    Args:
        app: It.
        pilot: Its keyboard.
    """

    def __init__(self, app: SkulkTui, pilot: Pilot[int]) -> None:
        self.app = app
        self.pilot = pilot

    @property
    def frame(self) -> list[str]:
        """The screen's rows of text, without what is blank at their ends."""
        return ["".join(part.text for part in strip).rstrip() for strip in self.strips]

    @property
    def strips(self) -> list[Strip]:
        """The screen's rows of cells, with their looks."""
        return self.app.screen._compositor.render_strips()  # pyright: ignore[reportPrivateUsage]

    @property
    def text(self) -> str:
        """The screen as one text."""
        return "\n".join(self.frame)

    async def press(self, *keys: str) -> None:
        """Press keys, each once what the one before it did has been done as far as it waits."""
        for key in keys:
            await self._send(Key(key, key_to_character(key)))
        await asyncio.sleep(QUIET_S)

    async def type(self, text: str) -> None:
        """Type text, key by key."""
        for character in text:
            await self._send(Key(_NAMES.get(character, character), character))
        await asyncio.sleep(QUIET_S)

    async def resize(self, columns: int, rows: int) -> None:
        """Change the terminal's size; what is laid out anew is not waited for."""
        size = Size(columns, rows)
        driver = self.app._driver  # pyright: ignore[reportPrivateUsage]
        assert isinstance(driver, HeadlessDriver)
        driver._size = size  # pyright: ignore[reportPrivateUsage]
        self.app.post_message(Resize(size, size))
        await _emptied(self.app)
        await _emptied(self.app.screen)

    async def _send(self, event: Key) -> None:
        # Textual's own pilot waits after each key until the process is idle, which one that also
        # runs the node seldom is. A key is done with when it has gone through three queues: the
        # application's, that of what holds the keyboard, and its screen's.
        driver = self.app._driver  # pyright: ignore[reportPrivateUsage]
        assert driver is not None
        event.set_sender(self.app)
        driver.send_message(event)
        await _emptied(self.app)
        await _emptied(self.app.focused or self.app.screen)
        await _emptied(self.app.screen)

    async def until(self, holds: Callable[[], object], what: str = "") -> None:
        """Wait until something holds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WAIT_S
        while not holds():
            if loop.time() > deadline:
                message = f"{what or 'it'} did not come to be within {WAIT_S} s:\n{self.text}"
                raise AssertionError(message)
            await self.pilot.pause(0.02)

    async def settled(self) -> list[str]:
        """Give the screen once it has stopped moving, but for ages."""
        before = self.frame
        for _ in range(50):
            await self.pilot.pause(SETTLED_S)
            now = self.frame
            if now[1:] == before[1:]:
                return now
            before = now
        return before

    async def until_shows(self, *words: str) -> None:
        """Wait until all words are on the screen."""
        await self.until(lambda: all(word in self.text for word in words), f"{words}")


async def check_sizes(
    seat: SeatUnderTest, name: str, sizes: tuple[tuple[int, int], ...] = SIZES
) -> None:
    """Compare what is drawn with a frame for each size of the terminal; the last one stays."""
    for columns, rows in sizes:
        await seat.resize(columns, rows)
        check_frame(f"{name}-{columns}x{rows}", await seat.settled())


async def _emptied(pump: MessagePump) -> None:
    """Wait until all that is in a queue now has been taken; at once where it takes nothing more."""
    is_taken = asyncio.Event()
    if pump.call_later(is_taken.set):
        with suppress(TimeoutError):  # it was removed meanwhile, with its queue
            await asyncio.wait_for(is_taken.wait(), REMOVED_S)


@asynccontextmanager
async def a_seat(
    url: str,
    tmp_path: Path,
    *,
    size: tuple[int, int] = (80, 24),
    glyphs: GlyphSet = ASCII,
    theme: ThemeName = "dark",
    is_readonly: bool = False,
    seeds: tuple[str, ...] = (),
    api_key: str | None = None,
    profile: str = "",
) -> AsyncGenerator[SeatUnderTest]:
    """Run the UI at a node's address; ended with the block."""
    view, clock = ViewState(), SystemClock()

    def on_change(changes: Changes) -> None:
        seat.take(changes)

    link = SessionLink(
        Target(url=url, url_rule="--node", seeds=seeds, api_key=api_key),
        view,
        clock=clock,
        randomness=random.Random(1),  # ruff: ignore[suspicious-non-cryptographic-random-usage]  seeded
        on_change=on_change,
        connect=WebSocketConnector(TlsTrust(tmp_path / "known_certificates")),
    )
    seat = Seat(
        view=view,
        link=link,
        clock=clock,
        glyphs=glyphs,
        registry=Registry(ALL_ACTIONS),
        flash=FlashLog(),
        profile=profile,
        is_readonly=is_readonly,
        state_dir=tmp_path,
        clipboard=Clipboard("file", environ={}, send=lambda _: None, state_dir=tmp_path),
    )
    app = SkulkTui(seat, theme=theme, data_hz=10.0)
    async with app.run_test(size=size) as pilot:
        yield SeatUnderTest(app, pilot)
