"""What a model is: the card an operator reads and the planner computes with.

A card is strict TOML (see store/cards.py for the parser). Field names follow the original's cards,
so that those files load here unchanged; sections that belong to other modalities come with them.
"""

import hashlib
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints, model_validator

from protocol.base import FrozenModel
from protocol.ids import Digest, DigestField, ModelIdField

ENCODER_TEXT_TOKENS: Final = 8192
TEXT_TOKENS: Final = 512
"""For a model that has words to say: llama.cpp keeps two rows of them for each token of a batch.
With 49,152 words that took 0.2 GB for 512 tokens, and 0.8 GB for 2,048."""
ModelTask = Literal["TextGeneration", "TextEmbedding", "TextRerank"]
EngineName = Literal["scripted", "llama_server", "llama_cpp", "mlx", "vllm"]
Compute = Literal["cpu", "cuda", "rocm", "vulkan", "metal"]
BackendTag = Annotated[
    str,
    StringConstraints(
        pattern=r"^(scripted|llama_server|llama_cpp|mlx|vllm)(-(cpu|cuda|rocm|vulkan|metal))?$"
    ),
]
"""`<engine>-<compute>`; a bare engine name in a card matches any compute."""

RelativePath = Annotated[
    str,
    StringConstraints(
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9._+-]{0,180}(/[A-Za-z0-9_][A-Za-z0-9._+-]{0,180}){0,7}$"
    ),
]
"""A file inside an artifact: no `..`, no leading dot, no absolute path."""
Text = Annotated[str, StringConstraints(max_length=400)]


class StorageSize(FrozenModel):
    """How many bytes the engine loads."""

    in_bytes: Annotated[int, Field(gt=0, le=1 << 46)]


class ArtifactFile(FrozenModel):
    """One file of an artifact, with what proves it."""

    path: RelativePath
    size_bytes: Annotated[int, Field(gt=0, le=1 << 46)]
    sha256: DigestField


class PackageSource(FrozenModel):
    """Files that lie inside a Python package's wheel on the package index."""

    kind: Literal["package"] = "package"
    package: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    version: Annotated[str, StringConstraints(pattern=r"^[0-9][0-9A-Za-z.+!-]{0,49}$")]
    files: Annotated[tuple[ArtifactFile, ...], Field(min_length=1, max_length=64)]


AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$", max_length=4096)]


class LocalPart(FrozenModel):
    """A further part of a split set, where it lay when it was imported."""

    path: AbsolutePath
    size_bytes: Annotated[int, Field(gt=0, le=1 << 46)]
    modified_ns: int = 0


class LocalSource(FrozenModel):
    """A file that is already on this machine and is used where it lies."""

    kind: Literal["local"] = "local"
    path: AbsolutePath
    size_bytes: Annotated[int, Field(gt=0, le=1 << 46)]
    modified_ns: int = 0
    """Of the file when it was imported; a later change makes the artifact incomplete."""
    further_parts: Annotated[tuple[LocalPart, ...], Field(max_length=511)] = ()
    """Of a split set: parts 2 to n. `path` is part 1, the one that the engine is given."""
    projector: Annotated[LocalPart | None, Field(exclude_if=lambda part: part is None)] = None
    """What makes images readable to the model, where one lay beside it."""


class HubSource(FrozenModel):
    """Files in a hub repository at a fixed revision."""

    kind: Literal["hub"] = "hub"
    repository: ModelIdField
    revision: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]


ModelSource = Annotated[PackageSource | LocalSource | HubSource, Field(discriminator="kind")]


class CacheGeometry(FrozenModel):
    """The dimensions of the key-value cache, as the weights' own header gives them."""

    n_attention_layers: Annotated[int, Field(ge=0, le=4096)]
    n_kv_heads: Annotated[int, Field(ge=0, le=4096)]
    key_length: Annotated[int, Field(ge=0, le=65536)]
    value_length: Annotated[int, Field(ge=0, le=65536)]
    recurrent_bytes_per_slot: Annotated[int, Field(ge=0, le=1 << 40)] = 0

    def kv_bytes_per_token(self, element_bytes: int = 2) -> int:
        """Bytes of cache that one token takes over all layers (default element: fp16)."""
        width = self.key_length + self.value_length
        return self.n_attention_layers * self.n_kv_heads * width * element_bytes


