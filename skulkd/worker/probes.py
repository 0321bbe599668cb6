"""One probe pass: what this node is, as facts for the whole cluster.

The pass starts other people's programs (vendors' tools, engines) and so takes as long as they do;
what they do wrong is a fact about them, never a failure of the pass.
"""

import platform
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engines.llama_server.probe import (
    OVERRIDE_VARIABLE,
    FoundBuilds,
    find_builds,
    installed_packages,
)
from engines.scripted.engine import builtin_facts
from protocol.cards import BackendTag
from protocol.nodes import NodeFacts
from skulkd.runtime.tasks import run_blocking
from skulkd.worker.accelerators import AcceleratorProbe
from skulkd.worker.machine import MachineView, MemoryNow, Processor
from skulkd.worker.run import CompletedRun, run_bounded

_OS_NAMES: Final = {"linux": "linux", "darwin": "macos"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """What an operator has to say about the probes."""

    environment: Mapping[str, str]
    llama_server_bin: Path | None
    declared_backends: tuple[BackendTag, ...] | None
    models_dir: Path
    build: str
    """Version of this daemon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Host:
    memory: MemoryNow
    processor: Processor
    n_cpus: int
    disk_total_bytes: int | None


async def probe_node(
    settings: ProbeSettings, machine: MachineView, accelerators: AcceleratorProbe
) -> NodeFacts:
    """Look once at everything that changes rarely."""
    host = await run_blocking(_measure, machine, settings.models_dir)
    devices = await accelerators.find()
    llama = await _llama_builds(settings)
    return NodeFacts(
        hostname=socket.gethostname()[:253],
        os=_OS_NAMES.get(sys.platform, sys.platform),
        arch=platform.machine(),
        cpu_model=host.processor.model,
        cpu_features=host.processor.features,
        n_cpus=host.n_cpus,
        n_cores=host.processor.n_cores,
        cpu_quota=host.processor.quota,
        memory_bytes=host.memory.total_bytes,
        memory_seen_by=host.memory.seen_by,
        accelerators=devices,
        engines=(*llama.builds, builtin_facts()),
        declared_backends=settings.declared_backends,
        override_error=llama.override_error,
        override_path=llama.override_path,
        disk_total_bytes=host.disk_total_bytes,
        build=settings.build,
    )


async def _llama_builds(settings: ProbeSettings) -> FoundBuilds:
    environment = dict(settings.environment)
    if settings.llama_server_bin is not None:
        environment[OVERRIDE_VARIABLE] = str(settings.llama_server_bin)

    async def run(argv: Sequence[str], timeout_s: float) -> CompletedRun:
        return await run_bounded(argv, timeout_s, environment=environment)

    packages = await run_blocking(installed_packages)
    return await find_builds(environment, run, packages=packages)


def _measure(machine: MachineView, models_dir: Path) -> _Host:
    try:
        disk_total_bytes = shutil.disk_usage(models_dir).total
    except OSError:
        disk_total_bytes = None
    return _Host(
        memory=machine.memory(),
        processor=machine.processor(),
        n_cpus=machine.n_cpus(),
        disk_total_bytes=disk_total_bytes,
    )
