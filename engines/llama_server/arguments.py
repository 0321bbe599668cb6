"""What llama-server is told, for both of its providers. Pure.

One table of settings, two spellings: flags of the binary, and attributes of the hosted server's
parameters. Nothing outside this table ever reaches an engine's command line.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from engines.base import Group, LoadSpec
from protocol.cards import Compute, ModelCard, text_tokens

CONTEXT_CHECKPOINTS: Final = 4
"""Copies of recurrent or sliding-window state kept per slot. The default of 32 can take gigabytes
that no plan has counted."""

EmbeddingMode = Literal["off", "own_pooling", "mean_pooling", "rank_pooling"]
"""`own_pooling` is what an embedding model's header asks for; a chat model has none, so its token
vectors are averaged. `rank_pooling` scores documents."""

_POOLING: Final[dict[EmbeddingMode, str]] = {"mean_pooling": "mean", "rank_pooling": "rank"}
_ALL_LAYERS: Final = 999
_DEVICES: Final[dict[Compute, str]] = {
    "cpu": "CPU",
    "cuda": "CUDA0",
    "rocm": "ROCm0",
    "vulkan": "Vulkan0",
    "metal": "MTL0",
}
"""The first device of a kind, as llama.cpp calls it."""
DONOR_PROGRAMS: Final = ("ggml-rpc-server", "rpc-server")
"""What the program that lends memory is called; it comes with the llama-server of its build."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """How one llama-server spreads a model over donors. What is no layer stays with itself."""

    donors: tuple[str, ...]
    """`HOST:PORT` of each, in the order of their layers, which follow the driver's own."""
    own_device: str
    """What the driver's own layers are computed on; "CPU" is no device to llama.cpp."""
    own_layers: int
    donor_layers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How one llama-server is to run."""

    model_path: str
    socket_path: str
    context_tokens: int
    """The cache that all slots share, and with it the window of one request."""
    slots: int
    n_threads: int
    n_gpu_layers: int
    embeddings: EmbeddingMode
    text_tokens: int
    """The longest text to embed. Pooling needs all of it in one physical batch, for which llama.cpp
    has room for 512 tokens unless it is told."""
    projector_path: str = ""
    """What makes images readable to the model; "" for none."""
    pool: Pool | None = None
    """None where it holds the whole model."""


def settings_of(spec: LoadSpec) -> ServerSettings:
    """Give the settings for what is to be loaded."""
    return ServerSettings(
        model_path=str(spec.entry_path),
        socket_path=str(spec.socket_path),
        context_tokens=spec.context_tokens,
        slots=spec.slots,
        n_threads=spec.n_threads,
        n_gpu_layers=0 if spec.compute == "cpu" else _ALL_LAYERS,
        embeddings=_embedding_mode(spec.card),
        text_tokens=text_tokens(spec.card, spec.context_tokens),
        projector_path="" if spec.projector_path is None else str(spec.projector_path),
        pool=None if spec.group is None else _pool(spec.group, spec.compute),
    )


def donor_argv(spec: LoadSpec, group: Group) -> tuple[str, ...]:
    """Spell the command of a donor; it listens on this machine alone.

    What a connection to it may do is not checked by it at all, so that nothing but the cluster's
    own streams must reach it.
    """
    return (
        spec.build.rpc_path,
        "--host", "127.0.0.1",
        "--port", str(group.ports[group.rank]),
        "--threads", str(spec.n_threads),
        "--device", _DEVICES[spec.compute],
    )  # fmt: skip


def binary_argv(binary: str, settings: ServerSettings) -> tuple[str, ...]:
    """Spell the settings for a llama-server executable."""
    argv = [
        binary,
        "--model", settings.model_path,
        "--host", settings.socket_path,  # a name that ends in .sock is a Unix socket
        "--ctx-size", str(settings.context_tokens),
        "--parallel", str(settings.slots),
        "--kv-unified",
        "--threads", str(settings.n_threads),
        "--threads-batch", str(settings.n_threads),
        "--n-gpu-layers", str(settings.n_gpu_layers),
        # The planner has decided: an engine that shrinks the context to fit would break its word.
        "--fit", "off",
        "--flash-attn", "auto",
        # The prompt cache in host memory, 8 GiB by default, is in no plan.
        "--cache-ram", "0",
        "--ctx-checkpoints", str(CONTEXT_CHECKPOINTS),
        # Our probe is the warm-up, and it comes over the path that clients use.
        "--no-warmup",
        "--jinja",
        "--metrics",
        "--slots",
        "--no-webui",
        "--offline",
        "--sse-ping-interval", "-1",  # silence must mean that nothing happens
        "--log-colors", "off",
    ]  # fmt: skip
    if settings.embeddings != "off":
        batch = str(settings.text_tokens)
        argv += ["--embeddings", "--batch-size", batch, "--ubatch-size", batch]
    if settings.embeddings in _POOLING:
        argv += ["--pooling", _POOLING[settings.embeddings]]
    if settings.projector_path:
        argv += ["--mmproj", settings.projector_path]
        # Else it goes to a device that the plan has not asked for.
        argv += [] if settings.n_gpu_layers else ["--no-mmproj-offload"]
    return (*argv, *(() if settings.pool is None else _pool_arguments(settings.pool)))


def hosted_parameters(settings: ServerSettings) -> dict[str, str | int | bool]:
    """Spell the settings for `engines.llama_server.hosted`, as names of its parameters."""
    batch: dict[str, str | int | bool] = {}
    if settings.embeddings != "off":
        batch = {"n_batch": settings.text_tokens, "n_ubatch": settings.text_tokens}
    projector: dict[str, str | int | bool] = {}
    if settings.projector_path:
        projector = {
            "projector_path": settings.projector_path,
            "mmproj_use_gpu": settings.n_gpu_layers > 0,
        }
    return {
        **batch,
        **projector,
        "model_path": settings.model_path,
        "socket_path": settings.socket_path,
        "n_threads": settings.n_threads,
        "n_ctx": settings.context_tokens,
        "n_parallel": settings.slots,
        "n_gpu_layers": settings.n_gpu_layers,
        "n_ctx_checkpoints": CONTEXT_CHECKPOINTS,
        "cache_ram_mib": 0,
        "sse_ping_interval": -1,
        "kv_unified": True,
        "fit_params": False,
        "warmup": False,
        "use_jinja": True,
        "endpoint_metrics": True,
        "endpoint_slots": True,
        "ui": False,
        "offline": True,
        "embedding": settings.embeddings != "off",
        "pooling": _POOLING.get(settings.embeddings, ""),
    }


def donor_program(binary: Path) -> Path | None:
    """Find the donor's program that came with a llama-server."""
    found = (binary.with_name(name) for name in DONOR_PROGRAMS)
    return next((path for path in found if path.is_file()), None)


