"""The tailnet that this machine may be part of: its name there, and its addresses.

Tailscale's own program knows; without it an address in the range that tailnets use shows that there
is one, and a resolver may tell the name. Both may hang, and then count as knowing nothing.
"""

import asyncio
import logging
import shutil
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Annotated, Final

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from skulkd.cluster.addresses import MachineAddresses
from skulkd.runtime.tasks import timeout

_log = logging.getLogger(__name__)

RANGE: Final = ip_network("100.64.0.0/10")
"""Of tailnets, by Tailscale's documentation; also that of providers' own NAT (RFC 6598)."""
PROGRAMS: Final = ("tailscale", "/Applications/Tailscale.app/Contents/MacOS/Tailscale")
ANSWER_WITHIN_S: Final = 2.0
_MAGIC_SUFFIX: Final = ".ts.net"
"""Names that a resolver tells count under it alone: others may be the provider's."""

Run = Callable[[Sequence[str], float], Awaitable[bytes | None]]
"""Runs a program for at most so many seconds; gives what it said, None where it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tailnet:
    """What is known of the tailnet."""

    name: str = ""
    """This machine's whole name there, in lower case; empty where nobody tells it."""
    addresses: tuple[str, ...] = ()


class _Own(BaseModel):
    name: Annotated[
        str, StringConstraints(pattern=r"^[A-Za-z0-9.-]*$", max_length=253, to_lower=True)
    ] = Field(default="", alias="DNSName")
    addresses: Annotated[tuple[str, ...], Field(max_length=16)] | None = Field(
        default=None, alias="TailscaleIPs"
    )


class _Status(BaseModel):
    """The part of `tailscale status --json` that is of use."""

    state: str = Field(default="", alias="BackendState")
    own: _Own | None = Field(default=None, alias="Self")


async def find_tailnet(
    machine: MachineAddresses, *, run: Run, programs: Sequence[str] = PROGRAMS
) -> Tailnet | None:
    """Find the tailnet; None where there is none, within 4 s in any case.

    Args:
        machine: Its addresses.
        run: Runs a program.
        programs: Tailscale's, by name or path, in the order in which they are tried.
    """
    program = next((found for name in programs if (found := shutil.which(name))), None)
    told = None if program is None else await _ask(program, run)
    if told is not None:
        return told
    hosts = tuple(one.host for one in machine.addresses if one.ip in RANGE)
    return Tailnet(name=await _name_of(hosts[0]), addresses=hosts) if hosts else None


async def _ask(program: str, run: Run) -> Tailnet | None:
    said = await run((program, "status", "--json", "--peers=false"), ANSWER_WITHIN_S)
    try:
        status = _Status.model_validate_json(said or b"")
        own = status.own
        addresses = tuple(str(ip_address(text)) for text in (own and own.addresses) or ())
    except (ValidationError, ValueError) as error:
        _log.info("%s tells nothing of a tailnet: %s", program, " ".join(str(error).split())[:200])
        return None
    if own is None or status.state != "Running":
        return None
    return Tailnet(name=own.name.rstrip("."), addresses=addresses)


async def _name_of(host: str) -> str:
    try:
        async with timeout(ANSWER_WITHIN_S):
            name, _ = await asyncio.get_running_loop().getnameinfo((host, 0), socket.NI_NAMEREQD)
    except (OSError, TimeoutError):
        return ""
    name = name.lower().rstrip(".")
    return name if name.endswith(_MAGIC_SUFFIX) else ""
