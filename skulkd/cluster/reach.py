"""Dialling a guest back: can it be dialled, and does it have the node key that it names?

Both are found out by one CURVE dial to that key, with the member's own. Where a guest may have a
member dial is narrow: to a direct neighbour, to where the guest itself comes from, or to a host
that the operator has named; so nobody explores a network through a member.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hmac import compare_digest
from ipaddress import ip_address
from typing import Final, Literal, Protocol, cast, final

from protocol.codec import pack
from protocol.errors import ClusterError, DetailValue, ProtocolError, SkulkError
from protocol.joining import JoinConfirmed, JoinQuestion, JoinRequest, read_host
from skulkd.cluster.addresses import join_address, split_address
from skulkd.cluster.attempts import Failures, first_success
from skulkd.cluster.guests import GuestDialler, JoinStage, firewall_lines
from skulkd.runtime.identity import KeyPair
from skulkd.runtime.tasks import timeout

REACH_S: Final = 5.0
"""For one address: the connection, the handshake, and the answer."""
STAGGER_S: Final = 0.5
"""An address that does not answer within this time gets company from the next."""
MAX_DIALLED: Final = 8

Stage = JoinStage | Literal["no_neighbour", "not_confirmed"]
"""How far a dial back came; it was not made; or who has the key has not asked to join."""


class KeyProver(Protocol):
    """Finds out whether a guest has the node key that it names."""

    async def prove(
        self, request: JoinRequest, digest: bytes, *, came_from: str, is_source_only: bool
    ) -> None:
        """Return once it is proven.

        Args:
            request: The guest's; its addresses read as such.
            digest: Of its bytes; see skulkd/cluster/own_requests.py.
            came_from: The host that the guest has dialled from.
            is_source_only: Dial there only, wherever else the guest says that it listens.

        Raises:
            ClusterError: `cluster.join_refused`, with direction, addresses, ports and remedy.
        """
        ...


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class WayBack:
    """Implements `KeyProver`.

    Args:
        make_dialler: Called once this node's ports are open.
        keys: This member's own.
        build: As guests are told.
        is_neighbour: Says whether an IP address is on one of this node's own links.
        named_hosts: Hosts of addresses that the operator has named.
    """

    make_dialler: Callable[[], GuestDialler]
    keys: KeyPair
    build: str
    is_neighbour: Callable[[str], bool]
    named_hosts: frozenset[str] = frozenset()

    async def prove(
        self, request: JoinRequest, digest: bytes, *, came_from: str, is_source_only: bool
    ) -> None:
        """Dial the guest's addresses until who has its key says that it wants to join."""

        def may_dial(host: str, ip: str) -> bool:
            if _same_host(ip, came_from):
                return True
            is_known = self.is_neighbour(ip) or not self.named_hosts.isdisjoint({host, ip})
            return is_known and not is_source_only

        dialler, addresses = self.make_dialler(), request.addresses[:MAX_DIALLED]
        question = pack(JoinQuestion(build=self.build, digest=digest))
        key = bytes.fromhex(request.public_key)
        outcome = await first_success(
            [
                partial(self._ask, dialler, key, one, question, digest, may_dial)
                for one in addresses
            ],
            stagger_s=STAGGER_S,
            name="reach back",
        )
        if isinstance(outcome, Failures):
            raise _refusal(addresses, outcome.errors)

    async def _ask(
        self,
        dialler: GuestDialler,
        key: bytes,
        address: str,
        question: bytes,
        digest: bytes,
        may_dial: Callable[[str, str], bool],
    ) -> None:
        host, base_port = split_address(address)
        ips = await _ips_of(host, base_port)
        ip = next((one for one in ips if may_dial(host, one)), None)
        if ip is None:
            raise _failed("no_neighbour", host, base_port)
        try:
            answer = await dialler.ask(
                join_address(ip, base_port),
                server_key=key,
                guest=self.keys,
                payload=question,
                timeout_s=REACH_S,
            )
        except ClusterError as error:
            raise _failed(cast("JoinStage", error.details["stage"]), host, base_port) from error
        if not _is_confirmed(answer, digest):
            raise _failed("not_confirmed", host, base_port)


def _is_confirmed(answer: bytes, digest: bytes) -> bool:
    """Say whether an answer is a yes to this very request, and to no earlier one."""
    try:
        said = read_host(answer)
    except ProtocolError:
        return False
    return isinstance(said, JoinConfirmed) and compare_digest(said.digest, digest)


def _same_host(ip: str, came_from: str) -> bool:
    try:
        return ip_address(ip) == ip_address(came_from)
    except ValueError:
        return False


async def _ips_of(host: str, base_port: int) -> tuple[str, ...]:
    """Give what a name stands for; an IP address is asked of nobody."""
    try:
        return (str(ip_address(host)),)
    except ValueError:
        pass
    try:
        async with timeout(REACH_S):
            loop = asyncio.get_running_loop()
            found = await loop.getaddrinfo(host, base_port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # a TimeoutError is an OSError
        raise _failed(
            "no_route", host, base_port, why=f": the name leads nowhere ({error})"
        ) from error
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def _failed(stage: Stage, host: str, port: int, *, why: str = "") -> ClusterError:
    what, remedy = _STAGES[stage]
    return ClusterError(
        "cluster.join_refused",
        what.format(host=host, port=port) + why,
        remediation=remedy.format(port=port, firewall=firewall_lines(port)),
        details={"direction": "incoming", "stage": stage, "host": host, "port": port},
    )


def _refusal(addresses: Sequence[str], errors: Sequence[SkulkError]) -> ClusterError:
    """Make one error of those of all addresses, with the remedy of the one that says most."""
    ranks: list[DetailValue] = list(_STAGES)
    best = min(errors, key=lambda error: ranks.index(error.details["stage"]))
    reasons = "; ".join(dict.fromkeys(error.message for error in errors))
    return ClusterError(
        "cluster.join_refused",
        f"incoming: this member dialled the guest back at {', '.join(addresses)} and did not find "
        f"it: {reasons}",
        remediation=best.remediation,
        details=best.details,
    )


_ADVERTISE: Final = "say with --advertise where the machine that joins can be dialled"
_NOT_THE_GUEST: Final = (
    "If that node was to join, run the same build on both machines and let it ask again; if it "
    "was not, somebody else has named its public key as theirs."
)
_FIREWALL: Final = (
    "Open the ports of the machine that joins with the line for its firewall ({firewall}), or "
    + _ADVERTISE
    + "."
)
_STAGES: Final[dict[Stage, tuple[str, str]]] = {
    "not_confirmed": (
        "the node at {host} port {port} has the guest's key and has not asked to join",
        _NOT_THE_GUEST,
    ),
    "no_answer": (
        "the node at {host} port {port} does not say in time whether it wants to join",
        _NOT_THE_GUEST,
    ),
    "key_refused": (
        "the node at {host} port {port} refuses this member's key, and so has not asked it",
        _NOT_THE_GUEST,
    ),
    "no_route": ("no connection to {host} port {port}", _FIREWALL),
    "nobody_listens": ("nobody listens at {host} port {port}", _FIREWALL),
    "not_the_server": (
        "who answers at {host} port {port} does not have the guest's key",
        "Another machine, daemon or program has that address: " + _ADVERTISE + ".",
    ),
    "no_neighbour": (
        (
            "{host} port {port} was not dialled, because it is no direct neighbour of this member "
            "and not where the guest comes from"
        ),
        (
            "Advertise the address that the machine dials from (--advertise), or start the member "
            "with --peer and the address of the machine that joins."
        ),
    ),
}
"""What was found, and what helps; what says most comes first."""
