"""Rates as the matrix writes them."""

import pytest

from skulk_tui.screens.link_matrix import rate_text


@pytest.mark.parametrize(
    ("bytes_s", "text"),
    [(1.17e9, "9.4G"), (118e6, "944M"), (11.8e6, "94M"), (1e6, "8.0M"), (1000, "8.0k"), (1, "8")],
)
def test_a_rate_is_in_bits_a_second_as_links_are_named(bytes_s: float, text: str) -> None:
    assert rate_text(bytes_s) == text
