"""Settings of one node: `skulk.yaml` in the home, then `SKULK_*`, then flags; the later one wins.

Reads no file and no environment by itself: `load_settings` is handed both. What a setting does is
documented in docs/configuration.md (a test keeps the two in step).
"""

import difflib
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, StringConstraints, ValidationError

from protocol.admin_api import SettingSource, SettingValue
from protocol.base import FrozenModel
from protocol.cards import BackendTag
from protocol.envelope import DEFAULT_BASE_PORT
from protocol.errors import ConfigError

API_PORT: Final = 52415
SETTINGS_FILE: Final = "skulk.yaml"
SETTINGS_FILE_MAX_BYTES: Final = 64 * 1024

HostName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:\[\]%-]+$", max_length=253)]
OriginText = Annotated[
    str, StringConstraints(pattern=r"^[a-z][a-z0-9+.-]*://[^\s/,]+$", max_length=300, to_lower=True)
]
"""`SCHEME://HOST[:PORT]`, as a browser sends it."""
AddressText = Annotated[str, StringConstraints(pattern=r"^\S+$", max_length=400)]
"""Read by skulkd/cluster/addresses.py, where what is wrong with one is said."""
ImageOriginText = Annotated[
    str,
    StringConstraints(
        pattern=r"^(private\+)?https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?/?$",
        max_length=300,
    ),
]
NodeName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class Settings(FrozenModel):
    """What an operator can set on one node. Paths are absolute."""

    name: NodeName
    """Shown to people; identity is the node id."""
    models_dir: Path
    """Where artifacts lie; apart from the home, so that either can be moved or wiped alone."""
    api: Annotated[str, StringConstraints(pattern=r"^(\S+:)?[0-9]{1,5}$", max_length=260)] = str(
        API_PORT
    )
    """`PORT` for loopback (both families), or `HOST:PORT`."""
    allowed_hosts: Annotated[tuple[HostName, ...], Field(max_length=64)] = ()
    """Further names that clients may use in the Host header."""
    allowed_origins: Annotated[tuple[OriginText, ...], Field(max_length=64)] | None = None
    """Origins whose web pages may ask models, beside the node's own; None is all of them."""
    tls_cert: Path | None = None
    """Certificate that the API shows beyond loopback, in PEM; with `tls_key` or not at all."""
    tls_key: Path | None = None
    """Its key."""
    image_url_origins: Annotated[tuple[ImageOriginText, ...], Field(max_length=64)] = ()
    """Where images are fetched from that requests name by an http(s) address."""
    worker: bool = True
    """Whether models may be planned onto this node."""
    serve_api: bool = True
    downloads: bool = True
    """Whether this node fetches model files."""
    offline: bool = False
    """No call leaves the cluster."""
    transfer_rate_mb_s: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Megabytes (10^6) a second that this node sends of model files, to all others together."""
    max_output_tokens: Annotated[int, Field(ge=1, le=1 << 20)] = 4096
    """Output budget of a request that names none."""
    max_concurrent_requests: Annotated[int, Field(ge=1, le=100_000)] = 1024
    """Requests that the API keeps open at a time; more are answered 503."""
    cluster_address: Annotated[str, StringConstraints(pattern=r"^\S+$", max_length=300)] = str(
        DEFAULT_BASE_PORT
    )
    """`BASE` or `HOST:BASE` of the three cluster ports; 0 picks once, and keeps the choice."""
    bind: Annotated[tuple[AddressText, ...], Field(max_length=16)] = ()
    """Interfaces or addresses to listen on for other nodes; none is the default route's."""
    advertise: Annotated[tuple[AddressText, ...], Field(max_length=16)] = ()
    """`HOST` or `HOST:BASE` that other nodes shall dial, in place of what is bound."""
    peers: Annotated[tuple[AddressText, ...], Field(max_length=64)] = ()
    """`[KEY@]HOST:PORT` of nodes to look for, also beyond the local network."""
    mdns: bool = True
    """Whether nodes are looked for, and this one is announced, by multicast DNS."""
    priority: Annotated[int, Field(ge=0, le=100)] = 50
    """Of nodes that could be master the one with the highest is elected first."""
    join_file: Annotated[str, StringConstraints(min_length=1, max_length=4096)] | None = None
    """A file with an invitation, by which a node that is alone joins when it starts."""
    backends: Annotated[tuple[BackendTag, ...], Field(max_length=32)] | None = None
    """Overrides the backends that the probes derive."""
    llama_server_bin: Path | None = None
    """A llama-server binary to use before any other; an invalid one is reported, not skipped."""
    engine_threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Threads of each engine; by default they share the cores, under quota and affinity."""
    log_level: Annotated[str, StringConstraints(pattern=r"^(debug|info|warning|error)$")] = "info"

    @property
    def has_tls(self) -> bool:
        """Whether the API speaks TLS beyond loopback."""
        return self.tls_cert is not None

    def api_address(self) -> tuple[str | None, int]:
        """Split `api` into host (None: loopback, both families) and port."""
        host, _, port = self.api.rpartition(":")
        return (host.strip("[]") or None, int(port))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSettings:
    """The settings, and what an operator should be told about where they came from."""

    settings: Settings
    home: Path
    warnings: tuple[str, ...]
    join_token: str | None = None
    """The invitation that this start was given; a secret."""
    discard: bool = False
    """Joining may give up what this node has decided so far. Only ever for this start."""
    sources: Mapping[str, SettingSource] = field(default_factory=dict[str, SettingSource])
    """Where each setting comes from that is no default."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    flags: Mapping[str, object] = field(default_factory=dict[str, object])
    """What they were read from beside the file; both stay as they were when the process began."""
    api_was_chosen: bool = False
    """The setting `api` asked for any free port, and `settings` names the one that was found."""


