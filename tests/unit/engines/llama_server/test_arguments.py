from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from engines.base import Group, LayerRange, LoadSpec
from engines.llama_server.arguments import (
    ServerSettings,
    binary_argv,
    hosted_parameters,
    settings_of,
)
from engines.llama_server.engine import LlamaServerEngine
from protocol.cards import Compute, ModelTask
from protocol.errors import EngineError
from tests.support.builders import a_card, an_engine
from tests.support.llama_server_cli import parser

SETTINGS = ServerSettings(
    model_path="/models/a b.gguf",
    socket_path="/run/x.sock",
    context_tokens=4096,
    slots=16,
    n_threads=3,
    n_gpu_layers=0,
    embeddings="off",
    text_tokens=2048,
)


def a_spec(
    *, compute: Compute = "cpu", tasks: tuple[ModelTask, ...] = ("TextGeneration",)
) -> LoadSpec:
    return LoadSpec(
        card=a_card().model_copy(update={"tasks": tasks}),
        entry_path=Path("/models/a.gguf"),
        context_tokens=4096,
        slots=16,
        compute=compute,
        n_threads=3,
        socket_path=Path("/run/x.sock"),
        build=an_engine(),
    )


def test_both_spellings_say_the_same() -> None:
    flags = parser().parse_args(binary_argv("/bin/llama-server", SETTINGS)[1:])
    hosted = hosted_parameters(SETTINGS)
    assert (flags.model, flags.host) == (hosted["model_path"], hosted["socket_path"])
    assert (flags.ctx_size, flags.parallel) == (hosted["n_ctx"], hosted["n_parallel"])
    assert flags.threads == flags.threads_batch == hosted["n_threads"]
    assert flags.n_gpu_layers == hosted["n_gpu_layers"]
    assert flags.cache_ram == hosted["cache_ram_mib"]
    assert flags.ctx_checkpoints == hosted["n_ctx_checkpoints"]
    assert flags.sse_ping_interval == hosted["sse_ping_interval"]
    assert flags.kv_unified == hosted["kv_unified"]
    assert (flags.fit, hosted["fit_params"]) == ("off", False)


def test_the_context_of_a_request_is_the_whole_pool() -> None:
    settings = settings_of(a_spec())
    assert settings.context_tokens == 4096
    assert hosted_parameters(settings)["kv_unified"] is True


@pytest.mark.parametrize(("compute", "is_offloaded"), [("cpu", False), ("cuda", True)])
def test_layers_go_to_the_device_that_was_planned(compute: Compute, is_offloaded: bool) -> None:
    assert (settings_of(a_spec(compute=compute)).n_gpu_layers > 0) == is_offloaded


@pytest.mark.parametrize(
    ("tasks", "flags"),
    [
        (("TextGeneration",), ()),
        (("TextEmbedding",), ("--embeddings",)),
        (("TextGeneration", "TextEmbedding"), ("--embeddings", "--pooling", "mean")),
        (("TextRerank",), ("--embeddings", "--pooling", "rank")),
    ],
)
def test_embeddings_are_pooled_by_the_model_if_it_can(
    tasks: tuple[ModelTask, ...], flags: tuple[str, ...]
) -> None:
    settings = settings_of(a_spec(tasks=tasks))
    plain = binary_argv("x", replace(settings, embeddings="off"))
    argv = list(binary_argv("x", settings))
    for name in ("--batch-size", "--ubatch-size"):
        if flags:
            at = argv.index(name)
            assert argv[at + 1] == str(settings.text_tokens)
            del argv[at : at + 2]
    assert tuple(argv) == plain + flags
    assert hosted_parameters(settings)["pooling"] == (flags[2] if len(flags) > 1 else "")


@pytest.mark.parametrize(
    ("tasks", "family", "context_tokens", "text_tokens"),
    [
        (("TextEmbedding",), "bert", 512, 512),
        (("TextEmbedding",), "nomic-bert-moe", 8192, 8192),
        (("TextEmbedding",), "gemma-embedding", 32768, 8192),
        (("TextRerank",), "bert", 1024, 1024),
        (("TextEmbedding",), "qwen3", 32768, 512),
        (("TextEmbedding",), None, 32768, 512),
        (("TextGeneration", "TextEmbedding"), "bert", 32768, 512),
        (("TextGeneration", "TextEmbedding"), "llama", 256, 256),
    ],
)
def test_a_text_fits_one_batch_and_a_batch_fits_the_memory(
    tasks: tuple[ModelTask, ...], family: str | None, context_tokens: int, text_tokens: int
) -> None:
    spec = replace(a_spec(tasks=tasks), context_tokens=context_tokens)
    card = spec.card.model_copy(update={"family": family})
    settings = settings_of(replace(spec, card=card))
    hosted = hosted_parameters(settings)
    assert settings.text_tokens == hosted["n_batch"] == hosted["n_ubatch"] == text_tokens