def _pool(group: Group, compute: Compute) -> Pool:
    return Pool(
        donors=tuple(f"127.0.0.1:{port}" for port in group.ports[1:]),
        own_device=_DEVICES[compute],
        own_layers=group.layers[0].end - group.layers[0].start,
        donor_layers=tuple(layers.end - layers.start for layers in group.layers[1:]),
    )


def _pool_arguments(pool: Pool) -> list[str]:
    """Say which layers go where, exactly.

    llama.cpp deals layers out to devices in proportion to `--tensor-split`, and counts the output
    as one more layer, of the last device. So each part is the number of its layers, and the last
    one is one larger; the output's weights, which may be as large as many layers, are then kept
    here. Its own measure, a donor's free memory, is that of the donor's whole machine.
    """
    remote = [f"RPC{number}" for number in range(len(pool.donors))]
    parts = [*pool.donor_layers[:-1], pool.donor_layers[-1] + 1]
    n_gpu_layers = sum(parts)
    if pool.own_device != _DEVICES["cpu"]:
        remote.insert(0, pool.own_device)
        parts.insert(0, pool.own_layers)
        n_gpu_layers = _ALL_LAYERS
    return [
        # Before the devices, which it makes known.
        "--rpc", ",".join(pool.donors),
        "--device", ",".join(remote),
        "--n-gpu-layers", str(n_gpu_layers),
        "--tensor-split", ",".join(str(part) for part in parts),
        "--override-tensor", f"^(output|token_embd)={_DEVICES['cpu']}",
        # Mapped, the layers of the donors would count as this process's memory, too.
        "--no-mmap",
    ]  # fmt: skip


def _embedding_mode(card: ModelCard) -> EmbeddingMode:
    if "TextRerank" in card.tasks:
        return "rank_pooling"
    if "TextEmbedding" not in card.tasks:
        return "off"
    return "mean_pooling" if "TextGeneration" in card.tasks else "own_pooling"
