"""Which accelerators this machine has, and how much of their memory is free.

Only what was seen is said: a device without a readable memory size has an unknown one. Parsing is
separate from asking, since most of these devices are on somebody else's machine.
"""

import platform
import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import psutil

from protocol.errors import RunnerError
from protocol.nodes import Accelerator
from skulkd.worker.run import CompletedRun

RunTool = Callable[[Sequence[str], float, int], Awaitable[CompletedRun]]
"""`worker.run.run_bounded`."""

_TOOL_TIMEOUT_S: Final = 10.0
"""nvidia-smi needs seconds while a driver without persistence mode wakes up."""
_TOOL_OUTPUT_BYTES: Final = 64 << 10
_MIB: Final = 1 << 20
_NVIDIA_SMI: Final = "nvidia-smi"
_QUERY: Final = ("--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits")
_VENDORS: Final[dict[str, str]] = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
_METAL_SHARE: Final = 3 / 4
"""Of unified memory, by the system's default limit on what the GPU may wire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaDevice:
    """One line of nvidia-smi; memory is None on boards that share the host's."""

    name: str
    total_bytes: int | None
    free_bytes: int | None


@final
class AcceleratorProbe:
    """Looks for accelerators, and measures those it found.

    Args:
        run: Runs a vendor's tool.
        root: What stands for `/`.
    """

    def __init__(self, run: RunTool, root: Path = Path("/")) -> None:
        self._run = run
        self._drm = root / "sys/class/drm"
        self._nvidia = root / "proc/driver/nvidia/gpus"

    async def find(self) -> tuple[Accelerator, ...]:
        """List the accelerators, NVIDIA's first, in the order their own tools number them."""
        if sys.platform == "darwin":
            return _apple()
        nvidia = await self._nvidia_devices()
        if nvidia is None:
            found = [_unmeasured_nvidia(name) for name in self._nvidia_names()]
        else:
            found = [_measured_nvidia(device) for device in nvidia]
        found += self._drm_devices()
        return tuple(
            device.model_copy(update={"index": index}) for index, device in enumerate(found)
        )

    async def free_bytes(self, devices: Sequence[Accelerator]) -> tuple[int | None, ...]:
        """Measure the free memory of the devices that `find` gave, in their order.

        Unified memory is the host's, and not measured here.
        """
        nvidia: list[int | None] = []
        if any(device.seen_by == _NVIDIA_SMI for device in devices):
            nvidia = [device.free_bytes for device in await self._nvidia_devices() or ()]
        amd = [_amd_free_bytes(card) for card in self._cards("amd")]
        by_vendor = {"nvidia": iter(nvidia), "amd": iter(amd)}
        return tuple(next(by_vendor.get(device.vendor, iter(())), None) for device in devices)

    async def _nvidia_devices(self) -> tuple[NvidiaDevice, ...] | None:
        tool = shutil.which(_NVIDIA_SMI)
        if tool is None or not self._nvidia.is_dir():
            return None
        try:
            run = await self._run([tool, *_QUERY], _TOOL_TIMEOUT_S, _TOOL_OUTPUT_BYTES)
        except RunnerError:
            return None
        return (
            parse_nvidia_smi(run.stdout.decode("utf-8", "replace")) if run.exit_code == 0 else None
        )

    def _nvidia_names(self) -> list[str]:
        names: list[str] = []
        for path in sorted(self._nvidia.glob("*/information")):
            lines = path.read_text("utf-8", "replace").splitlines()
            model = next((line for line in lines if line.startswith("Model:")), "")
            names.append(model.partition(":")[2].strip() or "NVIDIA GPU")
        return names

    def _drm_devices(self) -> list[Accelerator]:
        amd = [_amd(card) for card in self._cards("amd")]
        return amd + [_intel(card) for card in self._cards("intel")]

    def _cards(self, vendor: str) -> list[Path]:
        # `card0-HDMI-A-1` is a connector of card0.
        cards = [path for path in sorted(self._drm.glob("card[0-9]*")) if "-" not in path.name]
        return [
            card for card in cards if _VENDORS.get(_text(card / "device/vendor") or "") == vendor
        ]


def parse_nvidia_smi(text: str) -> tuple[NvidiaDevice, ...]:
    """Read `name, total MiB, free MiB` lines; what is no number is unknown."""
    devices: list[NvidiaDevice] = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.rsplit(",", 2)]
        if len(parts) == len(("name", "total", "free")):
            total_bytes, free_bytes = (_mib(part) for part in parts[1:])
            devices.append(
                NvidiaDevice(name=parts[0], total_bytes=total_bytes, free_bytes=free_bytes)
            )
    return tuple(devices)


def _mib(text: str) -> int | None:
    return int(text) * _MIB if text.isdecimal() else None


def _measured_nvidia(device: NvidiaDevice) -> Accelerator:
    return Accelerator(
        index=0,
        vendor="nvidia",
        name=device.name,
        compute="cuda",
        memory_bytes=device.total_bytes,
        unified=device.total_bytes is None,
        seen_by=_NVIDIA_SMI,
    )


def _unmeasured_nvidia(name: str) -> Accelerator:
    return Accelerator(
        index=0, vendor="nvidia", name=name, compute="cuda", seen_by="/proc/driver/nvidia"
    )


def _amd(card: Path) -> Accelerator:
    return Accelerator(
        index=0,
        vendor="amd",
        name="AMD GPU",
        compute="rocm",
        memory_bytes=_bytes(card / "device/mem_info_vram_total"),
        seen_by=f"/sys/class/drm/{card.name}",
    )


def _amd_free_bytes(card: Path) -> int | None:
    total_bytes = _bytes(card / "device/mem_info_vram_total")
    used_bytes = _bytes(card / "device/mem_info_vram_used")
    if total_bytes is None or used_bytes is None:
        return None
    return max(0, total_bytes - used_bytes)


def _intel(card: Path) -> Accelerator:
    return Accelerator(
        index=0,
        vendor="intel",
        name="Intel GPU",
        compute="vulkan",
        seen_by=f"/sys/class/drm/{card.name}",
    )


def _apple() -> tuple[Accelerator, ...]:
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


def _bytes(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdecimal() else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return None
