"""How the way to the cluster is, as the status row shows it; set by the link, read by everything.

Times are monotonic seconds of the program's clock.
"""

from dataclasses import dataclass
from typing import Literal

LinkWord = Literal[
    "connecting", "syncing", "live", "stale", "lost", "resuming", "incompatible", "denied"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkView:
    """The state of the session at one moment.

    `reason` and `remedy` are empty while there is nothing to explain.
    """

    word: LinkWord
    since: float
    url: str
    """The address in use, or tried next."""
    node_name: str = ""
    """Who answers there, as far as that is known."""
    last_frame_at: float | None = None
    """When anything came from the node; None before the first frame of this run."""
    attempt: int = 0
    """How many tries have failed in a row."""
    retry_at: float | None = None
    """When the next try begins; None while one is under way or none is needed."""
    progress_ratio: float | None = None
    """While syncing: topics complete, of those asked for."""
    reason: str = ""
    remedy: str = ""

    @property
    def may_change(self) -> bool:
        """Whether changes can be sent; a stale view is asked about first."""
        return self.word in {"live", "stale"}

    def age_s(self, now: float) -> float | None:
        """Since the last frame, in seconds."""
        return None if self.last_frame_at is None else max(0.0, now - self.last_frame_at)
