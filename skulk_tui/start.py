"""Starts the terminal UI: what the terminal can do, whom to attach to, and how the run ends.

The only module that imports Textual from the command's side, and only once the terminal will do.
"""

import random
import sys
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from protocol.errors import ClientError
from skulk_tui.clipboard import Clipboard, clipboard_choice
from skulk_tui.clock import SystemClock
from skulk_tui.clusters import SavedClusters
from skulk_tui.glyphs import ASCII, UNICODE, GlyphSet
from skulk_tui.own_files import state_dir
from skulk_tui.profiles import TuiSettings, read_config
from skulk_tui.target import Target
from skulk_tui.terminal import (
    ASK_BACKGROUND_S,
    Terminal,
    ThemeName,
    prepare_environment,
    read_terminal,
    require_terminal,
)
from skulk_tui.tls_pins import TlsTrust

if TYPE_CHECKING:
    from skulk_tui.app import SkulkTui
    from skulk_tui.seat import Seat


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the operator asked for on the command line; None leaves it to file and terminal."""

    theme: ThemeName | None = None
    is_ascii: bool = False
    is_readonly: bool = False
    leaves_mouse: bool = False
    """The mouse is left to the terminal."""


def run_tui(
    target: Target,
    wishes: Wishes,
    *,
    environ: MutableMapping[str, str],
    config_dir: Path,
    trust: TlsTrust,
) -> int:
    """Run until the operator leaves, and give the exit code: 0, 1 after a crash, 128 + signal.

    Raises:
        ClientError: `client.usage` where the terminal will not do, or the file is wrong.
    """
    require_terminal(
        environ,
        stdin=sys.stdin.isatty(),
        stdout=sys.stdout.isatty(),
        stderr=sys.stderr.isatty(),
    )
    clusters = SavedClusters(environ, config_dir)
    clusters.read()
    settings = read_config(config_dir).tui
    prepare_environment(environ)
    ascii_only = wishes.is_ascii or settings.glyphs == "ascii" or bool(environ.get("SKULK_ASCII"))
    terminal = read_terminal(environ, ascii_only=ascii_only)

    from skulk_tui.crashes import run_app

    seat = _make_seat(target, wishes, settings, terminal, trust)
    app = _make_app(seat, settings, terminal, _choose_theme(wishes, settings, terminal))
    seat.clipboard = Clipboard(
        clipboard_choice(environ),
        environ=environ,
        send=app.write_to_terminal,
        state_dir=state_dir(environ),
    )
    seat.state_dir = state_dir(environ)
    seat.clusters = clusters
    return run_app(
        app,
        mouse=settings.mouse and not wishes.leaves_mouse,
        clock=seat.clock,
        state_dir=state_dir(environ),
        stderr=sys.stderr,
    )


def _make_seat(
    target: Target, wishes: Wishes, settings: TuiSettings, terminal: Terminal, trust: TlsTrust
) -> "Seat":
    from skulk_tui.actions.all_actions import ALL_ACTIONS
    from skulk_tui.registry import Registry
    from skulk_tui.seat import Seat
    from skulk_tui.session_link import SessionLink
    from skulk_tui.session_socket import WebSocketConnector
    from skulk_tui.view_state import Changes, ViewState

    view, clock = ViewState(), SystemClock()

    def on_change(changes: Changes) -> None:
        seat.take(changes)

    link = SessionLink(
        target,
        view,
        clock=clock,
        randomness=random.Random(),  # ruff: ignore[suspicious-non-cryptographic-random-usage]  spreads retries
        on_change=on_change,
        connect=WebSocketConnector(trust),
    )
    seat = Seat(
        view=view,
        link=link,
        clock=clock,
        glyphs=_glyphs(settings, terminal),
        registry=Registry(ALL_ACTIONS, settings.keymap),
        profile=target.profile,
        utc_offset_s=clock.utc_offset_s(),
        local_offset_s=clock.utc_offset_s(),
        is_protected=target.protect,
        is_readonly=wishes.is_readonly or target.readonly or settings.readonly,
        is_always_readonly=wishes.is_readonly or settings.readonly,
    )
    for fault in seat.registry.keymap_faults():
        seat.tell(f"tui.keymap: {fault}", level="warn")
    return seat


def _make_app(
    seat: "Seat", settings: TuiSettings, terminal: Terminal, theme: ThemeName
) -> "SkulkTui":
    from skulk_tui.app import SkulkTui
    from skulk_tui.driver import SkulkDriver
    from skulk_tui.garbage import look_seldom

    return SkulkTui(
        seat,
        theme=theme,
        data_hz=min(settings.rate_hz, terminal.data_hz),
        driver_class=SkulkDriver,
        on_painted=look_seldom,
    )


def _choose_theme(wishes: Wishes, settings: TuiSettings, terminal: Terminal) -> ThemeName:
    """Choose the colours; NO_COLOR stands above every wish."""
    from skulk_tui.driver import ask_background

    if terminal.colour_depth == "none":
        return "mono"
    wished = wishes.theme or _theme_of(settings)
    if wished is not None:
        return wished
    return terminal.theme(ask_background(ASK_BACKGROUND_S) if terminal.asks_background else None)


def theme_named(word: str, rule: str) -> ThemeName:
    """Give the theme of a name.

    Raises:
        ClientError: `client.usage`.
    """
    names: tuple[ThemeName, ...] = get_args(ThemeName)
    for name in names:
        if name == word:
            return name
    raise ClientError(
        "client.usage",
        f"{rule}: there is no theme {word[:40]!r}",
        remediation=f"Choose one of {', '.join(names)}.",
    )


def _theme_of(settings: TuiSettings) -> ThemeName | None:
    return theme_named(settings.theme, "tui.theme") if settings.theme else None


def _glyphs(settings: TuiSettings, terminal: Terminal) -> GlyphSet:
    if terminal.glyphs is ASCII:
        return ASCII
    return UNICODE if settings.glyphs == "unicode" else terminal.glyphs
