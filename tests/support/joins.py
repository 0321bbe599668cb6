"""A member and a guest on a simulated network, for stories about joining.

Both wear made-up identities; what would commit a member is a table here.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from protocol.errors import SkulkError
from protocol.ids import ClusterId, NodeId, TokenId, cluster_id_of, node_id_of, token_id_of
from protocol.joining import FellowMember, JoinRequest, Welcome, read_host
from protocol.state import InvitationKind, JoinToken
from skulkd.cluster.code_keys import CodeKeys
from skulkd.cluster.curve_keys import key_pair_of
from skulkd.cluster.guests import join_failed
from skulkd.cluster.join_guest import JoinGuest
from skulkd.cluster.join_host import JoinHost
from skulkd.cluster.reach import KeyProver, WayBack
from skulkd.cluster.simulated import SimulatedNetwork
from skulkd.core.invitations import OpenToken
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.identity import Identity, KeyPair
from skulkd.runtime.tasks import Tasks
from skulkd.runtime.virtual_time import run_virtual

EPOCH_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
CLUSTER = cluster_id_of(b"c" * 16)
GUEST_ADDRESS = "10.0.0.1:12416"
"""Where the guest of a stage listens: it is the first on its network."""


def identity_of(number: int, cluster_id: ClusterId = CLUSTER) -> Identity:
    """Make node `number`; its public key is made up and belongs to no secret."""
    keys = KeyPair(public_key=bytes([number]) * 32, secret_key=bytes(32))
    return Identity(node_id=node_id_of(keys.public_key), cluster_id=cluster_id, keys=keys)


def request_of(identity: Identity, **changes: object) -> JoinRequest:
    """Make the request of a guest."""
    request = JoinRequest(
        build="guest-build",
        node_id=identity.node_id,
        public_key=identity.keys.public_key.hex(),
        boot_id="0" * 16,
        name="attic",
        addresses=(GUEST_ADDRESS,),
        api_port=52415,
    )
    return request.model_copy(update=changes)


@dataclass
class Member:
    """A member that lets guests in, and what it has decided."""

    identity: Identity
    host: JoinHost
    address: str
    admitted: list[tuple[JoinRequest, TokenId]] = field(
        default_factory=list[tuple[JoinRequest, TokenId]]
    )
    spent: list[TokenId] = field(default_factory=list[TokenId])
    refuse_with: SkulkError | Exception | None = None
    delay_s: float = 0.0
    tokens: dict[TokenId, JoinToken] = field(default_factory=dict[TokenId, JoinToken])

    def welcome(self) -> Welcome:
        """Make the answer to a guest that is let in."""
        fellow = FellowMember(
            node_id=self.identity.node_id,
            public_key=self.identity.keys.public_key.hex(),
            name="den",
            addresses=(self.address,),
        )
        return Welcome(
            build="host-build",
            cluster_id=self.identity.cluster_id,
            members=(fellow,),
            master=self.identity.node_id,
            term=3,
        )

    def invite(self, guest: KeyPair, *, kind: InvitationKind = "token") -> TokenId:
        """Make an invitation valid for a one-time key."""
        token_id = token_id_of(guest.public_key)
        self.tokens[token_id] = JoinToken(
            token_id=token_id,
            public_key=guest.public_key.hex(),
            inviter=self.identity.node_id,
            kind=kind,
            created_at_ms=EPOCH_MS,
            expires_at_ms=EPOCH_MS + HOUR_MS,
            uses_left=1,
        )
        self.host.set_tokens(self.tokens)
        return token_id

    def open_code(self, keys: CodeKeys) -> TokenId:
        """Make a code valid."""
        self.host.open_code(token_id_of(keys.guest.public_key), keys.mac_key)
        return self.invite(keys.guest, kind="code")

    def token(self, *addresses: str, secret: bytes = b"t" * 32) -> OpenToken:
        """Make a token valid, and give it."""
        self.invite(key_pair_of(secret))
        return OpenToken(
            cluster_id=self.identity.cluster_id,
            inviter_key=self.identity.keys.public_key,
            addresses=addresses or (self.address,),
            expires_at_ms=EPOCH_MS + HOUR_MS,
            secret=secret,
        )


@dataclass
class Stage:
    """A network with members and one guest."""

    network: SimulatedNetwork
    tasks: Tasks
    clock: LoopClock
    guest_identity: Identity
    guest: JoinGuest
    guest_host: JoinHost
    """The guest's own door, where members that dial it back come in."""

    async def ask_raw(self, member: Member, guest: KeyPair, payload: bytes) -> bytes:
        """Say something to a member as a guest, and give its answer."""
        dialler = self.network.guest_dialler(self.guest_identity.node_id)
        return await dialler.ask(
            member.address,
            server_key=member.identity.keys.public_key,
            guest=guest,
            payload=payload,
            timeout_s=60.0,
        )

    async def ask(self, member: Member, guest: KeyPair, payload: bytes) -> object:
        """Say something to a member as a guest, and give what it answers."""
        return read_host(await self.ask_raw(member, guest, payload))

    def member(
        self,
        number: int,
        *,
        cluster_id: ClusterId = CLUSTER,
        prover: KeyProver | None = None,
    ) -> Member:
        """Start a member."""
        identity = identity_of(number, cluster_id)
        node_id: NodeId = identity.node_id
        door = self.network.attach(node_id, public_key=identity.keys.public_key)

        spent: list[TokenId] = []

        async def admit(request: JoinRequest, token_id: TokenId) -> Welcome:
            await asyncio.sleep(member.delay_s)
            if member.refuse_with is not None:
                raise member.refuse_with
            member.admitted.append((request, token_id))
            return member.welcome()

        host = JoinHost(
            door=door,
            identity=identity,
            build="host-build",
            clock=self.clock,
            tasks=self.tasks,
            admit=admit,
            prover=prover or way_back(self.network, identity),
            on_spent=spent.append,
        )
        address = self.network.peer(node_id).addresses[0]
        member = Member(identity, host, address, spent=spent)
        return member