class PlacementSection(FrozenModel):
    """Where the model may run (hard) and where it would rather run (soft)."""

    compatible_backends: Annotated[tuple[BackendTag, ...], Field(max_length=32)] = ("mlx",)
    backend_preference: Annotated[tuple[BackendTag, ...], Field(max_length=32)] = ()
    min_vram_gib: Annotated[float, Field(ge=0, le=65536)] | None = None
    max_context_tokens: Annotated[int, Field(ge=256, le=1 << 24)] | None = None
    max_pipeline_split_layer: Annotated[int, Field(ge=1, le=4096)] | None = None


class ReasoningSection(FrozenModel):
    """How the model thinks aloud, if it does."""

    supports_toggle: bool = False
    supports_budget: bool = False
    format: Literal["none", "token_delimited", "channel_delimited"] = "none"
    default_effort: Text | None = None
    disabled_effort: Text | None = None


class ToolingSection(FrozenModel):
    """How the model calls tools, if it does."""

    supports_tool_calling: bool = False
    tool_call_format: Literal["generic", "gemma4", "gpt_oss", "dsml", "atem"] | None = None
    builtin_tools: Annotated[tuple[Text, ...], Field(max_length=16)] = ()


Revision = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Depth = Annotated[int, Field(ge=0, le=64)]
TokenId = Annotated[int, Field(ge=0, le=1 << 31)]


class ModalitiesSection(FrozenModel):
    """What a text model takes besides text."""

    supports_audio_input: bool = False
    supports_native_multimodal: bool = False


class VisionSection(FrozenModel):
    """How a text model is shown images.

    `projector_file` is a file of the model's own artifact; an engine for GGUF files needs it.
    """

    image_token_id: TokenId | None = None
    model_type: Text | None = None
    weights_repo: ModelIdField | None = None
    weights_revision: Revision | None = None
    image_token: Text | None = None
    processor_repo: ModelIdField | None = None
    processor_revision: Revision | None = None
    boi_token_id: TokenId | None = None
    eoi_token_id: TokenId | None = None
    projector_file: RelativePath | None = None
    projector_size: StorageSize | None = None

    @model_validator(mode="after")
    def _hold_together(self) -> "VisionSection":
        if (self.projector_file is None) != (self.projector_size is None):
            msg = "projector_file and projector_size are set together"
            raise ValueError(msg)
        return self


class RuntimeSection(FrozenModel):
    """How prompts are rendered, output is read, and drafts are made."""

    prompt_renderer: Text | None = None
    output_parser: Text | None = None
    metal_fast_synch: bool | None = None
    mtp_heads: Depth | None = None
    mtp_max_depth: Depth | None = None
    mtp_sidecar_repo: ModelIdField | None = None
    mtp_sidecar_revision: Revision | None = None
    mtp_norm_convention: Text | None = None
    mtp_concat_order: Text | None = None
    assistant_model_repo: ModelIdField | None = None
    assistant_model_revision: Revision | None = None
    speculative_multi_node: bool | None = None
    served_spec_type: (
        Literal["none", "draft_mtp", "draft_eagle3", "draft_simple", "draft_dflash", "ngram"] | None
    ) = None
    served_spec_n_max: Depth | None = None
    served_spec_draft_repo: ModelIdField | None = None
    served_spec_draft_revision: Revision | None = None
    served_spec_draft_file: RelativePath | None = None
    vllm_spec_method: Literal["mtp", "dflash"] | None = None
    vllm_spec_num_tokens: Depth | None = None
    vllm_spec_draft_repo: ModelIdField | None = None
    vllm_spec_draft_revision: Revision | None = None
    vllm_tool_call_parser: Text | None = None
    vllm_reasoning_parser: Text | None = None

    @model_validator(mode="after")
    def _hold_together(self) -> "RuntimeSection":
        if self.vllm_spec_num_tokens is not None and self.vllm_spec_method is None:
            msg = "vllm_spec_num_tokens needs a vllm_spec_method"
            raise ValueError(msg)
        if self.vllm_spec_method == "dflash" and self.vllm_spec_draft_repo is None:
            msg = "vllm_spec_method dflash needs a vllm_spec_draft_repo"
            raise ValueError(msg)
        if self.vllm_spec_method == "mtp" and self.vllm_spec_draft_repo is not None:
            msg = "vllm_spec_method mtp has its draft inside and forbids a vllm_spec_draft_repo"
            raise ValueError(msg)
        return self


