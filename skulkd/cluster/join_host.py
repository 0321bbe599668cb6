"""The member's side of a join: whom an invitation lets in, and what is said to it.

Guests come through the door (skulkd/cluster/guests.py) by the key of an invitation. One that comes
by a token may ask at once; one that comes by a code proves first that it knows the code, and is
proven to in turn. Each is dialled back, to prove its node key. Whether an invitation still holds is
decided where everything is decided: by the command that admits a member. What a guest is told when
it does not is an error with its remedy.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, final

from protocol.clock import Clock
from protocol.codec import pack
from protocol.envelope import WIRE_VERSION
from protocol.errors import ClusterError, SkulkError
from protocol.hello import OtherWire
from protocol.ids import TokenId, node_id_of
from protocol.joining import (
    MAX_JOIN_BYTES,
    MAX_REFUSAL_CHARS,
    FellowMember,
    GuestProof,
    HostProof,
    JoinQuestion,
    JoinRefusal,
    JoinRequest,
    Welcome,
    read_guest,
)
from protocol.state import JoinToken
from skulkd.cluster.addresses import split_address
from skulkd.cluster.code_keys import is_proof, prove
from skulkd.cluster.guests import GuestDoor, GuestReply
from skulkd.cluster.own_requests import OwnRequests, request_digest
from skulkd.cluster.reach import KeyProver
from skulkd.core.invitation_decisions import invitation_over
from skulkd.core.invitations import CODE_TRIES, CODE_VALID_S
from skulkd.runtime.identity import Identity
from skulkd.runtime.tasks import Tasks, sleep, timeout

_log = logging.getLogger(__name__)

MAX_ADMISSIONS: Final = 16
"""Guests whose admission is under way at a time; the others are asked to try again."""
ADMIT_S: Final = 25.0
"""For one admission; the guest waits a little longer."""
GUARD_S: Final = 1.0
"""How often it is looked whether an open code was guessed at."""
MAX_PROVEN: Final = 16
"""Guests that have proven one code and not asked yet."""

MAX_SAID: Final = 20
"""Payloads of guests of one host that are heard in a second; a guest that joins says two."""

Admit = Callable[[JoinRequest, TokenId], Awaitable[Welcome]]
"""Makes the guest a member; raises a SkulkError that the guest is to be told. A member that asks
again, because it did not hear the answer, is welcomed again."""
OnSpent = Callable[[TokenId], None]
"""Called when a code has been guessed at too often and lets nobody in any more."""


@dataclass(slots=True, kw_only=True)
class _OpenCode:
    """A code as the member that made it remembers it; nobody else could check a proof."""

    mac_key: bytes = field(repr=False)
    opened_s: float
    n_wrong: int = 0
    """Wrong proofs, and wrong codes that have come to the door."""
    is_spent: bool = False
    proven: dict[str, None] = field(default_factory=dict[str, None])
    """Public keys of guests, in hexadecimal."""


@dataclass(frozen=True, slots=True)
class _Guest:
    """One that asks to be admitted."""

    request: JoinRequest
    digest: bytes
    token_id: TokenId
    host: str
    """Where it comes from."""
    reply: GuestReply


@final
class JoinHost:
    """Lets guests in, by the invitations that this node has made.

    Args:
        door: Where they come in.
        identity: This node's own.
        build: As guests are told.
        clock: Monotonic, the same that the door stamps strangers by.
        tasks: Where admissions run.
        admit: See `Admit`.
        prover: Dials a guest before it is admitted: the key of its invitation, by which it comes
            in, says nothing of the node key that it names.
        on_spent: See `OnSpent`.
    """

    def __init__(
        self,
        *,
        door: GuestDoor,
        identity: Identity,
        build: str,
        clock: Clock,
        tasks: Tasks,
        admit: Admit,
        prover: KeyProver,
        on_spent: OnSpent | None = None,
    ) -> None:
        self._door = door
        self._identity = identity
        self._build = build
        self._clock = clock
        self._tasks = tasks
        self._admit = admit
        self._prover = prover
        self._on_spent = on_spent
        self._tokens: dict[TokenId, JoinToken] = {}
        self._codes: dict[TokenId, _OpenCode] = {}
        self._n_admissions = 0
        self._is_guarding = False
        self._n_said: Counter[str] = Counter()
        """What guests of each host have said in this second."""
        self._said_since_s = float("-inf")
        self.n_unheard = 0
        """Payloads of guests that said too much at once."""
        self.own_requests: Final = OwnRequests(build=build, on_change=self._open_door)
        """What this node asks as a guest itself: the members that it asks come in by this door."""
        door.on_guest(self._on_guest)

    def set_tokens(self, tokens: Mapping[TokenId, JoinToken]) -> None:
        """Take over the invitations that State has; those of other members are theirs to honour.

        Also those that have expired or are used up: a guest that comes late hears why.
        """
        own_id = self._identity.node_id
        self._tokens = {
            token_id: token for token_id, token in tokens.items() if token.inviter == own_id
        }
        self._open_door()

    def open_code(self, token_id: TokenId, mac_key: bytes) -> None:
        """Remember a code that is about to become an invitation, for ten minutes.

        Args:
            token_id: Of the invitation that State will have.
            mac_key: See skulkd/cluster/code_keys.py.
        """
        self._codes[token_id] = _OpenCode(mac_key=mac_key, opened_s=self._clock.monotonic_s())
        if not self._is_guarding:
            self._is_guarding = True
            self._tasks.start(self._guard(), name="guard codes")

    def tries_left(self, token_id: TokenId) -> int:
        """Say how many more wrong tries a code stands; 0 when it is spent, or not open here."""
        code = self._codes.get(token_id)
        if code is None or code.is_spent:
            return 0
        return max(0, CODE_TRIES - self._n_tries(code))

    def close(self) -> None:
        """Let no guest in any more; admissions under way end with the tasks."""
        self._tokens.clear()
        self._codes.clear()
        self._open_door()

    def _open_door(self) -> None:
        keys = {
            bytes.fromhex(token.public_key): str(token_id)
            for token_id, token in self._tokens.items()
            if not (token_id in self._codes and self._codes[token_id].is_spent)
        }
        self._door.set_guest_keys({**keys, **self.own_requests.keys()})

    # ---- What guests say ----

    def _on_guest(self, name: str, host: str, payload: bytes, reply: GuestReply) -> None:
        if not self._may_say(host):
            self.n_unheard += 1
            return
        try:
            self._hear(TokenId(name), host, payload, reply)
        except SkulkError as error:
            self._refuse(error, host, reply)

    def _may_say(self, host: str) -> bool:
        """Say whether a host's guests are heard: they share a port with heartbeats."""
        now_s = self._clock.monotonic_s()
        if now_s - self._said_since_s >= 1.0:
            self._said_since_s = now_s
            self._n_said.clear()
        self._n_said[host] += 1
        return self._n_said[host] <= MAX_SAID

    def _hear(self, token_id: TokenId, host: str, payload: bytes, reply: GuestReply) -> None:
        message = read_guest(payload)
        if isinstance(message, OtherWire):
            raise self._other_wire(message)
        if isinstance(message, JoinQuestion):
            reply(pack(self.own_requests.confirm(token_id, message)))
            return
        token = self._tokens.get(token_id)
        if token is None:
            raise _token_unknown(token_id)
        code = self._code_of(token)
        if isinstance(message, GuestProof):
            reply(pack(self._answer_proof(message, token_id, code)))
            return
        if code is not None and message.public_key not in code.proven:
            raise _refused(
                reason="it has not proven to know the code",
                remedy="Run the same build on both machines, and join again.",
            )
        self._check(message)
        if self._n_admissions >= MAX_ADMISSIONS:
            raise _refused(
                reason=f"{self._n_admissions} other nodes are joining through this member just now",
                remedy="Try again in a few seconds.",
            )
        self._n_admissions += 1
        guest = _Guest(message, request_digest(payload), token_id, host, reply)
        welcoming = self._welcome(guest)
        try:
            self._tasks.start(welcoming, name=f"admit {message.node_id}", essential=False)
        except RuntimeError:
            self._n_admissions -= 1
            raise ClusterError("cluster.stopping", "this member is shutting down") from None

    def _answer_proof(
        self, message: GuestProof, token_id: TokenId, code: _OpenCode | None
    ) -> HostProof:
        if code is None:
            raise _refused(
                reason="it came by a token, which needs no proof",
                remedy="Run the same build on both machines.",
            )
        own_key = self._identity.keys.public_key
        guest_key = bytes.fromhex(message.public_key)
        if not is_proof(
            message.proof, code.mac_key, "guest", guest_key=guest_key, host_key=own_key
        ):
            code.n_wrong += 1
            self._spend_if_guessed(token_id, code)
            raise _refused(
                reason="its proof does not fit the code",
                remedy="Make a new code, and type it anew.",
            )
        if len(code.proven) >= MAX_PROVEN:
            code.proven.pop(next(iter(code.proven)))
        code.proven[message.public_key] = None
        proof = prove(code.mac_key, "host", guest_key=guest_key, host_key=own_key)
        return HostProof(build=self._build, proof=proof)

    def _code_of(self, token: JoinToken) -> _OpenCode | None:
        """Give the open code of an invitation; None for a token.

        Raises:
            ClusterError: It is a code, and lets nobody in any more.
        """
        if token.kind == "token":
            return None
        code = self._codes.get(token.token_id)
        if code is None:
            raise _refused(
                reason="its member has started anew since it made it, or the code has expired",
                remedy="Make a new one there: skulk cluster invite",
            )
        self._spend_if_guessed(token.token_id, code)
        if code.is_spent:
            raise _refused(
                reason=f"the code was tried wrongly {CODE_TRIES} times and lets nobody in now",
                remedy="Make a new one: skulk cluster invite. If nobody mistyped it, somebody is "
                "guessing: use a token instead.",
            )
        return code

    def _check(self, request: JoinRequest) -> None:
        """Refuse what no state can make good."""
        if node_id_of(bytes.fromhex(request.public_key)) != request.node_id:
            raise _refused(
                reason=f"the public key that came with {request.node_id} is another node's",
                remedy="Run the same build on both machines.",
            )
        if request.node_id == self._identity.node_id:
            raise _refused(
                reason=f"it has the key of the very member that it asks ({request.node_id})",
                remedy="Its home was copied from there: move the copy away, so that it becomes a "
                "node of its own.",
            )
        for address in request.addresses:
            try:
                split_address(address)
            except ValueError as error:
                raise _refused(
                    reason=f"its address {address!r} {error}",
                    remedy="Say with --advertise where it can be dialled, HOST or HOST:BASE.",
                ) from error
        own = self._identity.cluster_id
        if request.cluster_id is not None and request.cluster_id != own:
            raise _refused(
                reason=f"the token is for cluster {request.cluster_id}, and this one is {own}",
                remedy="Make a new token on a member of the cluster that is meant.",
            )

    # ---- Admission ----

    async def _welcome(self, guest: "_Guest") -> None:
        request, host, reply = guest.request, guest.host, guest.reply
        try:
            async with timeout(ADMIT_S):
                await self._prove_key(guest)
                welcome = await self._admit(request, guest.token_id)
        except SkulkError as error:
            self._refuse(error, host, reply)
        except TimeoutError:
            error = _refused(
                reason=f"the cluster did not decide within {ADMIT_S:.0f} s",
                remedy="See whether it has a master (skulk status there), and join again.",
            )
            self._refuse(error, host, reply)
        except Exception:
            bug = SkulkError("internal.bug", "the member failed to handle this request")
            self._refuse(bug, host, reply)
            raise
        else:
            _log.info("%s (%s) joined by %s", request.name, request.node_id, guest.token_id)
            reply(fitting(welcome, self._identity.keys.public_key.hex()))
        finally:
            self._n_admissions -= 1

    async def _prove_key(self, guest: "_Guest") -> None:
        """Have a guest prove the node key that it names.

        By an invitation that is over a guest comes in only if it has been let in already. Nobody
        else may have this member dial elsewhere than back to where it comes from.
        """
        token = self._tokens.get(guest.token_id)
        if token is None:
            raise _token_unknown(guest.token_id)
        over = invitation_over(token, now_ms=self._clock.wall_ms())
        try:
            await self._prover.prove(
                guest.request,
                guest.digest,
                came_from=guest.host,
                is_source_only=over is not None,
            )
        except ClusterError as error:
            if over is not None:
                raise over from error
            raise

    def _other_wire(self, theirs: OtherWire) -> ClusterError:
        return _refused(
            reason=f"it speaks wire version {theirs.wire} (build {theirs.build}), and this member "
            f"{WIRE_VERSION} (build {self._build})",
            remedy="Install the same build on both machines.",
        )

    def _refuse(self, error: SkulkError, host: str, reply: GuestReply) -> None:
        _log.info("refused a guest from %s: %s", host, error)
        refusal = JoinRefusal(
            build=self._build,
            code=error.code,
            message=error.message[:MAX_REFUSAL_CHARS],
            remediation=error.remediation[:MAX_REFUSAL_CHARS],
            details=dict(list(error.details.items())[:16]),
        )
        reply(pack(refusal))

    # ---- Codes that are guessed at ----

    async def _guard(self) -> None:
        """Watch the open codes until there are none."""
        while self._codes:
            await sleep(GUARD_S)
            now_s = self._clock.monotonic_s()
            for token_id, code in list(self._codes.items()):
                if now_s - code.opened_s >= CODE_VALID_S:
                    del self._codes[token_id]
                else:
                    self._spend_if_guessed(token_id, code)
        self._is_guarding = False

    def _spend_if_guessed(self, token_id: TokenId, code: _OpenCode) -> None:
        if code.is_spent or self._n_tries(code) < CODE_TRIES:
            return
        code.is_spent = True
        code.proven.clear()
        _log.warning("code %s was tried wrongly %d times and is spent", token_id, CODE_TRIES)
        self._open_door()
        if self._on_spent is not None:
            self._on_spent(token_id)

    def _n_tries(self, code: _OpenCode) -> int:
        """Count wrong proofs, and keys that nobody knew before the code was opened.

        A wrong code is another key, which the door refuses before it gets here.
        """
        first_s: dict[bytes, float] = {}
        for stranger in self._door.strangers():
            earlier_s = first_s.get(stranger.public_key, stranger.first_s)
            first_s[stranger.public_key] = min(earlier_s, stranger.first_s)
        return code.n_wrong + sum(seen_s >= code.opened_s for seen_s in first_s.values())


def fitting(welcome: Welcome, own_key: str) -> bytes:
    """Pack a welcome so that it is one payload: the members that matter least go first.

    Args:
        welcome: What is said.
        own_key: Of the member that says it, in hexadecimal; it stays, and so does the master.
    """

    def rank(member: FellowMember) -> int:
        return 2 * (member.public_key != own_key) + (member.node_id != welcome.master)

    members = tuple(sorted(welcome.members, key=rank))
    payload = pack(welcome.model_copy(update={"members": members}))
    while len(payload) > MAX_JOIN_BYTES:
        members = members[: max(1, len(members) * MAX_JOIN_BYTES // len(payload) - 1)]
        payload = pack(welcome.model_copy(update={"members": members}))
    return payload


def _token_unknown(token_id: TokenId) -> ClusterError:
    return ClusterError(
        "cluster.token_unknown",
        f"invitation {token_id} is not valid here any more",
        remediation="Make a new one on a member: skulk cluster invite",
    )


def _refused(*, reason: str, remedy: str) -> ClusterError:
    return ClusterError("cluster.join_refused", reason, remediation=remedy)
