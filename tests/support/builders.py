"""Small builders for cards, facts, states, plans and commands.

Each makes a valid value by itself; an argument changes the one thing that a test is about. The ids
are derived from small numbers, so that a failing test can be read.
"""

import hashlib
from collections.abc import Iterable
from typing import Final

from protocol.cards import (
    BackendTag,
    CacheGeometry,
    Compute,
    EngineName,
    ModelCard,
    ModelSource,
    PlacementSection,
    ScriptedSection,
    StorageSize,
    card_digest,
)
from protocol.commands import (
    AddCard,
    AdmitMember,
    CreateJoinToken,
    PlaceInstance,
    ReportFacts,
    ReportFailure,
    ReportPhase,
)
from protocol.errors import ErrorBody, ErrorCode
from protocol.events import Event, SequencedEvent
from protocol.ids import (
    ClusterId,
    CommandId,
    Digest,
    InstanceId,
    KeyId,
    ModelId,
    NodeId,
    TokenId,
    cluster_id_of,
    command_id_of,
    key_id_of,
    node_id_of,
    token_id_of,
)
from protocol.instances import Instance, InstanceFailure, Phase, RunnerStatus
from protocol.nodes import (
    Accelerator,
    EngineFacts,
    Member,
    NodeCapabilities,
    NodeFacts,
    Presence,
    Role,
)
from protocol.placements import (
    MemoryArithmetic,
    PlacementRequest,
    Plan,
    ShardAssignment,
)
from protocol.readings import AcceleratorReading, NodeReading, Readings
from protocol.state import ClusterState, InvitationKind, JoinToken

MIB: Final = 1 << 20
GIB: Final = 1 << 30
MODEL: Final = ModelId("test/tiny")
NOW_MS: Final = 1_700_000_000_000
SCRIPTED_CPU: Final[BackendTag] = "scripted-cpu"


def a_digest(text: str) -> Digest:
    """Make a digest of some text."""
    return Digest(hashlib.sha256(text.encode()).hexdigest())


def a_public_key(number: int = 1) -> str:
    """Make the public key of node `number`."""
    return hashlib.sha256(f"key of node {number}".encode()).hexdigest()


def a_node_id(number: int = 1) -> NodeId:
    """Make the id of node `number`: that of its key."""
    return node_id_of(bytes.fromhex(a_public_key(number)))


def a_command_id(number: int = 1, *, node: int = 1) -> CommandId:
    """Make the id of command `number`, minted on `node`."""
    return command_id_of(a_node_id(node), hashlib.sha256(f"command {number}".encode()).digest())


def an_instance_id(number: int = 1) -> InstanceId:
    """Make the id of the instance that command `number` placed."""
    return InstanceId(a_command_id(number))


def a_cluster_id(number: int = 1) -> ClusterId:
    """Make a cluster's id."""
    return cluster_id_of(f"cluster {number}".encode())


def a_key_id(number: int = 1) -> KeyId:
    """Make an API key's id."""
    return key_id_of(hashlib.sha256(f"key {number}".encode()).digest())


def a_token_id(number: int = 1) -> TokenId:
    """Make an invitation's id."""
    return token_id_of(hashlib.sha256(f"token {number}".encode()).digest())


def a_card(
    *,
    model_id: str = MODEL,
    size_bytes: int = 100 * MIB,
    n_layers: int = 30,
    context_length: int = 8192,
    backends: tuple[BackendTag, ...] = ("llama_server",),
    preference: tuple[BackendTag, ...] = (),
    max_context_tokens: int | None = None,
    geometry: CacheGeometry | None = None,
    kv_heads: int | None = 3,
    source: ModelSource | None = None,
) -> ModelCard:
    """Make the card of a GGUF model."""
    return ModelCard(
        model_id=ModelId(model_id),
        n_layers=n_layers,
        hidden_size=576,
        num_key_value_heads=kv_heads,
        supports_tensor=False,
        tasks=("TextGeneration",),
        storage_size=StorageSize(in_bytes=size_bytes),
        context_length=context_length,
        gguf_file="model.gguf",
        gguf_cache_geometry=geometry,
        placement=PlacementSection(
            compatible_backends=backends,
            backend_preference=preference,
            max_context_tokens=max_context_tokens,
        ),
        source=source,
    )


