"""How long things may take on a machine that has other work, too.

A promise of seconds is one for a machine of one's own. Where programs queue for the processors,
each step of a test waits for its turn as well, and a limit that does not know of it fails for no
fault.
"""

import os
from typing import Final

QUIET_RATIO: Final = 0.5
"""Of the processors: a test that waits for a few daemons keeps about as many busy by itself."""


def allowed_s(promised_s: float) -> float:
    """Give how long something may take now: what is promised, and as often again as others wait."""
    busy_ratio = os.getloadavg()[0] / (os.cpu_count() or 1)
    return promised_s * (1.0 + max(0.0, busy_ratio - QUIET_RATIO))
