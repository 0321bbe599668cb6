"""This node's place in its cluster, behind the API's `ClusterControl` port."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from protocol.clock import Clock
from protocol.cluster_api import (
    ClusterDocument,
    DivergenceView,
    Invitation,
    InvitationKind,
    JoinBody,
    Joined,
    MdnsView,
)
from protocol.commands import CreateJoinToken
from protocol.errors import ClusterError
from protocol.ids import NodeId, TokenId, token_id_of
from protocol.peer_messages import TermPair
from skulkd.api.cluster_look import ClusterLook, look_at
from skulkd.api.cluster_views import OwnSight, cluster_document
from skulkd.api.node_joining import NodeJoining
from skulkd.cluster.closed_transport import ClosedTransport
from skulkd.cluster.cluster_door import ClusterDoor
from skulkd.cluster.code_keys import code_words, derive
from skulkd.cluster.discovery import DiscoveryStatus
from skulkd.cluster.join_host import JoinHost
from skulkd.cluster.mastership import Mastership
from skulkd.core.invitations import (
    CODE_VALID_S,
    MAX_ADDRESSES,
    OpenToken,
    make_code,
    write_code,
    write_token,
)
from skulkd.core.link_rtt import RttOf
from skulkd.eventlog.cluster_gateway import ClusterGateway
from skulkd.eventlog.cluster_log import ClusterLog
from skulkd.runtime.choices import Choices, KeptChoices
from skulkd.runtime.identity import Identity
from skulkd.runtime.tasks import run_blocking

TOKEN_VALID_S: Final = 3600
"""When nobody says how long."""
_ENTROPY_BYTES: Final = 32
_SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRoomsAccess:
    """The rooms that membership concerns."""

    identity: Identity
    name: str
    build: str
    transport: ClosedTransport
    door: ClusterDoor
    log: ClusterLog
    mastership: Mastership
    gateway: ClusterGateway
    host: JoinHost
    choices: KeptChoices
    clock: Clock
    random_bytes: Callable[[int], bytes]
    rtt_of: RttOf
    is_durable: Callable[[], bool]
    """Whether this node's journal reaches its disk."""


