"""A `llama-server` executable for tests: the real command line in front of the hosted provider.

It takes exactly the flags that skulk gives, and refuses every other one as the real program does,
so that the binary provider's argv is exercised where no binary is installed.
"""

import argparse
import json
import stat
import sys
from pathlib import Path

from engines.llama_server.arguments import EmbeddingMode, ServerSettings, hosted_parameters

VERSION_TEXT = "version: 4711 (0ddba11)\nbuilt with nothing for tests"


def install(directory: Path) -> Path:
    """Write the executable into a directory and give its path."""
    path = directory / "llama-server"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.support.llama_server_cli "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def parser() -> argparse.ArgumentParser:
    """Give the command line, no abbreviations allowed."""
    flags = argparse.ArgumentParser(prog="llama-server", allow_abbrev=False)
    for name in ("--model", "--host", "--flash-attn", "--fit", "--log-colors"):
        flags.add_argument(name, required=True)
    for name in (
        "--ctx-size", "--parallel", "--threads", "--threads-batch", "--n-gpu-layers",
        "--cache-ram", "--ctx-checkpoints", "--sse-ping-interval",
    ):  # fmt: skip
        flags.add_argument(name, type=int, required=True)
    for name in (
        "--kv-unified", "--no-warmup", "--jinja", "--metrics", "--slots", "--no-webui", "--offline",
    ):  # fmt: skip
        flags.add_argument(name, action="store_true", required=True)
    flags.add_argument("--embeddings", action="store_true")
    flags.add_argument("--pooling", choices=("none", "mean", "cls", "last", "rank"))
    flags.add_argument("--mmproj", default="")
    flags.add_argument("--no-mmproj-offload", action="store_true")
    flags.add_argument("--batch-size", type=int)
    flags.add_argument("--ubatch-size", type=int, default=512)
    return flags


def main(arguments: list[str]) -> None:
    """Answer `--version` and `--list-devices`, or become the hosted server."""
    if arguments == ["--version"]:
        sys.stderr.write(VERSION_TEXT + "\n")
        return
    if arguments == ["--list-devices"]:
        sys.stdout.write("Available devices:\n  (none)\n")
        return
    given = parser().parse_args(arguments)
    modes: dict[str, EmbeddingMode] = {"mean": "mean_pooling", "rank": "rank_pooling"}
    pooling = modes.get(given.pooling, "own_pooling")
    settings = ServerSettings(
        model_path=given.model,
        socket_path=given.host,
        context_tokens=given.ctx_size,
        slots=given.parallel,
        n_threads=given.threads,
        n_gpu_layers=given.n_gpu_layers,
        embeddings=pooling if given.embeddings else "off",
        text_tokens=given.ubatch_size,
        projector_path=given.mmproj,
    )
    from engines.llama_server import hosted  # a test process must not load the library

    sys.exit(hosted.main([json.dumps(hosted_parameters(settings))]))


if __name__ == "__main__":
    main(sys.argv[1:])
