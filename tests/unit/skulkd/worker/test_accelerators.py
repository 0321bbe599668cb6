import asyncio
import importlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from protocol.readings import AcceleratorReading
from skulkd.worker.accelerators import AcceleratorProbe
from skulkd.worker.apple_gpu import apple_devices, parse_ioreg
from skulkd.worker.nvidia import NvidiaDevice, Nvml, NvmlDevices, parse_nvidia_smi
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


def _add_sensors(root: Path, name: str, **files: str) -> None:
    directory = root / "sys/class/drm" / name / "device/hwmon/hwmon3"
    directory.mkdir(parents=True)
    for file, text in files.items():
        (directory / file).write_text(text + "\n")


class NvmlError(Exception):
    """Stands for NVMLError."""


class Driver:
    """Stands for NVIDIA's library: two boards, the second on the host's memory."""

    def __init__(self) -> None:
        self.is_lost = False
        self.is_open = False
        self.n_opened = 0
        self.asked: set[str] = set()

    def bindings(self) -> Nvml:
        return Nvml(NvmlError, self.call)

    def call(self, name: str, handle: int = 0, *_: int) -> object:
        self.asked.add(name)
        if name == "nvmlShutdown":
            self.is_open = False
            return None
        if self.is_lost:
            raise NvmlError("Driver Not Loaded")
        if name == "nvmlInit":
            self.is_open = True
            self.n_opened += 1
            return None
        if not self.is_open:
            raise NvmlError("Uninitialized")
        if name == "nvmlDeviceGetCount":
            return 2
        return self._of_board(name, handle)

    def _of_board(self, name: str, handle: int) -> object:
        told: dict[str, tuple[object, ...]] = {
            "nvmlDeviceGetHandleByIndex": (0, 1),
            "nvmlDeviceGetName": ("NVIDIA RTX 4090", "NVIDIA GB10"),
            "nvmlDeviceGetMemoryInfo": (SimpleNamespace(total=24 << 30, free=20 << 30),),
            "nvmlDeviceGetUtilizationRates": (SimpleNamespace(gpu=71), SimpleNamespace(gpu=70)),
            "nvmlDeviceGetPowerUsage": (287_450,),
            "nvmlDeviceGetTemperature": (64, 63),
            "nvmlDeviceGetClockInfo": (2520, 2521),
        }
        if handle >= len(told[name]):
            raise NvmlError("Not Supported")
        return told[name][handle]


def _with_tool(monkeypatch: pytest.MonkeyPatch, *, found: bool = True) -> None:
    def which(_name: str) -> str | None:
        return "/usr/bin/nvidia-smi" if found else None

    monkeypatch.setattr("shutil.which", which)


def test_a_machine_without_devices_has_none(root: Path) -> None:
    probe = AcceleratorProbe(NvidiaSmi(), root)
    assert asyncio.run(probe.find()) == ()
    assert asyncio.run(probe.measure(())) == ()


def test_the_tools_numbers_are_read_also_where_a_value_is_missing() -> None:
    text = (
        "NVIDIA RTX 4090, 24564, 20000, 71, 287.45, 64, 2520\n"
        "Grace, with comma, [N/A], [N/A], [N/A], [Unknown Error], 40, 1.2.3\n"
        "noise\n"
    )
    assert parse_nvidia_smi(text) == (
        NvidiaDevice(
            name="NVIDIA RTX 4090",
            total_bytes=24564 * MIB,
            now=AcceleratorReading(
                free_bytes=20000 * MIB, busy_ratio=0.71, watts=287.45, celsius=64.0, mhz=2520.0
            ),
        ),
        NvidiaDevice(
            name="Grace, with comma", total_bytes=None, now=AcceleratorReading(celsius=40.0)
        ),
    )