class Dialled:
    """A way out on which everybody answers the same, and some do not answer at all."""

    def __init__(self, answer: bytes, silent_at: set[str] | None = None) -> None:
        self.addresses: list[str] = []
        self._answer = answer
        self._silent_at = silent_at or set[str]()

    async def ask(self, address: str, **_: object) -> bytes:
        """Answer."""
        self.addresses.append(address)
        if address in self._silent_at:
            raise join_failed("no_route", address.partition(":")[0], 12416)
        return self._answer


def play(story: Callable[[Stage], Awaitable[None]], *, seeds: int = 3) -> None:
    """Run a story in virtual time, once for each of some seeds."""
    for seed in range(seeds):

        async def main(seed: int = seed) -> None:
            # ruff: ignore[suspicious-non-cryptographic-random-usage]  repeatable
            network = SimulatedNetwork(random.Random(seed))
            clock = LoopClock(asyncio.get_running_loop(), epoch_ms=EPOCH_MS)
            identity = identity_of(99)
            door = network.attach(identity.node_id, public_key=identity.keys.public_key)
            tasks = Tasks("joins", on_death=_fail)
            guest_host = JoinHost(
                door=door,
                identity=identity,
                build="guest-build",
                clock=clock,
                tasks=tasks,
                admit=_nobody,
                prover=way_back(network, identity),
            )
            guest = JoinGuest(
                dialler=network.guest_dialler(identity.node_id),
                clock=clock,
                requests=guest_host.own_requests,
            )
            await story(Stage(network, tasks, clock, identity, guest, guest_host))
            assert await tasks.close(1.0) == ()

        run_virtual(main, seed=seed, limit_s=7200.0)


def way_back(network: SimulatedNetwork, identity: Identity) -> WayBack:
    """Give a member its way of dialling guests back; all of 10.0.0.0/16 are its neighbours."""
    return WayBack(
        make_dialler=lambda: network.guest_dialler(identity.node_id),
        keys=identity.keys,
        build="host-build",
        is_neighbour=lambda host: host.startswith("10.0."),
    )


async def _nobody(request: JoinRequest, token_id: TokenId) -> Welcome:
    message = f"{request.node_id} came by {token_id}, and the guest invites nobody"
    raise AssertionError(message)


def _fail(story: str, _: BaseException) -> None:
    raise AssertionError(story)
