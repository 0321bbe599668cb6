"""The machines of the synthetic fleet: tests/support/fleet.py says what they are for."""

from collections.abc import Sequence
from typing import Final

from protocol.cards import BackendTag, Compute
from protocol.nodes import Accelerator, EngineFacts, NodeFacts
from tests.support.builders import GIB, MIB
from tests.support.fleet import FleetMachine

_DISK_BYTES: Final = 1000 * GIB
_OVERHEAD_BYTES: Final = 96 * MIB
_SPARK_BYTES: Final = 119 * GIB + 700 * MIB


def _facts(
    name: str,
    n_cpus: int,
    memory_bytes: int,
    *,
    arch: str = "x86_64",
    os: str = "linux",
    n_cores: int | None = None,
    cpu_quota: float | None = None,
    memory_seen_by: str = "/proc/meminfo",
    accelerators: Sequence[Accelerator] = (),
    engines: Sequence[EngineFacts] = (),
    lost: Sequence[Accelerator] = (),
    declared: tuple[BackendTag, ...] | None = None,
    override_error: str = "",
) -> NodeFacts:
    return NodeFacts(
        hostname=name,
        os=os,
        arch=arch,
        n_cpus=n_cpus,
        n_cores=n_cores or n_cpus,
        cpu_quota=cpu_quota,
        memory_bytes=memory_bytes,
        memory_seen_by=memory_seen_by,
        accelerators=tuple(
            one.model_copy(update={"index": index}) for index, one in enumerate(accelerators)
        ),
        lost_accelerators=tuple(lost),
        engines=tuple(engines),
        declared_backends=declared,
        override_error=override_error,
        override_path="/opt/llama/llama-server" if override_error else "",
        disk_total_bytes=_DISK_BYTES,
    )


def _hosted(*computes: Compute, reason: str = "") -> EngineFacts:
    """The default engine, xllamacpp; `reason`: why it does not run."""
    return EngineFacts(
        engine="llama_server",
        provider="hosted",
        path="/opt/skulk/bin/python",
        version="xllamacpp 2026.10",
        computes=computes,
        usable=not reason,
        reason=reason,
        overhead_bytes=_OVERHEAD_BYTES,
        default_slots=16,
        seen_by="package xllamacpp",
    )


def _binary(*computes: Compute, reason: str = "") -> EngineFacts:
    """A llama-server executable, which can also pool memory over nodes."""
    return EngineFacts(
        engine="llama_server",
        provider="binary",
        path="/opt/llama/llama-server",
        version="" if reason else "10434",
        computes=computes,
        usable=not reason,
        reason=reason,
        overhead_bytes=_OVERHEAD_BYTES,
        default_slots=16,
        rpc=not reason,
        seen_by="PATH",
    )


def _mlx() -> EngineFacts:
    return EngineFacts(
        engine="mlx",
        provider="hosted",
        path="/opt/skulk/bin/python",
        version="mlx 0.32.4",
        computes=("metal",),
        usable=True,
        overhead_bytes=400 * MIB,
        default_slots=8,
        ring=True,
        seen_by="package mlx",
    )


def _vllm(*computes: Compute) -> EngineFacts:
    return EngineFacts(
        engine="vllm",
        provider="binary",
        path="/opt/vllm/bin/vllm",
        version="0.32.0",
        computes=computes,
        usable=True,
        overhead_bytes=2 * GIB,
        default_slots=32,
        seen_by="SKULK_VLLM_BIN",
    )


def _nvidia(name: str, mib: int | None, *, seen_by: str = "NVML") -> Accelerator:
    return Accelerator(
        index=0,
        vendor="nvidia",
        name=name,
        compute="cuda",
        memory_bytes=None if mib is None else mib * MIB,
        unified=mib is None and seen_by == "NVML",
        seen_by=seen_by,
    )


def _amd(name: str, memory_bytes: int, *, unified: bool = False) -> Accelerator:
    return Accelerator(
        index=0,
        vendor="amd",
        name=name,
        compute="rocm",
        memory_bytes=memory_bytes,
        unified=unified,
        seen_by="/sys/class/drm/card0",
    )


