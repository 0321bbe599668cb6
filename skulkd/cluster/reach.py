"""Whether somebody listens at an address: a TCP connection that is closed at once."""

import asyncio
from typing import Final

from skulkd.cluster.addresses import split_address
from skulkd.runtime.tasks import timeout

REACH_S: Final = 2.0
"""For one address."""


async def reach_back(addresses: tuple[str, ...]) -> str:
    """Dial each `HOST:BASE` until one answers.

    Returns:
        Nothing when one did; else why each of them did not, in words.
    """
    reasons: list[str] = []
    for address in addresses:
        reason = await _dial(*split_address(address))
        if not reason:
            return ""
        reasons.append(reason)
    return "; ".join(dict.fromkeys(reasons)) or "it has no address"


async def _dial(host: str, port: int) -> str:
    try:
        async with timeout(REACH_S):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return f"no connection to port {port} within {REACH_S:.0f} s"
    except ConnectionRefusedError:
        return f"nobody listens at port {port}"
    except OSError as error:
        return f"port {port}: {error.strerror or error}"
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        return ""  # it was open, which is all that was asked
    return ""
