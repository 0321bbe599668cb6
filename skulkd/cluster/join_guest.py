"""The guest's side of a join: whom it asks, and how it knows whom it has asked.

Nothing is said about this node before the other side is known to be the right one. A token names
the member's public key, and nobody else can answer under CURVE. A code names nobody: every node
that was seen, or named with its key, is asked to prove that it knows the code, and only the one
that does learns more than a public key.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, final

from protocol.clock import Clock
from protocol.codec import pack
from protocol.envelope import DEFAULT_BASE_PORT, WIRE_VERSION
from protocol.errors import (
    ERROR_CODES,
    ClusterError,
    DetailValue,
    ErrorBody,
    ErrorCode,
    SkulkError,
    error_of,
)
from protocol.hello import OtherWire
from protocol.joining import (
    GuestProof,
    HostMessage,
    HostProof,
    JoinRefusal,
    JoinRequest,
    Welcome,
    read_host,
)
from skulkd.cluster.addresses import PeerAddress
from skulkd.cluster.attempts import Failures, first_success
from skulkd.cluster.code_keys import CodeKeys, derive, is_proof, prove
from skulkd.cluster.curve_keys import key_pair_of
from skulkd.cluster.discovery import Sighting
from skulkd.cluster.guests import GuestDialler, firewall_lines
from skulkd.cluster.own_requests import OwnRequests
from skulkd.core.invitations import OpenToken, token_expired
from skulkd.runtime.identity import KeyPair
from skulkd.runtime.tasks import run_blocking

JOIN_S: Final = 30.0
"""For being admitted: the member dials back, and the cluster commits."""
PROOF_S: Final = 5.0
TOKEN_STAGGER_S: Final = 2.0
"""An address of a token that does not answer within this time gets company from the next."""
CODE_STAGGER_S: Final = 0.2
MAX_CANDIDATES: Final = 64
MAX_SHOWN: Final = 4
"""Addresses whose failure is told in full."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HostCandidate:
    """A node that may be the member that made a code."""

    public_key: bytes
    address: str
    """`HOST:BASE`."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The cluster has let this node in."""

    welcome: Welcome
    host_key: bytes
    """The public key of the member that did."""
    address: str
    """Where it was asked."""


def candidates_of(
    peers: Sequence[PeerAddress], sightings: Sequence[Sighting]
) -> tuple[HostCandidate, ...]:
    """List whom to ask about a code: who was named first, then who was seen, last heard first.

    Args:
        peers: As the operator named them. One without a key counts when it was seen at its address.
        sightings: See skulkd/cluster/discovery.py.
    """
    seen = {address: one.public_key for one in sightings for address in one.addresses}
    named = {
        (key, peer.address): None
        for peer in peers
        if (key := peer.public_key or seen.get(peer.address)) is not None
    }
    heard = {(one.public_key, address): None for one in sightings for address in one.addresses}
    every = (HostCandidate(public_key=key, address=address) for key, address in named | heard)
    return tuple(every)[:MAX_CANDIDATES]


