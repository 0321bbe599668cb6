"""Whatever fails, goes away and comes back: a model is never passed to and fro."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.commands import Command, RepairInstance, ReportLeave, ReportLoss
from protocol.errors import ErrorCode
from protocol.events import InstanceReplanned
from protocol.instances import DisconnectPolicy
from protocol.placements import PlacementRequest
from protocol.state import ClusterState
from skulkd.core.apply import apply
from skulkd.core.breaker import WINDOW_MS
from skulkd.core.decide import decide
from skulkd.core.invariants import event_violations, violations
from skulkd.core.repair_decisions import AVOIDED_MS, AWAY, MAX_REPAIRS
from tests.support.builders import (
    GIB,
    MIB,
    NOW_MS,
    a_card,
    a_command_id,
    a_failure_report,
    a_member,
    a_node_id,
    a_reading,
    a_sequenced,
    a_state,
    an_admission,
    an_error,
    an_instance,
    an_instance_id,
    some_readings,
)

CARD = a_card(size_bytes=GIB)
MASTER = 9
NODES = (1, 2, 3, 4)
CODES: tuple[ErrorCode, ...] = (
    "runner.no_memory",
    "runner.exited",
    "store.no_space",
    "store.stalled",
    "store.digest_mismatch",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Something that happens `after_s` seconds after the last thing."""

    what: str
    node: int
    code: ErrorCode
    after_s: int


steps = st.builds(
    Step,
    what=st.sampled_from(("fails", "fails", "lost", "left", "back", "looks", "looks")),
    node=st.sampled_from(NODES),
    code=st.sampled_from(CODES),
    after_s=st.integers(0, 240),
)


@dataclass(slots=True)
class Story:
    """A cluster of which one node is always too full, and one instance in it."""

    excluded: int
    state: ClusterState = field(init=False)
    now_ms: int = NOW_MS
    n_commands: int = 100
    replans: list[InstanceReplanned] = field(default_factory=list[InstanceReplanned])

    def __post_init__(self) -> None:
        request = PlacementRequest(
            model_id=CARD.model_id, context_tokens=8192, excluded_nodes=(a_node_id(self.excluded),)
        )
        where = next(node for node in NODES if node != self.excluded)
        placed = an_instance(card=CARD, node=where, phase="load").model_copy(
            update={"request": request, "disconnect": DisconnectPolicy()}
        )
        members = [a_member(node) for node in (*NODES, MASTER)]
        members[-1] = a_member(MASTER, role="management")
        state = a_state(members=members, instances=[placed])
        self.state = state.changed({"master": a_node_id(MASTER)})

    def happens(self, step: Step) -> None:
        """Decide what a step leads to, and fold it."""
        self.now_ms += step.after_s * 1000
        self.n_commands += 1
        readings = some_readings(
            *(a_reading(node) for node in NODES[:-1]),
            a_reading(NODES[-1], memory_available_bytes=MIB),
        )
        command = self.command(step)
        if command is None:
            return
        for event in decide(self.state, readings, command, now_ms=self.now_ms):
            record = a_sequenced(
                event, seq=self.state.seq + 1, term=self.state.term, at_ms=self.now_ms
            )
            assert event_violations(self.state, record) == ()
            self.state = apply(self.state, record)
            assert violations(self.state) == ()
            if isinstance(event, InstanceReplanned):
                self.replans.append(event)

    def command(self, step: Step) -> Command | None:
        """Say it as a node, or the master, would."""
        instance = self.state.instances[an_instance_id()]
        command_id = a_command_id(self.n_commands)
        match step.what:
            case "fails":
                here = next(
                    node for node in NODES if a_node_id(node) == instance.plan.shards[0].node_id
                )
                report = a_failure_report(
                    node=here, attempt=instance.attempt, command=self.n_commands
                )
                return report.model_copy(update={"error": an_error(step.code)})
            case "lost":
                return ReportLoss(
                    command_id=command_id,
                    node_id=a_node_id(step.node),
                    silent_ms=6000,
                    is_refused=False,
                )
            case "left":
                return ReportLeave(command_id=command_id, node_id=a_node_id(step.node))
            case "back":
                return an_admission(step.node, command=self.n_commands)
            case _:
                return RepairInstance(
                    command_id=command_id,
                    instance_id=an_instance_id(),
                    after_attempt=instance.attempt,
                )


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(NODES[:-1]), st.lists(steps, max_size=25))
def test_repairs_are_few_keep_the_exclusions_and_never_go_back_to_what_failed(
    excluded: int, story: list[Step]
) -> None:
    told = Story(excluded=excluded)
    for step in story:
        told.happens(step)
    repairs = [event.repair for event in told.replans]
    for place, repair in enumerate(repairs):
        assert a_node_id(excluded) not in repair.to_nodes
        assert a_node_id(NODES[-1]) not in repair.to_nodes, "it is too full"
        is_wider = len(repair.to_nodes) > len(repair.from_nodes)
        assert is_wider or not set(repair.to_nodes) & set(repair.at_fault)
        within = [one for one in repairs[: place + 1] if repair.at_ms - one.at_ms < WINDOW_MS]
        assert len(within) <= MAX_REPAIRS
        for earlier in repairs[:place]:
            is_avoided = repair.at_ms - earlier.at_ms < AVOIDED_MS
            if is_avoided and earlier.error.code not in AWAY:
                assert not set(repair.to_nodes) & set(earlier.at_fault)


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=15))
def test_an_instance_keeps_its_id_request_and_policy_through_every_repair(
    story: list[Step],
) -> None:
    told = Story(excluded=3)
    before = told.state.instances[an_instance_id()]
    for step in story:
        told.happens(step)
    after = told.state.instances[an_instance_id()]
    assert (after.request, after.disconnect, after.card) == (
        before.request,
        before.disconnect,
        before.card,
    )
    assert after.plan.context_tokens == 8192
    assert len(after.repairs) <= len(told.replans)
