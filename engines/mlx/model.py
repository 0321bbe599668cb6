"""A model directory as something that computes: weights, tokenizer, template, ends of text."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from engines.in_process import Report
from engines.mlx.library import Model, Tokenizer, mlx_utils, mx, tokenizers, utils
from engines.prompts import ChatTemplate
from protocol.errors import EngineError

_SPECIAL: Final = ("bos_token", "eos_token", "pad_token", "unk_token")
_MAX_JSON_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """What is in memory after a load."""

    model: Model
    tokenizer: Tokenizer
    template: ChatTemplate | None
    """None for a model that has no chats."""
    end_ids: tuple[int, ...]
    """Tokens after which the model has nothing more to say."""
    defaults: dict[str, float] = field(default_factory=dict[str, float])
    """How its makers would sample: temperature, top_p, top_k, min_p."""


def directory_of(entry: Path) -> Path:
    """Give the folder of a model, of which the entry is one file or the folder itself."""
    return entry if entry.is_dir() else entry.parent


def load(directory: Path, report: Report, epoch_s: float, *, on_cpu: bool) -> LoadedModel:
    """Load a model.

    Args:
        directory: With `config.json`, `tokenizer.json` and weights in safetensors files.
        report: Gets the share of the weights that is in memory.
        epoch_s: The wall time.
        on_cpu: Blocks are multiplied in float32: half floats are ten times slower there.

    Raises:
        EngineError: `engine.unsupported`, `engine.request_failed`, naming the file.
    """
    report(0.0, "reading the model's description")
    configuration = _json_of(directory / "config.json")
    tokenizer_file = directory / "tokenizer.json"
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
    except Exception as error:
        raise _unreadable(tokenizer_file, error) from error
    template, special = _template_of(directory, epoch_s)
    try:
        model, _ = utils.load_model(directory, lazy=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise _unreadable(directory, error) from error
    if on_cpu and "quantization" in configuration:
        model.set_dtype(mx.float32)
    _read_weights(model, report)
    generation = _json_of(directory / "generation_config.json", is_required=False)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        template=template,
        end_ids=_end_ids(configuration, generation, tokenizer, special),
        defaults={
            name: float(generation[name])
            for name in ("temperature", "top_p", "top_k", "min_p")
            if isinstance(generation.get(name), int | float)
        },
    )


def _read_weights(model: Model, report: Report) -> None:
    """Bring the weights into memory, one after the other, and say how far that is."""
    arrays = [array for _, array in mlx_utils.tree_flatten(model.parameters())]
    total_bytes = sum(array.nbytes for array in arrays) or 1
    done_bytes = 0
    for array in arrays:
        mx.eval(array)
        done_bytes += array.nbytes
        report(done_bytes / total_bytes, "reading the weights")
    model.eval()


def _template_of(directory: Path, epoch_s: float) -> tuple[ChatTemplate | None, dict[str, str]]:
    told = _json_of(directory / "tokenizer_config.json", is_required=False)
    special = {name: _token_text(told.get(name)) for name in _SPECIAL}
    file = directory / "chat_template.jinja"
    source = file.read_text(encoding="utf-8") if file.is_file() else told.get("chat_template")
    if isinstance(source, list):  # several, by name
        named = {item["name"]: item["template"] for item in cast("list[dict[str, str]]", source)}
        source = named.get("default")
    if not isinstance(source, str):
        return None, special
    return ChatTemplate(source, special, epoch_s), special


def _token_text(value: object) -> str:
    if isinstance(value, dict):
        value = cast("dict[str, object]", value).get("content")
    return value if isinstance(value, str) else ""


def _end_ids(
    configuration: dict[str, Any],
    generation: dict[str, Any],
    tokenizer: Tokenizer,
    special: dict[str, str],
) -> tuple[int, ...]:
    found: list[int] = []
    for told in (generation.get("eos_token_id"), configuration.get("eos_token_id")):
        ids = cast("list[object]", told) if isinstance(told, list) else [told]
        found += [one for one in ids if isinstance(one, int)]
    named = tokenizer.token_to_id(special["eos_token"]) if special["eos_token"] else None
    if isinstance(named, int):
        found.append(named)
    return tuple(dict.fromkeys(found))


def _json_of(file: Path, *, is_required: bool = True) -> dict[str, Any]:
    if not is_required and not file.is_file():
        return {}
    try:
        if file.stat().st_size > _MAX_JSON_BYTES:
            raise _unreadable(file, f"it is larger than {_MAX_JSON_BYTES} bytes")
        value = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise _unreadable(file, error) from error
    if not isinstance(value, dict):
        raise _unreadable(file, "it is no JSON object")
    return cast("dict[str, Any]", value)


def _unreadable(file: Path, why: object) -> EngineError:
    return EngineError(
        "engine.request_failed",
        f"{file}: {why}"[:1000],
        remediation="The engine mlx loads folders with config.json, tokenizer.json and "
        "model*.safetensors of an architecture that mlx-lm knows.",
    )
