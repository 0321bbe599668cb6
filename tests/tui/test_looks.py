"""Colours that can be read where they are used."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from skulk_tui.terminal import ThemeName
from skulk_tui.themes import THEMES
from skulk_tui.widgets.pane import Pane
from tests.support.den_cluster import fill
from tests.support.scripted_session import ScriptedSession
from tests.support.seat import a_seat


@pytest.fixture
def node() -> Iterator[ScriptedSession]:
    with ScriptedSession() as scripted:
        fill(scripted)
        yield scripted


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_text_under_the_cursor_has_the_cursors_colours_and_no_others(
    node: ScriptedSession, tmp_path: Path, theme: ThemeName
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path, theme=theme) as seat:
            await seat.until_shows("> attic-mini")
            await seat.settled()
            row = next(y for y, text in enumerate(seat.frame) if text.startswith("> attic-mini"))
            colours = {
                (part.style.color.name, part.style.bgcolor.name)
                for part in seat.strips[row]
                if part.text.strip() and part.style and part.style.color and part.style.bgcolor
            }
            variables = seat.app.theme_variables
            wanted = (variables["block-cursor-foreground"], variables["block-cursor-background"])
            assert {(ink.lower(), paper.lower()) for ink, paper in colours} == {
                (wanted[0].lower(), wanted[1].lower())
            }

    asyncio.run(story())


def test_what_panes_show_is_dim_while_it_is_old_and_the_theme_may_change_meanwhile(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("> attic-mini")
            await seat.settled()
            pane = seat.app.screen.query_one("#pane-nodes", Pane)

            def ink() -> str:
                """The colour of a node's name, away from the cursor."""
                parts = pane.render_lines(pane.size.region)[3]
                return next(str(part.style) for part in parts if "den-01" in part.text)

            for theme in THEMES.values():
                seat.app.theme = theme.name
                await seat.settled()
                live = ink()
                seat.app.screen.add_class("stale")
                old = ink()
                seat.app.screen.remove_class("stale")
                assert ink() == live != old, theme.name

    asyncio.run(story())
