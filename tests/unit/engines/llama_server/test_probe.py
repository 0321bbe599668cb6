import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from engines.llama_server.probe import (
    OVERRIDE_VARIABLE,
    FoundBuilds,
    Packages,
    canary_argv,
    computes_of,
    find_builds,
    installed_packages,
    reason_unusable,
)
from protocol.errors import RunnerError
from tests.support.builders import an_engine

NO_PACKAGES = Packages(hosted_version=None, vulkan_binary=None)
HOSTED = Packages(hosted_version="2026.10", vulkan_binary=None)


@dataclass(frozen=True)
class Ended:
    exit_code: int | None = 0
    signal: str | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False


VERSION = Ended(stderr=b"load_backend: loaded CPU\nversion: 4711 (0ddba11)\nbuilt with GNU\n")
DEVICES = Ended(stdout=b"Available devices:\n  CUDA0: NVIDIA RTX (24217 MiB, 24000 MiB free)\n")
SIGILL = Ended(exit_code=None, signal="SIGILL")


class Machine:
    """Runs nothing: answers by the first argument that it knows."""

    def __init__(self, **answers: Ended | RunnerError) -> None:
        self.answers = {"version": VERSION, "list_devices": DEVICES, "canary": Ended(), **answers}
        self.ran: list[tuple[str, ...]] = []

    async def run(self, argv: Sequence[str], timeout_s: float) -> Ended:
        self.ran.append(tuple(argv))
        answer = self.answers[argv[-1].strip("-").replace("-", "_")]
        if isinstance(answer, RunnerError):
            raise answer
        return answer


def found(
    machine: Machine,
    *,
    on_path: Path | None = None,
    homebrew: tuple[str, ...] = (),
    override: str = "",
    packages: Packages = NO_PACKAGES,
) -> FoundBuilds:
    return asyncio.run(
        find_builds(
            {OVERRIDE_VARIABLE: override} if override else {},
            machine.run,
            packages=packages,
            find_program=lambda _name: str(on_path) if on_path else None,
            homebrew_directories=homebrew,
        )
    )


def a_binary(directory: Path) -> Path:
    path = directory / "llama-server"
    path.write_bytes(b"")
    return path


def test_a_binary_on_path_is_run_and_described(tmp_path: Path) -> None:
    binary = a_binary(tmp_path)
    (build,) = found(Machine(), on_path=binary).builds
    assert (build.engine, build.provider, build.path) == ("llama_server", "binary", str(binary))
    assert build.version == "4711 (0ddba11)"
    assert build.computes == ("cuda", "cpu")
    assert build.usable


def test_a_binary_that_is_found_twice_is_one_build(tmp_path: Path) -> None:
    binary = a_binary(tmp_path)
    assert len(found(Machine(), on_path=binary, homebrew=(str(tmp_path),)).builds) == 1


def test_homebrew_is_searched_where_it_keeps_programs(tmp_path: Path) -> None:
    binary = a_binary(tmp_path)
    (build,) = found(Machine(), homebrew=(str(tmp_path / "nothing"), str(tmp_path))).builds
    assert build.path == str(binary)


def test_a_machine_without_any_has_no_builds() -> None:
    assert found(Machine()) == FoundBuilds(builds=())


def test_the_hosted_package_comes_before_what_happens_to_be_on_path(tmp_path: Path) -> None:
    seen = found(Machine(), on_path=a_binary(tmp_path), packages=HOSTED)
    assert [build.provider for build in seen.builds] == ["hosted", "binary"]
    assert seen.builds[0].version == "xllamacpp 2026.10"
    assert seen.builds[0].computes == ("cpu",)


def test_an_override_comes_first_and_hides_other_binaries(tmp_path: Path) -> None:
    chosen = tmp_path / "mine"
    chosen.write_bytes(b"")
    seen = found(Machine(), override=str(chosen), on_path=a_binary(tmp_path), packages=HOSTED)
    assert [build.path for build in seen.builds] == [str(chosen), sys.executable]
    assert (seen.override_error, seen.override_path) == ("", str(chosen))


@pytest.mark.parametrize("override", ["/nowhere/llama-server", "llama-server"])
def test_an_override_that_is_no_file_is_loud(override: str) -> None:
    seen = found(Machine(), override=override, packages=HOSTED)
    assert override in seen.override_error
    assert "engine.binary_invalid" in seen.override_error
    assert [build.usable for build in seen.builds] == [False, True]