@final
class NodeCluster:
    """Implements `ClusterControl`.

    Args:
        rooms: What membership concerns.
        joining: Joins other clusters.
    """

    def __init__(self, rooms: ClusterRoomsAccess, joining: NodeJoining) -> None:
        self._rooms = rooms
        self._joining = joining

    def status(self) -> ClusterDocument:
        """Show the cluster as this node sees it now."""
        rooms = self._rooms
        return cluster_document(
            rooms.log.replica.state,
            self._sight(),
            rooms.mastership,
            rooms.transport,
            now_s=rooms.clock.monotonic_s(),
        )

    def look(self) -> ClusterLook:
        """Show who is there and how they are reached."""
        rooms = self._rooms
        own = rooms.identity.node_id
        return look_at(
            rooms.log.replica.state, own, rooms.mastership, rooms.transport, rooms.rtt_of
        )

    async def invite(self, kind: InvitationKind, *, uses: int, ttl_s: int | None) -> Invitation:
        """Make an invitation that this node admits guests by, and open a node that is closed.

        Raises:
            ConfigError: `config.port_busy`, `config.invalid`: the node cannot be opened.
            ClusterError: `cluster.no_address`, it has none at which guests could come.
            SkulkError: What the master refused with, or `cluster.no_master`.
        """
        was_open = self._rooms.door.base_port is not None
        await open_for_good(self._rooms.door, self._rooms.choices)
        if not self._rooms.door.advertised:
            raise _no_address(self._rooms.door.missing)
        make = self._make_token if kind == "token" else self._make_code
        return await make(uses, ttl_s, was_opened=not was_open)

    async def join(self, wish: JoinBody) -> Joined:
        """Become a member of another cluster; see `NodeJoining.join`."""
        return await self._joining.join(wish)

    async def handover(self, node_id: NodeId | None) -> TermPair:
        """On the master: have another member elected; returns the new term once it is known.

        Raises:
            ClusterError: `cluster.handover_failed`, `cluster.not_member`, `cluster.no_master`.
        """
        mastership = self._rooms.mastership
        target = node_id or mastership.successor
        if target is None:
            raise ClusterError(
                "cluster.handover_failed",
                "no other member is alive and caught up",
                remediation="`skulk cluster members` shows who is there.",
            )
        await mastership.handover(target)
        term = mastership.term
        if term is None or term.master == self._rooms.identity.node_id:
            raise ClusterError(
                "cluster.handover_failed",
                f"{target} was elected, and is not master any more",
                remediation="`skulk cluster status` shows who is master now.",
            )
        return term

    # ---- Invitations ----

    async def _make_token(self, uses: int, ttl_s: int | None, *, was_opened: bool) -> Invitation:
        from skulkd.cluster.curve_keys import public_key_of

        rooms = self._rooms
        secret = rooms.random_bytes(_SECRET_BYTES)
        public_key = await run_blocking(public_key_of, secret)
        made = await self._submit("token", public_key, uses, ttl_s or TOKEN_VALID_S)
        text = write_token(
            OpenToken(
                cluster_id=rooms.identity.cluster_id,
                inviter_key=rooms.identity.keys.public_key,
                addresses=rooms.door.advertised[:MAX_ADDRESSES],
                expires_at_ms=made.expires_at_ms,
                secret=secret,
            )
        )
        return self._invitation(made, token=text, was_opened=was_opened)

    async def _make_code(self, uses: int, ttl_s: int | None, *, was_opened: bool) -> Invitation:
        rooms = self._rooms
        words = await run_blocking(code_words)
        code = make_code(rooms.random_bytes(_ENTROPY_BYTES), words)
        keys = await run_blocking(derive, code)
        token_id = self._new_id()
        # Before the invitation is valid: a guest that comes at once has to be proven to.
        rooms.host.open_code(token_id, keys.mac_key)
        made = await self._submit(
            "code",
            keys.guest.public_key,
            uses,
            min(ttl_s or CODE_VALID_S, CODE_VALID_S),
            token_id=token_id,
        )
        return self._invitation(made, code=write_code(code), was_opened=was_opened)

    async def _submit(
        self,
        kind: InvitationKind,
        public_key: bytes,
        uses: int,
        ttl_s: int,
        *,
        token_id: TokenId | None = None,
    ) -> CreateJoinToken:
        rooms = self._rooms
        command = CreateJoinToken(
            command_id=rooms.gateway.mint_command_id(),
            token_id=token_id or self._new_id(),
            public_key=public_key.hex(),
            inviter=rooms.identity.node_id,
            token_kind=kind,
            expires_at_ms=rooms.clock.wall_ms() + ttl_s * 1000,
            uses=uses,
        )
        await rooms.gateway.submit(command)
        return command

    def _new_id(self) -> TokenId:
        return token_id_of(self._rooms.random_bytes(8))

    def _invitation(
        self,
        made: CreateJoinToken,
        *,
        token: str | None = None,
        code: str | None = None,
        was_opened: bool,
    ) -> Invitation:
        return Invitation(
            token_id=made.token_id,
            kind=made.token_kind,
            token=token,
            code=code,
            uses=made.uses,
            expires_at_ms=made.expires_at_ms,
            cluster_id=self._rooms.identity.cluster_id,
            inviter=made.inviter,
            addresses=self._rooms.door.advertised,
            was_opened=was_opened,
        )

    # ---- Views ----

    def _sight(self) -> OwnSight:
        rooms = self._rooms
        health = rooms.log.health()
        last = health.last_divergence
        return OwnSight(
            node_id=rooms.identity.node_id,
            name=rooms.name,
            base_port=rooms.door.base_port,
            bound=rooms.door.bound,
            advertised=rooms.door.advertised,
            missing=rooms.door.missing,
            commit_seq=rooms.log.commit_seq,
            appended_seq=rooms.log.appended.seq,
            journal="durable" if rooms.is_durable() else "memory",
            build=rooms.build,
            rtt_of=rooms.rtt_of,
            strangers=rooms.transport.strangers(),
            duplicates=rooms.transport.duplicates(),
            mdns=mdns_view(rooms.door.discovery),
            divergence=None
            if last is None
            else DivergenceView(
                at_ms=last.at_ms,
                term=last.term,
                seq=last.seq,
                discarded=last.n_discarded,
                message=last.message,
            ),
        )


def mdns_view(status: DiscoveryStatus | None) -> MdnsView:
    """Show how discovery is; None is switched off, or not open yet."""
    if status is None:
        return MdnsView(status="off")
    return MdnsView(
        status="failed" if status.state == "failed" else "running",
        reason=status.warning,
        seen=status.n_sightings,
    )


async def open_for_good(door: ClusterDoor, choices: KeptChoices) -> None:
    """Open a node's cluster ports, and keep them open over restarts.

    Raises:
        ConfigError: `config.port_busy`, `config.invalid`; the node is as closed as before.
            `config.home_unusable`; it is open until it stops.
    """
    base_port = await door.open()

    def opened(kept: Choices) -> Choices:
        return kept.model_copy(update={"cluster_open": True, "base_port": base_port})

    await choices.change(opened)


def _no_address(missing: tuple[str, ...]) -> ClusterError:
    why = "; ".join(missing) or "it listens nowhere"
    return ClusterError(
        "cluster.no_address",
        f"this node has no address at which a guest could come: {why}",
        remediation="Say with --bind where to listen (an interface or an address), or with "
        "--advertise what others shall dial.",
    )
