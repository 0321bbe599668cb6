from protocol.placements import PlacementOutcome, Refusal
from skulkd.core.placement.explain import outcome_error, size_text, sum_text
from tests.support.builders import (
    GIB,
    MIB,
    MODEL,
    a_node_id,
    an_error,
    some_arithmetic,
)


def test_sizes_have_one_decimal_and_the_unit_that_fits() -> None:
    assert [size_text(size) for size in (0, 1023, 1024, 1536 * MIB, 2048 * GIB)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 GiB",
        "2.0 TiB",
    ]


def test_the_sum_names_every_term() -> None:
    text = sum_text(some_arithmetic(reserved_bytes=GIB))
    assert text == (
        "weights 100.0 MiB + kv cache 8.0 MiB (8192 tokens) + overhead 64.0 MiB = 172.0 MiB; "
        "ram has 12.0 GiB available, 1.0 GiB of it reserved"
    )


def test_missing_facts_outrank_refusals_and_may_be_retried() -> None:
    error = outcome_error(PlacementOutcome(missing_facts=("memory of den",)), MODEL)
    assert (error.code, error.retry_after_s) == ("placement.facts_missing", 2)
    assert "memory of den" in error.message


def test_the_refusal_nearest_to_fitting_names_the_error_and_the_others_follow() -> None:
    far = Refusal(node_id=a_node_id(1), error=an_error("placement.no_backend", "den: no backend"))
    near = Refusal(
        node_id=a_node_id(2),
        error=an_error("placement.no_fit", "attic: too little"),
        memory=some_arithmetic(available_bytes=MIB),
    )
    error = outcome_error(PlacementOutcome(refusals=(far, near)), MODEL)
    assert (error.code, error.message) == (
        "placement.no_fit",
        "attic: too little; den: no backend",
    )


def test_no_node_at_all_is_said_as_such() -> None:
    assert outcome_error(PlacementOutcome(), MODEL).code == "placement.no_node"