class ComponentSection(FrozenModel):
    """One part of a model whose weights lie in several folders."""

    component_name: Text
    component_path: Text
    storage_size: StorageSize
    n_layers: Annotated[int, Field(gt=0, le=4096)] | None = None
    can_shard: bool = False
    safetensors_index_filename: RelativePath | None = None


class BundleFile(FrozenModel):
    """One file of an artifact bundle, by the object that holds it."""

    path: RelativePath
    size_bytes: Annotated[int, Field(ge=0, le=1 << 46)]
    object_id: Text


class ArtifactBundle(FrozenModel):
    """A fixed set of files that is fetched as one."""

    bundle_id: Annotated[str, StringConstraints(pattern=r"^bundle_[a-z2-7]{52}$")]
    root: Text
    files: Annotated[tuple[BundleFile, ...], Field(min_length=1, max_length=1024)]
    download_size: StorageSize

    @model_validator(mode="after")
    def _hold_together(self) -> "ArtifactBundle":
        total = sum(file.size_bytes for file in self.files)
        if total != self.download_size.in_bytes:
            msg = f"download_size is {self.download_size.in_bytes}, the files sum to {total}"
            raise ValueError(msg)
        return self


class LicenseSection(FrozenModel):
    """Shown to people, never enforced."""

    name: Text | None = None
    url: Text | None = None
    spdx_id: Text | None = None
    notice: Text | None = None
    display_name: Text | None = None


class ScriptedSection(FrozenModel):
    """What the `scripted` engine does: the deterministic stand-in for a model.

    Times are milliseconds. A field left out means that nothing of the kind happens.
    """

    reply: Annotated[str, StringConstraints(max_length=65536)] = "The capital of France is Paris."
    """Said word by word, over and over until the token budget is used, if `repeat`. `{images}` in
    it stands for the kind, size and SHA-256 of each image of the conversation."""
    later_replies: Annotated[
        tuple[Annotated[str, StringConstraints(max_length=65536)], ...], Field(max_length=16)
    ] = ()
    """Said instead where one, two, … results of tools have come; the last for all further."""
    repeat: bool = False
    token_delay_ms: Annotated[int, Field(ge=0, le=600_000)] = 0
    first_token_delay_ms: Annotated[int, Field(ge=0, le=3_600_000)] = 0
    load_delay_ms: Annotated[int, Field(ge=0, le=3_600_000)] = 0
    load_progress_every_ms: Annotated[int, Field(ge=0, le=600_000)] = 0
    """How often the load reports progress; 0 means it never does (a hang, to an onlooker)."""
    load_exit_code: Annotated[int, Field(ge=0, le=255)] | None = None
    """Exit with this code during the load, after `load_delay_ms`."""
    load_stderr: Annotated[str, StringConstraints(max_length=8192)] = ""
    load_signal: Annotated[int, Field(ge=1, le=64)] | None = None
    exit_after_tokens: Annotated[int, Field(ge=0)] | None = None
    """Die (SIGKILL to itself) after so many tokens of one request."""
    stall_after_tokens: Annotated[int, Field(ge=0)] | None = None
    """Say nothing more, and do not end, after so many tokens of one request."""
    memory_bytes: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    """Resident memory that the process really takes after load."""
    ignore_sigterm: bool = False
    split_utf8: bool = False
    """Cut tokens inside UTF-8 sequences, one byte a token."""
    raw_markup: bool = False
    """The reply is a model's raw text: its calls and reasoning are split out, by its family."""
    prompt_tail: Annotated[str, StringConstraints(max_length=256)] = ""
    """What each prompt ends in, such as the mark that opens the reasoning."""


