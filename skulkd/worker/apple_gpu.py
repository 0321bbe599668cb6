"""Apple's GPU: part of the processor, on the host's memory, measured by ioreg without root."""

import platform
import re
from typing import Final

import psutil

from protocol.nodes import Accelerator
from protocol.readings import AcceleratorReading

_METAL_SHARE: Final = 3 / 4
"""Of unified memory, by the system's default limit on what the GPU may wire."""
IOREG: Final = ("/usr/sbin/ioreg", "-r", "-d", "1", "-w", "0", "-c", "IOAccelerator")
_BUSY: Final = re.compile(r'"Device Utilization %"=(\d+)')


def apple_devices() -> tuple[Accelerator, ...]:
    """Give the GPU of Apple's own processors."""
    if platform.machine() != "arm64":
        return ()
    return (
        Accelerator(
            index=0,
            vendor="apple",
            name="Apple GPU",
            compute="metal",
            memory_bytes=int(psutil.virtual_memory().total * _METAL_SHARE),
            unified=True,
            seen_by="platform",
        ),
    )


def parse_ioreg(text: str) -> AcceleratorReading:
    """Read how busy the GPU is; watts, heat and clock are told to root only, and so unknown."""
    found = _BUSY.search(text)
    percent = None if found is None else int(found.group(1))
    return AcceleratorReading(busy_ratio=None if percent is None else min(1.0, percent / 100))
