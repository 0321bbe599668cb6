"""What becomes of an instance that cannot go on, as it is typed."""

import math

from protocol.errors import ClientError
from protocol.instances import MAX_AWAY_S, DisconnectPolicy
from skulk_tui.cli.session import parse_duration


def disconnect_policy(
    lost_after: str | None, *, replace: bool, stop_after: str | None
) -> DisconnectPolicy:
    """Read the options; what is left out is as usual.

    Raises:
        ClientError: `client.usage`.
    """
    usual = DisconnectPolicy()
    if lost_after is not None and not replace:
        raise ClientError(
            "client.usage",
            "--lost-after says when another place is looked for; with --no-replace none is",
            remediation="Leave one of them out.",
        )
    return DisconnectPolicy(
        lost_after_ms=_whole_ms(lost_after, "--lost-after") or usual.lost_after_ms,
        replace=replace,
        stop_after_ms=_whole_ms(stop_after, "--stop-after"),
    )


def _whole_ms(text: str | None, option: str) -> int | None:
    if text is None:
        return None
    seconds = math.ceil(parse_duration(text, option))
    if seconds > MAX_AWAY_S:
        raise ClientError(
            "client.usage",
            f"{option}: {text[:40]} is more than {MAX_AWAY_S // 86400} days",
            remediation="Give less time.",
        )
    return seconds * 1000
