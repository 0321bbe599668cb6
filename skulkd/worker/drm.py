"""AMD's and Intel's devices as the kernel shows them in /sys/class/drm.

AMD's processors with graphics live off the RAM: the firmware sets a part of it aside, which the
kernel shows as VRAM and no longer as the host's, and more is lent on demand (GTT). An engine takes
its memory from one of the two, so the larger one counts: set aside it is as memory of its own, lent
it is the host's.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protocol.nodes import Accelerator
from protocol.readings import AcceleratorReading

_VENDORS: Final[dict[str, str]] = {"0x1002": "amd", "0x8086": "intel"}
_AMD_PROCESSORS: Final[dict[str, str]] = {
    "0x15d8": "Radeon Vega (Picasso)",
    "0x15dd": "Radeon Vega (Raven Ridge)",
    "0x15e7": "Radeon Vega (Barcelo)",
    "0x1636": "Radeon Vega (Renoir)",
    "0x1638": "Radeon Vega (Cezanne)",
    "0x164c": "Radeon Vega (Lucienne)",
    "0x163f": "Radeon (Van Gogh)",
    "0x1435": "Radeon (Van Gogh)",
    "0x164d": "Radeon 680M (Rembrandt)",
    "0x1681": "Radeon 680M (Rembrandt)",
    "0x164e": "Radeon (Raphael)",
    "0x1506": "Radeon (Mendocino)",
    "0x13c0": "Radeon (Granite Ridge)",
    "0x15bf": "Radeon 780M (Phoenix)",
    "0x15c8": "Radeon 740M (Phoenix)",
    "0x1900": "Radeon 780M (Hawk Point)",
    "0x1901": "Radeon 740M (Hawk Point)",
    "0x150e": "Radeon 890M (Strix Point)",
    "0x1114": "Radeon 860M (Krackan Point)",
    "0x1586": "Radeon 8060S (Strix Halo)",
}
"""PCI devices that are part of a processor; the numbers are those of the public list of PCI ids."""
_MICRO: Final = 1_000_000
_MILLI: Final = 1000


@dataclass(frozen=True, slots=True)
class DrmDevice:
    """A device and where the kernel tells of it."""

    accelerator: Accelerator
    directory: Path

    def measure(self) -> AcceleratorReading:
        """Read what it is doing; Intel's drivers tell nothing here."""
        if self.accelerator.vendor != "amd":
            return AcceleratorReading()
        pool = "gtt" if self.accelerator.unified else "vram"
        total_bytes = _number(self.directory / f"mem_info_{pool}_total")
        used_bytes = _number(self.directory / f"mem_info_{pool}_used")
        percent = _number(self.directory / "gpu_busy_percent")
        sensors = next(iter(sorted(self.directory.glob("hwmon/hwmon[0-9]*"))), self.directory)
        microwatts = _number(sensors / "power1_average")
        if microwatts is None:
            microwatts = _number(sensors / "power1_input")
        return AcceleratorReading(
            free_bytes=None if total_bytes is None or used_bytes is None
            else max(0, total_bytes - used_bytes),
            busy_ratio=None if percent is None else percent / 100,
            watts=None if microwatts is None else microwatts / _MICRO,
            celsius=_scaled(sensors / "temp1_input", _MILLI),
            mhz=_scaled(sensors / "freq1_input", _MICRO),
        )  # fmt: skip


def drm_devices(directory: Path) -> tuple[DrmDevice, ...]:
    """List them, AMD's first. Blocks.

    Args:
        directory: What stands for /sys/class/drm.
    """
    # `card0-HDMI-A-1` is a connector of card0.
    cards = [path for path in sorted(directory.glob("card[0-9]*")) if "-" not in path.name]
    by_vendor: dict[str, list[DrmDevice]] = {"amd": [], "intel": []}
    for card in cards:
        vendor = _VENDORS.get(_text(card / "device/vendor") or "")
        if vendor is not None:
            accelerator = _amd(card) if vendor == "amd" else _intel(card)
            by_vendor[vendor].append(DrmDevice(accelerator, card / "device"))
    return (*by_vendor["amd"], *by_vendor["intel"])


def _amd(card: Path) -> Accelerator:
    of_processor = _AMD_PROCESSORS.get(_text(card / "device/device") or "")
    own_bytes = _number(card / "device/mem_info_vram_total")
    lent_bytes = _number(card / "device/mem_info_gtt_total")
    is_lent = of_processor is not None and (lent_bytes or 0) > (own_bytes or 0)
    return Accelerator(
        index=0,
        vendor="amd",
        name=of_processor or _text(card / "device/product_name") or "AMD GPU",
        compute="rocm",
        memory_bytes=lent_bytes if is_lent else own_bytes,
        unified=is_lent,
        seen_by=f"/sys/class/drm/{card.name}",
    )


def _intel(card: Path) -> Accelerator:
    return Accelerator(
        index=0,
        vendor="intel",
        name="Intel GPU",
        compute="vulkan",
        seen_by=f"/sys/class/drm/{card.name}",
    )


def _scaled(path: Path, unit: int) -> float | None:
    value = _number(path)
    return None if value is None else value / unit


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdecimal() else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return None
