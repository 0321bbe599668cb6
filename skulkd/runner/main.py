"""The process in which an engine that is a library lives: a child, so that its death is its own.

    python -m skulkd.runner '{"engine": "mlx", "entry_path": ..., "socket_path": ..., ...}'

It listens before it loads. A load that fails ends the process with status 1 and a line that says
why. SIGTERM keeps its default: there is nothing to save. The parent-death signal is the launcher's
business. Of the daemon this process knows nothing.
"""

import asyncio
import importlib
import logging
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random, SystemRandom
from typing import Final, cast

from pydantic import TypeAdapter, ValidationError

from engines.in_process import InProcessEngine, RunnerSettings
from protocol.clock import Clock
from skulkd.runner.loop import RunnerLoop
from skulkd.runtime.clock import SystemClock

_ENGINES: Final = {"mlx": ("engines.mlx.runner", "MlxRunner")}
"""Imported by name, in the engine's own thread: only the one that is asked for is loaded."""
MakeEngine = Callable[[RunnerSettings, Clock, Random], InProcessEngine]
_BAD_SETTINGS: Final = 2


def main(arguments: list[str]) -> int:
    """Serve until a signal ends the process, or the load fails."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="skulk: %(message)s")
    try:
        settings = TypeAdapter(RunnerSettings).validate_json(arguments[0])
        module, name = _ENGINES[settings.engine]
    except (IndexError, KeyError, ValidationError) as error:
        sys.stderr.write(f"skulk: these settings cannot be used: {error!r}\n")
        return _BAD_SETTINGS

    random = SystemRandom()  # seeds the requests that bring none

    def make() -> InProcessEngine:
        kind = getattr(importlib.import_module(module), name)
        return cast("MakeEngine", kind)(settings, SystemClock(), random)

    executor = ThreadPoolExecutor(1, thread_name_prefix="engine")
    status = asyncio.run(RunnerLoop(settings.socket_path, make, executor).run())
    # What an inference library does when its thread ends was seen to abort the process, which would
    # hide why it has ended.
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)
