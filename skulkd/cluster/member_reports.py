"""What a node submits by itself about members: losses and goodbyes it sees, and its own return.

The rules are `core.membership`'s; here each wish is submitted once at a time, and again a while
after it was refused or lost. A master also has instances repaired that cannot go on where they are
(`core.repair_decisions`): one at a time, since each is planned anew.
"""

import logging
from collections.abc import Mapping
from itertools import islice
from typing import Final, assert_never, final

from protocol.commands import (
    Command,
    RepairInstance,
    ReportLeave,
    ReportLoss,
    RevokeJoinToken,
    SettleTerm,
)
from protocol.errors import SkulkError
from protocol.ids import NodeId
from protocol.state import ClusterState
from skulkd.cluster.mastership_ports import MastershipPorts
from skulkd.core.election import ElectionMachine
from skulkd.core.membership import (
    Action as MemberAction,
)
from skulkd.core.membership import (
    ForgetToken,
    Lose,
    MemberLook,
    NoteGoodbye,
    Renew,
    Settle,
    master_actions,
    own_actions,
)
from skulkd.core.repair_decisions import DueRepair, repairs_due
from skulkd.runtime.tasks import Tasks

_log = logging.getLogger(__name__)

RETRY_S: Final = 2.0
"""After a command of its own was refused or lost."""
REPAIR_RETRY_S: Final = 5.0
"""Readings that may change what fits come every second or two."""

Action = MemberAction | DueRepair


@final
class MemberReports:
    """The reports of one node.

    Args:
        node_id: This node.
        ports: Where commands go, and the state that they are about.
        machine: Who is heard, and whether this node is master.
        tasks: Owns what is under way.
    """

    def __init__(
        self, node_id: NodeId, ports: MastershipPorts, machine: ElectionMachine, tasks: Tasks
    ) -> None:
        self._me = node_id
        self._ports = ports
        self._machine = machine
        self._tasks = tasks
        self._started_s = ports.clock.boot_s()
        self._under_way: dict[Action, float | None] = {}
        """Until when each is not repeated; None while it is being decided."""

    def act(self) -> None:
        """Submit what is due and not under way."""
        now = self._ports.clock.boot_s()
        self._forget(now)
        for action in self._wanted(now):
            if action not in self._under_way:
                self._under_way[action] = None
                self._tasks.start(self._submit(action), name="member report", essential=False)

    def _wanted(self, now: float) -> tuple[Action, ...]:
        state, term = self._ports.log.appended, self._machine.term(now=now)
        if term is None:
            return ()
        actions = own_actions(state, self._me)
        if not self._machine.is_master(now=now):
            return actions
        looks: Mapping[NodeId, MemberLook] = {}
        if not self._is_all_well(state, now):
            looks = self._looks(now)
        about_members = master_actions(
            state,
            self._me,
            looks,
            number=term.number,
            is_lagging=self._machine.sight.is_lagging(now=now),
            now_ms=self._ports.clock.wall_ms(),
        )
        return (*actions, *about_members, *self._next_repair(state, looks))

    def _next_repair(
        self, state: ClusterState, looks: Mapping[NodeId, MemberLook]
    ) -> tuple[DueRepair, ...]:
        """Give the repair whose turn it is; none while one is being decided."""
        begun = {action for action in self._under_way if isinstance(action, DueRepair)}
        if any(self._under_way[action] is None for action in begun):
            return ()
        silent_ms = {
            node_id: int(look.silent_s * 1000)
            for node_id, look in looks.items()
            if not look.is_alive
        }
        due = (one for one in repairs_due(state, silent_ms) if one not in begun)
        return tuple(islice(due, 1))

    async def _submit(self, action: Action) -> None:
        command = self._command(action)
        try:
            await self._ports.submit(command)
        except SkulkError as error:
            _log.debug("%s was refused: %s", command.kind, error.message)
        finally:
            wait_s = REPAIR_RETRY_S if isinstance(action, DueRepair) else RETRY_S
            self._under_way[action] = self._ports.clock.boot_s() + wait_s

    def _forget(self, now: float) -> None:
        for action, until_s in list(self._under_way.items()):
            if until_s is not None and now >= until_s:
                del self._under_way[action]

    def _command(self, action: Action) -> Command:
        command_id = self._ports.mint()
        match action:
            case Lose():
                return ReportLoss(
                    command_id=command_id,
                    node_id=action.node_id,
                    silent_ms=action.silent_ms,
                    is_refused=action.is_refused,
                )
            case NoteGoodbye():
                return ReportLeave(command_id=command_id, node_id=action.node_id)
            case Settle():
                return SettleTerm(command_id=command_id, term=action.term)
            case ForgetToken():
                return RevokeJoinToken(command_id=command_id, token_id=action.token_id)
            case DueRepair():
                return RepairInstance(
                    command_id=command_id,
                    instance_id=action.instance_id,
                    after_attempt=action.after_attempt,
                )
            case Renew():
                return self._ports.own_entry(command_id)
            case _:
                assert_never(action)

    def _is_all_well(self, state: ClusterState, now: float) -> bool:
        """Say whether nothing can follow from looks: all are heard, and the term is settled."""
        suspicion_s = self._machine.sight.suspicion_s(now=now)
        alive = self._machine.peers.alive_of(state.members, suspicion_s=suspicion_s, now=now)
        return len(alive) == len(state.members) and not state.is_minority_term

    def _looks(self, now: float) -> Mapping[NodeId, MemberLook]:
        sight, peers = self._machine.sight, self._machine.peers
        followers = self._machine.tenure.followers(now=now)
        looks: dict[NodeId, MemberLook] = {}
        for node_id in self._ports.log.appended.members.keys() - {self._me}:
            silent_s = peers.silent_s(node_id, now=now)
            heartbeat = peers.heartbeat(node_id)
            looks[node_id] = MemberLook(
                is_alive=sight.is_alive(node_id, now=now),
                silent_s=now - self._started_s if silent_s is None else silent_s,
                refused_s=peers.refused_s(node_id, now=now),
                has_left=peers.has_left(node_id),
                unheard=() if heartbeat is None else heartbeat.unheard,
                follows=node_id in followers,
            )
        return looks
