"""llama-server as an engine: GGUF models, with a binary or with xllamacpp in a child."""

import json
import sys
from typing import Final, final

from engines.base import Endpoint, EngineDescription, LaunchSpec, LoadSpec
from engines.llama_server.arguments import (
    binary_argv,
    donor_argv,
    hosted_parameters,
    settings_of,
)
from engines.output.split_frames import rules_of
from engines.upstream import UpstreamClient
from protocol.errors import EngineError

HOSTED_MODULE: Final = "engines.llama_server.hosted"
DEFAULT_SLOTS: Final = 16
OVERHEAD_BYTES: Final = 96 * 1024 * 1024
"""Resident memory beside weights and cache after 16 slots have worked: 86 MB hosted, 72 MB binary,
with a model of 49,152 words; compute buffers grow with the vocabulary."""
_NO_PROGRAMS: Final = {"PATH": "/nonexistent"}
"""What this server cannot decode itself it hands to `ffprobe` and `ffmpeg`, where it finds them:
parsers of everything, for bytes that strangers send. Seen in xllamacpp 2026.10."""


@final
class LlamaServerEngine:
    """`engines.base.Engine` for llama-server."""

    def describe(self) -> EngineDescription:
        """Say what llama-server can do."""
        return EngineDescription(
            name="llama_server",
            features=frozenset({
                "chat", "complete", "embed", "rerank", "logprobs", "tools", "grammar", "seed",
                "thinking", "vision",
            }),
            image_types=frozenset({"image/png", "image/jpeg", "image/gif"}),
            default_slots=DEFAULT_SLOTS,
            overhead_bytes=OVERHEAD_BYTES,
        )  # fmt: skip

    def launch(self, spec: LoadSpec) -> LaunchSpec:
        """Give the argv of the build's provider; both listen on the Unix socket.

        Of a model over several nodes rank 0 drives, and the others lend their memory: those run an
        rpc-server, which needs no file of the model.
        """
        if spec.build.engine != "llama_server" or spec.build.provider == "builtin":
            raise EngineError(
                "engine.unsupported",
                f"{spec.build.engine} ({spec.build.provider}) is no llama-server",
            )
        group = spec.group
        if group is not None and not spec.build.rpc_path:
            raise EngineError(
                "engine.unsupported",
                f"{spec.build.path or spec.build.version} cannot share a model with other nodes: "
                "there is no rpc-server beside it",
                remediation="Install the `vulkan` extra, or set SKULK_LLAMA_SERVER_BIN to a "
                "llama-server that has its rpc-server beside it.",
            )
        if group is not None and group.rank:
            endpoint = Endpoint(port=group.ports[group.rank])
            return LaunchSpec(argv=donor_argv(spec, group), endpoint=endpoint)
        settings = settings_of(spec)
        if spec.build.provider == "binary":
            argv = binary_argv(spec.build.path, settings)
        else:
            parameters = json.dumps(hosted_parameters(settings), ensure_ascii=False)
            argv = (sys.executable, "-P", "-m", HOSTED_MODULE, parameters)
        return LaunchSpec(
            argv=argv,
            environment={} if spec.projector_path is None else _NO_PROGRAMS,
            endpoint=Endpoint(socket_path=spec.socket_path),
        )

    def connect(self, spec: LoadSpec, endpoint: Endpoint) -> UpstreamClient:
        """Make a client.

        Answers are always streamed from this engine: asked for a whole one, it goes on generating
        after its client has gone, and drops or keeps a last blank differently.

        It splits out calls and reasoning itself, but only for requests with tools and for chat
        templates that it knows; what it leaves in the text is split here.
        """
        return UpstreamClient(endpoint, rules=rules_of(spec.card))
