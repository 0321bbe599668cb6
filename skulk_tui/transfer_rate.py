"""The rate of transfers, as people write it and as the setting that keeps it. Pure."""

import re
from typing import Final

from protocol.admin_api import ConfigBody
from protocol.errors import ClientError

RATE_KEY: Final = "transfer_rate_mb_s"
MAX_RATE_MB_S: Final = 100_000
_RATE: Final = re.compile(r"(\d+) ?(mb|gb)?(/s)?", re.ASCII | re.IGNORECASE)
_MAX_CHARS: Final = 20
_MB_IN_GB: Final = 1000


def read_rate(text: str) -> int | None:
    """Read `50MB/s`, `50`, `1GB/s` or `off`: megabytes (10^6 bytes) a second, None is no limit.

    Raises:
        ClientError: `client.usage`.
    """
    if text.casefold() == "off":
        return None
    found = _RATE.fullmatch(text) if len(text) <= _MAX_CHARS else None
    if found is not None:
        unit = (found[2] or "mb").casefold()
        rate_mb_s = int(found[1]) * (_MB_IN_GB if unit == "gb" else 1)
        if 1 <= rate_mb_s <= MAX_RATE_MB_S:
            return rate_mb_s
    raise ClientError(
        "client.usage",
        f"{text[:40]!r} is no rate",
        remediation=f"Write whole megabytes a second from 1 to {MAX_RATE_MB_S}, like 50MB/s; "
        "`off` is no limit.",
    )


def rate_body(rate_mb_s: int | None, *, dry_run: bool = False) -> ConfigBody:
    """Make the change of a node's setting."""
    if rate_mb_s is None:
        return ConfigBody(unset=(RATE_KEY,), dry_run=dry_run)
    return ConfigBody(settings={RATE_KEY: str(rate_mb_s)}, dry_run=dry_run)
