"""What a model needs is what the planner would count for a build that was never measured."""

import pytest

from protocol.cards import CacheGeometry, card_digest
from skulkd.core.placement.memory_fit import share_of
from skulkd.core.placement.requirements import requirements_of
from tests.support.builders import GIB, a_card, a_scripted_card, an_engine

GEOMETRY = CacheGeometry(n_attention_layers=30, n_kv_heads=3, key_length=64, value_length=64)


def test_each_engine_of_the_card_is_told_with_its_own_overhead() -> None:
    card = a_card(size_bytes=4 * GIB, backends=("llama_server", "mlx-metal"), geometry=GEOMETRY)
    needs = requirements_of(card, context_tokens=1024)
    assert [one.engine for one in needs.engines] == ["llama_server", "mlx"]
    first, second = needs.engines
    assert first.overhead_bytes < second.overhead_bytes
    assert first.kv_cache_bytes == 1024 * GEOMETRY.kv_bytes_per_token()
    share = share_of(card, an_engine(overhead_bytes=0), slots=1)
    assert first.needed_bytes == share.needed_bytes(1024)
    assert needs.card_digest == card_digest(card)


@pytest.mark.parametrize(("geometry", "is_known"), [(None, False), (GEOMETRY, True)])
def test_an_estimated_cache_is_told_from_one_that_a_header_gave(
    geometry: CacheGeometry | None, *, is_known: bool
) -> None:
    assert requirements_of(a_card(geometry=geometry)).cache_is_known is is_known


def test_without_a_window_the_one_that_would_be_served_counts() -> None:
    needs = requirements_of(a_card(context_length=131_072))
    assert (needs.context_tokens, needs.max_context_tokens) == (32_768, 131_072)


def test_a_script_is_not_downloaded() -> None:
    assert requirements_of(a_scripted_card()).download_bytes == 0
