"""How many bytes of request bodies are held at a time, over all connections.

Each request's own bound is no bound on their sum: a thousand bodies of 8 MiB are 8 GiB. What is
made of a body is about as large as it is and lives as long as the request, so a share is given back
when the request has been answered, not when its body has been read.
"""

from typing import Final, final

from protocol.errors import RequestError

MAX_HELD_BYTES: Final = 64 << 20
SMALL_BODY_BYTES: Final = 64 * 1024
"""Not counted: so much may wait on every connection anyway, and how many requests are served at a
time is bounded. Nearly every request is smaller, and is never refused for the size of others."""
_RETRY_S: Final = 1


@final
class BodyBudget:
    """The bytes that may be held, and those that are.

    Args:
        max_bytes: In all.
    """

    def __init__(self, max_bytes: int = MAX_HELD_BYTES) -> None:
        self._max_bytes = max_bytes
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """How many are held now."""
        return self._held_bytes

    def share(self) -> "BodyShare":
        """Begin a request's share; it is empty."""
        return BodyShare(self)

    def take(self, n_bytes: int) -> None:
        """Hold more.

        Raises:
            RequestError: `request.overloaded`; nothing more is held then.
        """
        if self._held_bytes + n_bytes > self._max_bytes:
            raise RequestError(
                "request.overloaded",
                f"the requests being served hold {self._held_bytes} bytes of {self._max_bytes}, "
                f"{n_bytes} more do not fit",
                remediation="Try again shortly, or send less in one request.",
                details={"max_bytes": self._max_bytes, "held_bytes": self._held_bytes},
                retry_after_s=_RETRY_S,
            )
        self._held_bytes += n_bytes

    def give_back(self, n_bytes: int) -> None:
        """Hold so much less."""
        self._held_bytes -= n_bytes


@final
class BodyShare:
    """What one request holds of the budget."""

    __slots__ = ("_budget", "_n_bytes")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._n_bytes = 0

    def grow_to(self, body_bytes: int) -> None:
        """Hold a body of this size, unless it is small; never shrinks.

        Raises:
            RequestError: `request.overloaded`.
        """
        if body_bytes > max(self._n_bytes, SMALL_BODY_BYTES):
            self._budget.take(body_bytes - self._n_bytes)
            self._n_bytes = body_bytes

    def add(self, n_bytes: int) -> None:
        """Hold so much beside the body, however small.

        Raises:
            RequestError: `request.overloaded`.
        """
        self._budget.take(n_bytes)
        self._n_bytes += n_bytes

    def release(self) -> None:
        """Give everything back. Idempotent."""
        if self._n_bytes:
            self._budget.give_back(self._n_bytes)
            self._n_bytes = 0
