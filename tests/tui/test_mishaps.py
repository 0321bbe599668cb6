"""Nothing ends the program but its operator: bugs in views and actions, floods, sizes, keys.

Numbers in brackets are rows of the acceptance list for the terminal interface.
"""

import asyncio
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NoReturn

import pytest

from skulk_tui.actions.all_actions import ALL_ACTIONS
from skulk_tui.changes import Change, Option, Sent
from skulk_tui.screens.dialogs import ChoiceDialog, ConfirmDialog, Dialog, TextDialog
from skulk_tui.screens.roots import DETAILS, ROOT_VIEWS
from skulk_tui.screens.seat_screen import SeatScreen
from skulk_tui.screens.view import View
from skulk_tui.table_model import Ref
from skulk_tui.view_state import LINES_KEPT
from tests.support.den_cluster import den_head, fill
from tests.support.scripted_session import ScriptedSession
from tests.support.seat import SeatUnderTest, a_seat


@pytest.fixture
def node() -> Iterator[ScriptedSession]:
    with ScriptedSession() as scripted:
        fill(scripted)
        yield scripted


def screen_of(seat: SeatUnderTest) -> SeatScreen:
    screen = seat.app.screen_stack[0]
    assert isinstance(screen, SeatScreen)
    return screen


def view_of(seat: SeatUnderTest) -> View:
    view = screen_of(seat).stack.current
    assert view is not None
    return view


def fail(*anything: object) -> NoReturn:
    raise KeyError(anything)