def a_scripted_card(
    *,
    model_id: str = MODEL,
    size_bytes: int = MIB,
    context_length: int = 8192,
    scripted: ScriptedSection | None = None,
) -> ModelCard:
    """Make the card of a scripted model."""
    return ModelCard(
        model_id=ModelId(model_id),
        n_layers=1,
        hidden_size=1,
        supports_tensor=False,
        tasks=("TextGeneration",),
        storage_size=StorageSize(in_bytes=size_bytes),
        context_length=context_length,
        placement=PlacementSection(compatible_backends=("scripted",)),
        scripted=scripted or ScriptedSection(),
    )


def an_engine(
    engine: EngineName = "llama_server",
    *,
    computes: tuple[Compute, ...] = ("cpu",),
    usable: bool = True,
    reason: str = "",
    overhead_bytes: int = 64 * MIB,
    default_slots: int = 4,
    path: str = "/opt/engine",
    version: str = "1",
    rpc: bool = False,
    ring: bool = False,
) -> EngineFacts:
    """Make one engine build."""
    return EngineFacts(
        engine=engine,
        provider="builtin" if engine == "scripted" else "hosted",
        path=path,
        version=version,
        computes=computes,
        usable=usable,
        reason=reason,
        overhead_bytes=overhead_bytes,
        default_slots=default_slots,
        rpc=rpc,
        ring=ring,
    )


def an_accelerator(
    *,
    index: int = 0,
    compute: Compute = "cuda",
    memory_bytes: int | None = 24 * GIB,
    unified: bool = False,
) -> Accelerator:
    """Make one GPU."""
    vendors: Final = {"cuda": "nvidia", "rocm": "amd", "metal": "apple"}
    return Accelerator.model_validate(
        {
            "index": index,
            "vendor": vendors.get(compute, "other"),
            "name": f"gpu {index}",
            "compute": compute,
            "memory_bytes": memory_bytes,
            "unified": unified,
            "seen_by": "test",
        }
    )


def some_facts(
    *,
    memory_bytes: int = 16 * GIB,
    engines: tuple[EngineFacts, ...] | None = None,
    accelerators: tuple[Accelerator, ...] = (),
    declared_backends: tuple[BackendTag, ...] | None = None,
    override_error: str = "",
) -> NodeFacts:
    """Make the facts of a node with a CPU engine."""
    found = (an_engine(), an_engine("scripted", overhead_bytes=0)) if engines is None else engines
    return NodeFacts(
        hostname="box",
        os="linux",
        arch="x86_64",
        n_cpus=4,
        memory_bytes=memory_bytes,
        engines=found,
        accelerators=accelerators,
        declared_backends=declared_backends,
        override_error=override_error,
        override_path="/nowhere/llama-server" if override_error else "",
    )


def a_member(
    number: int = 1,
    *,
    facts: NodeFacts | None = None,
    has_facts: bool = True,
    backends: tuple[BackendTag, ...] = ("llama_server-cpu", SCRIPTED_CPU),
    role: Role = "full",
    presence: Presence = "present",
) -> Member:
    """Make node `number`; `has_facts=False` is a node whose first probe is under way."""
    return Member(
        node_id=a_node_id(number),
        name=f"box-{number}",
        public_key=a_public_key(number),
        role=role,
        presence=presence,
        facts=(facts or some_facts()) if has_facts else None,
        capabilities=NodeCapabilities(backends=backends if has_facts else ()),
    )


def a_token(
    number: int = 1,
    *,
    inviter: int = 1,
    kind: InvitationKind = "token",
    uses_left: int = 1,
    created_at_ms: int = NOW_MS,
    expires_at_ms: int = NOW_MS + 3_600_000,
) -> JoinToken:
    """Make invitation `number`, as State keeps it."""
    return JoinToken(
        token_id=a_token_id(number),
        public_key=hashlib.sha256(f"one-time key {number}".encode()).hexdigest(),
        inviter=a_node_id(inviter),
        kind=kind,
        created_at_ms=created_at_ms,
        expires_at_ms=expires_at_ms,
        uses_left=uses_left,
    )


