"""How long a node waits without a master before it may act; pure.

A majority waits for the suspicion time, and not at all once the master is known to be gone. The few
wait longer: most often it is they who are cut off. They need not when everybody else is known to
have ended (home machines that are switched off), and wait ever longer when what they elected keeps
coming to nothing (a link that flaps).
"""

from typing import Final, final

from skulkd.core.sight import LAG_REMEMBERED_S, SUSPICION_S, Sight
from skulkd.core.voting import Claim

MINORITY_WAIT_S: Final = 10.0
MEETING_S: Final = 2.0
MAX_MINORITY_WAIT_S: Final = 80.0
CALM_S: Final = 120.0
"""After so long under one master the wait of the few is short again."""


@final
class Patience:
    """The waiting of one node.

    Args:
        now: Boot time in seconds: the start, before which nobody was heard.
    """

    def __init__(self, *, now: float) -> None:
        self._started_s = self._calm_since_s = now
        self._without_s = now
        self._short_s = now + SUSPICION_S
        self._few_wait_s = MINORITY_WAIT_S
        self._term: Claim | None = None
        """The last one."""
        self._outbid_s: float | None = None
        self._is_certain = False
        self._needed_s: float | None = None

    def lost_master(self, *, silent_s: float, is_certain: bool, now: float) -> None:
        """There is no master any more.

        Args:
            silent_s: For how long it had been silent.
            is_certain: It is known to have ended or given up: no silence was counted.
            now: Boot time in seconds.
        """
        self._is_certain = is_certain
        self._short_s = now
        self._without_s = now - silent_s

    def has_master(self, term: Claim, *, now: float) -> None:
        """This node leads or follows a master that is heard; to be called again and again."""
        former, self._term = self._term, term
        if former is None or former.pair != term.pair:
            self._calm_since_s = now
            is_other = former is not None and former.pair.master != term.pair.master
            if former is not None and former.is_minority and is_other:
                self._few_wait_s = min(MAX_MINORITY_WAIT_S, 2 * self._few_wait_s)
        elif now - self._calm_since_s >= CALM_S:
            self._few_wait_s = MINORITY_WAIT_S

    def is_needed(self, *, now: float) -> None:
        """Another node also misses the master, and was denied for its older log."""
        self._needed_s = now

    def may_accuse(self, sight: Sight, *, now: float) -> bool:
        """Say whether a node may act on what it misses, though its own loop may have been late.

        It may when it does not lag; when it is certain, or not alone in missing the master; and
        when those that hear it lag as well, so that nobody sees better.
        """
        if self._is_certain or not sight.is_lagging(now=now):
            return True
        is_needed = self._needed_s is not None and now - self._needed_s <= LAG_REMEMBERED_S
        return is_needed or sight.all_lag(now=now)

    def is_new(self, *, now: float) -> bool:
        """Say whether a master may be there and not have been heard yet."""
        return now < self._started_s + SUSPICION_S

    def may_act(self, sight: Sight, *, now: float) -> bool:
        """Say whether a node that is masterless may campaign."""
        if now < self._short_s:
            return False
        if sight.has_majority(now=now):
            return True
        return sight.log.policy == "availability" and self.may_be_few(sight, now=now)

    def may_outbid(self, term: Claim, sight: Sight, *, is_outbid: bool, now: float) -> bool:
        """Say whether a master that has heard of a higher term may campaign for one above it.

        A settled master does so at once when a majority is near, and long after otherwise: with
        fewer its term would become a minority's. A minority's gives others a moment to be met:
        most often links that were cut are just opening again, one by one.
        """
        if not is_outbid:
            self._outbid_s = None
            return False
        if self._outbid_s is None:
            self._outbid_s = now
        if not term.is_minority:
            return sight.has_majority(now=now) or now >= self._outbid_s + MINORITY_WAIT_S
        return now >= self._outbid_s + MEETING_S

    def may_be_few(self, sight: Sight, *, now: float) -> bool:
        """Say whether half of the voters or fewer may elect: the rest is gone, or long silent."""
        return now >= self._without_s + self._few_wait_s or sight.is_rest_gone(now=now)
