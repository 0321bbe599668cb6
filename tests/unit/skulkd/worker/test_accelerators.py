import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from skulkd.worker.accelerators import AcceleratorProbe, NvidiaDevice, parse_nvidia_smi
from skulkd.worker.run import CompletedRun

MIB = 1 << 20


class NvidiaSmi:
    """Stands for the tool: answers one text."""

    def __init__(self, text: str = "", *, exit_code: int = 0) -> None:
        self.text = text
        self.exit_code = exit_code

    async def __call__(
        self, argv: Sequence[str], timeout_s: float, max_output: int
    ) -> CompletedRun:
        assert argv[0] == "/usr/bin/nvidia-smi"
        return CompletedRun(
            exit_code=self.exit_code, signal=None, stdout=self.text.encode(), stderr=b""
        )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def _add_nvidia(root: Path, name: str, slot: str = "0000:01:00.0") -> None:
    directory = root / "proc/driver/nvidia/gpus" / slot
    directory.mkdir(parents=True)
    (directory / "information").write_text(f"Model: \t\t {name}\nIRQ: 5\n")


def _add_card(root: Path, name: str, vendor: str, **files: str) -> None:
    directory = root / "sys/class/drm" / name / "device"
    directory.mkdir(parents=True)
    (directory / "vendor").write_text(vendor + "\n")
    for file, text in files.items():
        (directory / file).write_text(text + "\n")


def _with_tool(monkeypatch: pytest.MonkeyPatch, *, found: bool = True) -> None:
    def which(_name: str) -> str | None:
        return "/usr/bin/nvidia-smi" if found else None

    monkeypatch.setattr("shutil.which", which)


def test_a_machine_without_devices_has_none(root: Path) -> None:
    probe = AcceleratorProbe(NvidiaSmi(), root)
    assert asyncio.run(probe.find()) == ()
    assert asyncio.run(probe.free_bytes(())) == ()


def test_the_tools_numbers_are_read_also_where_a_value_is_missing() -> None:
    text = "NVIDIA RTX 4090, 24564, 20000\nGrace, with comma, [N/A], [N/A]\nnoise\n"
    assert parse_nvidia_smi(text) == (
        NvidiaDevice(name="NVIDIA RTX 4090", total_bytes=24564 * MIB, free_bytes=20000 * MIB),
        NvidiaDevice(name="Grace, with comma", total_bytes=None, free_bytes=None),
    )


def test_without_the_tool_a_board_is_named_and_its_memory_unknown(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_tool(monkeypatch, found=False)
    _add_nvidia(root, "NVIDIA H100")
    probe = AcceleratorProbe(NvidiaSmi(), root)
    (device,) = asyncio.run(probe.find())
    assert (device.name, device.compute, device.memory_bytes) == ("NVIDIA H100", "cuda", None)
    assert asyncio.run(probe.free_bytes((device,))) == (None,)


def test_a_tool_that_fails_is_as_no_tool(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _with_tool(monkeypatch)
    _add_nvidia(root, "NVIDIA H100")
    (device,) = asyncio.run(AcceleratorProbe(NvidiaSmi(exit_code=9), root).find())
    assert device.memory_bytes is None


def test_devices_of_several_vendors_keep_their_order_when_measured(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_tool(monkeypatch)
    _add_nvidia(root, "NVIDIA A")
    _add_card(root, "card0", "0x10de")
    _add_card(
        root, "card1", "0x1002", mem_info_vram_total=str(900 * MIB), mem_info_vram_used=str(MIB)
    )
    _add_card(root, "card2", "0x8086")
    _add_card(root, "card3", "0x1af4")
    (root / "sys/class/drm/card1-HDMI-A-1").mkdir()
    probe = AcceleratorProbe(NvidiaSmi("NVIDIA A, 100, 40\nNVIDIA B, 100, 50\n"), root)
    devices = asyncio.run(probe.find())
    assert [(device.index, device.vendor, device.memory_bytes) for device in devices] == [
        (0, "nvidia", 100 * MIB),
        (1, "nvidia", 100 * MIB),
        (2, "amd", 900 * MIB),
        (3, "intel", None),
    ]
    free = asyncio.run(probe.free_bytes(devices))
    assert free == (40 * MIB, 50 * MIB, 899 * MIB, None)
