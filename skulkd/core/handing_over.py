"""How a master hands over: let the target catch up, decide nothing more, ask it to campaign."""

from typing import Final, Literal, final

from protocol.ids import NodeId
from protocol.peer_messages import Heartbeat
from skulkd.core.voting import LogLook

CATCH_UP_S: Final = 10.0
NEARLY: Final = 256
"""So many events behind, the rest is waited for with new ones held back."""
DRAIN_S: Final = 2.0
TAKE_OVER_S: Final = 2.0


@final
class HandingOver:
    """One handover, on the master.

    Args:
        target: Who shall be master.
        now: Boot time in seconds.
    """

    def __init__(self, *, target: NodeId, now: float) -> None:
        self.target: Final = target
        self.until_s = now + CATCH_UP_S
        self._stage: Literal["catching_up", "draining", "sent"] = "catching_up"
        self._n_behind = 0

    @property
    def is_paused(self) -> bool:
        """Whether the master decides nothing meanwhile."""
        return self._stage != "catching_up"

    @property
    def is_sent(self) -> bool:
        """Whether the target has been asked."""
        return self._stage == "sent"

    def step(
        self, heartbeat: Heartbeat | None, log: LogLook, *, now: float
    ) -> Literal["wait", "send", "end"]:
        """Say what comes next.

        Args:
            heartbeat: The target's last one.
            log: The master's.
            now: Boot time in seconds.
        """
        if self._stage != "sent" and heartbeat is not None:
            self._n_behind = log.head.seq - heartbeat.position.seq
            if self._stage == "catching_up" and self._n_behind <= NEARLY:
                self._stage = "draining"
                self.until_s = now + DRAIN_S
            if self._stage == "draining" and heartbeat.position == log.head == log.durable:
                self._stage = "sent"
                self.until_s = now + TAKE_OVER_S
                return "send"
        return "end" if now >= self.until_s else "wait"

    def late_reason(self) -> str:
        """Say what was waited for in vain."""
        if self._stage == "sent":
            return f"it did not become master within {TAKE_OVER_S:.0f} s"
        return f"it is {self._n_behind} events behind and does not catch up"
