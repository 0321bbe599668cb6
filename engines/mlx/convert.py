"""A GGUF file as a folder that MLX loads. In a child: it holds the whole model in memory.

    python -m engines.mlx.convert MODEL.gguf FOLDER

llama.cpp stores the query and key projections with the halves of each head interleaved; that is
undone. Blocks of 4 and 8 bits are MLX's own form already and stay as they are, to the bit; all
else becomes float16.

Source:
    The GGUF specification's list of metadata keys, and what `mx.load` makes of a file's blocks: a
    tensor of 4 or 8 bits comes as `weight`, `scales` and `biases` of groups of 32.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from engines.mlx.library import Array, mx, tokenizers
from protocol.errors import EngineError, SkulkError

WEIGHTS_FILE: Final = "model.safetensors"
_GROUP_SIZE: Final = 32
_SHARD_BYTES: Final = 4 * 1024 * 1024 * 1024
_CONTROL: Final = 3
_ARCHITECTURES: Final = frozenset({"llama"})
_NAMES: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_up": "mlp.up_proj",
}
_PARTS: Final = frozenset({"weight", "scales", "biases"})
_PRE_TOKENIZERS: Final = frozenset({"smollm"})


def convert(source: Path, target: Path) -> None:
    """Write the folder; `target` is there and empty.

    Raises:
        EngineError: `engine.unsupported` for an architecture, a tensor or a tokenizer that is not
            known here; `engine.request_failed` for a file that cannot be read.
    """
    try:
        tensors, metadata = mx.load(str(source), return_metadata=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise EngineError("engine.request_failed", f"{source}: {error}"[:1000]) from error
    told = {name: _plain(value) for name, value in metadata.items()}
    architecture = told.get("general.architecture")
    if architecture not in _ARCHITECTURES:
        raise _unsupported("the architecture", architecture, _ARCHITECTURES)
    configuration = _configuration(told, has_head="output.weight" in tensors)
    weights = dict(_weights(tensors, configuration))
    quantized = {
        name.removesuffix(".scales"): _bits(weights, name)
        for name in weights
        if name.endswith(".scales")
    }
    if quantized:
        configuration["quantization"] = _quantization(quantized)
    _write_json(target / "config.json", configuration)
    _write_tokenizer(target, told)
    _write_weights(target, weights)


def _configuration(told: dict[str, Any], *, has_head: bool) -> dict[str, Any]:
    n_heads = told["llama.attention.head_count"]
    hidden_size = told["llama.embedding_length"]
    configuration = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": hidden_size,
        "intermediate_size": told["llama.feed_forward_length"],
        "num_hidden_layers": told["llama.block_count"],
        "num_attention_heads": n_heads,
        "num_key_value_heads": told.get("llama.attention.head_count_kv", n_heads),
        "head_dim": told.get("llama.attention.key_length", hidden_size // n_heads),
        "rms_norm_eps": told["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": told.get("llama.rope.freq_base", 10_000.0),
        "max_position_embeddings": told["llama.context_length"],
        "vocab_size": len(told["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": not has_head,
        "bos_token_id": told.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": told.get("tokenizer.ggml.eos_token_id"),
        "torch_dtype": "float16",
    }
    if told.get("llama.rope.scaling.type") not in {None, "none"}:
        raise _unsupported("the rotary embedding", told["llama.rope.scaling.type"], ("none",))
    return configuration


def _write_tokenizer(target: Path, told: dict[str, Any]) -> None:
    kind, before = told.get("tokenizer.ggml.model"), told.get("tokenizer.ggml.pre")
    if kind != "gpt2" or before not in _PRE_TOKENIZERS:
        raise _unsupported("the tokenizer", f"{kind}/{before}", _PRE_TOKENIZERS)
    words: list[str] = told["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in told["tokenizer.ggml.merges"]]
    vocabulary = {word: index for index, word in enumerate(words)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Digits(individual_digits=True),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])  # fmt: skip
    made.decoder = tokenizers.decoders.ByteLevel()
    kinds = told.get("tokenizer.ggml.token_type", [])
    made.add_special_tokens([
        tokenizers.AddedToken(word, special=True, normalized=False)
        for word, its_kind in zip(words, kinds, strict=False)
        if its_kind == _CONTROL
    ])  # fmt: skip
    made.save(str(target / "tokenizer.json"))
    named: dict[str, str] = {
        f"{name}_token": words[told[key]]
        for name in ("bos", "eos")
        if (key := f"tokenizer.ggml.{name}_token_id") in told
    }
    template = told.get("tokenizer.chat_template")
    described: dict[str, str] = {"tokenizer_class": "PreTrainedTokenizerFast", **named}
    if isinstance(template, str):
        described["chat_template"] = template
    _write_json(target / "tokenizer_config.json", described)


def _quantization(bits_of: dict[str, int]) -> dict[str, Any]:
    """Say how many bits most layers have, and by name which have others."""
    counted = Counter(bits_of.values())
    most = max(counted, key=lambda bits: (counted[bits], bits))
    others = {
        layer: {"group_size": _GROUP_SIZE, "bits": bits}
        for layer, bits in bits_of.items()
        if bits != most
    }
    return {"group_size": _GROUP_SIZE, "bits": most, **others}


def _write_weights(target: Path, weights: dict[str, Array]) -> None:
    """Write the tensors to files of about 4 GiB, and the index that says which lies where."""
    shards: list[dict[str, Array]] = [{}]
    n_bytes = 0
    for name, array in weights.items():
        if n_bytes and n_bytes + array.nbytes > _SHARD_BYTES:
            shards.append({})
            n_bytes = 0
        shards[-1][name] = array
        n_bytes += array.nbytes
    places: dict[str, str] = {}
    for index, shard in enumerate(shards):
        file = WEIGHTS_FILE
        if len(shards) > 1:
            file = f"model-{index + 1:05}-of-{len(shards):05}.safetensors"
        mx.save_safetensors(str(target / file), shard, metadata={"format": "mlx"})
        places.update(dict.fromkeys(shard, file))
    total_bytes = sum(array.nbytes for array in weights.values())
    index_file = target / "model.safetensors.index.json"
    _write_json(index_file, {"metadata": {"total_size": total_bytes}, "weight_map": places})


def _weights(
    tensors: dict[str, Array], configuration: dict[str, Any]
) -> Iterator[tuple[str, Array]]:
    """Give each tensor under MLX's name; `scales` and `biases` are rows beside their weights."""
    n_heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
    for name in sorted(tensors):
        stem, _, part = name.rpartition(".")
        *place, kind = stem.split(".")
        if kind not in _NAMES or part not in _PARTS:
            raise _unsupported("the tensor", name, _NAMES)
        array = tensors[name]
        if array.dtype != mx.uint32:
            array = array.astype(mx.float16)
        if kind in n_heads:
            array = _uninterleaved(array, configuration[n_heads[kind]])
        prefix = f"model.layers.{place[1]}." if place else ""
        yield f"{prefix}{_NAMES[kind]}.{part}", array


