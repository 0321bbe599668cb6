"""Bodies of the control API about model files on a node's own disks."""

from typing import Literal

from protocol.control_api import ControlModel
from protocol.ids import ModelIdField, NodeIdField

FoundSource = Literal["hf", "ollama", "lmstudio", "llamacpp"]


class FoundModelView(ControlModel):
    """A model file that another program left on this machine."""

    source: FoundSource
    name: str
    path: str
    size_bytes: int
    model_id: ModelIdField | None = None
    """The id under which it would be, or already is, imported."""
    imported: bool = False
    problem: str = ""
    """Why it cannot be imported; empty when it can."""


class FoundModels(ControlModel):
    """`GET /models/found`."""

    items: tuple[FoundModelView, ...] = ()


class StoredModelView(ControlModel):
    """One model whose files lie on this node."""

    model_id: ModelIdField
    size_bytes: int
    in_use: bool
    """An instance here runs it or is on its way to."""
    linked: bool = False
    """Used where it lies, outside the store: removing it takes the entry, not the file."""
    path: str = ""
    damaged: tuple[str, ...] = ()
    """Files that a verification has found damaged; with any, the model cannot be used here."""


class StorageDocument(ControlModel):
    """`GET /store/storage`: this node's disk."""

    node_id: NodeIdField
    models_dir: str
    disk_total_bytes: int | None = None
    disk_free_bytes: int | None = None
    staging_bytes: int = 0
    """Rests of transfers that have not ended; a later pull goes on from them."""
    items: tuple[StoredModelView, ...] = ()


class RemovedModel(ControlModel):
    """`DELETE /store/models/{id}`."""

    model_id: ModelIdField
    freed_bytes: int
