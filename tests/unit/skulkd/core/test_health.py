import pytest

from protocol.ids import NodeId
from protocol.nodes import NodeHealth
from protocol.readings import Readings
from protocol.state import ApiKey, ClusterState
from skulkd.core.health import Switches, node_health
from tests.support.builders import (
    GIB,
    NOW_MS,
    a_failure,
    a_key_id,
    a_member,
    a_node_id,
    a_reading,
    a_state,
    an_instance,
    some_facts,
    some_readings,
)


def health(
    state: ClusterState | None = None,
    readings: Readings | None = None,
    *,
    node_id: NodeId | None = None,
    now_s: float = 0.0,
    switches: Switches | None = None,
) -> NodeHealth:
    return node_health(
        state or a_state(),
        readings or some_readings(),
        node_id or a_node_id(),
        now_s=now_s,
        switches=switches,
    )


def codes(found: NodeHealth) -> list[str]:
    return [reason.code for reason in found.reasons]


def test_a_well_node_has_no_reasons() -> None:
    assert health() == NodeHealth(level="ok")


@pytest.mark.parametrize(
    ("free_bytes", "level", "code"),
    [(11 * GIB, "ok", None), (9 * GIB, "warning", "disk.low"), (GIB, "error", "disk.full")],
)
def test_disk_space_warns_below_ten_and_fails_below_two_gigabytes(
    free_bytes: int, level: str, code: str | None
) -> None:
    found = health(readings=some_readings(a_reading(disk_free_bytes=free_bytes)))
    assert found.level == level
    assert codes(found) == ([] if code is None else [code])


def test_an_unknown_free_space_is_not_a_full_disk() -> None:
    found = health(readings=some_readings(a_reading(disk_free_bytes=None)))
    assert (found.level, codes(found)) == ("warning", ["disk.unknown"])


def test_a_journal_that_cannot_be_written_is_an_error() -> None:
    found = health(readings=some_readings(a_reading(journal_durable=False)))
    assert (found.level, codes(found)) == ("error", ["journal.not_durable"])


def test_an_old_reading_and_a_missing_one_are_told_apart() -> None:
    assert codes(health(now_s=60.0)) == ["node.reading_stale"]
    assert codes(health(readings=Readings())) == ["node.reading_missing"]


def test_a_node_being_probed_says_so() -> None:
    assert codes(health(a_state(members=[a_member(has_facts=False)]))) == ["node.facts_missing"]


def test_a_node_with_only_the_scripted_engine_has_no_usable_one() -> None:
    found = health(a_state(members=[a_member(facts=some_facts(engines=()), backends=())]))
    assert (found.level, codes(found)) == ("error", ["node.no_engine"])


def test_a_management_node_misses_no_engine() -> None:
    assert health(a_state(members=[a_member(role="management", backends=())])).level == "ok"


def test_an_instance_that_failed_for_good_shows_on_its_node_only() -> None:
    state = a_state(
        members=[a_member(1), a_member(2)], instances=[an_instance(failure=a_failure())]
    )
    readings = some_readings(a_reading(1), a_reading(2))
    assert codes(health(state, readings)) == ["instance.failed"]
    assert codes(health(state, readings, node_id=a_node_id(2))) == []


@pytest.mark.parametrize(
    ("left_s", "level", "told"), [(5_400.0, "warning", "in 1.5 h"), (-1.0, "error", "has expired")]
)
def test_a_certificate_that_should_have_been_renewed_is_told(
    left_s: float, level: str, told: str
) -> None:
    found = health(switches=Switches(certificate_left_s=left_s))
    assert (found.level, codes(found)) == (level, ["api.certificate"])
    assert told in found.reasons[0].message
    assert "tls_cert" in found.reasons[0].remediation


def test_an_open_api_without_a_key_names_the_command() -> None:
    switches = Switches(wants_open_api=True)
    found = health(switches=switches)
    assert (found.level, codes(found)) == ("error", ["api.no_key"])
    assert "skulk keys create" in found.reasons[0].remediation
    key = ApiKey(
        key_id=a_key_id(),
        name="laptop",
        secret_sha256="0" * 64,
        scope="infer",
        created_at_ms=NOW_MS,
    )
    keyed = a_state().model_copy(update={"api_keys": {key.key_id: key}})
    assert codes(health(keyed, switches=switches)) == []


def test_what_the_operator_switched_off_is_shown_and_does_not_make_the_node_unwell() -> None:
    switches = Switches(has_worker=False, has_api=False, has_downloads=False, is_offline=True)
    found = health(switches=switches)
    assert codes(found) == ["worker.off", "api.off", "downloads.off", "network.off"]
    assert found.level == "ok"


def test_every_reason_says_what_to_do() -> None:
    switches = Switches(has_worker=False, wants_open_api=True)
    for found in (health(now_s=99.0, switches=switches), health(node_id=a_node_id(9))):
        assert found.reasons
        assert all(reason.remediation for reason in found.reasons)