def a_reading(
    number: int = 1,
    *,
    at_s: float = 0.0,
    memory_available_bytes: int | None = 12 * GIB,
    accelerator_free_bytes: tuple[int | None, ...] = (),
    disk_free_bytes: int | None = 500 * GIB,
    journal_durable: bool = True,
) -> NodeReading:
    """Make the last reading of node `number`."""
    return NodeReading(
        node_id=a_node_id(number),
        at_s=at_s,
        memory_available_bytes=memory_available_bytes,
        accelerators=tuple(AcceleratorReading(free_bytes=one) for one in accelerator_free_bytes),
        disk_free_bytes=disk_free_bytes,
        journal_durable=journal_durable,
    )


def some_readings(*nodes: NodeReading) -> Readings:
    """Collect node readings; none given means one of node 1."""
    given = nodes or (a_reading(),)
    return Readings(nodes={reading.node_id: reading for reading in given})


def some_arithmetic(
    *,
    weights_bytes: int = 100 * MIB,
    available_bytes: int = 12 * GIB,
    context_tokens: int = 8192,
    reserved_bytes: int = 0,
) -> MemoryArithmetic:
    """Make the arithmetic of a share in RAM."""
    return MemoryArithmetic(
        weights_bytes=weights_bytes,
        kv_cache_bytes=context_tokens * 1024,
        overhead_bytes=64 * MIB,
        reserved_bytes=reserved_bytes,
        available_bytes=available_bytes,
        pool="ram",
        kv_bytes_per_token=1024,
        context_tokens=context_tokens,
    )


def a_plan(
    card: ModelCard | None = None,
    *,
    node: int = 1,
    backend: BackendTag | None = None,
    context_tokens: int = 8192,
    slots: int = 1,
    memory: MemoryArithmetic | None = None,
    plan_id: str | None = None,
) -> Plan:
    """Make a plan of one node by hand; its id is not the planner's."""
    planned = card or a_scripted_card()
    engine: EngineName = "llama_server" if planned.scripted is None else "scripted"
    return Plan(
        plan_id=Digest(plan_id or a_digest(f"plan {planned.model_id} {node}")),
        model_id=planned.model_id,
        card_digest=card_digest(planned),
        shape="single",
        engine=engine,
        backend=backend or f"{engine}-cpu",
        context_tokens=context_tokens,
        slots=slots,
        shards=(
            ShardAssignment(
                rank=0,
                node_id=a_node_id(node),
                layer_start=0,
                layer_end=planned.n_layers,
                memory=memory or some_arithmetic(context_tokens=context_tokens),
            ),
        ),
    )


def a_runner(
    phase: Phase = "ready", *, node: int = 1, rank: int = 0, attempt: int = 1
) -> RunnerStatus:
    """Make the status of one rank."""
    return RunnerStatus(
        rank=rank, node_id=a_node_id(node), attempt=attempt, phase=phase, since_ms=NOW_MS
    )


def an_instance(
    number: int = 1,
    *,
    card: ModelCard | None = None,
    node: int = 1,
    phase: Phase | None = "ready",
    attempt: int = 1,
    stopping: bool = False,
    failure: InstanceFailure | None = None,
    plan: Plan | None = None,
) -> Instance:
    """Make the instance that command `number` placed; `phase=None` is not yet reported."""
    placed = card or a_scripted_card()
    return Instance(
        instance_id=an_instance_id(number),
        model_id=placed.model_id,
        plan=plan or a_plan(placed, node=node),
        card=placed,
        desired="stopped" if stopping else "running",
        attempt=attempt,
        runners=() if phase is None else (a_runner(phase, node=node, attempt=attempt),),
        failure=failure,
        placed_at_ms=NOW_MS,
    )


def an_error(code: ErrorCode = "runner.exited", message: str = "the engine exited") -> ErrorBody:
    """Make an error."""
    return ErrorBody(code=code, message=message, remediation="look at its log")


def a_failure(
    number: int = 1,
    *,
    node: int = 1,
    attempt: int = 1,
    phase: Phase = "load",
    error: ErrorBody | None = None,
    at_ms: int = NOW_MS,
    final: bool = True,
    model_id: ModelId = MODEL,
) -> InstanceFailure:
    """Make the failure of instance `number`."""
    return InstanceFailure(
        instance_id=an_instance_id(number),
        model_id=model_id,
        node_id=a_node_id(node),
        attempt=attempt,
        phase=phase,
        error=error or an_error(),
        exit_code=1,
        at_ms=at_ms,
        final=final,
    )


