"""Apple's GPU: part of the processor, on the host's memory, measured by ioreg without root."""

import platform
import re
from typing import Final

from protocol.nodes import Accelerator
from protocol.readings import AcceleratorReading

_METAL_SHARE: Final = 3, 4
_METAL_SHARE_OF_LITTLE: Final = 2, 3
_LITTLE_BYTES: Final = 36 << 30
"""Below this much RAM the GPU may wire two thirds of it by default, else three quarters: what
`recommendedMaxWorkingSetSize` says on machines of 8 to 512 GB."""
_SYSTEM_BYTES: Final = 1 << 30
"""Left to the system, whatever limit somebody has set."""
SYSCTL: Final = ("/usr/sbin/sysctl", "machdep.cpu.brand_string", "iogpu.wired_limit_mb")
"""The limit is 0 where nobody has set one; macOS before 14 does not know it."""
IOREG: Final = ("/usr/sbin/ioreg", "-r", "-d", "1", "-w", "0", "-c", "IOAccelerator")
_SYSCTL_LINE: Final = re.compile(r"^([\w.]+): (.+)$", re.MULTILINE)
_MIB: Final = re.compile(r"[0-9]{1,8}")
_BUSY: Final = re.compile(r'"Device Utilization %"=(\d+)')


def is_apple_silicon() -> bool:
    """Say whether the processor is Apple's own; Intel's Macs have no GPU that an engine uses."""
    return platform.machine() == "arm64"


def apple_devices(sysctl: str, memory_bytes: int) -> tuple[Accelerator, ...]:
    """Give the GPU of Apple's own processors.

    Args:
        sysctl: What `SYSCTL` says; "" where it does not answer.
        memory_bytes: RAM of the machine.
    """
    told = dict(_SYSCTL_LINE.findall(sysctl))
    limit_mib = _MIB.fullmatch(told.get("iogpu.wired_limit_mb", ""))
    limit_bytes = int(limit_mib[0]) << 20 if limit_mib else 0
    part, whole = _METAL_SHARE_OF_LITTLE if memory_bytes < _LITTLE_BYTES else _METAL_SHARE
    wired_bytes = limit_bytes or memory_bytes * part // whole
    return (
        Accelerator(
            index=0,
            vendor="apple",
            name=told.get("machdep.cpu.brand_string", "Apple GPU")[:100],
            compute="metal",
            memory_bytes=min(wired_bytes, memory_bytes - _SYSTEM_BYTES),
            unified=True,
            seen_by="sysctl iogpu.wired_limit_mb" if limit_bytes else "platform",
        ),
    )


def parse_ioreg(text: str) -> AcceleratorReading:
    """Read how busy the GPU is; watts, heat and clock are told to root only, and so unknown."""
    found = _BUSY.search(text)
    percent = None if found is None else int(found.group(1))
    return AcceleratorReading(busy_ratio=None if percent is None else min(1.0, percent / 100))
