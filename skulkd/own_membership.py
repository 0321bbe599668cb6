"""What follows from the log for this node's own membership: its guests, its seeds, its removal."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, final

from protocol.commands import AdmitMember, RevokeJoinToken
from protocol.errors import ClusterError, SkulkError
from protocol.events import (
    JoinTokenCreated,
    JoinTokenRevoked,
    MemberJoined,
    MemberRemoved,
    SequencedEvent,
)
from protocol.ids import ClusterId, TokenId, cluster_id_of
from protocol.joining import FellowMember, JoinRequest, Welcome
from protocol.state import ClusterState
from skulkd.cluster.guests import GuestDoor
from skulkd.cluster.join_host import JoinHost
from skulkd.cluster.reach import KeyProver
from skulkd.rooms import Rooms
from skulkd.runtime.choices import MAX_SEEDS, Choices, KeptChoices, Seed
from skulkd.runtime.identity import Identity
from skulkd.runtime.tasks import Tasks, sleep

_log = logging.getLogger(__name__)

_ENTROPY_BYTES: Final = 16
_LOOK_S: Final = 0.1
_QUIET_S: Final = 30.0
"""A node that the cluster has not counted in since its start believes that it is out when its log
has not grown for so long."""
_REMOVED_S: Final = 0.5
_KEEP_AGAIN_S: Final = 2.0
"""Between two tries of writing down that this node is alone."""


@final
class OwnMembership:
    """Lets guests in, keeps whom to dial after a loss of the journal, and notes a removal.

    Args:
        identity: This node's.
        build: As guests are told.
        rooms: Its log and its master.
        door: Where guests come in.
        prover: Dials a guest before it is admitted, and has it prove its key.
        choices: Where seeds are kept.
        random_bytes: For the id of the cluster of one that a removed node becomes.
        restart: Has the rooms end and begin anew.
        tasks: Owner of what runs in the background.
    """

    def __init__(
        self,
        *,
        identity: Identity,
        build: str,
        rooms: Rooms,
        door: GuestDoor,
        prover: KeyProver,
        choices: KeptChoices,
        random_bytes: Callable[[int], bytes],
        restart: Callable[[], None],
        tasks: Tasks,
    ) -> None:
        self._identity = identity
        self._build = build
        self._rooms = rooms
        self._choices = choices
        self._random_bytes = random_bytes
        self._restart = restart
        self._tasks = tasks
        self._members_changed = asyncio.Event()
        self._members_changed.set()
        self._is_removed = False
        self.host: Final = JoinHost(
            door=door,
            identity=identity,
            build=build,
            clock=rooms.clock,
            tasks=tasks,
            admit=self._admit,
            prover=prover,
            on_spent=self._on_spent,
        )

    def start(self) -> None:
        """Follow the log from now on."""
        replica = self._rooms.replica
        replica.subscribe(self._on_event, self._on_state)
        self._rooms.log.on_append(self._on_append)
        self._on_state(replica.state)
        self._tasks.start(self._keep_seeds(), name="keep seeds")
        self._tasks.start(self._heed_master(), name="heed master")

    # ---- Guests ----

    async def _admit(self, request: JoinRequest, token_id: TokenId) -> Welcome:
        rooms = self._rooms
        await rooms.gateway.submit(
            AdmitMember(
                command_id=rooms.gateway.mint_command_id(),
                node_id=request.node_id,
                name=request.name,
                public_key=request.public_key,
                addresses=request.addresses,
                api_port=request.api_port,
                api_tls=request.api_tls,
                role=request.role,
                token_id=token_id,
            )
        )
        state, term = rooms.replica.state, rooms.mastership.term
        if request.node_id not in state.members:
            raise ClusterError(
                "cluster.peer_timeout",
                "the cluster has admitted the node, and this member has not heard of it yet",
                remediation="Join again.",
                retry_after_s=1,
            )
        return Welcome(
            build=self._build,
            cluster_id=state.cluster_id,
            members=tuple(
                FellowMember(
                    node_id=member.node_id,
                    public_key=member.public_key,
                    name=member.name,
                    addresses=member.addresses,
                )
                for member in state.members.values()
                if member.node_id != request.node_id
            ),
            master=None if term is None else term.master,
            term=state.term if term is None else term.number,
        )

    def _on_spent(self, token_id: TokenId) -> None:
        self._tasks.start(self._revoke(token_id), name="revoke code", essential=False)

    async def _revoke(self, token_id: TokenId) -> None:
        gateway = self._rooms.gateway
        command = RevokeJoinToken(command_id=gateway.mint_command_id(), token_id=token_id)
        try:
            await gateway.submit(command)
        except SkulkError as error:
            # The door is shut already; the invitation ends by itself within ten minutes.
            _log.info("the spent code %s stays in the state: %s", token_id, error.message)

    # ---- What the log says ----

    def _on_event(self, sequenced: SequencedEvent, state: ClusterState) -> None:
        match sequenced.event:
            case JoinTokenCreated() | JoinTokenRevoked():
                self.host.set_tokens(state.join_tokens)
            case MemberJoined():
                self.host.set_tokens(state.join_tokens)
                self._members_changed.set()
            case MemberRemoved(node_id=node_id) if node_id == self._identity.node_id:
                self._on_removed(sequenced.seq)
            case MemberRemoved():
                self._members_changed.set()
            case _:
                pass

    def _on_state(self, state: ClusterState) -> None:
        self.host.set_tokens(state.join_tokens)
        self._members_changed.set()
        if self._identity.node_id in state.removed:
            self._on_removed(state.seq)

    def _on_append(self) -> None:
        appended = self._rooms.log.appended
        if self._identity.node_id in appended.removed:
            self._on_removed(appended.seq)

    async def _heed_master(self) -> None:
        """Go when told to by the master: a guest that is removed on its way has no log to read."""
        await self._rooms.is_turned_away.wait()
        if not self._is_removed:
            self._is_removed = True
            await self._go_on_alone()

    def _on_removed(self, seq: int) -> None:
        if not self._is_removed:
            self._is_removed = True
            self._tasks.start(self._become_alone(seq), name="become alone")

    async def _become_alone(self, removed_seq: int) -> None:
        """Go on as a closed cluster of one, unless this node has joined again since.

        A moment after it was told: whether the removal is committed is no more said to a node that
        is no member, and those that are have had the time to see to it.
        """
        if not await self._is_out(removed_seq):
            self._is_removed = False
            return
        await sleep(_REMOVED_S)
        await self._go_on_alone()

    async def _go_on_alone(self) -> None:
        alone = cluster_id_of(self._random_bytes(_ENTROPY_BYTES))

        def removed(kept: Choices) -> Choices:
            return kept.model_copy(update={"cluster_open": False, "joining": alone, "seeds": ()})

        while not await self._is_kept(removed):
            await sleep(_KEEP_AGAIN_S)
        _log.warning(
            "this node was removed from cluster %s and goes on alone, as cluster %s",
            self._identity.cluster_id, alone,
        )  # fmt: skip
        self._restart()

    async def _is_kept(self, removed: Callable[[Choices], Choices]) -> bool:
        """Write down that this node is alone; a disk that fails now may be well again later."""
        try:
            await self._choices.change(removed)
        except SkulkError as error:
            _log.warning("%s", error.message, extra={"code": error.code})
            return False
        return True

    async def _is_out(self, removed_seq: int) -> bool:
        """Tell a removal from one of long ago, which a node that has joined again reads of, too."""
        rooms, loop = self._rooms, asyncio.get_running_loop()
        seq, since_s = 0, loop.time()
        while loop.time() - since_s < _QUIET_S:
            appended = rooms.log.appended
            if rooms.node_id in appended.members:
                return False
            if rooms.is_refused:  # and its log says the same, which came after the refusal
                return True
            if rooms.known_seq is not None:
                return rooms.known_seq < removed_seq
            if appended.seq != seq:
                seq, since_s = appended.seq, loop.time()
            await sleep(_LOOK_S)
        return True

    async def _keep_seeds(self) -> None:
        """Keep the members' addresses beside the journal: one who loses that still finds them."""
        while True:
            await self._members_changed.wait()
            self._members_changed.clear()
            seeds = seeds_of(self._rooms.replica.state, self._identity)
            if not seeds and self._choices.now.seeds and not self._rooms.replica.state.members:
                continue  # admitted, and the state has not come yet
            try:
                await self._choices.change(_with_seeds(seeds, self._identity.cluster_id))
            except SkulkError as error:
                _log.warning("%s", error.message, extra={"code": error.code})


def seeds_of(state: ClusterState, identity: Identity) -> tuple[Seed, ...]:
    """Give the other members as they are to be dialled."""
    others = (member for member in state.members.values() if member.node_id != identity.node_id)
    return tuple(
        Seed(node_id=member.node_id, public_key=member.public_key, addresses=member.addresses)
        for member in others
    )[:MAX_SEEDS]


def _with_seeds(seeds: tuple[Seed, ...], own: ClusterId) -> Callable[[Choices], Choices]:
    def change(kept: Choices) -> Choices:
        # Those of a cluster that this node is about to change to are not this state's to say.
        if kept.joining not in {None, own}:
            return kept
        return kept.model_copy(update={"seeds": seeds})

    return change
