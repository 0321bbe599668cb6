"""Which accelerators this machine has, and what each of them is doing.

Only what was seen is said: a device without a readable memory size has an unknown one. Parsing is
separate from asking, since most of these devices are on somebody else's machine.
"""

import shutil
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, final

import psutil

from protocol.errors import RunnerError
from protocol.nodes import Accelerator
from protocol.readings import AcceleratorReading
from skulkd.runtime.tasks import run_blocking
from skulkd.worker.apple_gpu import IOREG, SYSCTL, apple_devices, is_apple_silicon, parse_ioreg
from skulkd.worker.drm import drm_devices
from skulkd.worker.nvidia import SMI_QUERY, NvidiaDevice, NvmlDevices, parse_nvidia_smi
from skulkd.worker.run import CompletedRun

RunTool = Callable[[Sequence[str], float, int], Awaitable[CompletedRun]]
"""`worker.run.run_bounded`."""

_TOOL_TIMEOUT_S: Final = 10.0
"""nvidia-smi needs seconds while a driver without persistence mode wakes up."""
_TOOL_OUTPUT_BYTES: Final = 64 << 10
_NVIDIA_SMI: Final = "nvidia-smi"
_TOOL_EVERY_S: Final = 10.0
"""A vendor's tool costs 50 ms of processor time and more, its library or a file next to nothing."""
_UNKNOWN: Final = AcceleratorReading()


@final
class AcceleratorProbe:
    """Looks for accelerators, and measures those it found.

    Args:
        run: Runs a vendor's tool.
        root: What stands for `/`.
        nvml: NVIDIA's library.
    """

    def __init__(
        self, run: RunTool, root: Path = Path("/"), *, nvml: NvmlDevices | None = None
    ) -> None:
        self._run = run
        self._nvml = nvml or NvmlDevices()
        self._drm = root / "sys/class/drm"
        self._nvidia = root / "proc/driver/nvidia/gpus"
        self._uses_tool = sys.platform == "darwin"

    @property
    def measure_every_s(self) -> float:
        """How often `measure` is worth its cost."""
        return _TOOL_EVERY_S if self._uses_tool else 0.0

    async def find(self) -> tuple[Accelerator, ...]:
        """List the accelerators, NVIDIA's first, in the order their own tools number them."""
        if sys.platform == "darwin":
            return await self._apple_devices()
        nvidia, seen_by = await self._nvidia_devices()
        if nvidia is None:
            found = [_unmeasured_nvidia(name) for name in self._nvidia_names()]
        else:
            found = [_measured_nvidia(device, seen_by) for device in nvidia]
        found += [device.accelerator for device in await run_blocking(drm_devices, self._drm)]
        return tuple(
            device.model_copy(update={"index": index}) for index, device in enumerate(found)
        )

    async def measure(self, devices: Sequence[Accelerator]) -> tuple[AcceleratorReading, ...]:
        """Measure the devices that `find` gave, in their order; what cannot be had is unknown.

        The free memory of a unified device is of what the device may take of the host's.
        """
        by_vendor: dict[str, Iterator[AcceleratorReading]] = {}
        vendors = {device.vendor for device in devices}
        if "nvidia" in vendors:
            nvidia, _ = await self._nvidia_devices()
            by_vendor["nvidia"] = iter([device.now for device in nvidia or ()])
        if "amd" in vendors:
            by_vendor["amd"] = iter(await run_blocking(self._amd_readings))
        if "apple" in vendors:
            by_vendor["apple"] = iter([await self._apple_reading()])
        return tuple(next(by_vendor.get(device.vendor, iter(())), _UNKNOWN) for device in devices)

    async def _nvidia_devices(self) -> tuple[tuple[NvidiaDevice, ...] | None, str]:
        """Ask the library, else the tool; says also which of them has answered."""
        if not self._nvidia.is_dir():
            return None, ""
        devices = await run_blocking(self._nvml.measure)
        self._uses_tool = devices is None
        if devices is not None:
            return devices, "NVML"
        tool = shutil.which(_NVIDIA_SMI)
        text = None if tool is None else await self._output((tool, *SMI_QUERY))
        return (None if text is None else parse_nvidia_smi(text)), _NVIDIA_SMI

    async def _apple_devices(self) -> tuple[Accelerator, ...]:
        if not is_apple_silicon():
            return ()
        return apple_devices(await self._output(SYSCTL) or "", psutil.virtual_memory().total)

    async def _apple_reading(self) -> AcceleratorReading:
        return parse_ioreg(await self._output(IOREG) or "")

    async def _output(self, argv: Sequence[str]) -> str | None:
        try:
            run = await self._run(argv, _TOOL_TIMEOUT_S, _TOOL_OUTPUT_BYTES)
        except RunnerError:
            return None
        return run.stdout.decode("utf-8", "replace") if run.exit_code == 0 else None

    def _nvidia_names(self) -> list[str]:
        names: list[str] = []
        for path in sorted(self._nvidia.glob("*/information")):
            lines = path.read_text("utf-8", "replace").splitlines()
            model = next((line for line in lines if line.startswith("Model:")), "")
            names.append(model.partition(":")[2].strip() or "NVIDIA GPU")
        return names

    def _amd_readings(self) -> list[AcceleratorReading]:
        found = drm_devices(self._drm)
        return [device.measure() for device in found if device.accelerator.vendor == "amd"]


def _measured_nvidia(device: NvidiaDevice, seen_by: str) -> Accelerator:
    return Accelerator(
        index=0,
        vendor="nvidia",
        name=device.name,
        compute="cuda",
        memory_bytes=device.total_bytes,
        unified=device.total_bytes is None,
        seen_by=seen_by,
    )


def _unmeasured_nvidia(name: str) -> Accelerator:
    return Accelerator(
        index=0, vendor="nvidia", name=name, compute="cuda", seen_by="/proc/driver/nvidia"
    )
