"""The thread that mDNS lives on: told what is wanted, it tries until it is told to end.

A library that answers whatever a network sends may stall or raise in any way. Here that costs a
warning in the node's status and another try later.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from skulkd.cluster.discovery import Announcement, DiscoveryState
from skulkd.cluster.packet_pace import PacketPace
from skulkd.runtime.tasks import timeout

_log = logging.getLogger(__name__)

CLOSE_S: Final = 4.0
"""For saying goodbye, which takes 0.3 s, and ending."""
FIRST_RETRY_S: Final = 5.0
LAST_RETRY_S: Final = 60.0
MAX_HEARD_PER_S: Final = 64
"""Of what neighbours say; what is more is dropped before anybody looks at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the node wants of the thread."""

    hosts: tuple[str, ...] = ()
    """Own IP addresses to use, of one family."""
    announcement: Announcement | None = None
    is_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the thread says of itself."""

    state: DiscoveryState = "waiting"
    warning: str = "there is no network interface to use"
    hosts: tuple[str, ...] = ()


OnHeard = Callable[[str, Mapping[bytes, bytes | None], Sequence[str]], None]
"""Called on the thread with a neighbour's name, the strings of its TXT record, and its hosts."""


@final
class MdnsThread:
    """The thread; it starts with the first wish that names an address.

    Args:
        on_heard: See `OnHeard`.
        on_goodbye: Called on the thread with a neighbour's name.
        on_report: Called on the thread when it has something to say.
    """

    def __init__(
        self,
        *,
        on_heard: OnHeard,
        on_goodbye: Callable[[str], None],
        on_report: Callable[[Report], None],
    ) -> None:
        self.pace = PacketPace()
        self.n_dropped = 0
        self.wish = Wish()
        self._on_goodbye = on_goodbye
        self.on_report = on_report
        self._on_heard = on_heard
        self._heard_since_s = 0.0
        self._n_heard = 0
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()

    # Called by the node.

    def want(self, wish: Wish) -> None:
        """Take a new wish."""
        self.wish = wish
        if self._thread is None and wish.hosts and not wish.is_over:
            self._thread = threading.Thread(target=self._run, name="skulk-mdns", daemon=True)
            self._thread.start()
        # Before it has a loop, or after, the thread looks at the wish by itself.
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._woken.set)
            except RuntimeError:
                _log.debug("mDNS has ended already")

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; False when it goes on. Blocks."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # Called on the thread.

    def hear(self, name: str, txt: Mapping[bytes, bytes | None], hosts: Sequence[str]) -> None:
        """Hand on what a neighbour says, unless there is too much of it."""
        if self._may_hear():
            self._on_heard(name, txt, hosts)

    def hear_goodbye(self, name: str) -> None:
        """Hand on that a neighbour says goodbye, or is not renewed any more; likewise."""
        if self._may_hear():
            self._on_goodbye(name)

    def _may_hear(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._heard_since_s >= 1.0:
            self._heard_since_s, self._n_heard = now_s, 0
        self._n_heard += 1
        if self._n_heard <= MAX_HEARD_PER_S:
            return True
        self.n_dropped += 1
        return False

    async def wait_other(self, wish: Wish, *, limit_s: float | None = None) -> None:
        """Wait until something else is wanted, or for so long."""
        await self._wait(lambda: self.wish != wish, limit_s)

    async def wait_over(self, limit_s: float) -> None:
        """Wait until it is over, or for so long."""
        await self._wait(lambda: self.wish.is_over, limit_s)

    async def _wait(self, is_met: Callable[[], bool], limit_s: float | None) -> None:
        try:
            async with timeout(limit_s):
                while not is_met():
                    self._woken.clear()
                    await self._woken.wait()
        except TimeoutError:
            return

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.run(self._live())

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        retry_s = FIRST_RETRY_S
        while not self.wish.is_over:
            wish = self.wish
            if not wish.hosts:
                self.on_report(Report())
                await self.wait_other(wish)
                continue
            began_s = self._loop.time()
            try:
                # Loaded here, where 70 ms matter to nobody.
                from skulkd.cluster.mdns import serve

                await serve(self)
            # ruff: ignore[blind-except]  whatever a library has in it, a node goes on without it
            except Exception as error:
                said = str(error) or type(error).__name__
                warning = f"it does not work on {', '.join(wish.hosts)}: {said}"
                self.on_report(Report(state="failed", warning=warning))
                if not isinstance(error, OSError | TimeoutError):
                    _log.warning("mDNS failed", exc_info=error)
                if self._loop.time() - began_s > LAST_RETRY_S:
                    retry_s = FIRST_RETRY_S
                await self.wait_other(wish, limit_s=retry_s)
                retry_s = min(2 * retry_s, LAST_RETRY_S)
