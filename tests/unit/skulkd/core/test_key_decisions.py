import pytest

from protocol.commands import ChangeApiKey, Command, CreateApiKey, RotateApiKey
from protocol.errors import RequestError
from protocol.events import ApiKeyChanged, Event, SequencedEvent
from protocol.readings import Readings
from protocol.state import ApiKey, ClusterState, KeyLimits, PreviousSecret
from skulkd.core.apply import apply
from skulkd.core.decide import decide
from tests.support.builders import NOW_MS, a_command_id, a_key_id, a_state

LIMITS = KeyLimits(requests_per_minute=60, concurrent_requests=4)


def with_events(state: ClusterState, *events: Event) -> ClusterState:
    for event in events:
        item = SequencedEvent(state.term or 1, state.seq + 1, NOW_MS, None, event)
        state = apply(state, item)
    return state


def decided(state: ClusterState, command: Command, now_ms: int = NOW_MS) -> tuple[Event, ...]:
    return decide(state, Readings(), command, now_ms=now_ms)


def a_cluster_with_a_key(expires_at_ms: int | None = None) -> ClusterState:
    create = CreateApiKey(
        command_id=a_command_id(3),
        key_id=a_key_id(),
        name="laptop",
        secret_sha256="0" * 64,
        scope="infer",
        expires_at_ms=expires_at_ms,
        limits=LIMITS,
    )
    return with_events(a_state(), *decided(a_state(), create))


def key_of(state: ClusterState) -> ApiKey:
    return state.api_keys[a_key_id()]


def rotation(secret: str, overlap_ms: int) -> RotateApiKey:
    return RotateApiKey(
        command_id=a_command_id(4),
        key_id=a_key_id(),
        secret_sha256=secret * 64,
        overlap_ms=overlap_ms,
    )


def test_a_key_is_made_with_its_limits_and_changed() -> None:
    state = a_cluster_with_a_key()
    assert key_of(state).limits == LIMITS
    change = ChangeApiKey(
        command_id=a_command_id(4), key_id=a_key_id(), limits=KeyLimits(), expires_at_ms=NOW_MS + 9
    )
    (event,) = decided(state, change)
    assert isinstance(event, ApiKeyChanged)
    state = with_events(state, event)
    assert (key_of(state).limits, key_of(state).expires_at_ms) == (KeyLimits(), NOW_MS + 9)
    assert key_of(state).secret_sha256 == "0" * 64
    assert decided(state, change) == ()


def test_limits_of_a_key_that_has_expired_can_be_changed_but_not_to_another_past() -> None:
    state, later_ms = a_cluster_with_a_key(NOW_MS + 1000), NOW_MS + 5000
    change = ChangeApiKey(
        command_id=a_command_id(4),
        key_id=a_key_id(),
        limits=KeyLimits(),
        expires_at_ms=NOW_MS + 1000,
    )
    assert len(decided(state, change, later_ms)) == 1
    with pytest.raises(RequestError, match="expired 3 s ago"):
        decided(state, change.model_copy(update={"expires_at_ms": NOW_MS + 2000}), later_ms)
    with pytest.raises(RequestError, match="expired 4 s ago"):
        decided(state, rotation("1", 0), later_ms)


def test_a_rotated_key_keeps_one_secret_before_for_a_time() -> None:
    state = with_events(a_cluster_with_a_key(), *decided(a_cluster_with_a_key(), rotation("1", 60)))
    assert key_of(state).secret_sha256 == "1" * 64
    assert key_of(state).previous == PreviousSecret(secret_sha256="0" * 64, until_ms=NOW_MS + 60)
    state = with_events(state, *decided(state, rotation("2", 60)))
    assert key_of(state).previous == PreviousSecret(secret_sha256="1" * 64, until_ms=NOW_MS + 60)
    state = with_events(state, *decided(state, rotation("3", 0)))
    assert key_of(state).previous is None
    assert (key_of(state).limits, key_of(state).scope) == (LIMITS, "infer")


@pytest.mark.parametrize(
    "command",
    [
        rotation("1", 0),
        ChangeApiKey(
            command_id=a_command_id(4), key_id=a_key_id(), limits=LIMITS, expires_at_ms=None
        ),
    ],
    ids=lambda command: command.kind,
)
def test_a_key_that_is_not_there_is_neither_changed_nor_rotated(command: Command) -> None:
    with pytest.raises(RequestError) as caught:
        decided(a_state(), command)
    assert caught.value.code == "request.not_found"
