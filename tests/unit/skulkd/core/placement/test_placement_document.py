"""The figures in docs/placement.md are what the planner says."""

from importlib.resources import files
from pathlib import Path

from protocol.cards import card_digest
from protocol.placements import PlacementOutcome, PlacementRequest
from skulkd.core.placement.context import LADDER
from skulkd.core.placement.explain import size_text, sum_text
from skulkd.core.placement.planner import plan
from store.cards import parse_card
from tests.support.builders import (
    GIB,
    MIB,
    a_member,
    a_reading,
    a_state,
    an_engine,
    some_facts,
    some_readings,
)

ROOT = Path(__file__).parents[5]
DOCUMENT = (ROOT / "docs" / "placement.md").read_text("utf-8")
CARD_FILE = files("store") / "data" / "cards" / "smollm2-135m-instruct.toml"
CARD = parse_card(CARD_FILE.read_bytes(), origin="bundled")


def demo(*, context_tokens: int | None, available_bytes: int) -> PlacementOutcome:
    engine = an_engine(overhead_bytes=160 * MIB, default_slots=16)
    member = a_member(facts=some_facts(memory_bytes=16 * GIB, engines=(engine,)))
    return plan(
        PlacementRequest(model_id=CARD.model_id, context_tokens=context_tokens),
        CARD,
        card_digest(CARD),
        a_state(members=[member]),
        some_readings(a_reading(memory_available_bytes=available_bytes)),
        holders=frozenset(),
    )


def test_the_documented_plan_is_the_planners() -> None:
    made = demo(context_tokens=None, available_bytes=12 * GIB).plans[0]
    (shard,) = made.shards
    for line in (
        f"{made.backend}, context {made.context_tokens}, slots {made.slots}",
        f"den, layers {shard.layer_start}-{shard.layer_end - 1}",
        sum_text(shard.memory),
        f"{size_text(shard.memory.headroom_bytes)} left",
        f"{size_text(made.download_bytes)} to fetch first",
    ):
        assert f"    {line}\n" in DOCUMENT


def test_the_documented_refusal_is_the_planners() -> None:
    (refusal,) = demo(context_tokens=8192, available_bytes=300 * MIB).refusals
    assert f"    {refusal.error.message}\n" in DOCUMENT
    assert f"`{refusal.error.remediation}`" in DOCUMENT


def test_the_documented_steps_are_the_planners() -> None:
    assert f"from the steps {', '.join(str(step) for step in LADDER)}." in DOCUMENT
