"""A command that follows the cluster over a session, until it has seen enough or is told to end.

Imported by such a command when it runs, never before: it brings the event loop with it.
"""

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar, final

from protocol.errors import ClientError, RequestError, SessionError, SkulkError
from skulk_tui.cli.interruptions import Interrupted, signals_on_loop
from skulk_tui.cli.session import Session
from skulk_tui.client import budget_spent
from skulk_tui.link_machine import FAILURES_PER_ADDRESS
from skulk_tui.link_view import LinkView
from skulk_tui.session_link import SessionLink
from skulk_tui.session_socket import Connector, Socket, WebSocketConnector
from skulk_tui.target import Target
from skulk_tui.view_state import Changes, ViewState

T = TypeVar("T")

_BARRED: Final = frozenset({"denied", "incompatible"})
_IS_UP: Final = frozenset({"live", "stale"})


def run_linked(session: Session, body: "Callable[[Linked], Awaitable[T]]") -> T:
    """Run a coroutine with a link to the cluster, and end the link with it.

    Raises:
        SkulkError: What `body` raises; `client.timeout` when the budget is spent.
        KeyboardInterrupt: Ctrl-C; Interrupted for the signals that end the program.
    """

    async def run() -> T:
        linked = Linked(session)
        with signals_on_loop(asyncio.get_running_loop(), linked.end_by):
            try:
                return await body(linked)
            finally:
                await linked.link.close()

    return asyncio.run(run())


@final
class Linked:
    """The link as a command uses it; made on a running loop.

    `view` holds what has come. Trouble after the link was up once is told on stderr and waited out;
    before that it is raised, as it would be over HTTP.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._wake = asyncio.Event()
        self._signal: int | None = None
        self._was_up = False
        self._is_away = False
        self.tells_of_link = True
        """Whether trouble is told on stderr; false where a screen shows it."""
        self.n_returns = 0
        """How often the link has come up again."""
        self._n_spare = len(session.client.target.seeds)
        """Addresses beyond the first; all are tried before the link counts as not to be had."""
        self.view = ViewState()
        self._connector = _TellingConnector(WebSocketConnector(session.trust))
        self.link = SessionLink(
            session.client.target,
            self.view,
            clock=session.clock,
            # ruff: ignore[suspicious-non-cryptographic-random-usage]  spreads retries
            randomness=random.Random(),
            on_change=self._on_change,
            connect=self._connector,
        )

    def end_by(self, number: int) -> None:
        """Take a signal: whoever waits here is interrupted."""
        self._signal = number
        self._wake.set()

    async def start(self) -> None:
        """Connect and wait until what was subscribed to has come.

        Raises:
            SkulkError: As the node refused, or why it could not be reached.
        """
        self.link.start()
        while not self._was_up:
            await self.changed()

    async def changed(self, within_s: float | None = None) -> bool:
        """Wait for a change of what is known or of the link.

        Args:
            within_s: How long to wait; None is until something comes.

        Returns:
            Whether something has changed.

        Raises:
            SkulkError: The node refuses for good, or the budget is spent.
            KeyboardInterrupt: Ctrl-C; Interrupted for other signals.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._shorter(within_s)):
                await self._wake.wait()
        has_changed = self._wake.is_set()
        self._wake.clear()
        if self._signal is not None:
            raise _interruption(self._signal)
        deadline_s = self._session.deadline_s
        if deadline_s is not None and self._session.clock.monotonic_s() >= deadline_s:
            raise budget_spent()
        self._look_at_link(self.link.view)
        return has_changed

    async def changed_within(self, duration_s: float) -> None:
        """Take all that changes within so many seconds, as `changed` does."""
        ends_s = self._session.clock.monotonic_s() + duration_s
        while (left_s := ends_s - self._session.clock.monotonic_s()) > 0:
            await self.changed(left_s)

    @property
    def is_up(self) -> bool:
        """Whether what is known is the present: no reconnecting, no rows still on their way."""
        return self.link.view.word in _IS_UP

    def _shorter(self, within_s: float | None) -> float | None:
        if self._session.deadline_s is None:
            return within_s
        left_s = max(0.0, self._session.deadline_s - self._session.clock.monotonic_s())
        return left_s if within_s is None else min(left_s, within_s)

    def _on_change(self, changes: Changes) -> None:
        del changes  # what is shown is read anew from the view
        self._wake.set()

    def _look_at_link(self, view: LinkView) -> None:
        if view.word in _BARRED:
            raise self._connector.refusal or _barred(view)
        if view.word in _IS_UP:
            self._was_up = True
            if self._is_away:
                self._is_away = False
                self.n_returns += 1
                self._narrate(f"{view.node_name or view.url} is back; going on")
        elif not self._was_up:
            if view.attempt > self._n_spare * FAILURES_PER_ADDRESS:
                raise self._connector.refusal or _unreachable(view)
        elif view.reason and not self._is_away:
            self._is_away = True
            self._narrate(f"{view.reason}; connecting again")

    def _narrate(self, text: str) -> None:
        if self.tells_of_link:
            self._session.narrate(text)


@final
class _TellingConnector:
    """Remembers why the last try failed, in the form in which it was raised."""

    def __init__(self, connect: Connector) -> None:
        self._connect = connect
        self.refusal: SkulkError | None = None

    async def __call__(self, target: Target) -> Socket:
        try:
            socket = await self._connect(target)
        except SkulkError as refused:
            self.refusal = refused
            raise
        self.refusal = None
        return socket


def _barred(view: LinkView) -> SkulkError:
    if view.word == "incompatible":
        return SessionError("session.incompatible", view.reason, remediation=view.remedy)
    return RequestError("request.forbidden", view.reason, remediation=view.remedy)


def _unreachable(view: LinkView) -> SkulkError:
    reason = view.reason or f"no node answers at {view.url}"
    return ClientError("client.unreachable", reason, remediation=view.remedy)


def _interruption(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else Interrupted(number)
