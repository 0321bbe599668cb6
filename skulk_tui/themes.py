"""The four themes: dark, light, the terminal's own sixteen colours, and no colour at all.

A state is always a glyph, a word and a colour, so `mono` loses nothing but looks. Text has a
contrast of at least 4.5 to 1 (WCAG 2, level AA) on each ground it stands on; a test computes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from textual.theme import Theme

from skulk_tui.terminal import ThemeName

TEXT: Final = (
    "foreground",
    "text",
    "text-muted",
    "text-disabled",
    "foreground-muted",
    "foreground-disabled",
    "text-primary",
    "text-secondary",
    "text-success",
    "text-warning",
    "text-error",
    "text-accent",
    "primary",
    "secondary",
    "success",
    "warning",
    "error",
    "accent",
    "link-color",
    "footer-key-foreground",
)
"""Variables for text, on any of `GROUNDS`."""
GROUNDS: Final = ("background", "surface", "panel", "boost")
PAIRS: Final = (
    ("block-cursor-foreground", "block-cursor-background"),
    ("block-cursor-blurred-foreground", "block-cursor-blurred-background"),
    ("input-cursor-foreground", "input-cursor-background"),
    ("input-selection-foreground", "input-selection-background"),
    ("screen-selection-foreground", "screen-selection-background"),
    ("link-color-hover", "link-background-hover"),
    ("protected-foreground", "protected-background"),
    ("prompt-warning-foreground", "prompt-warning-background"),
    ("footer-foreground", "footer-background"),
    ("button-color-foreground", "primary"),
)
"""Text and the one ground it stands on; `protected` is the status row of a cluster that asks for
care, `prompt-warning` the command line while it holds a command that changes something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Palette:
    """Colours of a theme of our own, said once; Textual would mix the rest, often too pale."""

    name: str
    is_dark: bool
    background: str
    surface: str
    panel: str
    cursor: str
    """The ground of the row under the cursor."""
    foreground: str
    muted: str
    primary: str
    secondary: str
    success: str
    warning: str
    error: str
    accent: str


def _house(palette: _Palette) -> Theme:
    return Theme(
        name=palette.name,
        dark=palette.is_dark,
        background=palette.background,
        surface=palette.surface,
        panel=palette.panel,
        foreground=palette.foreground,
        primary=palette.primary,
        secondary=palette.secondary,
        success=palette.success,
        warning=palette.warning,
        error=palette.error,
        accent=palette.accent,
        variables=_variables(palette),
    )


def _variables(palette: _Palette) -> dict[str, str]:
    return {
        "boost": palette.cursor,  # Textual makes it transparent where a panel is given
        "text": palette.foreground,
        "text-muted": palette.muted,
        "text-disabled": palette.muted,
        "text-primary": palette.primary,
        "text-secondary": palette.secondary,
        "text-success": palette.success,
        "text-warning": palette.warning,
        "text-error": palette.error,
        "text-accent": palette.accent,
        "foreground-muted": palette.muted,
        "foreground-disabled": palette.muted,
        "block-cursor-foreground": palette.background,
        "block-cursor-background": palette.primary,
        "block-cursor-text-style": "bold",
        "block-cursor-blurred-foreground": palette.foreground,
        "block-cursor-blurred-background": palette.cursor,
        "block-hover-background": palette.cursor,
        "input-cursor-foreground": palette.background,
        "input-cursor-background": palette.foreground,
        "input-selection-foreground": palette.background,
        "input-selection-background": palette.secondary,
        "screen-selection-foreground": palette.background,
        "screen-selection-background": palette.secondary,
        "link-color": palette.primary,
        "link-color-hover": palette.background,
        "link-background-hover": palette.primary,
        "footer-foreground": palette.foreground,
        "footer-background": palette.panel,
        "footer-key-foreground": palette.accent,
        "button-color-foreground": palette.background,
        "border": palette.primary,
        "border-blurred": palette.muted,
        "protected-foreground": palette.background,
        "protected-background": palette.warning,
        "prompt-warning-foreground": palette.background,
        "prompt-warning-background": palette.warning,
    }


