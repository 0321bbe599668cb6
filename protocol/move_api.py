"""Bodies of the control API about moving an instance to other nodes.

As in protocol/control_api.py. `MoveDocument` is camelCase, like all that is derived from State.
"""

from typing import Annotated, Final

from pydantic import Field

from protocol.control_api import ControlModel
from protocol.ids import DigestField, InstanceIdField, ModelIdField, NodeIdField
from protocol.instances import MAX_DRAIN_MS
from protocol.placements import PlacementRequest, Plan, Refusal

DEFAULT_DRAIN_S: Final = 60
DrainSeconds = Annotated[int, Field(ge=0, le=MAX_DRAIN_MS // 1000)]


class MoveInstanceBody(ControlModel):
    """`POST /instance/{instance_id}/move`; `GET` takes the same as a query, but for `plan_id`."""

    node_ids: Annotated[tuple[NodeIdField, ...], Field(max_length=128)] = ()
    """To one of these; without any, to whichever other node is best."""
    stop_first: bool = False
    """Stop the old instance before the new one is started, instead of once that is ready."""
    drain_s: DrainSeconds = DEFAULT_DRAIN_S
    """How long what the old instance is answering may take to end."""
    plan_id: DigestField | None = None
    """Take exactly this plan of an earlier look, or answer 409 with the plan of now."""


class MoveDocument(ControlModel):
    """`GET /instance/{instance_id}/move`: where it could go, and what moving it there means."""

    instance_id: InstanceIdField
    model_id: ModelIdField
    from_nodes: tuple[NodeIdField, ...]
    in_flight: int | None = None
    """What it is answering now, and what waits for that; None while its node does not tell."""
    stop_first: bool
    drain_s: int
    last_load_ms: int | None = None
    """How long the model took to load the last time."""
    request: PlacementRequest
    plans: tuple[Plan, ...] = ()
    """The first is what `POST` would take; `alternative` marks other hosts."""
    refusals: tuple[Refusal, ...] = ()
    missing_facts: tuple[str, ...] = ()
    consequences: tuple[str, ...] = ()
    """In words, for the first plan: who serves meanwhile, and what becomes of requests."""
