"""Bodies of the routes that verify the files of a model."""

from typing import Literal

from protocol.control_api import ControlModel
from protocol.errors import ErrorBody
from protocol.ids import ModelIdField, NodeIdField

VerifyState = Literal["absent", "waiting", "running", "complete", "damaged", "failed", "cancelled"]
FileState = Literal["ok", "wrong_hash", "wrong_size", "missing", "unexpected"]


class VerifiedFile(ControlModel):
    """One file of a model, as a verification has found it."""

    path: str
    state: FileState
    """`unexpected` lies there and belongs to nothing; it is no damage."""
    size_bytes: int | None = None


class VerifyStatus(ControlModel):
    """`GET /store/models/{id}/verify`: how far a verification is, or how the last one ended."""

    model_id: ModelIdField
    node_id: NodeIdField
    state: VerifyState
    done_bytes: int = 0
    total_bytes: int | None = None
    files: tuple[VerifiedFile, ...] = ()
    """Once it has ended."""
    ended_at_ms: int | None = None
    error: ErrorBody | None = None
