"""One example of every command and every event, for the golden frames."""

from typing import Final

from protocol.commands import (
    ChangeApiKey,
    ChangeSettings,
    ClearBreaker,
    Command,
    CreateApiKey,
    DrainNode,
    MoveInstance,
    PinInstance,
    RemoveCard,
    RemoveMember,
    RepairInstance,
    ReportDownload,
    ReportLeave,
    ReportLoss,
    RetryInstance,
    RevokeApiKey,
    RevokeJoinToken,
    RotateApiKey,
    SettleTerm,
    SleepInstance,
    StopInstance,
    UndrainNode,
    UnpinInstance,
    WakeInstance,
)
from protocol.events import (
    ApiKeyChanged,
    ApiKeyCreated,
    ApiKeyRevoked,
    BreakerCleared,
    CardAdded,
    CardRemoved,
    ClusterFounded,
    DownloadEnded,
    DownloadForgotten,
    Event,
    InstanceFailed,
    InstanceFellAsleep,
    InstancePinned,
    InstancePlaced,
    InstanceRemoved,
    InstanceReplanned,
    InstanceRetried,
    InstanceStopRequested,
    InstanceUnpinned,
    InstanceWoken,
    JoinTokenCreated,
    JoinTokenRevoked,
    MasterElected,
    MemberFactsReported,
    MemberJoined,
    MemberLeft,
    MemberLost,
    MemberRemoved,
    MemberReturned,
    MemoryMeasured,
    NodeDrainEnded,
    NodeDrainStarted,
    PlacementFailed,
    RunnerPhaseChanged,
    SettingsChanged,
    TermSettled,
)
from protocol.instances import LaunchRecord, Repair
from protocol.state import (
    ApiKey,
    ClusterSettings,
    DownloadOutcome,
    KeyLimits,
    PlacementFailure,
    PreviousSecret,
)
from tests.support.builders import (
    MODEL,
    NOW_MS,
    a_card,
    a_cluster_id,
    a_command_id,
    a_digest,
    a_facts_report,
    a_failure,
    a_failure_report,
    a_key_id,
    a_member,
    a_node_id,
    a_phase_report,
    a_placement,
    a_plan,
    a_request,
    a_runner,
    a_token,
    a_token_id,
    an_added_card,
    an_admission,
    an_error,
    an_instance,
    an_instance_id,
    an_invitation,
)
from tests.support.measured_boots import a_boot_key, a_memory_report, some_memory

_CARD: Final = a_card()
_SECRET: Final = a_digest("secret")
_LIMITS: Final = KeyLimits(requests_per_minute=60, concurrent_requests=4)
_ROTATED: Final = ApiKey(
    key_id=a_key_id(),
    name="laptop",
    secret_sha256=_SECRET,
    scope="infer",
    created_at_ms=NOW_MS,
    limits=_LIMITS,
    previous=PreviousSecret(secret_sha256=_SECRET, until_ms=NOW_MS),
)
_QUORUM: Final = ClusterSettings(policy="quorum")
_LAUNCH: Final = LaunchRecord(
    context_tokens=8192, slots=1, argv_digest=a_digest("argv"), ready_at_ms=NOW_MS, load_ms=900
)
_REPAIR: Final = Repair(
    at_ms=NOW_MS,
    attempt=1,
    error=an_error(),
    at_fault=(a_node_id(),),
    from_nodes=(a_node_id(),),
    to_nodes=(a_node_id(2),),
)

