"""Whether anybody listens at an address: a plain TCP connection, closed at once.

ZeroMQ hides why a connection fails, and the reason is what an election needs: a connection that is
refused says that the process has ended, and silence says nothing.
"""

import asyncio
import errno
import sys
from dataclasses import dataclass
from typing import Final, Literal

from skulkd.runtime.tasks import timeout

_MACOS_HINT: Final = (
    "; if this machine reaches others, macOS withholds its Local Network permission: allow it in "
    "System Settings, Privacy & Security, or run skulkd as a system daemon"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What became of the connection."""

    outcome: Literal["open", "refused", "unreachable"]
    ip: str = ""
    """The address that a name stands for, when open."""
    reason: str = ""


async def probe(host: str, port: int, timeout_s: float) -> Probe:
    """Connect and hang up."""
    try:
        async with timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return Probe(outcome="refused", reason=f"nobody listens at {host} port {port}")
    except TimeoutError:
        return Probe(
            outcome="unreachable",
            reason=f"{host} port {port} does not answer within {timeout_s:.1f} s",
        )
    except OSError as error:
        reason = f"{host} port {port}: {error.strerror or error}"
        if error.errno == errno.EHOSTUNREACH and sys.platform == "darwin":
            reason += _MACOS_HINT
        return Probe(outcome="unreachable", reason=reason)
    except UnicodeError as error:  # of a name that no name service could be asked for
        return Probe(outcome="unreachable", reason=f"{host} port {port}: {error}")
    # A process that is killed just now has cut the connection before it could be asked about.
    peer: tuple[str, int] | None = writer.get_extra_info("peername")
    writer.close()
    if peer is None:
        return Probe(outcome="unreachable", reason=f"{host} port {port} hung up at once")
    return Probe(outcome="open", ip=peer[0])
