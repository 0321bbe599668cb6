"""When the way to the cluster is doubted, given up and tried again, and at which address.

Pure: what happened goes in with the time, what is to be done comes out, and `view` is what the
status row shows. Knows no socket and no frame. Silence is told from loss by a promise of the node:
it says something at least once a second, so that three seconds are a doubt and ten are a loss.
"""

import random
from dataclasses import dataclass
from typing import Final, Literal, assert_never, final

from skulk_tui.link_view import LinkView, LinkWord

STALE_S: Final = 3.0
LOST_S: Final = 10.0
ATTEMPT_S: Final = 3.0
"""From the first packet to the node's hello."""
BACKOFF_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Before each further try; the last is repeated for ever."""
JITTER_RATIO: Final = 0.2
FAILURES_PER_ADDRESS: Final = 2
WAKE_JUMP_S: Final = 5.0
"""The wall clock went on by this much more than the timer's: the machine slept."""
WALL_LOOK_S: Final = 1.0
"""How often the wall clock is looked at while a retry is waited for."""


# ---- What goes in and what comes out ------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The node's hello has come."""

    node_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A frame has come, of whatever kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """So much of what was asked for is there; 1.0 is all of it."""

    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """The attempt came to nothing, or the socket closed."""

    reason: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Barred:
    """The node answered, and trying again would be answered likewise."""

    word: Literal["incompatible", "denied"]
    reason: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryNow:
    """The operator does not want to wait, or something has changed: another key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachTo:
    """The operator chose another node; the addresses known so far stay behind it."""

    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GoTo:
    """The operator chose another cluster; of this one no address stays."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WallTime:
    """What the wall clock says, which goes on while a machine sleeps."""

    wall_ms: int


LinkInput = Opened | Heard | Synced | Broken | Barred | RetryNow | AttachTo | GoTo | WallTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Dial:
    """Begin an attempt there, giving up whatever connection there is."""

    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HangUp:
    """Give up the connection or the attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Ask the node whether it is there."""


LinkEffect = Dial | HangUp | Probe


# ---- The machine --------------------------------------------------------------------------------


