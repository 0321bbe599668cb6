"""How fast one client of a session reads, and what it gets therefore. Pure.

The client grants bytes, and gives them back as it takes messages. Whoever can be sent nothing for
2 s gets less, for 10 s the least, and for 60 s is let go; who has caught up gets everything again.
"""

from typing import Final, final

from protocol.session import FeedState

LATEST_AFTER_S: Final = 2.0
SUMMARY_AFTER_S: Final = 10.0
CLOSE_AFTER_S: Final = 60.0


@final
class SessionFlow:
    """See the module.

    Args:
        credit_bytes: How far the node may be ahead of the client.
    """

    def __init__(self, credit_bytes: int) -> None:
        self._window_bytes: Final = credit_bytes
        self._credit_bytes = credit_bytes
        self._blocked_since_s: float | None = None
        self.feed: FeedState = "full"
        """What the client gets now."""
        self.is_hopeless = False
        """It took nothing for a minute."""

    @property
    def has_credit(self) -> bool:
        """A message may be sent, whole, whatever its size: the next one waits longer then."""
        return self._credit_bytes > 0

    def sent(self, n_bytes: int, *, is_small_talk: bool = False) -> None:
        """A message left.

        Args:
            n_bytes: Its size.
            is_small_talk: It is sent to clients without credit too, and proves nothing.
        """
        self._credit_bytes -= n_bytes
        if not is_small_talk:
            self._blocked_since_s = None

    def taken(self, n_bytes: int) -> None:
        """The client has taken so much; more than was sent is no more than all of it."""
        self._credit_bytes = min(self._window_bytes, self._credit_bytes + n_bytes)

    def blocked(self, now: float) -> None:
        """There is something to send, and it cannot be sent."""
        if self._blocked_since_s is None:
            self._blocked_since_s = now

    def idle(self) -> None:
        """There is nothing to send, so that nothing is in the way."""
        self._blocked_since_s = None

    def look(self, now: float, *, is_writable: bool) -> None:
        """Decide anew what the client gets.

        Args:
            now: Monotonic seconds.
            is_writable: The connection itself takes what is written to it.
        """
        if self._blocked_since_s is None:
            if is_writable and 2 * self._credit_bytes >= self._window_bytes:
                self.feed = "full"
            return
        silent_s = now - self._blocked_since_s
        if silent_s >= CLOSE_AFTER_S:
            self.is_hopeless = True
        elif silent_s >= SUMMARY_AFTER_S:
            self.feed = "summary"
        elif silent_s >= LATEST_AFTER_S and self.feed == "full":
            self.feed = "latest"
