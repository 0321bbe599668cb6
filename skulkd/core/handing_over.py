"""How a master hands over: let the target catch up, decide nothing more, ask it to campaign; pure.

If nothing comes of it in time, the master simply goes on.
"""

from dataclasses import dataclass
from typing import Final, Literal, final

from protocol.ids import NodeId
from protocol.peer_messages import Handover
from skulkd.core.election_effects import HandoverEnded, Send
from skulkd.core.sight import Sight

CATCH_UP_S: Final = 10.0
NEARLY: Final = 256
"""So many events behind, the rest is waited for with new ones held back."""
DRAIN_S: Final = 2.0
TAKE_OVER_S: Final = 2.0


@dataclass(slots=True, kw_only=True)
class _Handover:
    target: NodeId
    until_s: float
    stage: Literal["catching_up", "draining", "sent"] = "catching_up"
    reason: str = "nothing was heard of it"
    """What is in the way."""


@final
class Handovers:
    """The handovers of one master, one at a time."""

    def __init__(self) -> None:
        self._now: _Handover | None = None

    @property
    def until_s(self) -> float | None:
        """When the present step ends at the latest; None when none is under way."""
        return None if self._now is None else self._now.until_s

    @property
    def is_paused(self) -> bool:
        """Whether the master decides nothing meanwhile."""
        return self._now is not None and self._now.stage != "catching_up"

    def begin(self, target: NodeId, *, is_master: bool, now: float) -> list[HandoverEnded]:
        """Begin, unless this node is not master or has begun one already."""
        if is_master and self._now is None:
            self._now = _Handover(target=target, until_s=now + CATCH_UP_S)
            return []
        reason = "another one is under way" if is_master else "this node is not master"
        return [HandoverEnded(target=target, is_done=False, reason=reason)]

    def followed(self, master: NodeId) -> list[HandoverEnded]:
        """This node follows somebody now."""
        if self._now is not None and master == self._now.target:
            return self._end("")
        return self._end(f"{master} became master instead")

    def check(
        self, sight: Sight, *, number: int | None, now: float
    ) -> list[Send] | list[HandoverEnded]:
        """Take the next step, if it is due.

        Args:
            sight: What the master sees.
            number: Of its term; None when it is not master any more.
            now: Boot time in seconds.
        """
        handover = self._now
        if handover is None:
            return []
        if number is None and handover.stage != "sent":
            return self._end("this node is not master any more")
        if number is not None and not sight.is_near(handover.target, now=now):
            return self._end("it is not heard, or does not hear the master")
        if number is not None and self._is_caught_up(handover, sight, now):
            handover.stage = "sent"
            handover.until_s = now + TAKE_OVER_S
            handover.reason = f"it did not become master within {TAKE_OVER_S:.0f} s"
            return [Send(to=(handover.target,), message=Handover(number=number))]
        return self._end(handover.reason) if now >= handover.until_s else []

    def _is_caught_up(self, handover: _Handover, sight: Sight, now: float) -> bool:
        heartbeat, log = sight.peers.heartbeat(handover.target), sight.log
        if heartbeat is None or handover.stage == "sent":
            return False
        n_behind = log.head.seq - heartbeat.position.seq
        handover.reason = f"it is {n_behind} events behind and does not catch up"
        if handover.stage == "catching_up" and n_behind <= NEARLY:
            handover.stage = "draining"
            handover.until_s = now + DRAIN_S
        return handover.stage == "draining" and heartbeat.position == log.head == log.durable

    def _end(self, reason: str) -> list[HandoverEnded]:
        handover, self._now = self._now, None
        if handover is None:
            return []
        return [HandoverEnded(target=handover.target, is_done=not reason, reason=reason)]
