"""MLX as an engine, seen from the worker: what to start, and how to speak to it. Loads no MLX."""

import sys
from typing import Final, final

from pydantic import TypeAdapter

from engines.base import Endpoint, EngineDescription, LaunchSpec, LoadSpec
from engines.in_process import RunnerSettings
from engines.runner_client import RunnerClient
from protocol.cards import ModelCard
from protocol.errors import EngineError

RUNNER_MODULE: Final = "skulkd.runner"
DEFAULT_SLOTS: Final = 8
OVERHEAD_BYTES: Final = 384 * 1024 * 1024
"""Resident memory of a runner beside weights and cache, with the libraries that it loads."""
_SETTINGS: Final = TypeAdapter(RunnerSettings)
_OFFLINE: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""A runner reads files that are there; its libraries could fetch others."""


@final
class MlxEngine:
    """`engines.base.Engine` for models in MLX's form, in a runner child."""

    def describe(self) -> EngineDescription:
        """Say what MLX can do; it holds no answer to a grammar and forces no call."""
        return EngineDescription(
            name="mlx",
            features=frozenset({"chat", "complete", "logprobs", "seed", "thinking"}),
            default_slots=DEFAULT_SLOTS,
            overhead_bytes=OVERHEAD_BYTES,
        )

    def launch(self, spec: LoadSpec) -> LaunchSpec:
        """Give the argv of the runner child; a rank of a group is refused."""
        if spec.build.engine != "mlx":
            raise EngineError("engine.unsupported", f"{spec.build.engine} is no MLX")
        if spec.group is not None:
            raise EngineError(
                "engine.unsupported",
                "MLX runs a model on one node alone in this version of skulk",
                remediation="Place the model on one node, or pool it with --shape rpc.",
            )
        settings = RunnerSettings(
            engine="mlx",
            card=_slim(spec.card),
            entry_path=spec.entry_path,
            socket_path=spec.socket_path,
            context_tokens=spec.context_tokens,
            slots=spec.slots,
            n_threads=spec.n_threads,
            compute=spec.compute,
        )
        argument = _SETTINGS.dump_json(settings).decode()
        return LaunchSpec(
            argv=(sys.executable, "-P", "-m", RUNNER_MODULE, argument),
            environment={**_OFFLINE, "OMP_NUM_THREADS": str(spec.n_threads)},
            endpoint=Endpoint(socket_path=spec.socket_path),
        )

    def connect(self, spec: LoadSpec, endpoint: Endpoint) -> RunnerClient:
        """Make a client."""
        if endpoint.socket_path is None:
            raise EngineError(
                "engine.unsupported", f"a runner of {spec.card.model_id} has a socket"
            )
        return RunnerClient(endpoint.socket_path)


def _slim(card: ModelCard) -> ModelCard:
    """Leave out what only the store reads: an argument has 128 KiB."""
    return card.model_copy(update={"source": None, "artifact_bundle": None, "components": ()})