@final
class LinkMachine:
    """The states of one link, from its first attempt on.

    Args:
        addresses: Where nodes of the cluster may answer, the preferred one first; at least one.
        randomness: Spreads the retries of many programs.
        now: Monotonic seconds, as everywhere here.

    `start` begins. What happens on a connection that was given up is not to be told to it.
    """

    def __init__(
        self, addresses: tuple[str, ...], *, randomness: random.Random, now: float
    ) -> None:
        if not addresses:
            message = "a link needs an address"
            raise ValueError(message)
        self._addresses = addresses
        self._index = 0
        self._random = randomness
        self._word: LinkWord = "connecting"
        self._since = now
        self._node_name = ""
        self._last_frame_at: float | None = None
        self._attempt_ends_at: float | None = None
        self._retry_at: float | None = None
        self._lost_at: float | None = None
        """While a session is open: when silence becomes loss."""
        self._is_synced = False
        self._has_been_live = False
        """At this cluster, by whatever address: there is a last view."""
        self._ratio: float | None = None
        self._n_failed = 0
        self._n_failed_here = 0
        self._n_waits = 0
        self._reason = ""
        self._remedy = ""
        self._wall_offset_s: float | None = None
        self._look_at: float | None = None

    @property
    def view(self) -> LinkView:
        """What the status row shows."""
        return LinkView(
            word=self._word,
            since=self._since,
            url=self._addresses[self._index],
            node_name=self._node_name,
            last_frame_at=self._last_frame_at,
            attempt=self._n_failed,
            retry_at=self._retry_at,
            progress_ratio=self._ratio,
            reason=self._reason,
            remedy=self._remedy,
        )

    @property
    def told(self) -> tuple[object, ...]:
        """What of `view` people are told at once: all but when a frame was last heard."""
        return (
            self._word, self._since, self._index, self._addresses, self._node_name, self._n_failed,
            self._retry_at, self._ratio, self._reason, self._remedy,
        )  # fmt: skip

    @property
    def addresses(self) -> tuple[str, ...]:
        """All known addresses; those of nodes attached to come first."""
        return self._addresses

    @property
    def deadline(self) -> float | None:
        """When `tick` is wanted; None where only the operator can change anything."""
        silent_at = None if self._word == "stale" else self._stale_at()
        times = (self._attempt_ends_at, self._retry_at, self._lost_at, silent_at, self._look_at)
        return min((at for at in times if at is not None), default=None)

    def start(self, now: float) -> tuple[LinkEffect, ...]:
        """Begin the first attempt."""
        return self._dial(now)

    def handle(self, what: LinkInput, now: float) -> tuple[LinkEffect, ...]:
        """Take what happened; give what is to be done."""
        match what:
            case Opened():
                return self._on_opened(what, now)
            case Heard():
                return self._on_heard(now)
            case Synced():
                return self._on_synced(what.ratio, now)
            case Broken():
                return self._on_broken(what, now)
            case Barred():
                return self._on_barred(what, now)
            case RetryNow():
                return self._on_retry(now)
            case AttachTo():
                others = tuple(one for one in self._addresses if one != what.url)
                return self._go_to((what.url, *others), now)
            case GoTo():
                self._last_frame_at = None
                return self._go_to(what.addresses, now)
            case WallTime():
                return self._on_wall_time(what.wall_ms, now)
        assert_never(what)

    def tick(self, now: float) -> tuple[LinkEffect, ...]:
        """Do what time alone brings about."""
        if self._look_at is not None and now >= self._look_at:
            self._look_at = now + WALL_LOOK_S
        if self._retry_at is not None and now >= self._retry_at:
            return self._dial(now)
        if self._attempt_ends_at is not None and now >= self._attempt_ends_at:
            url = self._addresses[self._index]
            late = Broken(
                reason=f"{url} did not answer within {ATTEMPT_S:.0f} s",
                remedy="Check that skulkd runs there and that no firewall lies between.",
            )
            return (HangUp(), *self._on_broken(late, now))
        if self._lost_at is not None and now >= self._lost_at:
            silent_s = now - (self._last_frame_at or now)
            lost = Broken(reason=f"{self._who()} has said nothing for {silent_s:.0f} s")
            return (HangUp(), *self._on_broken(lost, now))
        stale_at = self._stale_at()
        if stale_at is not None and now >= stale_at and self._word != "stale":
            self._enter("stale", now)
        return ()

    # ---- What happened ----

    def _on_opened(self, opened: Opened, now: float) -> tuple[LinkEffect, ...]:
        self._attempt_ends_at = None
        self._node_name = opened.node_name
        self._is_synced = False
        self._ratio = 0.0
        self._hear(now)
        self._enter("resuming" if self._has_been_live else "syncing", now)
        return ()

    def _on_heard(self, now: float) -> tuple[LinkEffect, ...]:
        if self._lost_at is None:  # before the hello there is no session to keep alive
            return ()
        self._hear(now)
        if self._word == "stale":
            self._enter(self._open_word(), now)
        return ()

    def _on_synced(self, ratio: float, now: float) -> tuple[LinkEffect, ...]:
        if self._lost_at is None or self._is_synced:
            return ()
        self._ratio = ratio
        if ratio >= 1.0:
            self._is_synced = self._has_been_live = True
            self._ratio = None
            self._n_failed = self._n_failed_here = self._n_waits = 0
            self._reason = self._remedy = ""
            if self._word != "stale":  # only a frame takes that back
                self._enter("live", now)
        return ()

    def _on_broken(self, broken: Broken, now: float) -> tuple[LinkEffect, ...]:
        if not self._is_synced:
            self._n_failed += 1
            self._n_failed_here += 1
        self._close(broken.reason, broken.remedy)
        if self._n_failed_here >= FAILURES_PER_ADDRESS:
            self._index = (self._index + 1) % len(self._addresses)
            self._n_failed_here = 0
        delay_s = BACKOFF_S[min(self._n_waits, len(BACKOFF_S) - 1)]
        self._n_waits += 1
        self._retry_at = now + delay_s * self._random.uniform(1 - JITTER_RATIO, 1 + JITTER_RATIO)
        self._look_at = now + WALL_LOOK_S
        if self._word != "connecting":
            self._enter("lost", now)
        return ()

    def _on_barred(self, barred: Barred, now: float) -> tuple[LinkEffect, ...]:
        self._close(barred.reason, barred.remedy)
        self._enter(barred.word, now)
        return (HangUp(),)

    def _on_retry(self, now: float) -> tuple[LinkEffect, ...]:
        if self._lost_at is not None and self._word != "stale":
            return ()
        if self._word in {"incompatible", "denied"}:
            self._enter("lost" if self._has_been_live else "connecting", now)
        self._n_waits = 0
        return self._dial(now)

    def _go_to(self, addresses: tuple[str, ...], now: float) -> tuple[LinkEffect, ...]:
        self._addresses = addresses
        self._index = 0
        self._n_failed = self._n_failed_here = self._n_waits = 0
        self._has_been_live = False
        self._node_name = ""
        self._close("", "")
        self._enter("connecting", now)
        return self._dial(now)

    def _on_wall_time(self, wall_ms: int, now: float) -> tuple[LinkEffect, ...]:
        offset_s = wall_ms / 1000 - now
        before_s, self._wall_offset_s = self._wall_offset_s, offset_s
        if before_s is None or offset_s - before_s <= WAKE_JUMP_S:
            return ()
        if self._retry_at is not None or self._attempt_ends_at is not None:
            return self._dial(now)
        if self._lost_at is None:
            return ()
        # The node may have given this session up long ago: ask, and do not wait as long as usual.
        self._lost_at = min(self._lost_at, now + ATTEMPT_S)
        self._enter("stale", now)
        return (Probe(),)

    # ---- Parts ----

    def _dial(self, now: float) -> tuple[LinkEffect, ...]:
        self._lost_at = self._retry_at = self._look_at = None
        self._is_synced = False
        self._ratio = None
        self._attempt_ends_at = now + ATTEMPT_S
        if self._word == "stale":
            self._enter("lost", now)
        return (Dial(url=self._addresses[self._index]),)

    def _close(self, reason: str, remedy: str) -> None:
        self._attempt_ends_at = self._retry_at = self._lost_at = self._look_at = None
        self._is_synced = False
        self._ratio = None
        self._reason = reason
        self._remedy = remedy

    def _hear(self, now: float) -> None:
        self._last_frame_at = now
        self._lost_at = now + LOST_S

    def _stale_at(self) -> float | None:
        if self._lost_at is None or self._last_frame_at is None:
            return None
        return self._last_frame_at + STALE_S

    def _open_word(self) -> LinkWord:
        if self._is_synced:
            return "live"
        return "resuming" if self._has_been_live else "syncing"

    def _who(self) -> str:
        return self._node_name or self._addresses[self._index]

    def _enter(self, word: LinkWord, now: float) -> None:
        if word != self._word:
            self._word = word
            self._since = now
