"""Who dialled and was refused: a bounded list, and a log that a flood cannot fill."""

import logging
from dataclasses import replace
from typing import Final, final

from skulkd.cluster.guests import Stranger

MAX_STRANGERS: Final = 64
KEPT_S: Final = 3600.0
LOG_INTERVAL_S: Final = 60.0
"""Between two lines about one key."""
MAX_LINES: Final = 10
"""In one interval, about all keys together."""
NO_MEMBER: Final = "its key is neither a member's nor an invitation's"

_log = logging.getLogger(__name__)


@final
class StrangerList:
    """Remembers refusals by key and host."""

    def __init__(self) -> None:
        self._strangers: dict[tuple[bytes, str], Stranger] = {}
        """The one that tried last comes last."""
        self._logged_s: dict[bytes, float] = {}
        self._lines_since_s = float("-inf")
        self._n_lines = 0
        self.n_refused = 0
        """All refusals since the start."""

    def note(self, public_key: bytes, address: str, reason: str, *, now_s: float) -> None:
        """Remember a refusal, and log it if nothing was logged about this key for a minute."""
        self.n_refused += 1
        known = self._strangers.pop((public_key, address), None)
        if known is None:
            known = Stranger(
                public_key=public_key,
                address=address,
                reason=reason,
                first_s=now_s,
                last_s=now_s,
                n_tries=0,
            )
        self._strangers[public_key, address] = replace(
            known, reason=reason, last_s=now_s, n_tries=known.n_tries + 1
        )
        if len(self._strangers) > MAX_STRANGERS:
            del self._strangers[next(iter(self._strangers))]
        if self._may_log(public_key, now_s):
            _log.warning("refused %s with the key %s: %s", address, public_key.hex()[:16], reason)

    def listed(self, now_s: float) -> tuple[Stranger, ...]:
        """List those of the last hour, newest first."""
        recent = [one for one in self._strangers.values() if now_s - one.last_s <= KEPT_S]
        return tuple(reversed(recent))

    def _may_log(self, public_key: bytes, now_s: float) -> bool:
        if now_s - self._lines_since_s >= LOG_INTERVAL_S:
            self._lines_since_s, self._n_lines = now_s, 0
            self._logged_s = {
                key: at_s for key, at_s in self._logged_s.items() if now_s - at_s < LOG_INTERVAL_S
            }
        is_known = now_s - self._logged_s.get(public_key, float("-inf")) < LOG_INTERVAL_S
        if is_known or self._n_lines >= MAX_LINES:
            return False
        self._n_lines += 1
        self._logged_s[public_key] = now_s
        return True
