"""The deterministic stand-in for a model: real process, real socket, scripted behaviour."""

import json
import sys
from dataclasses import replace
from typing import Final, final

from engines.base import Endpoint, EngineDescription, LaunchSpec, LoadSpec
from engines.output.split_frames import rules_of
from engines.upstream import UpstreamClient
from protocol.errors import EngineError
from protocol.images import IMAGE_TYPES
from protocol.nodes import EngineFacts
from protocol.vectors import MAX_DIMENSIONS

OVERHEAD_BYTES: Final = 24 * 1024 * 1024
"""Resident memory of the process, measured, rounded up."""
DEFAULT_SLOTS: Final = 16
_MAX_ARGUMENT_BYTES: Final = 120 * 1024
"""Linux takes no single argument above 128 KiB."""


@final
class ScriptedEngine:
    """`engines.base.Engine` for cards with a [scripted] table."""

    def describe(self) -> EngineDescription:
        """Say what the script's process can do."""
        return EngineDescription(
            name="scripted",
            features=frozenset({"chat", "complete", "embed", "rerank", "tools", "vision"}),
            image_types=frozenset(IMAGE_TYPES),
            default_slots=DEFAULT_SLOTS,
            overhead_bytes=OVERHEAD_BYTES,
        )

    def launch(self, spec: LoadSpec) -> LaunchSpec:
        """Give the argv of the server, the script inside it."""
        section = spec.card.scripted
        if section is None:
            raise EngineError(
                "engine.unsupported",
                f"the card of {spec.card.model_id} has no [scripted] table",
                remediation="add one, or place the model on another engine",
            )
        script = {
            **section.model_dump(exclude_defaults=True),
            "reply": section.reply,
            "slots": spec.slots,
            "context_tokens": spec.context_tokens,
            "dimensions": min(spec.card.hidden_size, MAX_DIMENSIONS),
        }
        parameters = {"socket": str(spec.socket_path), "script": script}
        argument = json.dumps(parameters, ensure_ascii=False)
        n_bytes = len(argument.encode("utf-8", "surrogateescape"))
        if n_bytes > _MAX_ARGUMENT_BYTES:
            raise EngineError(
                "engine.unsupported",
                f"the script takes {n_bytes} bytes, {_MAX_ARGUMENT_BYTES} are possible",
                remediation="shorten `reply`; `repeat` says it over and over",
            )
        return LaunchSpec(
            argv=(sys.executable, "-P", "-m", "engines.scripted.server", argument),
            endpoint=Endpoint(socket_path=spec.socket_path),
        )

    def connect(self, spec: LoadSpec, endpoint: Endpoint) -> UpstreamClient:
        """Make a client; it splits what the script says where that is a model's raw text."""
        section = spec.card.scripted
        if section is None or not section.raw_markup:
            return UpstreamClient(endpoint, can_answer_whole=True)
        rules = replace(
            rules_of(spec.card), prompt_tail=section.prompt_tail, stops_at_turn_ends=True
        )
        return UpstreamClient(endpoint, can_answer_whole=True, rules=rules)


def builtin_facts() -> EngineFacts:
    """Describe the build that is part of skulk itself."""
    return EngineFacts(
        engine="scripted",
        provider="builtin",
        path=sys.executable,
        computes=("cpu",),
        usable=True,
        overhead_bytes=OVERHEAD_BYTES,
        default_slots=DEFAULT_SLOTS,
    )
