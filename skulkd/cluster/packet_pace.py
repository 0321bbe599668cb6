"""How fast own multicast packets may follow one another. Pure.

A responder that floods a network is a known accident (a name that nine others hold, a loop of two
instances). So no packet leaves but by a slot, and there are five a second: one that finds none is
sent a little later, and one that would be too late is not sent at all.
"""

from collections import deque
from typing import Final, final

MAX_PACKETS_PER_S: Final = 5
MAX_WAIT_S: Final = 3.0
"""What is later than this is of no use: its occasion has passed, or it is repeated anyway."""
ALARM_S: Final = 60.0
ALARM_SECONDS: Final = 10
"""Packets withheld in so many different seconds of a minute are an alarm. Twenty nodes that start
together withhold some for three seconds, and all find one another nevertheless."""
_SLACK_S: Final = 0.05
"""Timers are late by a little; the packets of any one second must still be five."""


@final
class PacketPace:
    """The slots of one node's packets."""

    def __init__(self) -> None:
        self._slots_s: deque[float] = deque(maxlen=MAX_PACKETS_PER_S)
        self._bad_seconds: deque[int] = deque(maxlen=ALARM_SECONDS)
        self.n_sent = 0
        self.n_withheld = 0

    def reserve(self, n_packets: int, *, now_s: float) -> float | None:
        """Take slots for packets that leave together.

        Args:
            n_packets: At most 5 have a chance.
            now_s: Monotonic.

        Returns:
            How many seconds to wait before they are sent; None when they shall not be.
        """
        wait_s = self.wait_s(n_packets, now_s=now_s)
        if wait_s is None or wait_s > MAX_WAIT_S:
            self.n_withheld += n_packets
            if not self._bad_seconds or self._bad_seconds[-1] != int(now_s):
                self._bad_seconds.append(int(now_s))
            return None
        self._slots_s.extend([now_s + wait_s] * n_packets)
        self.n_sent += n_packets
        return wait_s

    def wait_s(self, n_packets: int, *, now_s: float) -> float | None:
        """Say how long so many packets would have to wait; None is for ever."""
        n_kept = MAX_PACKETS_PER_S - n_packets
        if n_kept < 0:
            return None
        at_s = now_s
        if self._slots_s:
            at_s = max(at_s, self._slots_s[-1])  # nothing is overtaken
        if len(self._slots_s) > n_kept:
            # All but the last `n_kept` must lie a second back.
            at_s = max(at_s, self._slots_s[-1 - n_kept] + 1.0 + _SLACK_S)
        return at_s - now_s

    def is_alarming(self, *, now_s: float) -> bool:
        """Say whether there have been too many packets for a good part of the last minute."""
        seconds = self._bad_seconds
        return len(seconds) == ALARM_SECONDS and now_s - seconds[0] < ALARM_S
