"""The tools that `skulk connect` knows: where their configuration lies and what it must say. Pure.

Each form is the one that the tool's own documents give; what was seen of it is in docs/clients.md.
"""

import json
import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from skulk_tui.cli.connect_offer import Offer, ReadyModel, is_key, key_in_text
from skulk_tui.cli.merge_json import json_text, merge_json, restore_json
from skulk_tui.cli.merge_toml import Scalar, merge_toml, take_out_toml, toml_text
from skulk_tui.cli.merge_yaml import Entry, merge_yaml, yaml_entries
from skulk_tui.own_files import config_dir

Changes = Mapping[tuple[str, ...], object]
_PROVIDER: Final = "skulk"
_SUFFIX: Final = " (skulk)"
_EFFORT: Final = "model_reasoning_effort"
_CODEX_TABLE: Final = ("model_providers", _PROVIDER)
_OPENCODE_SCHEMA: Final = "https://opencode.ai/config.json"
_CONTINUE_HEAD: Final = "name: Local Config\nversion: 1.0.0\nschema: v1\nmodels:\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool."""

    name: str
    """As people write it."""
    path_in: Callable[[Mapping[str, str]], Path]
    """Where its file lies, by the variables of the environment."""
    text: Callable[[Offer], str]
    """The whole file, where there is none yet."""
    merge: Callable[[str, Offer], str | None]
    """The file with ours in it; None where that cannot be done safely."""
    key_in: Callable[[str], str | None]
    """The key of ours that a file holds, if it holds one."""
    use: str
    """How the written file gets used."""
    take_out: Callable[[str, str], str | None] = lambda text, before: None  # ruff: ignore[unused-lambda-argument]  has no more to say
    """A file that was changed since it was written, as it was before in what is ours; None where
    that cannot be done safely."""
    needs_tools: bool = False
    """It offers tools with every request."""


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


def _folder(environ: Mapping[str, str], variable: str, *default: str) -> Path:
    named = environ.get(variable)
    return Path(named).expanduser() if named else _home(environ).joinpath(*default)


def _looked_up(document: object, *path: str) -> object:
    for name in path:
        if not isinstance(document, dict):
            return None
        document = cast("dict[str, object]", document).get(name)
    return document


def _own_key(found: object) -> str | None:
    return found if isinstance(found, str) and is_key(found) else None


# ---- codex ---------------------------------------------------------------------------------------


def _codex_top(offer: Offer) -> dict[str, Scalar]:
    return {
        "model": offer.model.model_id,
        "model_provider": _PROVIDER,
        "model_context_window": offer.model.window,
    }


def _codex_effort(offer: Offer) -> dict[str, Scalar]:
    # Without a word about it a model that can switch its thinking answers without.
    return {_EFFORT: "high"} if offer.model.thinks else {}


def _codex_entry(offer: Offer) -> dict[str, Scalar]:
    entry: dict[str, Scalar] = {
        "name": _PROVIDER,
        "base_url": offer.openai_url,
        "wire_api": "responses",
    }
    if offer.key is not None:
        entry["experimental_bearer_token"] = offer.key
    return entry


def _codex_text(offer: Offer) -> str:
    top = _codex_top(offer) | _codex_effort(offer)
    return toml_text(top, _CODEX_TABLE, _codex_entry(offer))


def _codex_merge(before: str, offer: Offer) -> str | None:
    chosen = {} if _EFFORT in _toml(before) else _codex_effort(offer)
    entry = _codex_entry(offer)
    return merge_toml(before, top=_codex_top(offer) | chosen, table=_CODEX_TABLE, entry=entry)


def _codex_key(text: str) -> str | None:
    return _own_key(_looked_up(_toml(text), *_CODEX_TABLE, "experimental_bearer_token"))


def _codex_take_out(text: str, before: str) -> str | None:
    now, old = _toml(text), _toml(before)
    if _looked_up(old, *_CODEX_TABLE) is not None:
        return None  # it was there before this program wrote it
    top: dict[str, Scalar | None] = {}
    if now.get("model_provider") == _PROVIDER:
        for key in ("model", "model_provider", "model_context_window", _EFFORT):
            value = old.get(key)
            top[key] = value if isinstance(value, str | int) else None
        if _EFFORT in old or now.get(_EFFORT) != "high":
            del top[_EFFORT]
    return take_out_toml(text, top=top, table=_CODEX_TABLE)