def _intel() -> Accelerator:
    return Accelerator(
        index=0,
        vendor="intel",
        name="Intel GPU",
        compute="vulkan",
        seen_by="/sys/class/drm/card0",
    )


def _mac(
    name: str, chip: str, n_cpus: int, gib: int, wired_mib: int, *, seen_by: str = "platform"
) -> FleetMachine:
    gpu = Accelerator(
        index=0,
        vendor="apple",
        name=chip,
        compute="metal",
        memory_bytes=wired_mib * MIB,
        unified=True,
        seen_by=seen_by,
    )
    facts = _facts(
        name,
        n_cpus,
        gib * GIB,
        arch="arm64",
        os="macos",
        memory_seen_by="hw.memsize",
        accelerators=(gpu,),
        engines=(_hosted("metal", "cpu"), _mlx()),
    )
    return FleetMachine(
        name=name,
        facts=facts,
        backends=("llama_server-metal", "llama_server-cpu", "mlx-metal"),
        pools={"metal": ("unified", wired_mib * MIB), "cpu": ("ram", gib * GIB)},
    )


def _macs() -> tuple[FleetMachine, ...]:
    """A GPU may wire two thirds of the RAM, from 36 GB on three quarters, or what was set."""
    intel = _facts(
        "mac-pro-2019", 16, 96 * GIB, os="macos", memory_seen_by="hw.memsize",
        engines=(_hosted("cpu"),),
    )  # fmt: skip
    return (
        _mac("macbook-air-m1", "Apple M1", 8, 8, 5461),
        _mac("mac-mini-m1", "Apple M1", 8, 16, 10922),
        _mac("macbook-pro-m3-pro", "Apple M3 Pro", 11, 18, 12288),
        _mac("macbook-air-m2", "Apple M2", 8, 24, 16384),
        _mac("macbook-pro-m1-pro", "Apple M1 Pro", 10, 32, 21845),
        _mac("macbook-pro-m3-max", "Apple M3 Max", 14, 36, 27648),
        _mac("mac-mini-m4-pro", "Apple M4 Pro", 14, 64, 49152),
        _mac(
            "mac-studio-m2-max-raised", "Apple M2 Max", 12, 64, 57344,
            seen_by="sysctl iogpu.wired_limit_mb",
        ),
        _mac("mac-studio-m4-max", "Apple M4 Max", 16, 128, 98304),
        _mac("mac-studio-m2-ultra", "Apple M2 Ultra", 24, 192, 147456),
        _mac("mac-studio-m3-ultra", "Apple M3 Ultra", 32, 512, 393216),
        FleetMachine(
            name="mac-pro-2019",
            facts=intel,
            backends=("llama_server-cpu",),
            pools={"cpu": ("ram", 96 * GIB)},
        ),
    )  # fmt: skip


_CUDA_BACKENDS: Final[tuple[BackendTag, ...]] = ("llama_server-cuda", "llama_server-cpu")


def _nvidia_boxes() -> tuple[FleetMachine, ...]:
    """Machines with one GPU of NVIDIA."""
    spark = _facts(
        "dgx-spark", 20, _SPARK_BYTES, arch="aarch64",
        accelerators=(_nvidia("NVIDIA GB10", None),),
        engines=(_binary("cuda", "cpu"), _vllm("cuda")),
    )  # fmt: skip
    single = _facts(
        "rtx-4090", 16, 62 * GIB,
        accelerators=(_nvidia("NVIDIA GeForce RTX 4090", 24564),),
        engines=(_hosted("cpu"), _binary("cuda", "cpu")),
    )  # fmt: skip
    idle = _facts(
        "laptop-rtx-4060", 8, 15 * GIB,
        accelerators=(_nvidia("NVIDIA GeForce RTX 4060 Laptop GPU", 8188),),
        engines=(_hosted("cpu"),),
    )  # fmt: skip
    return (
        FleetMachine(
            name="dgx-spark", facts=spark, backends=(*_CUDA_BACKENDS, "vllm-cuda"),
            pools={"cuda": ("unified", _SPARK_BYTES), "cpu": ("ram", _SPARK_BYTES)},
        ),
        FleetMachine(
            name="rtx-4090", facts=single, backends=("llama_server-cpu", "llama_server-cuda"),
            pools={"cuda": ("vram", 24564 * MIB), "cpu": ("ram", 62 * GIB)},
        ),
        FleetMachine(
            name="laptop-rtx-4060", facts=idle, backends=("llama_server-cpu",),
            conflicts=("gpu_serving_disabled",), pools={"cpu": ("ram", 15 * GIB)},
        ),
    )  # fmt: skip


