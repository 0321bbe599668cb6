"""Bodies of the control API about draining a node: what it stops, and whether the rest goes on.

As in protocol/control_api.py; all of these are snake_case on the wire.
"""

from typing import Annotated, Final

from pydantic import Field

from protocol.control_api import ControlModel, Durability
from protocol.errors import ErrorBody
from protocol.ids import CommandIdField, InstanceIdField, ModelIdField, NodeIdField
from protocol.instances import MAX_DRAIN_MS, Phase
from protocol.nodes import Eligibility

DEFAULT_DRAIN_S: Final = 60
MAX_DRAIN_S: Final = MAX_DRAIN_MS // 1000


class DrainBody(ControlModel):
    """Body of `POST /v1/nodes/{node}/drain`."""

    deadline_s: Annotated[int, Field(ge=0, le=MAX_DRAIN_S)] = DEFAULT_DRAIN_S
    """How long what the node is answering may take to end; with 0 it is cut off at once."""
    instances: Annotated[tuple[InstanceIdField, ...], Field(max_length=512)] | None = None
    """What a dry run said it would stop: if more runs there by now, the answer is a conflict."""
    dry_run: bool = False
    """Only show what it would stop."""


class DrainedInstance(ControlModel):
    """An instance that a drain stops, and what is left of its model then."""

    instance_id: InstanceIdField
    model_id: ModelIdField
    phase: Phase
    pinned: bool = False
    """The drain is refused while it is."""
    requests: int | None = None
    """Being answered or waiting; None is unknown."""
    copies: int = 0
    """Further instances of the model that are ready, without a part on the node."""
    elsewhere: str = ""
    """The node that could take it as it is planned; empty where none could."""
    why_not: ErrorBody | None = None
    """Why none could: of several reasons the one that came nearest."""


class DrainDocument(ControlModel):
    """What a drain stops; after a dry run nothing has been changed."""

    node_id: NodeIdField
    name: str
    eligibility: Eligibility
    """Of the node, as it was when it was asked."""
    deadline_s: int
    is_applied: bool
    stops: tuple[DrainedInstance, ...] = ()
    command_id: CommandIdField | None = None
    durable: Durability | None = None
    term: int
    seq: int