COMMANDS: Final[tuple[Command, ...]] = (
    an_admission(2, token=1, addresses=("10.0.0.2:12416",)),
    ReportLoss(command_id=a_command_id(), node_id=a_node_id(2), silent_ms=6000, is_refused=True),
    ReportLeave(command_id=a_command_id(), node_id=a_node_id(2)),
    RemoveMember(command_id=a_command_id(), node_id=a_node_id(2)),
    DrainNode(
        command_id=a_command_id(),
        node_id=a_node_id(2),
        drain_ms=60_000,
        instances=(an_instance_id(),),
    ),
    UndrainNode(command_id=a_command_id(), node_id=a_node_id(2)),
    an_invitation(),
    RevokeJoinToken(command_id=a_command_id(), token_id=a_token_id()),
    SettleTerm(command_id=a_command_id(), term=7),
    a_facts_report(),
    a_placement(a_plan(_CARD), _CARD),
    StopInstance(command_id=a_command_id(), instance_id=an_instance_id(), drain_ms=60_000),
    MoveInstance(
        command_id=a_command_id(),
        instance_id=an_instance_id(2),
        request=a_request(_CARD),
        plan=a_plan(_CARD),
        card=_CARD,
        stop_first=True,
        drain_ms=60_000,
    ),
    WakeInstance(command_id=a_command_id(), instance_id=an_instance_id()),
    SleepInstance(command_id=a_command_id(), instance_id=an_instance_id(), attempt=1),
    PinInstance(command_id=a_command_id(), instance_id=an_instance_id()),
    UnpinInstance(command_id=a_command_id(), instance_id=an_instance_id()),
    RetryInstance(command_id=a_command_id(), instance_id=an_instance_id(), after_attempt=1),
    RepairInstance(command_id=a_command_id(), instance_id=an_instance_id(), after_attempt=1),
    ClearBreaker(command_id=a_command_id(), instance_id=an_instance_id()),
    a_phase_report("ready").model_copy(update={"launch": _LAUNCH}),
    a_failure_report(),
    a_memory_report(),
    ReportDownload(
        command_id=a_command_id(), node_id=a_node_id(), model_id=MODEL, size_bytes=5, error=None
    ),
    an_added_card(),
    RemoveCard(command_id=a_command_id(), model_id=MODEL),
    CreateApiKey(
        command_id=a_command_id(),
        key_id=a_key_id(),
        name="laptop",
        secret_sha256=_SECRET,
        scope="infer",
        limits=_LIMITS,
    ),
    ChangeApiKey(
        command_id=a_command_id(), key_id=a_key_id(), limits=_LIMITS, expires_at_ms=NOW_MS
    ),
    RotateApiKey(
        command_id=a_command_id(), key_id=a_key_id(), secret_sha256=_SECRET, overlap_ms=60_000
    ),
    RevokeApiKey(command_id=a_command_id(), key_id=a_key_id()),
    ChangeSettings(command_id=a_command_id(), settings=_QUORUM),
)

EVENTS: Final[tuple[Event, ...]] = (
    ClusterFounded(cluster_id=a_cluster_id()),
    MasterElected(master=a_node_id(), is_minority=True),
    TermSettled(),
    MemberJoined(member=a_member(2), token_id=a_token_id()),
    MemberLost(node_id=a_node_id(2), silent_ms=6000, is_refused=True),
    MemberLeft(node_id=a_node_id(2)),
    MemberReturned(node_id=a_node_id(2)),
    MemberRemoved(node_id=a_node_id(2)),
    NodeDrainStarted(node_id=a_node_id(2)),
    NodeDrainEnded(node_id=a_node_id(2)),
    JoinTokenCreated(token=a_token()),
    JoinTokenRevoked(token_id=a_token_id()),
    MemberFactsReported(
        node_id=a_node_id(),
        facts=a_facts_report().facts,
        capabilities=a_facts_report().capabilities,
    ),
    InstancePlaced(instance=an_instance(phase=None)),
    PlacementFailed(
        failure=PlacementFailure(
            instance_id=an_instance_id(), model_id=MODEL, at_ms=NOW_MS, error=an_error()
        )
    ),
    RunnerPhaseChanged(instance_id=an_instance_id(), runner=a_runner("ready"), launch=_LAUNCH),
    MemoryMeasured(
        instance_id=an_instance_id(), rank=0, attempt=1, key=a_boot_key(), memory=some_memory()
    ),
    InstanceFailed(failure=a_failure()),
    InstanceRetried(instance_id=an_instance_id(), attempt=2),
    InstanceReplanned(instance_id=an_instance_id(), attempt=2, plan=a_plan(node=2), repair=_REPAIR),
    DownloadForgotten(node_id=a_node_id(), model_id=MODEL),
    BreakerCleared(instance_id=an_instance_id()),
    InstanceWoken(instance_id=an_instance_id(), attempt=2),
    InstanceFellAsleep(instance_id=an_instance_id()),
    InstancePinned(instance_id=an_instance_id()),
    InstanceUnpinned(instance_id=an_instance_id()),
    InstanceStopRequested(instance_id=an_instance_id(), drain_ms=60_000),
    InstanceRemoved(instance_id=an_instance_id()),
    DownloadEnded(
        outcome=DownloadOutcome(
            node_id=a_node_id(), model_id=MODEL, at_ms=NOW_MS, size_bytes=5, error=None
        )
    ),
    CardAdded(card=_CARD),
    CardRemoved(model_id=MODEL),
    ApiKeyCreated(
        key=ApiKey(
            key_id=a_key_id(),
            name="laptop",
            secret_sha256=_SECRET,
            scope="infer",
            created_at_ms=NOW_MS,
        )
    ),
    ApiKeyChanged(key=_ROTATED),
    ApiKeyRevoked(key_id=a_key_id()),
    SettingsChanged(settings=_QUORUM),
)