ORIGINAL_KEYS: Final[dict[str, str]] = {
    "model_store": "every node holds artifacts and serves them to the others; see models_dir",
    "inference": "context and cache are chosen per placement; see `skulk place --context`",
    "logging": "logs are JSON lines in <home>/logs",
    "tracing": "traces are kept by the flight recorder",
    "connectivity": "peers are found by mDNS or named when joining",
    "telemetry": "nothing is ever sent anywhere",
    "intelligent_fabric": "there is no resident assistant",
    "experiments": "there are no experiments to switch on",
    "hf_token": "tokens are not kept in the settings file",
}
"""Keys of the original's skulk.yaml: accepted, ignored, warned about; with what stands instead."""

LEGACY_VARIABLES: Final[dict[str, str]] = {"SKULK_MAX_TOKENS": "max_output_tokens"}
CLIENT_VARIABLES: Final = frozenset({
    "SKULK_API_KEY", "SKULK_API_KEY_FILE", "SKULK_ASCII", "SKULK_CLIPBOARD", "SKULK_CLUSTER",
    "SKULK_COLOR", "SKULK_CONFIG_DIR", "SKULK_DEBUG", "SKULK_HOME", "SKULK_LOG", "SKULK_NODE",
    "SKULK_NO_INPUT", "SKULK_OUTPUT", "SKULK_READONLY", "SKULK_STATE_DIR", "SKULK_TIMEOUT",
})  # fmt: skip
"""Variables of the operator's command, and the home itself: none of the daemon's settings."""


FLAGS: Final[dict[str, str]] = {"cluster_address": "cluster", "peers": "peer"}
"""Flags that are called otherwise than their settings."""


def _variable(key: str) -> str:
    return f"SKULK_{key.upper()}"


def default_home(environment: Mapping[str, str]) -> Path:
    """Find the home: SKULK_HOME, else `skulk` in the XDG data directory, on macOS too."""
    chosen = environment.get("SKULK_HOME")
    return Path(chosen).absolute() if chosen else _data_home(environment) / "skulk"


