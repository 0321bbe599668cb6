"""Golden frames: what people see. A change is accepted by reading the difference."""

import os
from pathlib import Path

from protocol.control_api import WaitingView
from protocol.ids import ModelId
from protocol.instances import DisconnectPolicy, Repair
from protocol.keys_api import KeyView
from protocol.placements import PredictedSpeed, RankSpeed
from protocol.state import KeyLimits, PlacementFailure
from skulk_tui.cli.answers import (
    Names,
    instance_record,
    instance_records,
    key_record,
    model_record,
    names_of,
    node_records,
    plan_record,
    refusal_record,
    status_record,
    transfer_record,
    view_record,
)
from skulk_tui.cli.cluster_answers import cluster_record, invitation_record
from skulk_tui.cli.cluster_tables import cluster_tables, invitations_table
from skulk_tui.cli.instance_tables import failures_tables, instance_tables, instances_table
from skulk_tui.cli.output import Listing, Output, OutputFormat, Table
from skulk_tui.cli.plan_tables import candidates_tables, speed_table
from skulk_tui.cli.queue_tables import queue_tables
from skulk_tui.cli.records import OutcomeRecord
from skulk_tui.cli.tables import (
    keys_table,
    model_table,
    models_table,
    nodes_table,
    outcomes_table,
    reasons_table,
    status_tables,
    transfers_table,
)
from tests.support.builders import MIB, NOW_MS, a_key_id, a_node_id, a_plan, an_error
from tests.support.cluster_documents import (
    a_cluster,
    a_member_view,
    some_nodes,
    some_tokens,
)
from tests.support.command_line import Stream
from tests.support.fake_node import (
    a_model,
    a_refusal_of_memory,
    a_state_document,
    a_transfer,
    a_view,
    an_ending,
)

FRAMES = Path(__file__).parent / "frames"
NOW: int = NOW_MS + 65_000
NAMES: Names = {a_node_id(): "box-1"}


def frame(*tables: Table, form: OutputFormat = "table", width: int | None = None) -> str:
    stream = Stream()
    listing = Listing(kind="x", items=(), tables=tables, names=())
    Output(stream, form=form, color=False, width=width).show(listing)
    return stream.getvalue()


def assert_golden(name: str, text: str) -> None:
    """Compare with `frames/<name>.txt`; ACCEPT_FRAMES=1 writes it instead."""
    path = FRAMES / f"{name}.txt"
    if os.environ.get("ACCEPT_FRAMES") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_status() -> None:
    state = a_state_document(a_view("load"), transfers=(a_transfer(rate_bytes_s=2.0 * MIB),))
    assert_golden("status", frame(*status_tables(status_record(state), now_ms=NOW)))


def test_nodes_wide() -> None:
    assert_golden("nodes_wide", frame(nodes_table(node_records(a_state_document())), form="wide"))


def test_instances_on_a_terminal_of_100_columns() -> None:
    state = a_state_document(
        a_view("ready"),
        a_view("load", 2),
        a_view("failed", 3, failure=an_ending(3)),
    )
    assert_golden(
        "instances_on_a_terminal_of_100_columns",
        frame(instances_table(instance_records(state), now_ms=NOW), width=100),
    )


def test_instances_on_a_terminal_of_60_columns() -> None:
    state = a_state_document(a_view("failed", 3, failure=an_ending(3)), a_view("load", 2))
    assert_golden(
        "instances_on_a_terminal_of_60_columns",
        frame(instances_table(instance_records(state), now_ms=NOW), width=60),
    )


def test_what_is_wrong_is_wrapped_and_never_cut() -> None:
    table = reasons_table(node_records(a_state_document()))
    assert_golden("what_is_wrong_is_wrapped_and_never_cut", frame(table, width=56))


def test_outcomes_have_no_column_that_says_nothing() -> None:
    removed = OutcomeRecord(target="attic", outcome="removed")
    freed = OutcomeRecord(target="one", outcome="removed", model_id="a/b", freed_bytes=MIB)
    assert [column.title for column in outcomes_table([removed]).columns] == ["TARGET", "OUTCOME"]
    table = outcomes_table([removed, freed])
    assert [column.title for column in table.columns] == ["TARGET", "MODEL", "OUTCOME", "FREED"]
    assert table.rows[1] == ("one", "a/b", "removed", "1.00 MiB")
    assert not outcomes_table([]).rows


def test_a_failed_instance_shows_its_end_and_its_last_words() -> None:
    record = instance_record(a_view("failed", failure=an_ending()), NAMES)
    assert_golden(
        "a_failed_instance_shows_its_end_and_its_last_words",
        frame(*instance_tables(record, now_ms=NOW)),
    )


