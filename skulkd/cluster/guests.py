"""How a node that is no member yet talks to one that is: as a guest, by a one-time key.

An invitation is a CURVE client key that works once: whoever proves to have its secret half may ask
to be admitted, and nothing else. Nothing of a guest ever reaches a plane.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from protocol.envelope import PORTS
from protocol.errors import ClusterError
from skulkd.runtime.identity import KeyPair

MAX_GUEST_BYTES: Final = 64 << 10
"""Of one payload from or to a guest."""

JoinStage = Literal["no_route", "nobody_listens", "not_the_server", "key_refused", "no_answer"]
"""How far a guest came."""

GuestReply = Callable[[bytes], None]
"""Answers on the connection that the guest has made; a guest that has left hears nothing."""

OnGuest = Callable[[str, str, bytes, GuestReply], None]
"""Called on the event loop with the name of the key that let the guest in, the address that it
comes from (`HOST`), its payload, and the way back; must not block or raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranger:
    """Somebody who dialled and was refused."""

    public_key: bytes
    address: str
    """The host that it dialled from."""
    reason: str
    """Why it was refused, in words an operator can act on."""
    first_s: float
    last_s: float
    """Monotonic."""
    n_tries: int


class GuestDoor(Protocol):
    """The side that is dialled."""

    def set_guest_keys(self, keys: Mapping[bytes, str]) -> None:
        """Admit guests with exactly these public keys, each with its name, on the election port."""
        ...

    def on_guest(self, receiver: OnGuest) -> None:
        """Name who gets what guests say; the last one named."""
        ...

    def strangers(self) -> tuple[Stranger, ...]:
        """List who was refused in the last hour, newest first, at most 64."""
        ...


class GuestDialler(Protocol):
    """The side that dials."""

    async def ask(
        self,
        address: str,
        *,
        server_key: bytes,
        guest: KeyPair,
        payload: bytes,
        timeout_s: float,
    ) -> bytes:
        """Dial `HOST:BASE` as a guest, send one payload, and give the answer.

        Args:
            address: The member's; its election port is BASE.
            server_key: The member's public key: nobody else can answer.
            guest: The one-time key.
            payload: At most `MAX_GUEST_BYTES`.
            timeout_s: For all of it.

        Raises:
            ClusterError: `cluster.join_failed`, saying how far it came: no route, nobody listens,
                the key was refused, or no answer.
        """
        ...


def join_failed(stage: JoinStage, host: str, port: int, *, reason: str = "") -> ClusterError:
    """Say how far a guest came, in words an operator can act on.

    Args:
        stage: Where it ended.
        host: What was dialled.
        port: The election port there.
        reason: What the system said.
    """
    what, remedy = _STAGES[stage]
    said = f": {reason}" if reason else ""
    return ClusterError(
        "cluster.join_failed",
        what.format(host=host, port=port) + said,
        remediation=remedy.format(host=host, port=port, firewall=firewall_lines(port)),
        details={"stage": stage, "host": host, "port": port},
    )


def firewall_lines(base_port: int) -> str:
    """Give the line that opens a node's ports, for each of the usual firewalls."""
    first, last = base_port, base_port + len(PORTS) - 1
    return (
        f"sudo ufw allow {first}:{last}/tcp, or sudo firewall-cmd --add-port={first}-{last}/tcp, "
        f"or sudo nft add rule inet filter input tcp dport {first}-{last} accept"
    )


_STAGES: Final[dict[JoinStage, tuple[str, str]]] = {
    "no_route": (
        "outgoing: no connection to {host} port {port}",
        (
            "Check that both machines are on one network, and open the ports on {host} with the "
            "line for its firewall: {firewall}"
        ),
    ),
    "nobody_listens": (
        "outgoing: nobody listens at {host} port {port}",
        "Start skulkd there, or ask for the port that it uses: skulk cluster members",
    ),
    "not_the_server": (
        "who answers at {host} port {port} does not have the key that was expected",
        "Another node may have that address by now: make a new invitation on a member.",
    ),
    "key_refused": (
        "the node at {host} port {port} refused the key of this invitation",
        (
            "It has expired or been used, or belongs to another cluster: make a new one with "
            "skulk cluster invite"
        ),
    ),
    "no_answer": (
        "the node at {host} port {port} let this one in and did not answer in time",
        "Look at its log (skulk logs there), and try again.",
    ),
}
