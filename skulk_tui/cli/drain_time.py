"""How long running requests may take to end, as it is typed."""

import math

from protocol.drain_api import MAX_DRAIN_S
from protocol.errors import ClientError
from skulk_tui.cli.session import parse_duration


def parse_drain(text: str, option: str) -> int:
    """Read how long running requests may take to end, in whole seconds.

    Raises:
        ClientError: `client.usage`.
    """
    seconds = math.ceil(parse_duration(text, option))
    if seconds > MAX_DRAIN_S:
        raise ClientError(
            "client.usage",
            f"{option}: {text[:40]} is more than {MAX_DRAIN_S // 3600} hours",
            remediation="Give less time, or wait until the requests have ended.",
        )
    return seconds
