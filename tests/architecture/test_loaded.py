"""What importing a program really loads; static contracts cannot see a library's own imports."""

import json
import subprocess
import sys

import pytest

ENGINES = {"xllamacpp", "llama_cpp", "mlx", "mlx_lm", "vllm", "torch", "numpy"}


def _loaded_by(statement: str) -> set[str]:
    program = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return {name.partition(".")[0] for name in json.loads(answer.stdout)}


def test_the_probe_sees_what_is_loaded() -> None:
    assert "msgpack" in _loaded_by("import msgpack")
    assert "msgpack" not in _loaded_by("pass")


def test_the_operators_command_loads_nothing_of_the_daemon() -> None:
    loaded = _loaded_by("import skulk_tui.cli.main")
    assert loaded & {"skulkd", "engines", "store", "textual", "httpx", "zmq", "uvicorn"} == set()
    assert loaded & ENGINES == set()


@pytest.mark.parametrize("module", ["skulkd.cli", "skulkd.node", "skulkd.cluster.mdns_discovery"])
def test_the_daemon_loads_no_inference_library_and_no_client(module: str) -> None:
    loaded = _loaded_by(f"import {module}")
    assert loaded & ENGINES == set()
    unwanted = {
        "httpx",
        "requests",
        "textual",
        "rich",
        "typer",
        "pip",
        "zmq",
        "zeroconf",
        "skulk_tui",
    }
    assert loaded & unwanted == set()


def test_what_describes_foreign_bodies_is_loaded_when_somebody_asks_for_it() -> None:
    # `_loaded_by` gives the first parts of names; this is about one package's own modules.
    probe = "import sys, skulkd.node; sys.exit('skulkd.api.dialects.bodies' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], check=False, timeout=60)
    assert done.returncode == 0


def test_bad_arguments_are_refused_before_the_daemon_is_loaded() -> None:
    assert _loaded_by("import skulkd.cli") & {"uvicorn", "starlette", "uvloop", "yaml"} == set()
