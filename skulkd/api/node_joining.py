"""Joining another cluster: from an invitation to a node that starts anew as a member.

The old cluster of one is given up only once the new cluster has admitted this node and that is kept
on the disk; what was there before is put aside by the next start of the rooms.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Final, final

from protocol.cluster_api import JoinBody, Joined
from protocol.errors import ClusterError
from protocol.ids import NodeId, node_id_of, token_id_of
from protocol.joining import JoinRequest, Welcome
from protocol.nodes import Role
from skulkd.cluster.addresses import PeerAddress, parse_peer
from skulkd.cluster.cluster_door import ClusterDoor
from skulkd.cluster.code_keys import code_words
from skulkd.cluster.curve_keys import public_key_of
from skulkd.cluster.join_guest import Admission, JoinGuest, candidates_of
from skulkd.core.invitations import OpenToken, read_code, read_token
from skulkd.core.past import refuse_past
from skulkd.eventlog.gateway import StateView
from skulkd.runtime.choices import MAX_SEEDS, Choices, KeptChoices, Seed
from skulkd.runtime.identity import Identity
from skulkd.runtime.tasks import run_blocking, sleep

_log = logging.getLogger(__name__)

ANSWER_S: Final = 0.2
"""What the answer to the operator may take to leave before the rooms end."""
LOOK_AROUND_S: Final = 8.0
"""How long neighbours are waited for, when a code is all that is known."""
_LOOK_INTERVAL_S: Final = 0.25
_SHUT_OUT_LOOK_S: Final = 1.0
_SHUT_OUT_LOOKS: Final = 5
"""So many looks in a row must find this node refused before it is believed to be removed."""
_STABLE_S: Final = 1.0
"""Neighbours come one after the other; so long after the last one they are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoiningAccess:
    """What joining needs of the node."""

    identity: Identity
    name: str
    role: Role
    build: str
    boot_id: str
    api_port: Callable[[], int]
    is_api_tls: bool
    journal: str
    """Where it lies, in words for the operator."""
    state: StateView
    door: ClusterDoor
    choices: KeptChoices
    make_guest: Callable[[], JoinGuest]
    """Called once the door is open."""
    peers: tuple[PeerAddress, ...]
    """As the operator named them at the start."""
    wall_ms: Callable[[], int]
    is_known: Callable[[], bool]
    """Whether the cluster has counted this node in since it started."""
    is_shut_out: Callable[[], bool]
    """Whether fellows answer, and none of them admits this node's key."""
    retire: Callable[[], Awaitable[None]]
    """Takes no further part in the present cluster, until the rooms have begun anew."""
    restart: Callable[[], None]
    """Has the rooms end and begin anew."""


