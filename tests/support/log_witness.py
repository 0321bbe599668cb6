"""What the nodes of a replicated log have shown and acknowledged, and what does not fit in."""

import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, final

from protocol.clock import Clock
from protocol.commands import AddCard, ChangeSettings, Command, CommandReply, RemoveCard
from protocol.errors import SkulkError
from protocol.events import SequencedEvent
from protocol.ids import CommandId, ModelId, NodeId
from protocol.state import ClusterSettings, ClusterState, Policy
from skulkd.core.apply import repeated, state_hash
from skulkd.core.invariants import violations
from skulkd.eventlog.cluster_log import ClusterLog
from skulkd.runtime.tasks import sleep
from tests.support.builders import a_card, a_command_id
from tests.support.simulated_power import PoweredDisk

LONGEST_CALL_S: Final = 25.0
N_MODELS: Final = 6
LOOK_EVERY: Final = 50
"""Events between two looks at the whole state, which take long."""


class WitnessedNode(Protocol):
    """One life of a node with a log."""

    node_id: NodeId
    disk: PoweredDisk

    @property
    def log(self) -> ClusterLog: ...

    @property
    def state(self) -> ClusterState: ...

    async def submit(self, command: Command) -> CommandReply: ...


@dataclass
class _Told:
    """What was said about a command."""

    seqs: set[int] = field(default_factory=set[int])
    is_on_member: bool = False


@final
class LogWitness:
    """Sees all that the nodes of one history show, and what their callers are told.

    In `quorum`, and in a gentle history under any policy, what one replica has shown at a seq every
    other shows there, and what was acknowledged on another member stays.

    Args:
        policy: Of the cluster.
        is_gentle: Only one node is ever away, and only when all the others are whole.
        chance: Draws commands and deaths.
        clock: Measures how long callers wait.
    """

    def __init__(
        self, policy: Policy, *, is_gentle: bool, chance: random.Random, clock: Clock
    ) -> None:
        self.problems: list[str] = []
        self._policy: Policy = policy
        self._is_strict = policy == "quorum" or is_gentle
        self._chance = chance
        self._clock = clock
        self._told: dict[CommandId, _Told] = {}
        self._shown: dict[int, tuple[int, CommandId | None]] = {}
        """What some replica has shown at a seq."""
        self._shown_seq: dict[NodeId, int] = {}
        """How far each replica has come."""
        self._n_commands = 0

    # ---- What clients do ----

    def mint(self) -> CommandId:
        """Give the id of the next command."""
        self._n_commands += 1
        return a_command_id(100_000 + self._n_commands)

    def a_change(self, *, of_settings: bool) -> Command:
        """Draw a command that any member may send at any time."""
        command_id, chance = self.mint(), self._chance
        if of_settings:
            loopback = chance.choice(("open", "keyed"))
            settings = ClusterSettings(policy=self._policy, loopback=loopback)
            return ChangeSettings(command_id=command_id, settings=settings)
        model = ModelId(f"model-{chance.randrange(N_MODELS)}")
        if chance.randrange(N_MODELS) == 0:
            return RemoveCard(command_id=command_id, model_id=model)
        return AddCard(command_id=command_id, card=a_card(model_id=model))

    async def submit(self, node: WitnessedNode, command: Command) -> None:
        """Send a command, and keep what is said of it."""
        told = self._told.setdefault(command.command_id, _Told())
        began_s = self._clock.monotonic_s()
        with contextlib.suppress(SkulkError):
            reply = await node.submit(command)
            if repeated(node.log.appended, command.command_id) is not None:
                told.seqs.add(reply.seq)
                told.is_on_member |= reply.durable == "member"
        if self._clock.monotonic_s() - began_s > LONGEST_CALL_S:
            self.problems.append(f"{command.kind} took too long")

    # ---- What befalls nodes ----

    async def wait_death(self, node: WitnessedNode) -> int:
        """Choose when a life ends: at once, or in the middle of what it asks of its disk.

        Returns:
            How many bytes its disk keeps of what was not synced.
        """
        if self._chance.random() < 0.5:
            node.disk.calls_left = self._chance.randrange(12)
            await sleep(self._chance.uniform(0.0, 0.5))
        return self._chance.choice((0, 0, 3, 100, 5000))

    # ---- What nodes show ----

    def watch(self, node: WitnessedNode) -> None:
        """Look at everything that a replica shows from now on."""

        def on_event(sequenced: SequencedEvent, state: ClusterState) -> None:
            self._note(node, sequenced)
            self.problems.extend(violations(state) if sequenced.seq % LOOK_EVERY == 0 else ())

        def on_reset(state: ClusterState) -> None:
            if self._policy == "quorum" and state.seq < self._shown_seq[node.node_id]:
                self.problems.append(f"{node.node_id} went back to {state.seq}")
            self.problems.extend(violations(state))

        self._shown_seq[node.node_id] = node.state.seq
        node.log.replica.subscribe(on_event, on_reset)

    def _note(self, node: WitnessedNode, sequenced: SequencedEvent) -> None:
        seq, what = sequenced.seq, (sequenced.term, sequenced.command_id)
        self._shown_seq[node.node_id] = seq
        before = self._shown.setdefault(seq, what)
        if before != what and self._is_strict:
            self.problems.append(
                f"seq {seq} was shown as {before}, and on {node.node_id} as {what}"
            )

    # ---- What must hold at the end ----

    def check(self, nodes: Sequence[WitnessedNode]) -> None:
        """Hold everything against the log that all nodes have in the end."""
        state = nodes[0].state
        assert len({state_hash(node.state) for node in nodes}) == 1
        assert len({node.log.chain for node in nodes}) == 1
        assert self.problems == []
        assert violations(state) == ()
        if not self._is_strict:
            return
        for command_id, told in self._told.items():
            assert len(told.seqs) <= 1, f"{command_id} was acknowledged as {told.seqs}"
            if told.is_on_member:
                result = repeated(state, command_id)
                assert result is not None, f"{command_id}, on a member, is lost"
                assert told.seqs == {result.seq}
