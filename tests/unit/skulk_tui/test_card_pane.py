"""How cards are laid out."""

import pytest

from skulk_tui.widgets.card_pane import CARD_LINES, Grid, grid_of


@pytest.mark.parametrize(
    ("n_cards", "width", "height", "grid"),
    [
        (4, 72, 24, Grid(2, 35, 4)),
        (4, 69, 24, Grid(1, 69, 4)),
        (1, 160, 24, Grid(1, 160, 4)),
        (9, 160, 17, Grid(4, 38, 3)),
        (3, 10, 2, Grid(1, 10, 1)),
        (3, 1, 0, Grid(1, 1, 1)),
    ],
)
def test_as_many_cards_stand_side_by_side_as_fit_and_one_at_least(
    n_cards: int, width: int, height: int, grid: Grid
) -> None:
    assert grid_of(n_cards, width, height) == grid


def test_the_blank_line_below_the_last_card_needs_no_room() -> None:
    assert grid_of(8, 34, 2 * CARD_LINES - 1).n_visible == 2
    assert grid_of(8, 34, 2 * CARD_LINES - 2).n_visible == 1