def _nvidia_racks() -> tuple[FleetMachine, ...]:
    """Machines with several; the one with the most free memory counts."""
    pair = _facts(
        "rtx-3090-pair", 16, 125 * GIB,
        accelerators=(_nvidia("NVIDIA GeForce RTX 3090", 24576),) * 2,
        engines=(_binary("cuda", "cpu"),),
    )  # fmt: skip
    mixed = _facts(
        "rtx-5090-and-3060", 12, 94 * GIB,
        accelerators=(
            _nvidia("NVIDIA GeForce RTX 3060", 12288),
            _nvidia("NVIDIA GeForce RTX 5090", 32607),
        ),
        engines=(_binary("vulkan", "cpu"),),
    )  # fmt: skip
    four = _facts(
        "rtx-6000-ada-four", 64, 503 * GIB,
        accelerators=(_nvidia("NVIDIA RTX 6000 Ada Generation", 49140),) * 4,
        engines=(_binary("cuda", "cpu"), _vllm("cuda")),
    )  # fmt: skip
    eight = _facts(
        "h100-eight", 96, 2015 * GIB,
        accelerators=(_nvidia("NVIDIA H100 80GB HBM3", 81559),) * 8,
        engines=(_binary("cuda", "cpu"), _vllm("cuda")),
    )  # fmt: skip
    return (
        FleetMachine(
            name="rtx-3090-pair", facts=pair, backends=_CUDA_BACKENDS,
            pools={"cuda": ("vram", 24576 * MIB), "cpu": ("ram", 125 * GIB)},
        ),
        FleetMachine(
            name="rtx-5090-and-3060", facts=mixed,
            backends=("llama_server-vulkan", "llama_server-cpu"),
            pools={"vulkan": ("vram", 32607 * MIB), "cpu": ("ram", 94 * GIB)},
        ),
        FleetMachine(
            name="rtx-6000-ada-four", facts=four, backends=(*_CUDA_BACKENDS, "vllm-cuda"),
            pools={"cuda": ("vram", 49140 * MIB), "cpu": ("ram", 503 * GIB)},
        ),
        FleetMachine(
            name="h100-eight", facts=eight, backends=(*_CUDA_BACKENDS, "vllm-cuda"),
            pools={"cuda": ("vram", 81559 * MIB), "cpu": ("ram", 2015 * GIB)},
        ),
    )  # fmt: skip