@final
class NodeJoining:
    """Joins; once at a time.

    Args:
        node: What it needs.
    """

    def __init__(self, node: JoiningAccess) -> None:
        self._node = node
        self._joining = asyncio.Lock()
        self._has_joined = False

    async def is_pointless(self, token: str) -> bool:
        """Say whether a node that is given an invitation at every start need not use it.

        A member needs none. But one that was removed while it was away has not heard of it, and
        takes itself for a member still: what tells is that its fellows refuse its key. It then
        needs an invitation that was made since, which its own state does not know. Waits until it
        is clear which it is: the cluster may be away as a whole.

        Raises:
            ClusterError: `cluster.token_invalid`.
        """
        invitation, node = read_token(token), self._node
        token_id = token_id_of(await run_blocking(public_key_of, invitation.secret))
        n_refused = 0
        while n_refused < _SHUT_OUT_LOOKS:
            state = node.state.state
            is_own = invitation.cluster_id == node.identity.cluster_id
            if not is_own and state.members.keys() <= {node.identity.node_id}:
                return False
            is_over = invitation.expires_at_ms <= node.wall_ms()
            if not is_own or token_id in state.join_tokens or is_over or node.is_known():
                return True
            # A fellow that has only not heard yet of this node refuses it for a moment, too.
            n_refused = n_refused + 1 if node.is_shut_out() else 0
            await sleep(_SHUT_OUT_LOOK_S)
        return False

    async def join(self, wish: JoinBody, *, answer_s: float = ANSWER_S) -> Joined:
        """Become a member of another cluster; see `ClusterControl.join`.

        Args:
            wish: What is asked.
            answer_s: How long the rooms go on, for the answer to leave.

        Raises:
            ClusterError: `cluster.token_invalid`, `cluster.token_expired`, `cluster.has_past`,
                `cluster.join_failed`, `cluster.join_refused`, `cluster.stopping`.
            ConfigError: `config.invalid`, a peer that is none; `config.port_busy`.
        """
        async with self._joining:
            if self._has_joined:
                raise _starting_anew()
            admission = await self._ask(wish)
            await self._keep(admission.welcome)
            self._has_joined = True
        asyncio.get_running_loop().call_later(answer_s, self._node.restart)
        return Joined(
            cluster_id=admission.welcome.cluster_id,
            inviter=node_id_of(admission.host_key),
            address=admission.address,
            archived=f"{self._node.journal}.archive-*" if wish.discard else "",
        )

    async def _ask(self, wish: JoinBody) -> Admission:
        peers = (*map(parse_peer, wish.peers), *self._node.peers)
        if wish.token is not None:
            token = read_token(wish.token)
            self._refuse(token, wish)
            return await self._without_fellows(self._by_token(token, peers))
        code = read_code(wish.code or "", await run_blocking(code_words))
        self._refuse(None, wish)
        return await self._without_fellows(self._by_code(code, peers))

    async def _without_fellows(self, asking: Coroutine[None, None, Admission]) -> Admission:
        """Ask as one who has no cluster any more.

        It may be its own that admits this node again. What it promised and acknowledged there from
        then on, its next start would have given up with the journal.
        """
        node = self._node
        if node.state.state.members.keys() <= {node.identity.node_id}:
            return await asking
        await node.retire()
        try:
            return await asking
        except BaseException:
            node.restart()
            raise

    def _refuse(self, token: OpenToken | None, wish: JoinBody) -> None:
        node, state = self._node, self._node.state.state
        if wish.discard:
            return
        if token is not None and token.cluster_id == state.cluster_id:
            raise ClusterError(
                "cluster.join_refused",
                f"this node belongs to cluster {state.cluster_id} already, which the token is for",
                remediation="`skulk cluster members` there shows who is in it. If this node was "
                "removed and has not heard of it, join with --discard.",
            )
        refuse_past(state, node.identity.node_id)

    async def _by_token(self, token: OpenToken, peers: Sequence[PeerAddress]) -> Admission:
        request = await self._request()
        request = request.model_copy(update={"cluster_id": token.cluster_id})
        return await self._node.make_guest().join_by_token(token, request, peers=peers)

    async def _by_code(self, code: Sequence[str], peers: Sequence[PeerAddress]) -> Admission:
        request = await self._request()
        if not any(peer.public_key for peer in peers):
            await self._look_around()
        candidates = candidates_of(peers, self._node.door.sightings())
        return await self._node.make_guest().join_by_code(code, candidates, request)

    async def _look_around(self) -> None:
        """Wait until neighbours have been seen and no further ones come."""
        seen: frozenset[NodeId] = frozenset()
        waited_s = stable_s = 0.0
        while waited_s < LOOK_AROUND_S and not (seen and stable_s >= _STABLE_S):
            await sleep(_LOOK_INTERVAL_S)
            now = frozenset(one.node_id for one in self._node.door.sightings())
            stable_s = stable_s + _LOOK_INTERVAL_S if now == seen else 0.0
            waited_s += _LOOK_INTERVAL_S
            seen = now

    async def _request(self) -> JoinRequest:
        """Listen, so that the member can dial this node, and say where."""
        node = self._node
        await node.door.open()
        if not node.door.advertised:
            why = "; ".join(node.door.missing) or "it listens nowhere"
            raise ClusterError(
                "cluster.join_failed",
                f"this node has no address at which the others could dial it: {why}",
                remediation="Say with --bind where to listen, an interface or an address.",
            )
        return JoinRequest(
            build=node.build,
            node_id=node.identity.node_id,
            public_key=node.identity.keys.public_key.hex(),
            boot_id=node.boot_id,
            name=node.name,
            role=node.role,
            addresses=node.door.advertised,
            api_port=node.api_port(),
            api_tls=node.is_api_tls,
        )

    async def _keep(self, welcome: Welcome) -> None:
        own_id = self._node.identity.node_id
        seeds = tuple(
            Seed(node_id=one.node_id, public_key=one.public_key, addresses=one.addresses)
            for one in welcome.members
            if one.node_id != own_id
        )
        base_port = self._node.door.base_port or 0

        def admitted(kept: Choices) -> Choices:
            return kept.model_copy(
                update={
                    "cluster_open": True,
                    "base_port": base_port,
                    "joining": welcome.cluster_id,
                    "seeds": seeds[:MAX_SEEDS],
                }
            )

        await self._node.choices.change(admitted)
        _log.info("admitted to cluster %s; the rooms start anew", welcome.cluster_id)


def _starting_anew() -> ClusterError:
    return ClusterError(
        "cluster.stopping",
        "this node has joined a cluster and is starting anew",
        remediation="Ask again in a few seconds.",
        retry_after_s=2,
    )