def test_what_was_put_elsewhere_says_from_where_and_why_and_what_has_no_place() -> None:
    repair = Repair(
        at_ms=NOW_MS,
        attempt=1,
        error=an_error("store.no_space", "the disk of box-2 is full"),
        at_fault=(a_node_id(2),),
        from_nodes=(a_node_id(2),),
        to_nodes=(a_node_id(),),
    )
    policy = DisconnectPolicy(lost_after_ms=120_000, stop_after_ms=600_000)
    view = a_view("load", repairs=(repair,), disconnect=policy)
    refused = PlacementFailure(
        instance_id=view.instance_id,
        model_id=view.model_id,
        at_ms=NOW_MS,
        error=an_error("placement.no_fit", "it cannot go on, and box-3: 2.0 GiB too little"),
    )
    state = a_state_document(view, placement_failures=(refused,))
    (record,) = instance_records(state)
    tables = (
        instances_table((record,), now_ms=NOW),
        *failures_tables((record,)),
        *instance_tables(record, now_ms=NOW),
    )
    assert_golden("what_was_put_elsewhere", frame(*tables))


def test_requests_that_wait_are_shown_in_their_order() -> None:
    waiting = (
        WaitingView(position=1, asker="loopback", waited_s=12),
        WaitingView(position=2, asker=a_key_id(), waited_s=95, expected_s=8),
    )
    view = a_view().model_copy(update={"queued": 5, "waiting": waiting})
    assert queue_tables(instance_records(a_state_document(a_view()))) == ()
    (table,) = queue_tables(instance_records(a_state_document(view)))
    assert_golden("waiting", frame(table))


def test_failures_name_their_cause_and_the_last_lines() -> None:
    records = instance_records(
        a_state_document(a_view(), a_view("failed", 3, failure=an_ending(3)))
    )
    assert_golden(
        "failures_name_their_cause_and_the_last_lines", frame(*failures_tables(records), width=100)
    )


def test_the_cluster_and_its_members() -> None:
    lost = a_member_view(
        3, presence="lost", liveness="lost", silent_s=75.0, link="refused",
        link_reason="nobody listens there", build=None,
    )  # fmt: skip
    cluster = a_cluster(a_member_view(), a_member_view(2), lost)
    assert_golden("cluster", frame(*cluster_tables(cluster_record(cluster))))
    assert_golden("cluster_narrow", frame(*cluster_tables(cluster_record(cluster)), width=72))


def test_invitations() -> None:
    records = [invitation_record(token) for token in some_tokens().items]
    assert_golden("invitations", frame(invitations_table(records)))


def test_nodes_of_which_one_is_lost_on_a_terminal_of_80_columns() -> None:
    records = [view_record(node) for node in some_nodes().items]
    assert_golden("nodes_narrow", frame(nodes_table(records), width=80))


def test_models() -> None:
    records = [
        model_record(a_model(installed=True, placed=True, ready=True, context_window=4096)),
        model_record(
            a_model(ModelId("test/other"), quantization="", context_length=0, source="hub")
        ),
    ]
    assert_golden("models", frame(models_table(records)))


def test_one_model() -> None:
    assert_golden("one_model", frame(model_table(model_record(a_model()))))


def test_candidates_show_the_whole_arithmetic() -> None:
    candidates = [
        plan_record(a_plan(), NAMES),
        refusal_record(a_refusal_of_memory(), NAMES),
    ]
    assert_golden("candidates_show_the_whole_arithmetic", frame(*candidates_tables(candidates)))


def test_a_predicted_speed_is_shown_rank_by_rank_with_what_it_rests_on() -> None:
    made = a_plan()
    (shard,) = made.shards
    pooled = made.model_copy(
        update={
            "shards": (shard, shard.model_copy(update={"rank": 1})),
            "speed": PredictedSpeed(
                compute_us=50_000,
                link_us=500,
                ranks=(
                    RankSpeed(rank=0, read_bytes=MIB, rate_bytes_s=40 * MIB, is_measured=True),
                    RankSpeed(rank=1, read_bytes=MIB, rate_bytes_s=40 * MIB, is_measured=False),
                ),
            ),
        }
    )
    candidates = [plan_record(pooled, NAMES)]
    plans = candidates_tables(candidates)[0]
    assert_golden("a_predicted_speed", frame(plans, speed_table(candidates)))


def test_transfers() -> None:
    running = a_transfer(rate_bytes_s=2.0 * MIB, eta_s=25.0)
    records = [transfer_record(running), transfer_record(a_transfer("failed", total_bytes=None))]
    assert_golden("transfers", frame(transfers_table(records)))


def test_keys() -> None:
    key = KeyView(key_id=a_key_id(), name="laptop", scope="operate", created_at_ms=NOW_MS)
    limits = KeyLimits(requests_per_minute=6000, concurrent_requests=4)
    guest = key.model_copy(update={"name": "guests", "limits": limits, "is_expired": True})
    assert_golden("keys", frame(keys_table([key_record(key), key_record(guest)])))


def test_a_node_without_a_name_goes_by_its_id() -> None:
    assert plan_record(a_plan(node=2), names_of(a_state_document())).node_names == (a_node_id(2),)