def test_a_text_model_keeps_the_batches_of_its_engine() -> None:
    assert {"n_batch", "n_ubatch"}.isdisjoint(hosted_parameters(SETTINGS))
    assert {"--batch-size", "--ubatch-size"}.isdisjoint(binary_argv("x", SETTINGS))


def test_nothing_is_downloaded_and_no_page_is_served() -> None:
    argv = binary_argv("x", SETTINGS)
    assert {"--offline", "--no-webui"} <= set(argv)
    assert "--port" not in argv


@pytest.mark.parametrize(("compute", "is_offloaded"), [("cpu", False), ("cuda", True)])
def test_a_projector_is_told_in_both_spellings_and_goes_where_the_layers_go(
    compute: Compute, is_offloaded: bool
) -> None:
    spec = replace(a_spec(compute=compute), projector_path=Path("/models/mmproj a.gguf"))
    settings = settings_of(spec)
    flags = parser().parse_args(binary_argv("/bin/llama-server", settings)[1:])
    hosted = hosted_parameters(settings)
    assert flags.mmproj == hosted["projector_path"] == "/models/mmproj a.gguf"
    assert hosted["mmproj_use_gpu"] is is_offloaded
    assert flags.no_mmproj_offload is not is_offloaded


def test_without_a_projector_nothing_is_said_of_one() -> None:
    settings = settings_of(a_spec())
    assert not any("mmproj" in flag for flag in binary_argv("/bin/llama-server", settings))
    assert "projector_path" not in hosted_parameters(settings)


def test_an_engine_that_is_shown_images_finds_no_other_decoders() -> None:
    engine = LlamaServerEngine()
    assert "PATH" not in engine.launch(a_spec()).environment
    shown = engine.launch(replace(a_spec(), projector_path=Path("/models/mmproj.gguf")))
    assert shown.environment["PATH"] == "/nonexistent"


def a_rank(rank: int, *, compute: Compute = "cpu") -> LoadSpec:
    group = Group(
        rank=rank,
        layers=(LayerRange(0, 10), LayerRange(10, 18), LayerRange(18, 30)),
        ports=(0, 20_001, 20_002) if rank == 0 else (0, 25_000, 0),
    )
    build = an_engine(path="/opt/llama-server").model_copy(
        update={"provider": "binary", "rpc": True, "rpc_path": "/opt/ggml-rpc-server"}
    )
    return replace(a_spec(compute=compute), group=group, build=build)


def test_a_driver_gives_each_donor_exactly_its_layers_and_keeps_the_output() -> None:
    argv = LlamaServerEngine().launch(a_rank(0)).argv
    flags = dict(pairwise(argv))
    assert flags["--rpc"] == "127.0.0.1:20001,127.0.0.1:20002"
    assert argv.index("--rpc") < argv.index("--device")
    assert flags["--device"] == "RPC0,RPC1"
    # 8 and 12 layers, and the output, which llama.cpp deals out as one more and is then kept.
    assert (flags["--n-gpu-layers"], flags["--tensor-split"]) == ("21", "8,13")
    assert flags["--override-tensor"] == "^(output|token_embd)=CPU"
    assert "--no-mmap" in argv


def test_a_driver_with_a_gpu_computes_its_own_layers_there() -> None:
    argv = LlamaServerEngine().launch(a_rank(0, compute="vulkan")).argv
    flags = dict(pairwise(argv))
    assert flags["--device"] == "Vulkan0,RPC0,RPC1"
    assert (flags["--n-gpu-layers"], flags["--tensor-split"]) == ("999", "10,8,13")


def test_a_donor_listens_on_this_machine_alone_and_is_given_no_model() -> None:
    launch = LlamaServerEngine().launch(a_rank(1))
    assert launch.argv[0] == "/opt/ggml-rpc-server"
    flags = dict(pairwise(launch.argv))
    assert (flags["--host"], flags["--port"]) == ("127.0.0.1", "25000")
    assert (flags["--threads"], flags["--device"]) == ("3", "CPU")
    assert "/models/a.gguf" not in launch.argv
    assert launch.endpoint.port == 25_000


def test_a_build_without_a_donor_program_is_no_part_of_a_pool() -> None:
    alone = replace(a_rank(0), build=an_engine())
    with pytest.raises(EngineError, match="no rpc-server beside it") as refused:
        LlamaServerEngine().launch(alone)
    assert refused.value.code == "engine.unsupported"
