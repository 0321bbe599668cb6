"""A probe pass on this machine, with the engines that are really here."""

import asyncio
import os
from pathlib import Path

import pytest

from protocol.nodes import NodeFacts
from skulkd.core.facts import derive
from skulkd.worker.accelerators import AcceleratorProbe
from skulkd.worker.machine import Machine
from skulkd.worker.probes import ProbeSettings, probe_node
from skulkd.worker.run import run_bounded


def probe(models_dir: Path, *, llama_server_bin: Path | None = None) -> NodeFacts:
    settings = ProbeSettings(
        environment={"PATH": os.environ["PATH"]},
        llama_server_bin=llama_server_bin,
        declared_backends=None,
        models_dir=models_dir,
        build="1.2.3",
    )
    return asyncio.run(probe_node(settings, Machine(), AcceleratorProbe(run_bounded)))


def test_a_probe_finds_this_machine_and_runs_the_engine_that_came_with_us(tmp_path: Path) -> None:
    facts = probe(tmp_path)
    assert facts.hostname
    assert facts.memory_bytes > 1 << 28
    assert facts.disk_total_bytes
    assert facts.build == "1.2.3"
    hosted = [build for build in facts.engines if build.provider == "hosted"]
    assert [build.usable for build in hosted] == [True], hosted
    capabilities = derive(facts)
    assert {"llama_server-cpu", "scripted-cpu"} <= set(capabilities.backends)


def test_an_override_that_does_not_run_is_said_and_costs_no_other_engine(tmp_path: Path) -> None:
    engine = tmp_path / "llama-server"
    engine.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    engine.chmod(0o700)
    facts = probe(tmp_path, llama_server_bin=engine)
    assert "broken" in facts.override_error
    assert facts.override_path == str(engine)
    assert any(conflict.level == "error" for conflict in derive(facts).conflicts)
    assert "llama_server-cpu" in derive(facts).backends


def test_a_missing_models_volume_is_unknown_not_empty(tmp_path: Path) -> None:
    assert probe(tmp_path / "missing").disk_total_bytes is None


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        ("kill -ILL $$", "engine_cpu_unsupported", "SIGILL"),
        ("kill -SEGV $$", "engine_cpu_unsupported", "SIGSEGV"),
        (
            "echo 'error while loading shared libraries: libvulkan.so.1: not there' >&2; exit 127",
            "invalid_engine_binary",
            "the library libvulkan.so.1 is missing",
        ),
    ],
)
def test_a_build_that_dies_in_its_canary_is_a_named_conflict_with_a_remedy(
    tmp_path: Path, script: str, code: str, words: str
) -> None:
    engine = tmp_path / "llama-server"
    engine.write_text(f"#!/bin/sh\n{script}\n")
    engine.chmod(0o700)
    capabilities = derive(probe(tmp_path, llama_server_bin=engine))
    (conflict,) = [one for one in capabilities.conflicts if one.declared == str(engine)]
    assert conflict.code == code
    assert words in conflict.observed
    assert conflict.remediation
    assert "llama_server-cpu" in capabilities.backends
