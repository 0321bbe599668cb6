"""Following a stream of a node's events: what comes is handed on, what breaks is taken up again."""

from collections.abc import Callable
from typing import Final, final

from pydantic import ValidationError

from protocol.control_api import ErrorDocument, read_answer
from protocol.errors import ClientError, SkulkError
from skulk_tui.cli.session import Session
from skulk_tui.client import Query, budget_spent, error_answered
from skulk_tui.event_stream import ServerEvent, events_in

RETRY_S: Final = 1.0
_AWAY: Final = frozenset(
    {
        "client.unreachable",
        "cluster.peer_unreachable",
        "cluster.peer_timeout",
        "cluster.stopping",
        "request.overloaded",
    }
)
_STATUS_OF_STREAM: Final = 200
"""A stream's error comes after its status line."""


@final
class Follower:
    """Follows one stream until it is ended from outside.

    Args:
        session: Asks, and is told on stderr when the node is away and when it is back.
        path: Of the stream.
        query: Of the first request, and of further ones until an event has given a position.
    """

    def __init__(self, session: Session, path: str, query: Query) -> None:
        self._session = session
        self._path = path
        self._query = query
        self._position: str | None = None
        self._was_heard = False
        self._is_away = False

    def run(self, take: Callable[[ServerEvent], None]) -> None:
        """Hand on each event; returns never.

        A node that goes away is asked again for ever, and the stream goes on where it broke off;
        one that was never heard is an error.

        Raises:
            SkulkError: The node refused, or `client.timeout`.
        """
        while True:
            try:
                self._read(take)
            except SkulkError as error:
                if not self._was_heard or error.code not in _AWAY:
                    raise
                if not self._is_away:
                    self._is_away = True
                    self._session.narrate(f"{error.message}; asking again")
            self._pause()

    def _read(self, take: Callable[[ServerEvent], None]) -> None:
        headers = {"last-event-id": self._position} if self._position is not None else {}
        with self._session.client.follow(self._path, query=self._query, headers=headers) as lines:
            for event in events_in(lines):
                self._hear()
                if event is None:
                    continue
                if event.event == "error":
                    raise _error_in(event)
                take(event)
                self._position = event.id or self._position

    def _hear(self) -> None:
        if self._is_away:
            self._is_away = False
            self._session.narrate("back; going on")
        self._was_heard = True
        self._check_budget()

    def _pause(self) -> None:
        self._check_budget()
        self._session.clock.wait_s(RETRY_S)

    def _check_budget(self) -> None:
        deadline_s = self._session.deadline_s
        if deadline_s is not None and self._session.clock.monotonic_s() >= deadline_s:
            raise budget_spent()


def _error_in(event: ServerEvent) -> SkulkError:
    try:
        envelope = read_answer(ErrorDocument, event.data.encode()).error
    except ValidationError:
        return ClientError(
            "client.bad_answer",
            f"the stream ended with what is no error of a node: {event.data[:200]}",
            remediation="Compare `skulk version` with the node's /version.",
        )
    return error_answered(_STATUS_OF_STREAM, envelope)