def _data_home(environment: Mapping[str, str]) -> Path:
    chosen = environment.get("XDG_DATA_HOME", "")
    if chosen.startswith("/"):  # the XDG specification has relative paths ignored
        return Path(chosen)
    return Path(environment.get("HOME") or "/").absolute() / ".local" / "share"


def _nearest(key: str, known: list[str]) -> str:
    match = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
    return f"Did you mean `{match[0]}`?" if match else f"Known keys: {', '.join(known)}."


def read_document(text: str, path: Path) -> dict[str, Any]:
    """Read a settings file as it is written, unchecked.

    Raises:
        ConfigError: `config.invalid`.
    """
    import yaml  # costs 15 ms, and most nodes have no such file

    try:
        document: object = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        detail = " ".join(str(error).split())[:300]
        raise ConfigError(
            "config.invalid",
            f"{path} is not valid YAML: {detail}",
            remediation="Correct the file, or move it away to run with the defaults.",
        ) from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(
            "config.invalid",
            f"{path} holds a {type(document).__name__}, not a mapping of settings",
            remediation="Write one `key: value` a line; see docs/configuration.md.",
        )
    return {str(key): value for key, value in document.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - YAML is untyped


def _check_keys(document: dict[str, Any], path: Path) -> tuple[dict[str, Any], list[str]]:
    known = sorted(Settings.model_fields)
    kept: dict[str, Any] = {}
    warnings: list[str] = []
    for key, value in document.items():
        if key in Settings.model_fields:
            kept[key] = value
        elif key in ORIGINAL_KEYS:
            warnings.append(f"{path}: `{key}` is ignored: {ORIGINAL_KEYS[key]}")
        else:
            raise ConfigError(
                "config.unknown_key",
                f"{path}: unknown key `{key[:64]}`",
                remediation=_nearest(key, known),
                details={"key": key[:64]},
            )
    return kept, warnings


def typed_value(key: str, value: SettingValue, path: Path) -> SettingValue | None:
    """Read one setting as the file or a variable may have it, and give it as the file should.

    Raises:
        ConfigError: `config.unknown_key` or `config.invalid`.
    """
    _check_keys({key: value}, path)
    if isinstance(value, str) and key in _LIST_KEYS:
        value = tuple(part for part in value.split(",") if part)
    if key in _TEXT_KEYS:
        value = str(value)
    needed = {"name": "node", "models_dir": "/"}
    try:
        settings = Settings.model_validate({**needed, key: value})
    except ValidationError as error:
        raise _invalid(error, {key: value}, {}, path) from error
    read: SettingValue | None = settings.model_dump(mode="json")[key]
    return read


_TEXT_KEYS: Final = ("api", "cluster_address")
"""YAML reads a bare port as a number."""
_LIST_KEYS: Final = frozenset({
    "advertise", "allowed_hosts", "allowed_origins", "backends", "bind", "image_url_origins",
    "peers",
})  # fmt: skip


def _from_environment(environment: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Read `SKULK_*`; an unknown one is warned about only: other programs share the prefix."""
    kept: dict[str, Any] = {}
    warnings: list[str] = []
    by_variable = {_variable(key): key for key in Settings.model_fields}
    for variable, key in LEGACY_VARIABLES.items():
        if variable in environment:
            kept[key] = environment[variable]
            warnings.append(f"{variable} is an old name; use {_variable(key)}")
    for variable, value in sorted(environment.items()):
        key = by_variable.get(variable)
        if key is not None:
            kept[key] = [part for part in value.split(",") if part] if key in _LIST_KEYS else value
        elif (
            variable.startswith("SKULK_")
            and variable not in LEGACY_VARIABLES
            and variable not in CLIENT_VARIABLES
            and not variable.startswith(("SKULK_TEST_", "SKULK_FAILPOINTS"))
        ):
            warnings.append(
                f"{variable} is not a setting. {_nearest(variable, sorted(by_variable))}"
            )
    return kept, warnings


def load_settings(
    *,
    home: Path,
    file_text: str | None,
    environment: Mapping[str, str],
    flags: Mapping[str, object],
) -> LoadedSettings:
    """Merge file, environment and flags into one set of settings.

    Args:
        home: The node's home, already resolved.
        file_text: The content of `skulk.yaml` in the home; None when there is none.
        environment: The process environment.
        flags: Settings given on the command line, by key; None values were not given.

    Raises:
        ConfigError: `config.unknown_key` or `config.invalid`.
    """
    path = home / SETTINGS_FILE
    merged: dict[str, Any] = {
        "name": _host_name(),
        "models_dir": str(_data_home(environment) / "skulk-models"),
    }
    from_file, warnings = (
        _check_keys(read_document(file_text, path), path) if file_text else ({}, [])
    )
    from_environment, more_warnings = _from_environment(environment)
    given = {key: value for key, value in flags.items() if value is not None}
    for source in (from_file, from_environment, given):
        merged.update(source)
    for key in _TEXT_KEYS:
        if merged.get(key) is not None:
            merged[key] = str(merged[key])
    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        raise _invalid(error, from_file, from_environment, path) from error
    settings = settings.model_copy(
        update={
            "models_dir": _absolute(settings.models_dir),
            "tls_cert": settings.tls_cert and _absolute(settings.tls_cert),
            "tls_key": settings.tls_key and _absolute(settings.tls_key),
        }
    )
    _check_port(settings)
    layers: tuple[tuple[SettingSource, Mapping[str, object]], ...] = (
        ("file", from_file),
        ("environment", from_environment),
        ("flag", given),
    )
    return LoadedSettings(
        settings=settings,
        home=home,
        warnings=(*warnings, *more_warnings),
        sources={key: source for source, layer in layers for key in layer},
        environment=dict(environment),
        flags=given,
    )


def reloaded(loaded: LoadedSettings, file_text: str | None) -> LoadedSettings:
    """Read the settings again with another file, and the environment and flags of the start.

    Raises:
        ConfigError: `config.unknown_key` or `config.invalid`.
    """
    return load_settings(
        home=loaded.home, file_text=file_text, environment=loaded.environment, flags=loaded.flags
    )


def with_found_port(loaded: LoadedSettings, port: int) -> LoadedSettings:
    """Keep a port that was asked for as any: clients know it by now."""
    host, asked = loaded.settings.api_address()
    if asked != 0 or port == 0:
        return loaded
    shown = host if host is None or ":" not in host else f"[{host}]"
    settings = loaded.settings.model_copy(
        update={"api": str(port) if shown is None else f"{shown}:{port}"}
    )
    return replace(loaded, settings=settings, api_was_chosen=True)


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def _check_port(settings: Settings) -> None:
    _, port = settings.api_address()
    if not 0 <= port < 1 << 16:
        raise ConfigError(
            "config.invalid",
            f"api: port {port} is not between 0 and 65535",
            remediation=f"Give a port such as {API_PORT}, or HOST:PORT.",
        )


def _invalid(
    error: ValidationError,
    from_file: Mapping[str, object],
    from_environment: Mapping[str, object],
    path: Path,
) -> ConfigError:
    first = error.errors(include_url=False, include_input=False)[0]
    key = str(first["loc"][0]) if first["loc"] else "settings"
    if key in from_environment:
        where = _variable(key)
    elif key in from_file:
        where = f"{path}: {key}"
    else:
        where = f"--{FLAGS.get(key, key.replace('_', '-'))}"
    return ConfigError(
        "config.invalid",
        f"{where}: {first['msg']}",
        remediation=f"See `{key}` in docs/configuration.md.",
        details={"key": key},
    )


def _host_name() -> str:
    short = socket.gethostname().split(".", maxsplit=1)[0]
    cleaned = "".join(
        char if char.isascii() and (char.isalnum() or char in "-_") else "-" for char in short
    )
    return cleaned.strip("-_")[:63] or "node"