def _bits(weights: dict[str, Array], scales: str) -> int:
    packed = weights[scales.replace(".scales", ".weight")]
    return packed.shape[-1] * 32 // (weights[scales].shape[-1] * _GROUP_SIZE)


def _uninterleaved(array: Array, n_heads: int) -> Array:
    """Undo llama.cpp's order: `(heads × head_dim, hidden)`, pairs in each head to halves."""
    rows, columns = array.shape
    halves = array.reshape(n_heads, rows // n_heads // 2, 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def _plain(value: Array) -> Array:
    """Give a value of the header as Python has it."""
    if not hasattr(value, "tolist"):
        return value
    return value.item() if value.size == 1 else value.tolist()


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _unsupported(kind: str, name: object, known: Iterable[str]) -> EngineError:
    return EngineError(
        "engine.unsupported",
        f"{kind} {name} cannot be converted",
        remediation=f"Known are: {', '.join(sorted(known))}. Its maker may offer it for MLX.",
    )


def main(arguments: list[str]) -> int:
    """Convert; the last line of standard error says why where that fails."""
    source, target = map(Path, arguments)
    mx.set_default_device(mx.cpu)
    try:
        convert(source, target)
    except (SkulkError, KeyError, OSError, ValueError) as error:
        sys.stderr.write(f"skulk: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