def _amd_and_intel() -> tuple[FleetMachine, ...]:
    halo_own = _facts(
        "strix-halo-carved", 16, 31 * GIB,
        accelerators=(_amd("Radeon 8060S (Strix Halo)", 96 * GIB),),
        engines=(_binary("vulkan", "cpu"),),
    )  # fmt: skip
    halo_lent = _facts(
        "strix-halo-lent", 16, 124 * GIB,
        accelerators=(_amd("Radeon 8060S (Strix Halo)", 62 * GIB, unified=True),),
        engines=(_binary("vulkan", "cpu"),),
    )  # fmt: skip
    phoenix = _facts(
        "mini-pc-780m", 8, 27 * GIB,
        accelerators=(_amd("Radeon 780M (Phoenix)", 13 * GIB + 512 * MIB, unified=True),),
        engines=(_hosted("cpu"), _binary("vulkan", "cpu")),
    )  # fmt: skip
    radeon = _facts(
        "radeon-7900-xtx", 12, 62 * GIB,
        accelerators=(_amd("AMD Radeon RX 7900 XTX", 24560 * MIB),),
        engines=(_binary("rocm", "cpu"),),
    )  # fmt: skip
    arc = _facts(
        "arc-b580", 8, 31 * GIB, accelerators=(_intel(),), engines=(_binary("vulkan", "cpu"),)
    )
    nuc = _facts("nuc-iris-xe", 4, 15 * GIB, accelerators=(_intel(),), engines=(_hosted("cpu"),))
    vulkan: tuple[BackendTag, ...] = ("llama_server-vulkan", "llama_server-cpu")
    return (
        FleetMachine(
            name="strix-halo-carved", facts=halo_own, backends=vulkan,
            pools={"vulkan": ("vram", 96 * GIB), "cpu": ("ram", 31 * GIB)},
        ),
        FleetMachine(
            name="strix-halo-lent", facts=halo_lent, backends=vulkan,
            pools={"vulkan": ("unified", 62 * GIB), "cpu": ("ram", 124 * GIB)},
        ),
        FleetMachine(
            name="mini-pc-780m", facts=phoenix,
            backends=("llama_server-cpu", "llama_server-vulkan"),
            pools={"vulkan": ("unified", 13 * GIB + 512 * MIB), "cpu": ("ram", 27 * GIB)},
        ),
        FleetMachine(
            name="radeon-7900-xtx", facts=radeon,
            backends=("llama_server-rocm", "llama_server-cpu"),
            pools={"rocm": ("vram", 24560 * MIB), "cpu": ("ram", 62 * GIB)},
        ),
        FleetMachine(
            name="arc-b580", facts=arc, backends=vulkan,
            pools={"vulkan": ("unified", 31 * GIB), "cpu": ("ram", 31 * GIB)},
        ),
        FleetMachine(
            name="nuc-iris-xe", facts=nuc, backends=("llama_server-cpu",),
            pools={"cpu": ("ram", 15 * GIB)},
        ),
    )  # fmt: skip


def _cpu_machine(facts: NodeFacts) -> FleetMachine:
    return FleetMachine(
        name=facts.hostname,
        facts=facts,
        backends=("llama_server-cpu",),
        pools={"cpu": ("ram", facts.memory_bytes)},
    )


def _cpu_machines() -> tuple[FleetMachine, ...]:
    engines = (_hosted("cpu"),)
    return (
        _cpu_machine(_facts("raspberry-pi-5", 4, 15 * GIB + 800 * MIB, arch="aarch64",
                            engines=engines)),
        _cpu_machine(_facts("raspberry-pi-4", 4, 3 * GIB + 700 * MIB, arch="aarch64",
                            engines=engines)),
        _cpu_machine(_facts("epyc-server", 64, 503 * GIB, engines=engines)),
        _cpu_machine(_facts("cloud-vm-small", 1, 3 * GIB + 800 * MIB, engines=engines)),
        _cpu_machine(_facts("cloud-vm-arm", 8, 31 * GIB, arch="aarch64", engines=engines)),
        _cpu_machine(_facts("container-with-quota", 7, 16 * GIB, n_cores=32, cpu_quota=7.65,
                            memory_seen_by="cgroup /sys/fs/cgroup", engines=engines)),
        _cpu_machine(_facts("container-with-cpuset", 2, 8 * GIB, n_cores=2,
                            memory_seen_by="cgroup /sys/fs/cgroup/memory", engines=engines)),
    )  # fmt: skip