def _toml(text: str) -> dict[str, object]:
    """Read a file; one that cannot be read says nothing."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}


# ---- Tools with a JSON file ----------------------------------------------------------------------


def _json_key(text: str, *path: str) -> str | None:
    try:
        return _own_key(_looked_up(json.loads(text), *path))
    except (ValueError, RecursionError):
        return None


_CLAUDE_MODELS: Final = (
    "ANTHROPIC_MODEL",
    # Those that it would else ask Anthropic's own service for.
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
)
_CLAUDE_WINDOWS: Final = (
    # It takes an unknown model to have a window of 200,000 tokens.
    "CLAUDE_CODE_MAX_CONTEXT_TOKENS",
    "CLAUDE_CODE_AUTO_COMPACT_WINDOW",
)
_CLAUDE_PATHS: Final = tuple(
    ("env", name)
    for name in ("ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN", *_CLAUDE_MODELS, *_CLAUDE_WINDOWS)
)


def _claude(offer: Offer) -> Changes:
    models = [offer.model.model_id] * len(_CLAUDE_MODELS)
    windows = [str(offer.model.window)] * len(_CLAUDE_WINDOWS)
    values = [offer.url, offer.any_key, *models, *windows]
    return dict(zip(_CLAUDE_PATHS, values, strict=True))


def _opencode(offer: Offer) -> Changes:
    options = {"baseURL": offer.openai_url, "apiKey": offer.any_key}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": _PROVIDER,
        "options": options,
        "models": {one.model_id: _opencode_model(one) for one in offer.models},
    }
    return {
        ("provider", _PROVIDER): provider,
        ("model",): f"{_PROVIDER}/{offer.model.model_id}",
    }


def _opencode_take_out(text: str, before: str) -> str | None:
    try:
        chosen = str(_looked_up(json.loads(text), "model"))
    except (ValueError, RecursionError):
        return None
    ours: list[tuple[str, ...]] = [("provider", _PROVIDER)]
    if chosen.startswith(f"{_PROVIDER}/"):
        ours.append(("model",))
    return restore_json(text, before, ours)


def _opencode_model(model: ReadyModel) -> dict[str, object]:
    return {
        "name": model.model_id,
        "limit": {"context": model.window, "output": model.output_tokens},
        "reasoning": model.thinks,
        "tool_call": model.calls_tools,
        "attachment": model.sees,
        "modalities": {
            "input": ["text", "image"] if model.sees else ["text"],
            "output": ["text"],
        },
    }


# ---- Continue ------------------------------------------------------------------------------------


def _continue_entries(offer: Offer) -> list[Entry]:
    return [_continue_model(offer, one) for one in offer.models]


def _continue_model(offer: Offer, model: ReadyModel) -> Entry:
    can = {"tool_use": model.calls_tools, "image_input": model.sees}
    return {
        "name": f"{model.model_id}{_SUFFIX}",
        "provider": "openai",
        "model": model.model_id,
        "apiBase": offer.openai_url,
        "apiKey": offer.any_key,
        "roles": ["chat", "edit", "apply"],
        "capabilities": [name for name, holds in can.items() if holds],
        "defaultCompletionOptions": {
            "contextLength": model.window,
            "maxTokens": model.output_tokens,
        },
    }


def _continue_text(offer: Offer) -> str:
    return _CONTINUE_HEAD + yaml_entries(_continue_entries(offer))


def _continue_merge(before: str, offer: Offer) -> str | None:
    entries = _continue_entries(offer)
    return merge_yaml(before, key="models", entries=entries, suffix=_SUFFIX)


def _continue_key(text: str) -> str | None:
    import yaml

    try:
        models = _looked_up(yaml.safe_load(text), "models")
    except (yaml.YAMLError, RecursionError, ValueError):
        return None
    listed = cast("list[object]", models) if isinstance(models, list) else []
    ours = (one for one in listed if str(_looked_up(one, "name")).endswith(_SUFFIX))
    return next((key for one in ours if (key := _own_key(_looked_up(one, "apiKey")))), None)


# ---- Variables -----------------------------------------------------------------------------------


def _environment(offer: Offer) -> str:
    variables = {
        "OPENAI_BASE_URL": offer.openai_url,
        "OPENAI_API_KEY": offer.any_key,
        "ANTHROPIC_BASE_URL": offer.url,
        "ANTHROPIC_AUTH_TOKEN": offer.any_key,
        "ANTHROPIC_MODEL": offer.model.model_id,
        "OLLAMA_HOST": offer.ollama_url,
    }
    if offer.key is not None:
        variables["OLLAMA_API_KEY"] = offer.key
    return "".join(f"export {name}={shlex.quote(text)}\n" for name, text in variables.items())


def _open_webui(offer: Offer) -> str:
    # What reads such a file takes a line as it is: quotes would belong to the value.
    variables = {
        "ENABLE_OPENAI_API": "true",
        "OPENAI_API_BASE_URL": offer.openai_url,
        "OPENAI_API_KEY": offer.any_key,
        "DEFAULT_MODELS": offer.model.model_id,
    }
    return "".join(f"{name}={text}\n" for name, text in variables.items())


def _replaced(text: Callable[[Offer], str]) -> Callable[[str, Offer], str]:
    """Merge into a file that is all ours."""

    def merge(before: str, offer: Offer) -> str:
        del before
        return text(offer)

    return merge


TOOLS: Final[dict[str, Tool]] = {
    "codex": Tool(
        name="codex",
        path_in=lambda environ: _folder(environ, "CODEX_HOME", ".codex") / "config.toml",
        text=_codex_text,
        merge=_codex_merge,
        key_in=_codex_key,
        use="Run `codex`.",
        take_out=_codex_take_out,
        needs_tools=True,
    ),
    "claude": Tool(
        name="Claude Code",
        path_in=lambda environ: _folder(environ, "CLAUDE_CONFIG_DIR", ".claude") / "settings.json",
        text=lambda offer: json_text(_claude(offer)),
        merge=lambda before, offer: merge_json(before, _claude(offer)),
        key_in=lambda text: _json_key(text, "env", "ANTHROPIC_AUTH_TOKEN"),
        use="Run `claude`.",
        take_out=lambda text, before: restore_json(text, before, _CLAUDE_PATHS),
        needs_tools=True,
    ),
    "opencode": Tool(
        name="opencode",
        path_in=lambda environ: (
            _folder(environ, "XDG_CONFIG_HOME", ".config") / "opencode" / "opencode.json"
        ),
        # It would put the schema's address there itself, and so change what was written.
        text=lambda offer: json_text({("$schema",): _OPENCODE_SCHEMA, **_opencode(offer)}),
        merge=lambda before, offer: merge_json(before, _opencode(offer)),
        key_in=lambda text: _json_key(text, "provider", _PROVIDER, "options", "apiKey"),
        use="Run `opencode`.",
        take_out=_opencode_take_out,
        needs_tools=True,
    ),
    "open-webui": Tool(
        name="Open WebUI",
        path_in=lambda environ: config_dir(environ) / "open-webui.env",
        text=_open_webui,
        merge=_replaced(_open_webui),
        key_in=key_in_text,
        use="Start it with these variables (`docker run --env-file FILE --network host`): it reads"
        " them at its first start; later its own settings count, under Connections.",
    ),
    "continue": Tool(
        name="Continue",
        path_in=lambda environ: (
            _folder(environ, "CONTINUE_GLOBAL_DIR", ".continue") / "config.yaml"
        ),
        text=_continue_text,
        merge=_continue_merge,
        key_in=_continue_key,
        use="Choose the model in the editor.",
    ),
    "env": Tool(
        name="variables",
        path_in=lambda environ: config_dir(environ) / "connect.env",
        text=_environment,
        merge=_replaced(_environment),
        key_in=key_in_text,
        use='`eval "$(skulk connect env)"`, or `. FILE` once it is written.',
    ),
}