def a_state(
    *,
    members: Iterable[Member] | None = None,
    instances: Iterable[Instance] = (),
    failures: tuple[InstanceFailure, ...] = (),
    tokens: Iterable[JoinToken] = (),
    seq: int = 10,
) -> ClusterState:
    """Make a state of one full node, or of the members given."""
    known = (a_member(),) if members is None else tuple(members)
    return ClusterState(
        cluster_id=a_cluster_id(),
        term=1,
        seq=seq,
        settled_term=1,
        settled_seq=seq,
        at_ms=NOW_MS,
        master=a_node_id(1) if known else None,
        members={member.node_id: member for member in known},
        instances={instance.instance_id: instance for instance in instances},
        failures=failures,
        join_tokens={token.token_id: token for token in tokens},
    )


def a_sequenced(
    event: Event,
    *,
    seq: int = 11,
    term: int = 1,
    at_ms: int = NOW_MS,
    command_id: CommandId | None = None,
) -> SequencedEvent:
    """Give an event its place in the log."""
    return SequencedEvent(term=term, seq=seq, at_ms=at_ms, command_id=command_id, event=event)


def a_request(card: ModelCard | None = None) -> PlacementRequest:
    """Ask for a model and leave the rest to the planner."""
    return PlacementRequest(model_id=(card or a_scripted_card()).model_id)


def an_admission(
    number: int = 1,
    *,
    command: int = 1,
    token: int | None = None,
    addresses: tuple[str, ...] = (),
    role: Role = "full",
) -> AdmitMember:
    """Admit node `number`, by invitation `token`, or let it renew what is known of it."""
    member = a_member(number)
    return AdmitMember(
        command_id=a_command_id(command),
        node_id=member.node_id,
        name=member.name,
        public_key=member.public_key,
        addresses=addresses,
        role=role,
        token_id=None if token is None else a_token_id(token),
    )


def an_invitation(
    number: int = 1,
    *,
    command: int = 3,
    inviter: int = 1,
    kind: InvitationKind = "token",
    expires_at_ms: int = NOW_MS + 60_000,
    uses: int = 1,
) -> CreateJoinToken:
    """Make invitation `number` valid."""
    token = a_token(number)
    return CreateJoinToken(
        command_id=a_command_id(command),
        token_id=token.token_id,
        public_key=token.public_key,
        inviter=a_node_id(inviter),
        token_kind=kind,
        expires_at_ms=expires_at_ms,
        uses=uses,
    )


def an_added_card(number: int = 1) -> AddCard:
    """Add custom card `number`: a command that stands alone, and changes something."""
    card = a_scripted_card(model_id=f"test/card-{number}")
    return AddCard(command_id=a_command_id(number), card=card)


def a_facts_report(number: int = 1, *, command: int = 2) -> ReportFacts:
    """Report the facts of node `number`."""
    member = a_member(number)
    assert member.facts is not None
    return ReportFacts(
        command_id=a_command_id(command),
        node_id=member.node_id,
        facts=member.facts,
        capabilities=member.capabilities,
    )


def a_placement(
    plan: Plan,
    card: ModelCard,
    *,
    command: int = 1,
    request: PlacementRequest | None = None,
) -> PlaceInstance:
    """Place a card by a plan."""
    return PlaceInstance(
        command_id=a_command_id(command), request=request or a_request(card), plan=plan, card=card
    )


def a_phase_report(
    phase: Phase, *, instance: int = 1, node: int = 1, attempt: int = 1, command: int = 50
) -> ReportPhase:
    """Report that instance `instance` reached a phase."""
    return ReportPhase(
        command_id=a_command_id(command),
        instance_id=an_instance_id(instance),
        node_id=a_node_id(node),
        rank=0,
        attempt=attempt,
        phase=phase,
        pid=4711,
    )


def a_failure_report(
    *,
    instance: int = 1,
    node: int = 1,
    attempt: int = 1,
    phase: Phase = "load",
    error: ErrorBody | None = None,
    was_ready: bool = False,
    signal: str | None = None,
    command: int = 60,
) -> ReportFailure:
    """Report that instance `instance` ended badly."""
    return ReportFailure(
        command_id=a_command_id(command),
        instance_id=an_instance_id(instance),
        node_id=a_node_id(node),
        rank=0,
        attempt=attempt,
        phase=phase,
        error=error or an_error(),
        exit_code=None if signal else 1,
        signal=signal,
        log_tail=("something broke",),
        was_ready=was_ready,
    )
