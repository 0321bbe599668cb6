"""How a master hands over: let the target catch up, decide nothing more, ask it to campaign."""

from typing import Final, Literal, final

from protocol.ids import NodeId
from skulkd.core.sight import Sight

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
        self.reason = "nothing was heard of it"

    @property
    def is_paused(self) -> bool:
        """Whether the master decides nothing meanwhile."""
        return self._stage != "catching_up"

    @property
    def is_sent(self) -> bool:
        """Whether the target has been asked."""
        return self._stage == "sent"

    def step(self, sight: Sight, *, is_master: bool, now: float) -> Literal["wait", "send", "end"]:
        """Say what comes next; on `end`, `reason` says why nothing came of it.

        Args:
            sight: What the master sees.
            is_master: It still is.
            now: Boot time in seconds.
        """
        if not is_master and not self.is_sent:
            self.reason = "this node is not master any more"
            return "end"
        if is_master and not sight.is_near(self.target, now=now):
            self.reason = "it is not heard, or does not hear the master"
            return "end"
        if not self.is_sent and self._is_caught_up(sight, now):
            self._stage = "sent"
            self.reason = f"it did not become master within {TAKE_OVER_S:.0f} s"
            self.until_s = now + TAKE_OVER_S
            return "send"
        return "end" if now >= self.until_s else "wait"

    def _is_caught_up(self, sight: Sight, now: float) -> bool:
        heartbeat, log = sight.peers.heartbeat(self.target), sight.log
        if heartbeat is None:
            return False
        n_behind = log.head.seq - heartbeat.position.seq
        self.reason = f"it is {n_behind} events behind and does not catch up"
        if self._stage == "catching_up" and n_behind <= NEARLY:
            self._stage = "draining"
            self.until_s = now + DRAIN_S
        return self._stage == "draining" and heartbeat.position == log.head == log.durable
