"""Bodies of `GET /v1/models` and what belongs to it: what a model is and can do."""

from typing import Literal

from pydantic import Field

from protocol.cards import BackendTag, Compute, EngineName, ModelTask
from protocol.control_api import ControlModel
from protocol.ids import DigestField, ModelIdField

ThinkingFormat = Literal["none", "token_delimited", "channel_delimited"]


class ResolvedCapabilities(ControlModel):
    """What a client can count on, by all that is known of a model, for all requests or for one."""

    supports_text_generation: bool = False
    supports_embedding: bool = False
    supports_vision: bool = False
    supports_audio_input: bool = False
    supports_thinking: bool = False
    supports_thinking_toggle: bool = False
    """`enable_thinking` is heeded; of other models it is ignored."""
    supports_thinking_budget: bool = False
    thinking_format: ThinkingFormat = "none"
    """How thoughts stand in what the model writes; clients get them apart from the text."""
    default_effort: str | None = None
    disabled_effort: str | None = None
    """Which `reasoning_effort` means no thinking, where the family has a word for it."""
    supports_tool_calling: bool = False
    tool_call_format: str | None = None
    builtin_tools: tuple[str, ...] = ()
    thinks: bool = False
    """The request is answered with thinking; without a request: one that asks for nothing."""


class Companions(ControlModel):
    """Repositories that are fetched and loaded along with a model."""

    mtp_sidecar_repo: str | None = None
    assistant_model_repo: str | None = None
    served_spec_draft_repo: str | None = None


class BootView(ControlModel):
    """What boots of a model have taken, under what that holds for."""

    build: str
    compute: Compute
    device: str
    context_tokens: int
    slots: int
    layers: tuple[int, int]
    """Half-open."""
    measured_bytes: int
    """The most of the last boots: what the next one is predicted to take."""
    n_boots: int
    at_ms: int


class ModelEntry(ControlModel):
    """One model of the catalogue, as OpenAI clients read it, with more."""

    id: ModelIdField
    object: Literal["model"] = "model"
    created: int = 0
    """Seconds since 1970; 0 when the card does not say."""
    owned_by: str
    name: str
    tasks: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    """`custom`, `installed`, `placed`, `ready`, `on_demand`, then `vision`, `thinking`,
    `embedding`, `tensor` and `companion`, as far as they hold."""
    family: str = ""
    quantization: str = ""
    base_model: str = ""
    storage_size_bytes: int
    context_length: int
    """What the model was trained for, in tokens; 0 is unknown."""
    context_window: int | None = None
    """What a placed instance serves; None while none is placed."""
    backends: tuple[BackendTag, ...] = ()
    supports_tensor: bool = False
    resolved_capabilities: ResolvedCapabilities = Field(default_factory=ResolvedCapabilities)
    """Of a request that asks for nothing but text."""
    runtime: Companions = Field(default_factory=Companions)
    source: Literal["package", "local", "hub", "none"] = "none"
    source_revision: str | None = None
    """The commit that the files are pinned to."""
    installed: bool = False
    """The files are complete on this node."""
    placed: bool = False
    ready: bool = False
    placeable: bool = True
    """False for a companion: it is loaded along with the models that name it."""
    companion_of: tuple[ModelIdField, ...] = ()
    license: str = ""
    """As people call it."""
    measured: tuple[BootView, ...] = ()
    """What it has taken where it ran, the newest first."""


class ModelList(ControlModel):
    """`GET /v1/models` and `GET /models`."""

    object: Literal["list"] = "list"
    data: tuple[ModelEntry, ...] = ()


class EngineNeeds(ControlModel):
    """What a whole model takes on one node with one engine, before that was measured."""

    engine: EngineName
    weights_bytes: int
    kv_bytes_per_token: int
    kv_cache_bytes: int
    overhead_bytes: int
    needed_bytes: int


class ModelRequirements(ControlModel):
    """`GET /models/requirements`: advice; nothing is placed, fetched or kept free."""

    model_id: ModelIdField
    card_digest: DigestField
    """Of the card that this was computed from; previews name the same."""
    tasks: tuple[ModelTask, ...]
    context_tokens: int
    max_context_tokens: int
    slots: int
    storage_bytes: int
    """What the engine loads."""
    download_bytes: int
    compatible_backends: tuple[BackendTag, ...]
    backend_preference: tuple[BackendTag, ...] = ()
    min_vram_gib: float | None = None
    n_layers: int
    supports_tensor: bool
    cache_is_known: bool
    """From the header of the files; else the cache is estimated, on the large side."""
    engines: tuple[EngineNeeds, ...] = ()
