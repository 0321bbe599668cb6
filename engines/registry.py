"""Engines by name.

Each is imported when it is first asked for, by string: a daemon that serves one engine loads none
of the others.
"""

import importlib
from functools import cache
from typing import Final, cast

from engines.base import Engine, Feature
from protocol.cards import EngineName
from protocol.errors import EngineError
from protocol.images import ImageType

_FACTORIES: Final[dict[EngineName, tuple[str, str]]] = {
    "scripted": ("engines.scripted.engine", "ScriptedEngine"),
    "llama_server": ("engines.llama_server.engine", "LlamaServerEngine"),
    "mlx": ("engines.mlx.engine", "MlxEngine"),
}


def engine_names() -> tuple[EngineName, ...]:
    """Name the engines that this version of skulk can run."""
    return tuple(_FACTORIES)


def engine_of(name: EngineName) -> Engine:
    """Give the engine of that name.

    Raises:
        EngineError: `engine.unavailable` when this version has no such engine.
    """
    if name not in _FACTORIES:
        raise EngineError(
            "engine.unavailable",
            f"this version of skulk has no engine {name}",
            remediation=f"choose one of: {', '.join(_FACTORIES)}",
        )
    module, factory = _FACTORIES[name]
    return cast("Engine", getattr(importlib.import_module(module), factory)())


@cache
def features_of(name: EngineName) -> frozenset[Feature]:
    """Name what an engine can do.

    Raises:
        EngineError: As of `engine_of`.
    """
    return engine_of(name).describe().features


@cache
def image_types_of(name: EngineName) -> frozenset[ImageType]:
    """Name the images that an engine decodes.

    Raises:
        EngineError: As of `engine_of`.
    """
    return engine_of(name).describe().image_types