def _with_broken_builds() -> tuple[FleetMachine, ...]:
    """Machines on which an engine does not run."""
    trapped = "engine.cpu_unsupported: built for instructions that this CPU does not have (SIGILL)"
    cpu: tuple[BackendTag, ...] = ("llama_server-cpu",)
    ivy_bridge = _facts("ivy-bridge", 4, 15 * GIB, engines=(_hosted(reason=trapped),))
    haswell = _facts(
        "haswell-with-newer-build", 4, 31 * GIB,
        engines=(_hosted("cpu"), _binary(reason=trapped)),
    )  # fmt: skip
    haswell = _facts(
        "haswell-with-newer-build", 4, 31 * GIB,
        engines=(_hosted("cpu"), _binary(reason=trapped)),
    )  # fmt: skip
    override = _facts(
        "broken-override", 8, 15 * GIB,
        engines=(_binary(reason="engine.binary_invalid: there is no such file"), _hosted("cpu")),
        override_error="there is no such file",
    )  # fmt: skip
    library = _facts(
        "library-missing", 8, 15 * GIB,
        engines=(
            _hosted("cpu"),
            _binary(reason="engine.binary_invalid: the library libvulkan.so.1 is missing"),
        ),
    )  # fmt: skip
    return (
        FleetMachine(
            name="ivy-bridge", facts=ivy_bridge, backends=(), pools={},
            conflicts=("engine_cpu_unsupported",),
        ),
        FleetMachine(
            name="haswell-with-newer-build", facts=haswell, backends=cpu,
            conflicts=("engine_cpu_unsupported",), pools={"cpu": ("ram", 31 * GIB)},
        ),
        FleetMachine(
            name="broken-override", facts=override, backends=cpu,
            conflicts=("invalid_engine_binary",), pools={"cpu": ("ram", 15 * GIB)},
        ),
        FleetMachine(
            name="library-missing", facts=library, backends=cpu,
            conflicts=("invalid_engine_binary",), pools={"cpu": ("ram", 15 * GIB)},
        ),
    )  # fmt: skip


def _with_missing_devices() -> tuple[FleetMachine, ...]:
    """Machines whose GPU is not what an engine or the operator says."""
    cpu: tuple[BackendTag, ...] = ("llama_server-cpu",)
    unseen = _facts("cloud-gpu-unseen", 4, 15 * GIB, engines=(_binary("cuda", "cpu"),))
    no_tool = _facts(
        "cloud-t4-without-tool", 4, 15 * GIB,
        accelerators=(_nvidia("Tesla T4", None, seen_by="/proc/driver/nvidia"),),
        engines=(_binary("cuda", "cpu"),),
    )  # fmt: skip
    no_tool = _facts(
        "cloud-t4-without-tool", 4, 15 * GIB,
        accelerators=(_nvidia("Tesla T4", None, seen_by="/proc/driver/nvidia"),),
        engines=(_binary("cuda", "cpu"),),
    )  # fmt: skip
    lost = _facts(
        "rtx-4080-after-suspend", 12, 31 * GIB,
        engines=(_binary("cuda", "cpu"),), lost=(_nvidia("NVIDIA GeForce RTX 4080", 16376),),
    )  # fmt: skip
    declares = _facts(
        "declares-cuda", 8, 31 * GIB, engines=(_hosted("cpu"),),
        declared=("llama_server-cuda", "llama_server-cpu"),
    )  # fmt: skip
    return (
        FleetMachine(
            name="cloud-gpu-unseen", facts=unseen, backends=_CUDA_BACKENDS,
            conflicts=("gpu_detection_degraded",),
            pools={"cuda": ("unified", 15 * GIB), "cpu": ("ram", 15 * GIB)},
        ),
        FleetMachine(
            name="cloud-t4-without-tool", facts=no_tool, backends=_CUDA_BACKENDS,
            conflicts=("gpu_detection_degraded",),
            pools={"cuda": ("unified", 15 * GIB), "cpu": ("ram", 15 * GIB)},
        ),
        FleetMachine(
            name="rtx-4080-after-suspend", facts=lost, backends=cpu,
            conflicts=("gpu_lost",), pools={"cpu": ("ram", 31 * GIB)},
        ),
        FleetMachine(
            name="declares-cuda", facts=declares,
            backends=("llama_server-cuda", "llama_server-cpu"),
            conflicts=("backend_override_conflict",),
            pools={"cuda": ("unified", 31 * GIB), "cpu": ("ram", 31 * GIB)},
        ),
    )  # fmt: skip


FLEET: Final = (
    *_macs(),
    *_nvidia_boxes(),
    *_nvidia_racks(),
    *_amd_and_intel(),
    *_cpu_machines(),
    *_with_broken_builds(),
    *_with_missing_devices(),
)
