"""NVIDIA's devices, asked through the driver's own library (NVML), or through nvidia-smi.

The library answers in microseconds where the tool takes 50 ms of processor time and more. The tool
remains for installations whose library does not load, such as one that is newer than the driver.
"""

import importlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast, final

from protocol.readings import AcceleratorReading

_log = logging.getLogger(__name__)

SMI_QUERY: Final = (
    "--query-gpu=name,memory.total,memory.free,utilization.gpu,power.draw,temperature.gpu,clocks.sm",
    "--format=csv,noheader,nounits",
)
_SMI_FIGURES: Final = 6
"""Behind the name, which may hold commas."""
_MIB: Final = 1 << 20
_SENSOR_GPU: Final = 0
_CLOCK_SM: Final = 1
_MAX_DEVICES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaDevice:
    """One device as the driver tells of it; memory is None on boards that share the host's."""

    name: str
    total_bytes: int | None
    now: AcceleratorReading


@dataclass(frozen=True, slots=True)
class Nvml:
    """The module `pynvml`, which comes without types."""

    error: type[Exception]
    """What its functions raise."""
    call: Callable[..., object]
    """Calls one of its functions, by its name, with its arguments."""


def load_nvml() -> Nvml:
    """Import the bindings; 120 ms and some megabytes, so only where there is a driver.

    Raises:
        ImportError: They are not installed.
    """
    module = importlib.import_module("pynvml")

    def call(name: str, *arguments: object) -> object:
        return getattr(module, name)(*arguments)

    return Nvml(module.NVMLError, call)


class _Memory(Protocol):
    total: int
    free: int


class _Rates(Protocol):
    gpu: int


@final
class NvmlDevices:
    """The driver's library, kept open.

    Args:
        load: Gives the bindings.
    """

    def __init__(self, load: Callable[[], Nvml] = load_nvml) -> None:
        self._load = load
        self._nvml: Nvml | None = None
        self._complaint = ""

    def measure(self) -> tuple[NvidiaDevice, ...] | None:
        """Ask for all devices, in the driver's order. Blocks.

        Returns:
            None when the library does not answer; it is opened anew at the next call, since a
            driver may have been exchanged, or have lost its devices over a suspend.
        """
        try:
            nvml = self._nvml or self._load()
        except ImportError as error:
            self._complain(str(error))
            return None
        try:
            if self._nvml is None:
                nvml.call("nvmlInit")
                self._nvml = nvml
            count = min(cast("int", nvml.call("nvmlDeviceGetCount")), _MAX_DEVICES)
            found = tuple(_device(nvml, index) for index in range(count))
        except nvml.error as error:
            self._close(nvml)
            self._complain(str(error))
            return None
        self._complaint = ""
        return found

    def _close(self, nvml: Nvml) -> None:
        if self._nvml is None:
            return
        self._nvml = None
        try:
            nvml.call("nvmlShutdown")
        except nvml.error as error:
            _log.debug("the driver's library was not closed: %s", error)

    def _complain(self, reason: str) -> None:
        if reason != self._complaint:
            self._complaint = reason
            _log.warning("NVIDIA's library does not answer, nvidia-smi is asked: %s", reason)


def parse_nvidia_smi(text: str) -> tuple[NvidiaDevice, ...]:
    """Read the lines that `SMI_QUERY` asks for; what is no number is unknown."""
    devices: list[NvidiaDevice] = []
    for line in text.splitlines():
        name, *figures = (part.strip() for part in line.rsplit(",", _SMI_FIGURES))
        if len(figures) == _SMI_FIGURES:
            devices.append(_told(name, [_number(figure) for figure in figures]))
    return tuple(devices)


def _told(name: str, figures: Sequence[float | None]) -> NvidiaDevice:
    total_mib, free_mib, busy_percent, watts, celsius, mhz = figures
    return NvidiaDevice(
        name=name,
        total_bytes=None if total_mib is None else int(total_mib) * _MIB,
        now=AcceleratorReading(
            free_bytes=None if free_mib is None else int(free_mib) * _MIB,
            busy_ratio=None if busy_percent is None else busy_percent / 100,
            watts=watts,
            celsius=celsius,
            mhz=mhz,
        ),
    )


def _number(text: str) -> float | None:
    return float(text) if text.replace(".", "", 1).isdecimal() else None


def _device(nvml: Nvml, index: int) -> NvidiaDevice:
    handle = nvml.call("nvmlDeviceGetHandleByIndex", index)

    def ask(function: str, *more: int) -> object:
        """Not every board can tell everything: what it cannot is unknown."""
        try:
            return nvml.call(function, handle, *more)
        except nvml.error:
            return None

    memory = cast("_Memory | None", ask("nvmlDeviceGetMemoryInfo"))
    rates = cast("_Rates | None", ask("nvmlDeviceGetUtilizationRates"))
    milliwatts = cast("int | None", ask("nvmlDeviceGetPowerUsage"))
    celsius = cast("int | None", ask("nvmlDeviceGetTemperature", _SENSOR_GPU))
    mhz = cast("int | None", ask("nvmlDeviceGetClockInfo", _CLOCK_SM))
    return NvidiaDevice(
        name=cast("str | None", ask("nvmlDeviceGetName")) or "NVIDIA GPU",
        total_bytes=None if memory is None else memory.total,
        now=AcceleratorReading(
            free_bytes=None if memory is None else memory.free,
            busy_ratio=None if rates is None else rates.gpu / 100,
            watts=None if milliwatts is None else milliwatts / 1000,
            celsius=None if celsius is None else float(celsius),
            mhz=None if mhz is None else float(mhz),
        ),
    )