def test_without_the_tool_a_board_is_named_and_its_memory_unknown(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_tool(monkeypatch, found=False)
    _add_nvidia(root, "NVIDIA H100")
    probe = AcceleratorProbe(NvidiaSmi(), root)
    (device,) = asyncio.run(probe.find())
    assert (device.name, device.compute, device.memory_bytes) == ("NVIDIA H100", "cuda", None)
    assert asyncio.run(probe.measure((device,))) == (AcceleratorReading(),)


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
    text = "NVIDIA A, 100, 40, 0, 9, 30, 210\nNVIDIA B, 100, 50, 0, 9, 30, 210\n"
    probe = AcceleratorProbe(NvidiaSmi(text), root)
    devices = asyncio.run(probe.find())
    assert [(device.index, device.vendor, device.memory_bytes) for device in devices] == [
        (0, "nvidia", 100 * MIB),
        (1, "nvidia", 100 * MIB),
        (2, "amd", 900 * MIB),
        (3, "intel", None),
    ]
    measured = asyncio.run(probe.measure(devices))
    assert [one.free_bytes for one in measured] == [40 * MIB, 50 * MIB, 899 * MIB, None]
    assert probe.measure_every_s > 0


def test_the_drivers_library_is_asked_before_any_tool(root: Path) -> None:
    _add_nvidia(root, "NVIDIA RTX 4090")
    probe = AcceleratorProbe(NvidiaSmi(exit_code=9), root, nvml=NvmlDevices(Driver().bindings))
    devices = asyncio.run(probe.find())
    assert [(one.name, one.memory_bytes, one.unified, one.seen_by) for one in devices] == [
        ("NVIDIA RTX 4090", 24 << 30, False, "NVML"),
        ("NVIDIA GB10", None, True, "NVML"),
    ]
    assert asyncio.run(probe.measure(devices)) == (
        AcceleratorReading(
            free_bytes=20 << 30, busy_ratio=0.71, watts=287.45, celsius=64.0, mhz=2520.0
        ),
        AcceleratorReading(busy_ratio=0.7, celsius=63.0, mhz=2521.0),
    )
    assert probe.measure_every_s == 0


def test_a_library_that_lost_its_driver_is_opened_anew(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_tool(monkeypatch, found=False)
    _add_nvidia(root, "NVIDIA RTX 4090")
    driver = Driver()
    probe = AcceleratorProbe(NvidiaSmi(), root, nvml=NvmlDevices(driver.bindings))
    devices = asyncio.run(probe.find())
    driver.is_lost = True
    assert asyncio.run(probe.measure(devices)) == (AcceleratorReading(), AcceleratorReading())
    assert not driver.is_open
    driver.is_lost = False
    assert asyncio.run(probe.measure(devices))[0].free_bytes == 20 << 30
    assert driver.n_opened == 2


def test_the_real_bindings_say_that_there_is_no_driver() -> None:
    if not Path("/proc/driver/nvidia").exists():
        assert NvmlDevices().measure() is None


def test_what_is_used_of_the_real_bindings_is_there() -> None:
    driver = Driver()
    assert NvmlDevices(driver.bindings).measure() is not None
    bindings = importlib.import_module("pynvml")
    assert [name for name in sorted(driver.asked) if not hasattr(bindings, name)] == []
    assert (bindings.NVML_TEMPERATURE_GPU, bindings.NVML_CLOCK_SM) == (0, 1)


def test_an_amd_board_tells_its_load_power_heat_and_clock(root: Path) -> None:
    _add_card(
        root, "card0", "0x1002", device="0x744c", mem_info_vram_total=str(24 << 30),
        mem_info_vram_used=str(4 << 30), mem_info_gtt_total=str(64 << 30), gpu_busy_percent="88",
    )  # fmt: skip
    _add_sensors(
        root, "card0", power1_average="303000000", temp1_input="67000", freq1_input="2482000000"
    )
    probe = AcceleratorProbe(NvidiaSmi(), root)
    (device,) = asyncio.run(probe.find())
    assert (device.memory_bytes, device.unified) == (24 << 30, False)
    assert asyncio.run(probe.measure((device,))) == (
        AcceleratorReading(
            free_bytes=20 << 30, busy_ratio=0.88, watts=303.0, celsius=67.0, mhz=2482.0
        ),
    )


@pytest.mark.parametrize(
    ("set_aside", "lent", "is_unified", "memory"),
    [(512 << 20, 62 << 30, True, 62 << 30), (96 << 30, 16 << 30, False, 96 << 30)],
)
def test_a_processors_graphics_take_what_is_lent_or_what_is_set_aside(
    root: Path, set_aside: int, lent: int, is_unified: bool, memory: int
) -> None:
    _add_card(
        root, "card1", "0x1002", device="0x1586", mem_info_vram_total=str(set_aside),
        mem_info_vram_used=str(1 << 20), mem_info_gtt_total=str(lent),
        mem_info_gtt_used=str(1 << 20),
    )  # fmt: skip
    _add_sensors(root, "card1", power1_input="55000000")
    probe = AcceleratorProbe(NvidiaSmi(), root)
    (device,) = asyncio.run(probe.find())
    assert device.name == "Radeon 8060S (Strix Halo)"
    assert (device.unified, device.memory_bytes) == (is_unified, memory)
    (measured,) = asyncio.run(probe.measure((device,)))
    assert (measured.free_bytes, measured.watts) == (memory - (1 << 20), 55.0)


def test_apples_gpu_tells_how_busy_it_is() -> None:
    text = '"PerformanceStatistics" = {"In use system memory"=9,"Device Utilization %"=37,"x"=1}'
    assert parse_ioreg(text) == AcceleratorReading(busy_ratio=0.37)
    assert parse_ioreg("+-o nothing") == AcceleratorReading()


@pytest.mark.parametrize(
    ("ram_gib", "limit_mib", "wired_mib"),
    [
        (8, 0, 5461),
        (16, 0, 10922),
        (32, 0, 21845),
        (36, 0, 27648),
        (64, 0, 49152),
        (192, 0, 147456),
        (64, 57344, 57344),
        (64, 99999999, 63 << 10),
    ],
)
def test_b11_apples_gpu_may_wire_what_the_system_or_somebody_has_set(
    ram_gib: int, limit_mib: int, wired_mib: int
) -> None:
    text = f"machdep.cpu.brand_string: Apple M2 Max\niogpu.wired_limit_mb: {limit_mib}\n"
    (device,) = apple_devices(text, ram_gib << 30)
    assert device.memory_bytes is not None
    assert (device.name, device.memory_bytes >> 20) == ("Apple M2 Max", wired_mib)
    assert device.seen_by == ("sysctl iogpu.wired_limit_mb" if limit_mib else "platform")


@pytest.mark.parametrize("said", ["", "iogpu.wired_limit_mb: lots\n"])
def test_apples_gpu_is_there_also_when_the_system_does_not_answer(said: str) -> None:
    (device,) = apple_devices(said, 64 << 30)
    assert (device.name, device.memory_bytes) == ("Apple GPU", 48 << 30)