_DARK: Final = _Palette(
    name="skulk-dark",
    is_dark=True,
    background="#0f141a",
    surface="#151b23",
    panel="#1b232d",
    cursor="#26323f",
    foreground="#dce3ea",
    muted="#9dabba",
    primary="#79b8ff",
    secondary="#8fd3c7",
    success="#6fd08c",
    warning="#f2b84b",
    error="#ff8f87",
    accent="#d2a8ff",
)
_LIGHT: Final = _Palette(
    name="skulk-light",
    is_dark=False,
    background="#fcfcf9",
    surface="#f4f5f1",
    panel="#ebede8",
    cursor="#dde4ec",
    foreground="#1b2127",
    muted="#4b5660",
    primary="#0a4f96",
    secondary="#0b5d55",
    success="#125c27",
    warning="#774000",
    error="#a1121c",
    accent="#6a2c91",
)

_PLAIN: Final = "ansi_default"
_CURSOR: Final = {
    # The terminal's own colours are not known: only changing its two round is sure to be read.
    "ansi-background": _PLAIN,
    "ansi-foreground": _PLAIN,
    "block-cursor-foreground": _PLAIN,
    "block-cursor-background": _PLAIN,
    "block-cursor-text-style": "reverse",
    "block-cursor-blurred-foreground": _PLAIN,
    "block-cursor-blurred-background": _PLAIN,
    "block-cursor-blurred-text-style": "bold",
    "input-cursor-foreground": _PLAIN,
    "input-cursor-background": _PLAIN,
    "input-cursor-text-style": "reverse",
    "text-muted": _PLAIN,
    "text-disabled": _PLAIN,
    "foreground-muted": _PLAIN,
    "foreground-disabled": _PLAIN,
}
_ANSI: Final = Theme(
    name="skulk-ansi",
    ansi=True,
    primary="ansi_blue",
    secondary="ansi_cyan",
    success="ansi_green",
    warning="ansi_yellow",
    error="ansi_red",
    accent="ansi_magenta",
    foreground=_PLAIN,
    background=_PLAIN,
    surface=_PLAIN,
    panel=_PLAIN,
    boost=_PLAIN,
    variables=_CURSOR
    | {
        "input-selection-foreground": "ansi_black",
        "input-selection-background": "ansi_cyan",
        "screen-selection-foreground": "ansi_black",
        "screen-selection-background": "ansi_cyan",
        "link-color": "ansi_cyan",
        "link-color-hover": "ansi_black",
        "link-background-hover": "ansi_cyan",
        "border": "ansi_cyan",
        "border-blurred": _PLAIN,
        "footer-key-foreground": "ansi_cyan",
        "markdown-h1-color": "ansi_cyan",
        "markdown-h2-color": "ansi_cyan",
        "markdown-h3-color": "ansi_cyan",
        # On most palettes plain blue on black cannot be read.
        "text-primary": "ansi_cyan",
        "protected-foreground": "ansi_black",
        "protected-background": "ansi_yellow",
        "prompt-warning-foreground": "ansi_black",
        "prompt-warning-background": "ansi_yellow",
    },
)
_COLOURED: Final = (
    *TEXT,
    *(f"markdown-h{level}-color" for level in range(1, 7)),
    *(name for pair in PAIRS for name in pair),
    *(
        f"scrollbar{part}"
        for part in (
            "",
            "-hover",
            "-active",
            "-background",
            "-background-hover",
            "-background-active",
            "-corner-color",
        )
    ),
    "border",
    "border-blurred",
    "block-hover-background",
)
_MONO: Final = Theme(
    name="skulk-mono",
    ansi=True,
    primary=_PLAIN,
    secondary=_PLAIN,
    success=_PLAIN,
    warning=_PLAIN,
    error=_PLAIN,
    accent=_PLAIN,
    foreground=_PLAIN,
    background=_PLAIN,
    surface=_PLAIN,
    panel=_PLAIN,
    boost=_PLAIN,
    variables=dict.fromkeys(_COLOURED, _PLAIN) | _CURSOR,
)

THEMES: Final[Mapping[ThemeName, Theme]] = {
    "dark": _house(_DARK),
    "light": _house(_LIGHT),
    "ansi": _ANSI,
    "mono": _MONO,
}
"""Registered by the application; `theme.name` is what Textual calls one."""