def test_an_override_that_is_no_llama_server_is_loud(tmp_path: Path) -> None:
    machine = Machine(version=Ended(stdout=b"bash, version 5.2\n"))
    seen = found(machine, override=str(a_binary(tmp_path)))
    assert "does not say its version" in seen.override_error


@pytest.mark.parametrize("answer", ["version", "list_devices"])
def test_a_build_that_this_cpu_cannot_execute_is_unusable(tmp_path: Path, answer: str) -> None:
    (build,) = found(Machine(**{answer: SIGILL}), on_path=a_binary(tmp_path)).builds
    assert not build.usable
    assert build.reason.startswith("engine.cpu_unsupported")


def test_a_hosted_package_that_this_cpu_cannot_execute_is_unusable() -> None:
    (build,) = found(Machine(canary=SIGILL), packages=HOSTED).builds
    assert (build.provider, build.usable) == ("hosted", False)
    assert build.reason.startswith("engine.cpu_unsupported")


def test_a_program_of_another_architecture_is_unusable(tmp_path: Path) -> None:
    refused = RunnerError("runner.spawn_failed", "Exec format error")
    (build,) = found(Machine(version=refused), on_path=a_binary(tmp_path)).builds
    assert build.reason == "engine.binary_invalid: Exec format error"


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (Ended(), ""),
        (Ended(exit_code=127, stderr=b"a\nlibvulkan.so.1: not found\n"), "libvulkan.so.1"),
        (Ended(exit_code=None, signal="SIGSEGV"), "SIGSEGV"),
        (
            Ended(
                exit_code=127,
                stderr=b"llama-server: error while loading shared libraries: libcudart.so.13: "
                b"cannot open shared object file: No such file or directory\n",
            ),
            "the library libcudart.so.13 is missing",
        ),
        (
            Ended(exit_code=1, stderr=b"x: /lib/libc.so.6: version `GLIBC_2.38' not found\n"),
            "the library GLIBC_2.38 is missing",
        ),
        (
            Ended(
                exit_code=None,
                signal="SIGABRT",
                stderr=b"dyld[7]: Library not loaded: @rpath/libggml.dylib\n",
            ),
            "the library @rpath/libggml.dylib is missing",
        ),
        (Ended(timed_out=True, exit_code=None, signal="SIGKILL"), "no answer within"),
    ],
)
def test_a_reason_says_how_the_canary_ended(ended: Ended, words: str) -> None:
    assert words in reason_unusable(ended)
    assert bool(reason_unusable(ended)) == bool(words)


@pytest.mark.parametrize(
    ("output", "computes"),
    [
        ("Available devices:\n  (none)\n", ("cpu",)),
        ("  Vulkan0: Intel\n  Vulkan1: AMD\n", ("vulkan", "cpu")),
        ("  ROCm0: AMD (1 MiB)\n", ("rocm", "cpu")),
        ("  MTL0: Apple M2\n", ("metal", "cpu")),
        ("device CPU\n", ("cpu",)),
        ("device Metal\n", ("metal", "cpu")),
        ("ggml_cuda_init: found 1 CUDA devices\n", ("cpu",)),
    ],
)
def test_devices_become_computes(output: str, computes: tuple[str, ...]) -> None:
    assert computes_of(output) == computes


def test_the_canary_of_a_hosted_build_runs_the_library() -> None:
    assert canary_argv(an_engine())[-1] == "--canary"


def test_the_package_of_this_installation_is_found_without_importing_it() -> None:
    assert installed_packages().hosted_version is not None
    assert "xllamacpp" not in sys.modules


HELP = Ended(stdout=b"options:\n  -p, --port PORT\n")


@pytest.mark.parametrize("name", ["ggml-rpc-server", "rpc-server"])
def test_a_binary_with_its_rpc_server_beside_it_can_pool(tmp_path: Path, name: str) -> None:
    donor = tmp_path / name
    donor.write_bytes(b"")
    (build,) = found(Machine(help=HELP), on_path=a_binary(tmp_path)).builds
    assert (build.rpc, build.rpc_path) == (True, str(donor))


@pytest.mark.parametrize(
    "end",
    [SIGILL, Ended(timed_out=True), Ended(), RunnerError("runner.spawn_failed", "no such format")],
)
def test_an_rpc_server_that_does_not_run_leaves_a_build_that_serves_alone(
    tmp_path: Path, end: Ended | RunnerError
) -> None:
    (tmp_path / "rpc-server").write_bytes(b"")
    (build,) = found(Machine(help=end), on_path=a_binary(tmp_path)).builds
    assert (build.usable, build.rpc, build.rpc_path) == (True, False, "")
