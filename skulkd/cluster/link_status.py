"""How a link is, over all its ports; pure."""

from collections.abc import Mapping
from typing import final

from protocol.envelope import PORTS, Port
from skulkd.cluster.transport import LinkState

NOT_GREETED = "it has not reached this node so far: check its way to here, and the firewall here"


@final
class LinkStatus:
    """What is known of one link."""

    def __init__(self) -> None:
        self._ports: dict[Port, LinkState] = dict.fromkeys(PORTS, "connecting")
        self._reasons: dict[Port, str] = {}
        self._is_greeted = False
        self._refusal = ""
        self._has_been_up = False
        self._is_denied = False

    def note(
        self, port: Port, state: LinkState, reason: str = "", *, is_denied: bool = False
    ) -> None:
        """Take over how one port is.

        Before the link was up for the first time nobody has fallen silent or ended.
        """
        if port == "election":
            self._is_denied = is_denied
        if state in {"silent", "refused"} and not self._has_been_up:
            state = "connecting"
        self._ports[port] = state
        self._reasons[port] = reason
        self._look()

    def greet(self, refusal: str = "") -> None:
        """Take over what the peer's hello leads to: nothing, or a refusal of all it sends."""
        self._is_greeted = not refusal
        self._refusal = refusal
        self._look()

    def reset(self) -> None:
        """Begin anew, as after the ports were closed."""
        self._ports = dict.fromkeys(PORTS, "connecting")
        self._reasons = {}
        self._is_greeted = False
        self._refusal = ""
        self._has_been_up = False
        self._is_denied = False

    @property
    def is_denied(self) -> bool:
        """The peer itself has answered, when it was dialled last, and refused this node's key."""
        return self._is_denied

    @property
    def is_greeted(self) -> bool:
        """A hello has come that nothing is wrong with."""
        return self._is_greeted

    @property
    def ports(self) -> Mapping[Port, LinkState]:
        """How each port is."""
        return self._ports

    def port_reason(self, port: Port) -> str:
        """Why a port is not open."""
        return self._reasons.get(port, "")

    @property
    def state(self) -> LinkState:
        """How the link is.

        The election port speaks for the host and the process; another port that is not open only
        keeps the link from being up.
        """
        if self._refusal:
            return "incompatible"
        election = self._ports["election"]
        if election != "up":
            return election
        is_whole = self._is_greeted and all(state == "up" for state in self._ports.values())
        return "up" if is_whole else "connecting"

    @property
    def reason(self) -> str:
        """Why it is not up; empty when it is."""
        if self._refusal:
            return self._refusal
        for port in PORTS:
            if self._ports[port] != "up":
                return self._reasons.get(port, "") or f"the {port} port is not open yet"
        return "" if self._is_greeted else NOT_GREETED

    def _look(self) -> None:
        self._has_been_up = self._has_been_up or self.state == "up"
