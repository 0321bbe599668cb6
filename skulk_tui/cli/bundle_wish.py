"""What a bundle is to hold: which nodes, which parts, since when, and how often it looks again."""

from dataclasses import dataclass
from typing import Final

from protocol.errors import ClientError
from protocol.ids import NodeId
from skulk_tui.cli.nearest import unknown_value

MAX_LOG_BYTES: Final = 8 << 20
"""Of one node, before it is compressed; the newest lines count."""
MAX_DOCUMENT_BYTES: Final = 4 << 20
MAX_SAMPLES: Final = 1000
MAX_SAMPLED_BYTES: Final = 64 << 20
"""Of all samples together, before they are compressed; the first ones count."""

PARTS: Final = ("state", "events", "identity", "health", "cluster", "config", "log")
LEVELS: Final = ("debug", "info", "warning", "error", "critical")
"""Of a log's lines, the least first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Looking again at what changes: state, health and readings."""

    interval_s: float
    n_samples: int
    """Beside the first look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleWish:
    """What a bundle is to hold."""

    nodes: tuple[NodeId, ...]
    left_out: tuple[NodeId, ...] = ()
    since_ms: int | None = None
    """Logs and events from before are left out; None takes the last thousand."""
    parts: frozenset[str] = frozenset(PARTS)
    min_level: str | None = None
    """Lines of logs below it are left out; a line without a level stays."""
    sampling: Sampling | None = None

    @property
    def at_most_bytes(self) -> int:
        """Before compression."""
        of_cluster = self.parts & {"state", "events"}
        of_node = self.parts - {"state", "events", "log"}
        log_bytes = MAX_LOG_BYTES if "log" in self.parts else 0
        per_node = log_bytes + len(of_node) * MAX_DOCUMENT_BYTES
        sampled = MAX_SAMPLED_BYTES if self.sampling is not None else 0
        return len(self.nodes) * per_node + len(of_cluster) * MAX_DOCUMENT_BYTES + sampled

    def wants_line(self, level: str | None) -> bool:
        """Whether a line of a log is wanted, by its level."""
        if self.min_level is None or level not in LEVELS:
            return True
        return LEVELS.index(level) >= LEVELS.index(self.min_level)


def parts_of(include: str | None, exclude: str | None) -> frozenset[str]:
    """Read which parts are wanted.

    Raises:
        ClientError: `client.usage`: a part is not known, or none is left.
    """
    wanted = _words(include) if include is not None else frozenset(PARTS)
    wanted -= _words(exclude or "")
    if not wanted:
        raise ClientError(
            "client.usage",
            "the bundle would hold nothing",
            remediation=f"Its parts are {', '.join(PARTS)}; leave some of them.",
        )
    return wanted


def level_of(word: str | None) -> str | None:
    """Read the lowest level that is wanted of a log.

    Raises:
        ClientError: `client.usage`: there is no such level.
    """
    if word is None:
        return None
    level = "warning" if word.lower() == "warn" else word.lower()
    if level not in LEVELS:
        raise unknown_value("a level", word, LEVELS)
    return level


def sampling_of(duration_s: float | None, interval_s: float) -> Sampling | None:
    """Plan the further looks.

    Args:
        duration_s: How long to look, in seconds; None looks once.
        interval_s: From the start of one look to the start of the next, in seconds.

    Raises:
        ClientError: `client.usage`: that would be none, or more than `MAX_SAMPLES`.
    """
    if duration_s is None:
        return None
    n_samples = int(duration_s / interval_s)
    if not 1 <= n_samples <= MAX_SAMPLES:
        raise ClientError(
            "client.usage",
            f"{duration_s:g} s at one look each {interval_s:g} s are {n_samples} looks, and 1 to "
            f"{MAX_SAMPLES} are possible",
            remediation="Choose --duration and --interval accordingly.",
        )
    return Sampling(interval_s=interval_s, n_samples=n_samples)


def _words(text: str) -> frozenset[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    for word in words:
        if word not in PARTS:
            raise unknown_value("a part of a bundle", word, PARTS)
    return frozenset(words)
