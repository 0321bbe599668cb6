"""What `--json` gives of running a node: its service, its settings, what was collected of it.

These fields are an interface, as those of records.py are.
"""

from dataclasses import dataclass

from skulk_tui.cli.records import CandidateRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step of installing or removing the service."""

    step: str
    done: bool
    """Whether it was taken; not with `--dry-run`."""
    content: str | None
    """Of a file that is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRecord:
    """The service of this machine or user, as its manager has it."""

    manager: str
    unit: str
    installed: bool
    enabled: bool | None
    state: str
    """`active`, `failed` and so on, as the manager says; `absent` where it has none."""
    status: str | None
    """What the daemon says of itself."""
    pid: int | None
    restarts: int | None
    lingering: bool | None
    """Whether it runs while its user is logged in nowhere; null where it always does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRecord:
    """What moving an instance would mean."""

    instance_id: str
    model_id: str
    from_node_ids: tuple[str, ...]
    from_node_names: tuple[str, ...]
    stop_first: bool
    drain_s: int
    """How long requests that it is answering then may take."""
    in_flight: int | None
    """What it is answering now, and what waits for that."""
    last_load_ms: int | None
    """How long the model took to load the last time."""
    consequences: tuple[str, ...]
    """In words, for the first plan."""
    candidates: tuple[CandidateRecord, ...]
    """Where to: the first that fits is taken, unless another plan is named."""


SettingShown = bool | int | str | tuple[str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRecord:
    """One setting of a node, or of the whole cluster."""

    node_id: str | None
    """Null for a setting of the whole cluster."""
    key: str
    value: SettingShown
    """What holds now."""
    source: str
    """`default`, `file`, `environment`, `flag`, or `cluster`."""
    in_file: SettingShown
    pending: bool
    """Whether a restart of the node would change it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRecord:
    """A node that was started anew, and what that interrupted."""

    node_id: str
    name: str
    outcome: str
    instances: tuple[str, ...]
    requests: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainedRecord:
    """An instance that a drain stops."""

    instance_id: str
    model_id: str
    phase: str
    pinned: bool
    """The drain is refused while it is."""
    requests: int | None
    """Being answered or waiting."""
    copies: int
    """Others of the model that are ready on other nodes."""
    elsewhere: str | None
    """A node that could take it as it is planned."""
    why_not: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRecord:
    """A node that takes no models any more, and what that stops."""

    node_id: str
    name: str
    outcome: str
    deadline_s: int
    """What running requests may take to end; 0 cuts them off."""
    stops: tuple[DrainedRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleRecord:
    """An archive of what nodes know."""

    path: str
    size_bytes: int
    files: int
    removed: int
    """Secrets, prompts and names of home folders that were taken out."""
    failed: tuple[str, ...]
    """Documents that were not to be had."""
    partial: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftoverRecord:
    """Something of skulk's on this machine, and what becomes of it."""

    what: str
    path: str
    size_bytes: int | None
    outcome: str
    """`kept`, `removed`, `would be removed`, or `absent`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRecord:
    """A tool of somebody else's that can use the node, and its configuration on this machine."""

    tool: str
    name: str
    path: str
    """Of its configuration file, or of the file with variables that is made for it."""
    found: bool
    connected: bool
    """The file is as this program wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionRecord:
    """What a tool's configuration is to say, and what became of its file."""

    tool: str
    path: str
    outcome: str
    """`shown`, `written`, `unchanged`, `restored`, `removed`, or `taken out` of a file that was
    changed since; with `--dry-run` `would be …`."""
    url: str | None
    """Of the node, for this machine; null where a file was restored."""
    model_ids: tuple[str, ...]
    """That are ready; the first is what the tool uses by itself."""
    backup: str | None
    """The file as it was before, where there was one."""
    key_id: str | None
    """Of the API key that was made."""
    content: str | None
    """What the file must hold for it, with the key; null where a file was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFileRecord:
    """One file of a model, as a verification has found it."""

    path: str
    state: str
    """`ok`, `wrong_hash`, `wrong_size`, `missing`; `unexpected` is no damage."""
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedRecord:
    """A model's files on one node, hashed again."""

    model_id: str
    node_id: str
    node_name: str
    state: str
    """`complete`, `damaged`, `failed`, `cancelled`; `waiting` or `running` without the wait."""
    done_bytes: int
    total_bytes: int | None
    files: tuple[CheckedFileRecord, ...]
    error_code: str | None
    error: str | None
