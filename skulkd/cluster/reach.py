"""Whether a node could be dialled at what it says of itself, before the cluster relies on it."""

from typing import Final

from skulkd.cluster.addresses import split_address
from skulkd.cluster.probe import probe

REACH_S: Final = 2.0
"""For one address."""


async def reach_back(addresses: tuple[str, ...]) -> str:
    """Dial each `HOST:BASE` until one answers.

    Args:
        addresses: As a guest has sent them; each reads as an address.

    Returns:
        Nothing when one did; else why each of them did not, in words.
    """
    reasons: list[str] = []
    for address in addresses:
        found = await probe(*split_address(address), REACH_S)
        if found.outcome == "open":
            return ""
        reasons.append(found.reason)
    return "; ".join(dict.fromkeys(reasons)) or "it has no address"
