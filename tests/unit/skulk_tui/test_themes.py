from importlib import resources
from itertools import product
from typing import get_args

import pytest
from textual.color import Color
from textual.theme import BUILTIN_THEMES, Theme

from skulk_tui.lines import Tone
from skulk_tui.themes import GROUNDS, PAIRS, TEXT, THEMES

LEAST_CONTRAST = 4.5
"""WCAG 2.2, success criterion 1.4.3, for text of usual size."""


def variables(theme: Theme) -> dict[str, str]:
    """What a style sheet sees, as the application puts it together."""
    return {**theme.to_color_system().generate(), **theme.variables}


def relative_luminance(colour: Color) -> float:
    def linear(share: float) -> float:
        return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(share) for share in colour.normalized)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Color, other: Color) -> float:
    light, dark = sorted((relative_luminance(one), relative_luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_computed_as_the_standard_says() -> None:
    assert contrast(Color.parse("#000000"), Color.parse("#ffffff")) == pytest.approx(21.0)
    assert contrast(Color.parse("#777777"), Color.parse("#ffffff")) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("name", ["dark", "light"])
@pytest.mark.parametrize(("text", "ground"), [*product(TEXT, GROUNDS), *PAIRS])
def test_text_can_be_read_on_its_ground(name: str, text: str, ground: str) -> None:
    found = variables(THEMES["dark" if name == "dark" else "light"])
    text_colour, ground_colour = Color.parse(found[text]), Color.parse(found[ground])
    assert text_colour.a == ground_colour.a == 1, "mixed colours cannot be checked"
    assert contrast(text_colour, ground_colour) >= LEAST_CONTRAST


@pytest.mark.parametrize("name", ["ansi", "mono"])
@pytest.mark.parametrize(
    "variable", sorted({*TEXT, *GROUNDS, *(name for pair in PAIRS for name in pair)})
)
def test_the_terminals_palette_is_used_and_nothing_else(name: str, variable: str) -> None:
    theme = THEMES["ansi" if name == "ansi" else "mono"]
    found = variables(theme)[variable]
    assert found.startswith("ansi_") or found == "transparent"
    if name == "mono":
        assert found in {"ansi_default", "transparent"}


@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_with_the_terminals_palette_no_text_has_the_colour_of_its_ground(
    text: str, ground: str
) -> None:
    found = variables(THEMES["ansi"])
    assert found[text] != found[ground] or found[text] == "ansi_default"


def test_states_differ_in_colour_where_there_is_any() -> None:
    for name in ("dark", "light", "ansi"):
        found = variables(THEMES[name])
        assert len({found[f"text-{state}"] for state in ("success", "warning", "error")}) == 3


def test_each_theme_has_a_name_of_its_own() -> None:
    assert len({theme.name for theme in THEMES.values()}) == len(THEMES)


def test_no_variable_is_missing_that_a_style_sheet_may_use() -> None:
    for theme in THEMES.values():
        counterpart = BUILTIN_THEMES["ansi-dark" if theme.ansi else "textual-dark"]
        assert variables(counterpart).keys() - variables(theme).keys() == set()


def test_each_tone_has_a_rule_and_none_depends_on_more_than_widgets_look_at() -> None:
    sheet = resources.files("skulk_tui").joinpath("theme.tcss").read_text(encoding="utf-8")
    selectors = [
        selector.strip()
        for line in sheet.splitlines()
        if ".tone--" in line or ".cursor" in line
        for selector in line.partition("{")[0].split(",")
    ]
    named = {f".tone--{tone}" for tone in get_args(Tone)} | {".cursor"}
    assert {f"LineWidget > {part}" for part in named} <= set(selectors)
    # `LineWidget.tone_rules` tells these apart, and no others.
    known = tuple(f"{owner} > {part}" for owner in ("LineWidget", ".stale Pane") for part in named)
    assert [selector for selector in selectors if selector not in known] == []