@final
class JoinGuest:
    """Asks to be let in.

    Args:
        dialler: The way out.
        clock: Its wall time tells whether a token that was refused has expired.
        requests: Where it is noted what is asked, for the member that dials back to be told.
    """

    def __init__(self, *, dialler: GuestDialler, clock: Clock, requests: OwnRequests) -> None:
        self._dialler = dialler
        self._clock = clock
        self._requests = requests

    async def join_by_token(
        self, token: OpenToken, request: JoinRequest, *, peers: Sequence[PeerAddress] = ()
    ) -> Admission:
        """Ask the member that made the token, at each of its addresses.

        Args:
            token: The invitation.
            request: What is said about this node, which listens at its addresses already.
            peers: Further addresses of that member, tried first; ones with another key are not.

        Raises:
            ClusterError: `cluster.join_failed`, `cluster.join_refused`, `cluster.token_expired`, or
                what the member refused with.
        """
        guest = await run_blocking(key_pair_of, token.secret)
        named = (peer.address for peer in peers if peer.public_key in {None, token.inviter_key})
        addresses = tuple(dict.fromkeys((*named, *token.addresses)))
        payload = pack(request.model_copy(update={"cluster_id": token.cluster_id}))
        hosts = [
            HostCandidate(public_key=token.inviter_key, address=address) for address in addresses
        ]
        with self._requests.asking(token.inviter_key, payload):
            outcome = await first_success(
                [partial(self._ask_in, host, guest, payload) for host in hosts],
                stagger_s=TOKEN_STAGGER_S,
                name="join",
            )
        if isinstance(outcome, Failures):
            raise self._token_failure(token, outcome.errors)
        return _accepted(outcome, cluster_id=token.cluster_id)

    async def join_by_code(
        self, code: Sequence[str], candidates: Sequence[HostCandidate], request: JoinRequest
    ) -> Admission:
        """Find the member that made the code, and ask it.

        Args:
            code: Six words, as `read_code` gives them.
            candidates: Whom to try; see `candidates_of`.
            request: What is said about this node, which listens at its addresses already.

        Raises:
            ClusterError: `cluster.join_failed`, `cluster.join_refused`, or what the member refused
                with.
        """
        if not candidates:
            raise _nobody_seen()
        keys = await run_blocking(derive, code)
        own_key = bytes.fromhex(request.public_key)
        outcome = await first_success(
            [
                partial(self._prove_to, host, keys, own_key, request.build)
                for host in candidates[:MAX_CANDIDATES]
            ],
            stagger_s=CODE_STAGGER_S,
            name="join",
        )
        if isinstance(outcome, Failures):
            raise _code_failure(outcome.errors)
        payload = pack(request.model_copy(update={"cluster_id": None}))
        with self._requests.asking(outcome.public_key, payload):
            answer = await self._ask_in(outcome, keys.guest, payload)
        return _accepted(answer, cluster_id=None)

    async def _ask_in(self, host: HostCandidate, guest: KeyPair, payload: bytes) -> "_Answer":
        """Ask to be admitted; a refusal is an answer, since another address would give it too."""
        answer = await self._ask(host, guest, payload, JOIN_S)
        return _Answer(host=host, message=answer)

    async def _prove_to(
        self, host: HostCandidate, keys: CodeKeys, own_key: bytes, build: str
    ) -> HostCandidate:
        proof = prove(keys.mac_key, "guest", guest_key=own_key, host_key=host.public_key)
        hello = GuestProof(build=build, public_key=own_key.hex(), proof=proof)
        answer = await self._ask(host, keys.guest, pack(hello), PROOF_S)
        if isinstance(answer, JoinRefusal):
            raise _refusal(host, answer)
        is_proven = isinstance(answer, HostProof) and is_proof(
            answer.proof, keys.mac_key, "host", guest_key=own_key, host_key=host.public_key
        )
        if not is_proven:
            raise ClusterError(
                "cluster.join_refused",
                f"who answers at {host.address} does not know the code",
                remediation="Somebody there pretends to be a member. Make a new code, and name the "
                "member with --peer KEY@HOST:PORT, or use a token.",
                details={"address": host.address},
            )
        return host

    async def _ask(
        self, host: HostCandidate, guest: KeyPair, payload: bytes, timeout_s: float
    ) -> HostMessage:
        data = await self._dialler.ask(
            host.address,
            server_key=host.public_key,
            guest=guest,
            payload=payload,
            timeout_s=timeout_s,
        )
        answer = read_host(data)
        if isinstance(answer, OtherWire):
            raise ClusterError(
                "cluster.join_refused",
                f"the member at {host.address} speaks wire version {answer.wire} (build "
                f"{answer.build}), and this node {WIRE_VERSION}",
                remediation="Install the same build on both machines.",
                details={"address": host.address, "wire": answer.wire},
            )
        return answer

    def _token_failure(self, token: OpenToken, failures: Sequence[SkulkError]) -> SkulkError:
        now_ms = self._clock.wall_ms()
        is_refused = any(error.details.get("stage") == "key_refused" for error in failures)
        if now_ms > token.expires_at_ms and is_refused:
            return token_expired(token, now_ms=now_ms)
        spoken = [error for error in failures if error.code != "cluster.join_failed"]
        if spoken:
            return spoken[0]  # the member itself has answered, and cannot be understood
        return _summary(failures, "no address of the token led to its member")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    host: HostCandidate
    message: HostMessage


