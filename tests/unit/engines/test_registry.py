import subprocess
import sys

import pytest

from engines.registry import engine_names, engine_of
from protocol.errors import EngineError


def test_every_engine_answers_to_its_name() -> None:
    assert engine_names()
    for name in engine_names():
        assert engine_of(name).describe().name == name


def test_an_engine_of_a_later_version_is_refused_by_name() -> None:
    with pytest.raises(EngineError) as caught:
        engine_of("vllm")
    assert caught.value.code == "engine.unavailable"
    assert "vllm" in caught.value.message


def test_the_registry_loads_no_engine() -> None:
    source = "import sys, engines.registry; print([m for m in sys.modules if 'llama' in m])"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"
