"""The process in which xllamacpp's llama-server lives: a child, so that its death is only its own.

    python -m engines.llama_server.hosted '{"model_path": ..., "socket_path": ..., "n_ctx": ...}'
    python -m engines.llama_server.hosted --canary

The server listens before it loads and answers 503 until it can serve. A load that fails ends the
process with status 1 and a line that names the file; the library's own lines, which a thread of its
writes, stand around it. SIGTERM keeps its default: there is nothing to save. The parent-death
signal is the launcher's business.
"""

import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

# The library has no types; what it is given is checked name by name below.
xllamacpp: Any = importlib.import_module("xllamacpp")

_LOAD_FAILED = 1
_BAD_PARAMETERS = 2


def parameters_of(values: dict[str, str | int | bool]) -> object:
    """Fill the server's parameters; a name that this xllamacpp lacks is refused, not ignored.

    Raises:
        AttributeError: The name is unknown.
    """
    parameters: Any = xllamacpp.CommonParams()
    rest = dict(values)
    parameters.model.path = str(rest.pop("model_path"))
    if projector := str(rest.pop("projector_path", "")):
        parameters.mmproj.path = projector
    parameters.hostnames = [str(rest.pop("socket_path"))]
    n_threads = int(rest.pop("n_threads"))
    parameters.cpuparams.n_threads = n_threads
    parameters.cpuparams_batch.n_threads = n_threads
    if pooling := str(rest.pop("pooling")):
        kinds = xllamacpp.llama_pooling_type
        parameters.pooling_type = getattr(kinds, f"LLAMA_POOLING_TYPE_{pooling.upper()}")
    for name, value in rest.items():
        if not hasattr(parameters, name):
            raise AttributeError(name)
        setattr(parameters, name, value)
    return parameters


def canary() -> int:
    """Run the library's own code once: a CPU that lacks its instructions dies here of SIGILL."""
    sys.stdout.write(xllamacpp.get_system_info() + "\n")
    for device in xllamacpp.get_device_info():
        sys.stdout.write(f"device {device['name']}\n")
    return 0


def main(arguments: list[str]) -> int:
    """Serve until a signal ends the process."""
    if arguments == ["--canary"]:
        return canary()
    try:
        values = json.loads(arguments[0])
        parameters = parameters_of(values)
    except (IndexError, ValueError, KeyError, TypeError, AttributeError) as error:
        sys.stderr.write(f"skulk: these parameters cannot be used: {error!r}\n")
        return _BAD_PARAMETERS
    # A socket file that a killed predecessor left behind would refuse the bind.
    Path(values["socket_path"]).unlink(missing_ok=True)
    os.umask(0o077)
    try:
        server = xllamacpp.Server(parameters)
    except RuntimeError as error:
        sys.stderr.write(f"skulk: the model cannot be loaded: {values['model_path']}: {error}\n")
        return _LOAD_FAILED
    sys.stderr.write(f"skulk: serving on {server.listening_address}\n")
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