def _accepted(answer: _Answer, *, cluster_id: str | None) -> Admission:
    """Take a welcome; a refusal and anything else are errors."""
    message, host = answer.message, answer.host
    if isinstance(message, JoinRefusal):
        raise _refusal(host, message)
    if not isinstance(message, Welcome):
        raise _odd(host, "it answered with something else than a welcome")
    if cluster_id is not None and message.cluster_id != cluster_id:
        raise _odd(host, f"it welcomes to cluster {message.cluster_id} and not to {cluster_id}")
    if host.public_key.hex() not in {member.public_key for member in message.members}:
        raise _odd(host, "it is no member of the cluster that it welcomes to")
    return Admission(welcome=message, host_key=host.public_key, address=host.address)


def _refusal(host: HostCandidate, refusal: JoinRefusal) -> SkulkError:
    """Give what a member refused with; its words are shown as they came, without control codes."""
    code = _known_code(refusal.code)
    said = _printable(refusal.message) or refusal.code
    return error_of(
        ErrorBody(
            code=code,
            message=f"the member at {host.address} refused: {said}",
            remediation=_printable(refusal.remediation),
            details={
                **{name: _printable_detail(value) for name, value in refusal.details.items()},
                "address": host.address,
                "code": refusal.code,
            },
        )
    )


def _known_code(code: str) -> ErrorCode:
    """Give a code as this build has it; a later build's is a refusal like any other."""
    by_text: dict[str, ErrorCode] = {known: known for known in ERROR_CODES}
    return by_text.get(code, "cluster.join_refused")


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


def _printable_detail(value: DetailValue) -> DetailValue:
    return _printable(value) if isinstance(value, str) else value


def _odd(host: HostCandidate, reason: str) -> ClusterError:
    return ClusterError(
        "cluster.join_failed",
        f"the member at {host.address} is not to be trusted with this: {reason}",
        remediation="Run the same build on both machines; if they do, report this.",
        details={"address": host.address},
    )


def _nobody_seen() -> ClusterError:
    return ClusterError(
        "cluster.join_failed",
        "no other node was seen on this network, and none was named with its key",
        remediation="Start skulkd there, and run skulk cluster invite on it; where there is no "
        "multicast, name it with --peer KEY@HOST:PORT (skulk cluster members shows both there), or "
        "use a token.",
    )


def _code_failure(failures: Sequence[SkulkError]) -> SkulkError:
    """Say why nobody could be proven to have made the code."""
    refusals = [error for error in failures if error.code != "cluster.join_failed"]
    if refusals:
        # Who let the key in and refused then is the one that made the code, or wants to be.
        return refusals[0]
    n_refused = sum(error.details.get("stage") == "key_refused" for error in failures)
    if n_refused == len(failures):
        return ClusterError(
            "cluster.join_failed",
            f"no node that could be asked knows this code ({n_refused} asked)",
            remediation="Compare the six words. If they are right, the code has expired (10 "
            "minutes), been used or tried wrongly too often, or its member was not seen: name that "
            "with --peer KEY@HOST:PORT.",
            details={"stage": "key_refused", "addresses": n_refused},
        )
    return _summary(failures, "the member that made the code was not found")


def _summary(failures: Sequence[SkulkError], what: str) -> SkulkError:
    """Make one error of those of all addresses; a single one speaks for itself."""
    if len(failures) == 1:
        return failures[0]
    shown = "; ".join(error.message for error in failures[:MAX_SHOWN])
    more = len(failures) - MAX_SHOWN
    first = failures[0]
    return ClusterError(
        "cluster.join_failed",
        f"{what}: {shown}" + (f"; and {more} more" if more > 0 else ""),
        remediation=first.remediation or firewall_lines(DEFAULT_BASE_PORT),
        details={**first.details, "addresses": len(failures)},
    )
