"""The log's story: whatever commands come, in whatever order, folding stays lawful."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.cards import card_digest
from protocol.commands import (
    AddCard,
    ChangeApiKey,
    ClearBreaker,
    Command,
    CreateApiKey,
    DrainNode,
    MoveInstance,
    PinInstance,
    RemoveCard,
    RemoveMember,
    RepairInstance,
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
from protocol.errors import SkulkError
from protocol.events import EVENT, ClusterFounded, Event, MasterElected, SequencedEvent
from protocol.ids import CommandId
from protocol.instances import PHASE_ORDER, Phase
from protocol.state import ClusterState, KeyLimits
from skulkd.core.apply import apply, initial_state, repeated, state_hash
from skulkd.core.decide import decide
from skulkd.core.invariants import event_violations, violations
from skulkd.core.placement.planner import plan
from tests.support.builders import (
    GIB,
    NOW_MS,
    a_cluster_id,
    a_command_id,
    a_facts_report,
    a_failure_report,
    a_key_id,
    a_node_id,
    a_phase_report,
    a_placement,
    a_reading,
    a_request,
    a_scripted_card,
    a_token_id,
    an_admission,
    an_instance_id,
    an_invitation,
    some_readings,
)

NODES = (1, 2, 3)
MASTER = 1
INSTANCES = (100, 101, 102)
MODELS = ("test/one", "test/two")
PHASES: tuple[Phase, ...] = (*PHASE_ORDER, "asleep", "stopping", "stopped", "failed")
READINGS = some_readings(*(a_reading(number, memory_available_bytes=4 * GIB) for number in NODES))

nodes = st.sampled_from(NODES)
instances = st.sampled_from(INSTANCES)
attempts = st.integers(1, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """Plan a model on a node and place it; the plan is made when its turn comes."""

    model: str
    node: int
    number: int
    ttl_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moving:
    """Plan an instance that there is by then on a node, and move it."""

    pick: int
    node: int
    number: int
    stop_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    """Report of an instance that there is by then; a late one is of an earlier attempt."""

    pick: int
    phase: Phase
    fails: bool
    was_ready: bool
    late: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Electing:
    """The next term begins; its master stays the one node that cannot go."""

    is_minority: bool


Step = Command | Placing | Moving | Reporting | Electing

placements = st.builds(
    Placing,
    model=st.sampled_from(MODELS),
    node=nodes,
    number=st.sampled_from(INSTANCES),
    ttl_ms=st.sampled_from((None, 60_000)),
)
moves = st.builds(
    Moving,
    pick=st.integers(0, 2),
    node=nodes,
    number=st.integers(110, 119),
    stop_first=st.booleans(),
)
reports = st.builds(
    Reporting,
    pick=st.integers(0, 2),
    phase=st.sampled_from(PHASES),
    fails=st.booleans(),
    was_ready=st.booleans(),
    late=st.sampled_from((False, False, False, True)),
)
elections = st.builds(Electing, is_minority=st.booleans())


@st.composite
def orders_about_members(draw: st.DrawFn) -> Command:
    """Ask for what changes members and invitations; ids are made unique when their turn comes."""
    node, token = draw(nodes), draw(st.integers(1, 2))
    command_id, node_id = a_command_id(1), a_node_id(node)
    possible: tuple[Command, ...] = (
        an_admission(node, token=draw(st.sampled_from((None, token)))),
        an_admission(node, addresses=(f"10.0.0.{draw(nodes)}:12416",)),
        ReportLoss(command_id=command_id, node_id=node_id, silent_ms=6000, is_refused=False),
        ReportLeave(command_id=command_id, node_id=node_id),
        RemoveMember(command_id=command_id, node_id=node_id),
        DrainNode(
            command_id=command_id, node_id=node_id, drain_ms=draw(st.sampled_from((0, 60_000)))
        ),
        UndrainNode(command_id=command_id, node_id=node_id),
        an_invitation(
            token,
            inviter=node,
            uses=draw(st.integers(1, 2)),
            expires_at_ms=NOW_MS + draw(st.sampled_from((1000, 10_000, 3_600_000))),
        ),
        RevokeJoinToken(
            command_id=command_id, token_id=a_token_id(draw(st.sampled_from((1, 2, 9))))
        ),
        SettleTerm(command_id=command_id, term=0),
        a_facts_report(node),
    )
    return draw(st.sampled_from(possible))


@st.composite
def orders(draw: st.DrawFn) -> Command:
    number, attempt, model = draw(instances), draw(attempts), draw(st.sampled_from(MODELS))
    card, key = a_scripted_card(model_id=model), draw(st.integers(1, 2))
    possible: tuple[Command, ...] = (
        RepairInstance(
            command_id=a_command_id(1),
            instance_id=an_instance_id(number),
            after_attempt=attempt,
        ),
        StopInstance(
            command_id=a_command_id(200 + number),
            instance_id=an_instance_id(number),
            drain_ms=draw(st.sampled_from((0, 0, 60_000))),
        ),
        RetryInstance(
            command_id=a_command_id(1000 * attempt + number),
            instance_id=an_instance_id(number),
            after_attempt=attempt,
        ),
        ClearBreaker(command_id=a_command_id(4), instance_id=an_instance_id(number)),
        *(
            kind(command_id=a_command_id(4), instance_id=an_instance_id(number))
            for kind in (WakeInstance, WakeInstance, PinInstance, UnpinInstance)
        ),
        SleepInstance(
            command_id=a_command_id(4), instance_id=an_instance_id(number), attempt=attempt
        ),
        AddCard(command_id=a_command_id(5), card=card),
        RemoveCard(command_id=a_command_id(6), model_id=card.model_id),
        CreateApiKey(
            command_id=a_command_id(20 + key),
            key_id=a_key_id(key),
            name="k",
            secret_sha256=f"{key}" * 64,
            scope="infer",
        ),
        ChangeApiKey(
            command_id=a_command_id(40 + key),
            key_id=a_key_id(key),
            limits=KeyLimits(concurrent_requests=key),
            expires_at_ms=None,
        ),
        RotateApiKey(
            command_id=a_command_id(50 + key),
            key_id=a_key_id(key),
            secret_sha256="9" * 64,
            overlap_ms=1000,
        ),
        RevokeApiKey(command_id=a_command_id(30 + key), key_id=a_key_id(key)),
    )
    return draw(st.sampled_from(possible))


def stories() -> st.SearchStrategy[list[Step]]:
    founded: list[Step] = [
        an_admission(MASTER),
        an_invitation(9, uses=len(NODES)),
        *(an_admission(node, token=9) for node in NODES),
        *(an_admission(node) for node in NODES),
        *(a_facts_report(node) for node in NODES),
    ]
    steps = st.one_of(
        placements, moves, reports, reports, orders(), orders_about_members(),
        orders_about_members(), elections,
    )  # fmt: skip
    return st.lists(steps, min_size=15, max_size=40).map(lambda drawn: founded + drawn)


class Log:
    """A master in miniature: decides, sequences, applies, and checks after each step."""

    def __init__(self) -> None:
        self.state: ClusterState = initial_state(a_cluster_id())
        self.records: list[SequencedEvent] = []
        self.accepted: list[Command] = []
        self.refusals: list[SkulkError] = []
        self.term = 1
        self.append(ClusterFounded(cluster_id=a_cluster_id()), NOW_MS, None)
        self.append(MasterElected(master=a_node_id(MASTER)), NOW_MS, None)

    def append(self, event: Event, now_ms: int, command_id: CommandId | None) -> None:
        record = SequencedEvent(
            term=self.term,
            seq=self.state.seq + 1,
            at_ms=now_ms,
            command_id=command_id,
            event=event,
        )
        assert event_violations(self.state, record) == ()
        self.state = apply(self.state, record)
        self.records.append(record)
        assert violations(self.state) == ()

    def submit(self, command: Command, *, now_ms: int) -> None:
        try:
            events = decide(self.state, READINGS, command, now_ms=now_ms)
        except SkulkError as refusal:
            self.refusals.append(refusal)
            return
        for event in events:
            self.append(event, now_ms, command.command_id)
        if events:
            self.accepted.append(command)

    def take(self, step: Step, *, now_ms: int) -> None:
        match step:
            case Placing():
                self._place(step, now_ms)
            case Moving():
                self._move(step, now_ms)
            case Reporting():
                self._report(step, now_ms)
            case Electing():
                self.term += 1
                elected = MasterElected(master=a_node_id(MASTER), is_minority=step.is_minority)
                self.append(elected, now_ms, None)
            case _:
                self.submit(step, now_ms=now_ms)

    def _place(self, step: Placing, now_ms: int) -> None:
        card = a_scripted_card(model_id=step.model)
        reading = some_readings(a_reading(step.node, memory_available_bytes=4 * GIB))
        outcome = plan(a_request(card), card, card_digest(card), self.state, reading)
        for made in outcome.plans[:1]:
            placement = a_placement(made, card, command=step.number)
            placement = placement.model_copy(update={"ttl_ms": step.ttl_ms})
            self.submit(placement, now_ms=now_ms)

    def _move(self, step: Moving, now_ms: int) -> None:
        known = list(self.state.instances.values())
        if not known:
            return
        old = known[step.pick % len(known)]
        reading = some_readings(a_reading(step.node, memory_available_bytes=4 * GIB))
        request = a_request(old.card)
        outcome = plan(request, old.card, card_digest(old.card), self.state, reading)
        for made in outcome.plans[:1]:
            move = MoveInstance(
                command_id=a_command_id(step.number),
                instance_id=old.instance_id,
                request=request,
                plan=made,
                card=old.card,
                stop_first=step.stop_first,
                drain_ms=60_000,
            )
            self.submit(move, now_ms=now_ms)

    def _report(self, step: Reporting, now_ms: int) -> None:
        known = list(self.state.instances.values())
        if not known:
            return
        instance = known[step.pick % len(known)]
        base = a_failure_report(phase=step.phase, was_ready=step.was_ready)
        report = base if step.fails else a_phase_report(step.phase)
        changes = {
            "instance_id": instance.instance_id,
            "node_id": instance.plan.shards[0].node_id,
            "attempt": instance.attempt - (1 if step.late else 0),
            "command_id": a_command_id(10_000 + self.state.seq),
        }
        self.submit(report.model_copy(update=changes), now_ms=now_ms)


def told(story: list[Step]) -> Log:
    log = Log()
    for place, drawn in enumerate(story):
        step = drawn
        if not isinstance(step, Placing | Moving | Reporting | Electing):
            # The window's own test is below; here each step is to be decided.
            update: dict[str, object] = {"command_id": a_command_id(20_000 + place)}
            if isinstance(step, SettleTerm):
                update["term"] = log.term
            step = step.model_copy(update=update)
        log.take(step, now_ms=NOW_MS + 1000 * place)
    return log


@settings(max_examples=150, deadline=None)
@given(stories())
def test_replay_equals_fold_and_what_holds_holds_after_every_step(
    story: list[Step],
) -> None:
    log = told(story)
    assert all(refusal.message for refusal in log.refusals)
    replayed = initial_state(a_cluster_id())
    for record in log.records:
        wire = record._replace(event=EVENT.validate_json(record.event.model_dump_json()))
        replayed = apply(replayed, wire)
    assert replayed == log.state
    assert state_hash(replayed) == state_hash(log.state)


@settings(max_examples=60, deadline=None)
@given(stories())
def test_a_repeated_command_is_known_and_deciding_a_report_again_changes_nothing(
    story: list[Step],
) -> None:
    log = told(story)
    for command in log.accepted:
        assert repeated(log.state, command.command_id) is not None
    before = state_hash(log.state)
    if log.accepted and log.accepted[-1].kind in {"report_phase", "report_facts", "admit_member"}:
        log.submit(log.accepted[-1], now_ms=NOW_MS)
    assert state_hash(log.state) == before