class ModelCard(FrozenModel):
    """One selectable model: identity, size, geometry, where it may run, where its bytes are."""

    model_id: ModelIdField
    source_repository: ModelIdField | None = None
    source_revision: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")] | None = None
    n_layers: Annotated[int, Field(gt=0, le=4096)]
    hidden_size: Annotated[int, Field(gt=0, le=1 << 20)]
    num_key_value_heads: Annotated[int, Field(gt=0, le=4096)] | None = None
    supports_tensor: bool
    tasks: Annotated[tuple[ModelTask, ...], Field(min_length=1, max_length=8)]
    storage_size: StorageSize
    family: Text | None = None
    quantization: Text | None = None
    base_model: Text | None = None
    capabilities: Annotated[tuple[Text, ...], Field(max_length=32)] = ()
    context_length: Annotated[int, Field(ge=0, le=1 << 26)] = 0
    """Advertised maximum in tokens; 0 is unknown."""
    gguf_file: RelativePath | None = None
    """The file the engine is given: first shard of the chosen quant."""
    trust_remote_code: bool = False
    """Kept for old files; a model that needs it is refused by name."""
    components: Annotated[tuple[ComponentSection, ...], Field(max_length=64)] = ()
    artifact_bundle: ArtifactBundle | None = None
    gguf_cache_geometry: CacheGeometry | None = None
    placement: PlacementSection = PlacementSection()
    reasoning: ReasoningSection = ReasoningSection()
    tooling: ToolingSection = ToolingSection()
    modalities: ModalitiesSection = ModalitiesSection()
    vision: VisionSection | None = None
    runtime: RuntimeSection = RuntimeSection()
    license: LicenseSection = LicenseSection()
    source: ModelSource | None = None
    scripted: ScriptedSection | None = None
    generator: Text | None = None
    """Program and revision that made this card; absent on a hand-written one."""

    @model_validator(mode="after")
    def _hold_together(self) -> "ModelCard":
        if self.trust_remote_code:
            msg = "trust_remote_code is never honoured: the model would run its repository's code"
            raise ValueError(msg)
        if self.supports_tensor and self.gguf_file is not None:
            msg = "supports_tensor must be false for a GGUF model"
            raise ValueError(msg)
        if "TextRerank" in self.tasks and len(self.tasks) > 1:
            msg = "TextRerank stands alone: an engine that scores documents does nothing else"
            raise ValueError(msg)
        if "scripted" in self.placement.compatible_backends and self.scripted is None:
            msg = "a card for the scripted engine needs a [scripted] table"
            raise ValueError(msg)
        return self


def is_encoder(card: ModelCard) -> bool:
    """Tell a model that reads texts and has no words to say, by the names of GGUF architectures."""
    family = card.family or ""
    has_its_name = "bert" in family or family in {"gemma-embedding", "t5encoder"}
    return has_its_name and "TextGeneration" not in card.tasks


def has_projector(card: ModelCard) -> bool:
    """Say whether a card's files include what makes images readable to its model."""
    if card.vision is None or card.vision.projector_file is None:
        return False
    match card.source:
        case PackageSource(files=files):
            return any(file.path == card.vision.projector_file for file in files)
        case LocalSource(projector=projector):
            return projector is not None
        case HubSource() | None:
            return True  # its list of files tells, once it is there


def projector_bytes(card: ModelCard) -> int:
    """Give the size of a card's projector; 0 without one."""
    size = card.vision.projector_size if card.vision is not None else None
    return size.in_bytes if size is not None and has_projector(card) else 0


def text_tokens(card: ModelCard, context_tokens: int) -> int:
    """Say how long a text may be that a model with this window makes a vector of.

    It must see the text whole, in one batch, whose memory grows with its size.
    """
    return min(context_tokens, ENCODER_TEXT_TOKENS if is_encoder(card) else TEXT_TOKENS)


def weights_digest(card: ModelCard) -> Digest:
    """Digest what an engine loads of a card: equal for cards that differ in words only."""
    loaded = {
        "model_id", "source_repository", "source_revision", "gguf_file", "source", "scripted",
    }  # fmt: skip
    if card.source is not None:
        loaded -= {"model_id"}
    canonical = card.model_dump_json(include=loaded, exclude_defaults=True).encode()
    projector = f"{projector_bytes(card)}".encode()
    return Digest(hashlib.sha256(b"skulk weights\0" + canonical + projector).hexdigest())


def card_digest(card: ModelCard) -> Digest:
    """Digest a card's content: equal cards, however they were written, have equal digests."""
    canonical = card.model_dump_json(exclude_defaults=True, by_alias=False).encode()
    return Digest(hashlib.sha256(b"skulk card\0" + canonical).hexdigest())