@pytest.mark.parametrize("method", ["commit", "tick"])
def test_a_bug_in_a_view_is_told_and_the_rest_goes_on(
    node: ScriptedSession, tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("LIVE", "attic-mini")
            with monkeypatch.context() as broken:
                broken.setattr(view_of(seat), method, fail)
                node.rows("cluster", {"cluster": den_head(seq=9001)})
                await seat.until_shows("drawing Cluster failed; the log has the story")
                await seat.resize(30, 8)
                await seat.resize(80, 24)
            await seat.press("5")
            await seat.until_shows("- Health")
            assert seat.app.return_code is None
            assert seat.app.is_running

    asyncio.run(story())


def test_a_bug_in_an_action_that_waits_for_nothing_is_told(
    node: ScriptedSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("LIVE", "attic-mini")
            monkeypatch.setattr(view_of(seat), "zoom", fail)
            await seat.press("z")
            await seat.until_shows("zoom failed; the log has the story")
            assert seat.app.is_running

    asyncio.run(story())


def test_a_bug_in_what_sends_a_change_is_told(node: ScriptedSession, tmp_path: Path) -> None:
    async def send(option: str) -> Sent:
        fail(option)

    change = Change(
        title="Paint it", effect=(), cli="skulk paint", options=(Option(key="x", title="go"),),
        send=send,
    )  # fmt: skip

    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("LIVE", "attic-mini")
            seat.app.confirm(change)
            await seat.until_shows("skulk paint")
            await seat.press("x")
            await seat.until_shows("Paint it failed")
            assert seat.app.is_running

    asyncio.run(story())


def test_every_action_of_the_registry_is_done_by_something(
    node: ScriptedSession, tmp_path: Path
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("LIVE", "attic-mini")
            screen = screen_of(seat)
            views = [make(seat.app.seat) for make in ROOT_VIEWS.values()]
            views += [
                make(seat.app.seat, Ref(kind=kind, id="an-id")) for kind, make in DETAILS.items()
            ]
            done = {name for view in views for name in view.handlers()}
            undone = [
                action.id
                for action in ALL_ACTIONS
                if action.id not in done and screen.handler_of(action.id) is None
            ]
            assert undone == []

    asyncio.run(story())


def _dialogs(seat: SeatUnderTest) -> Mapping[str, Dialog]:
    async def send(option: str) -> Sent:
        raise AssertionError(option)

    glyphs = seat.app.seat.glyphs
    options = (Option(key="x", title="go"),)
    change = Change(title="a change", effect=(), cli="skulk", options=options, send=send)
    typed = Change(
        title="a change", effect=(), cli="skulk", options=options, send=send, typed_word="word"
    )
    return {
        "confirm": ConfirmDialog(change, glyphs),
        "typed": ConfirmDialog(typed, glyphs),
        "choice": ChoiceDialog("choose", options, glyphs),
        "no choice": ChoiceDialog("choose", (), glyphs),
        "text": TextDialog("text", (), glyphs),
    }


@pytest.mark.parametrize("name", ["confirm", "typed", "choice", "no choice", "text"])
def test_ctrl_c_leaves_every_dialog_and_ctrl_q_the_program(
    node: ScriptedSession, tmp_path: Path, name: str
) -> None:
    async def story() -> None:
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("LIVE", "attic-mini")
            answers: list[str | None] = []

            async def ask() -> None:
                answers.append(await seat.app.ask(_dialogs(seat)[name]))

            seat.app.run_worker(ask())
            await seat.until(lambda: isinstance(seat.app.screen, Dialog))
            await seat.press("ctrl+c")
            await seat.until(lambda: answers == [None])
            assert seat.app.is_running
            seat.app.run_worker(ask())
            await seat.until(lambda: isinstance(seat.app.screen, Dialog))
            await seat.press("ctrl+q")
            await seat.until(lambda: seat.app.return_code is not None)
            assert seat.app.return_code == 0

    asyncio.run(story())


_KEYS = (
    *"12345jkgGsSzxyucimp", "enter", "escape", "tab", "shift+tab", "space", "up", "down",
    "left", "right", "pageup", "pagedown", "home", "end", "backspace", "colon", "slash",
    "question_mark", "exclamation_mark", "left_square_bracket", "right_square_bracket", "f1",
    "ctrl+l", "ctrl+c", "ctrl+j",
)  # fmt: skip
_LEAVING = {"app.quit", "app.leave", "app.suspend"}


@pytest.mark.parametrize("seed", range(2))
def test_no_keys_in_any_order_end_it(node: ScriptedSession, tmp_path: Path, seed: int) -> None:
    async def story() -> None:
        keys = random.Random(seed)  # ruff: ignore[suspicious-non-cryptographic-random-usage]  seeded
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("LIVE", "attic-mini")
            for _ in range(20):
                await seat.press(*keys.choices(_KEYS, k=5))
                if keys.random() < 0.2:
                    await seat.resize(keys.randint(1, 200), keys.randint(1, 60))
            assert seat.app.is_running
            await seat.resize(80, 24)
            while len(seat.app.screen_stack) > 1:
                await seat.press("escape")
            await seat.press("escape", "escape", "1")
            await seat.until_shows("[1 Cluster]")

    asyncio.run(story())


def test_many_sizes_settle_on_the_last(node: ScriptedSession, tmp_path: Path) -> None:
    """[19]"""

    async def story() -> None:
        sizes = random.Random(1)  # ruff: ignore[suspicious-non-cryptographic-random-usage]  seeded
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("LIVE", "attic-mini")
            before = await seat.settled()
            for _ in range(40):
                width, height = sizes.randint(1, 250), sizes.randint(1, 80)
                await seat.resize(width, height)
            await seat.resize(80, 24)
            assert (await seat.settled())[1:] == before[1:]

    asyncio.run(story())


def test_a_flood_of_log_lines_is_kept_within_its_bound_and_what_is_dropped_is_counted(
    node: ScriptedSession, tmp_path: Path
) -> None:
    """[6]"""

    async def story() -> None:
        async with a_seat(node.url, tmp_path, size=(100, 40)) as seat:
            await seat.until_shows("LIVE", "attic-mini")
            await seat.press("l")
            await seat.until(lambda: node.subscribed("logs"))
            view = seat.app.seat.view
            n_sent = 0
            for _ in range(30):
                items = [
                    {"at": "2026-01-01T00:00:00Z", "level": "info", "message": f"line {n_sent + n}"}
                    for n in range(1000)
                ]
                n_sent += len(items)
                node.lines("logs", items)
                await seat.pilot.pause(0.02)
            await seat.until_shows(f"line {n_sent - 1}")
            (buffer,) = [found for found in view._lines.values() if found.n_seen >= n_sent]  # pyright: ignore[reportPrivateUsage]
            assert len(buffer.items) == LINES_KEPT
            assert buffer.n_forgotten == buffer.n_seen - LINES_KEPT
            assert f"{buffer.n_forgotten} dropped" in seat.text
            await seat.press("l", "up", "up", "up")
            await seat.until_shows("3 new below")

    asyncio.run(story())


def test_a_command_about_a_selection_says_so_where_nothing_is_selected(
    tmp_path: Path, node: ScriptedSession
) -> None:
    async def story() -> None:
        node.snapshot("models", {})
        async with a_seat(node.url, tmp_path) as seat:
            await seat.until_shows("attic-mini")
            for command in ("again", "prune", "pull", "place", "stop", "retry-instance"):
                await seat.press("colon")
                await seat.type(command)
                await seat.press("enter")
                await seat.pilot.pause(0.3)
                assert "the log has the story" not in seat.text

    asyncio.run(story())
