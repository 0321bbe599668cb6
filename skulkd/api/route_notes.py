"""What the routes are for and what bodies they take and give: what OpenAPI adds to routes.py.

Those of the foreign dialects are in `dialect_notes.py`, whose models are loaded when the API is
described, and not before.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel

from protocol.admin_api import ConfigBody, ConfigDocument, RestartBody, RestartDocument
from protocol.cluster_api import (
    ClusterDocument,
    ClusterStorage,
    HandoverBody,
    HandoverDone,
    Invitation,
    InviteBody,
    JoinBody,
    Joined,
    LogsDocument,
    NodesDocument,
    PolicyBody,
    TokenList,
)
from protocol.control_api import (
    CancelReply,
    CardDocument,
    CommandAccepted,
    EventsDocument,
    ExactPlacement,
    ExactPlacementBody,
    HealthDocument,
    ImportModelBody,
    InstanceView,
    ListenersDocument,
    NodeIdentity,
    OpenApiBody,
    PauseBody,
    PlaceInstanceBody,
    PreviewsDocument,
    StateDocument,
    TransferList,
    TransferStatus,
    VersionDocument,
)
from protocol.drain_api import DrainBody, DrainDocument
from protocol.keys_api import ChangeKeyBody, CreatedKey, CreateKeyBody, KeyList, RotateKeyBody
from protocol.link_api import LinksDocument, ProbeLinksBody, ProbeView
from protocol.models_api import ModelEntry, ModelList, ModelRequirements
from protocol.move_api import MoveDocument, MoveInstanceBody
from protocol.storage_api import FoundModels, RemovedModel
from protocol.verify_api import VerifyStatus

Schema = dict[str, Any]
Body = type[BaseModel] | Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What one route is for, and its bodies."""

    summary: str
    asks: Body | None = None
    answers: Body | None = None
    status: int = 200
    media_type: str = "application/json"
    streams: str | None = None
    """The media type of an answer that is streamed, where the request may ask for that."""
    events: tuple[type[BaseModel], ...] = ()
    """What the events of such an answer hold."""
    is_camel: bool = False
    """The answer is derived from the state, and written in camelCase."""
    query: tuple[str, ...] = field(default_factory=tuple[str, ...])
    """Names of query fields beside `node`."""


_ANY: Final[Schema] = {"type": "object", "additionalProperties": True}
_TEXT: Final[Schema] = {"type": "string"}
_PLACING: Final = (
    "model_id", "node_ids", "excluded_node_ids", "min_nodes", "shape", "backend", "context_tokens",
    "slots", "sharding", "instance_meta",
)  # fmt: skip
_TRANSFER: Final = "/store/models/{model_id:path}/download"

NOTES: Final[dict[str, Note]] = {
    "GET /v1/models": Note(
        summary="List the models of the catalogue, placed or not", answers=ModelList
    ),
    "GET /v1/models/{model_id:path}": Note(summary="Show one model", answers=ModelEntry),
    "POST /v1/cancel/{command_id}": Note(
        summary="End what is under way, through any node", answers=CancelReply
    ),
    "GET /v1/streams/{command_id}": Note(
        summary="Read on in a stream after a break",
        answers=_TEXT,
        media_type="text/event-stream",
        query=("offset",),
    ),
    "DELETE /models/custom/{model_id:path}": Note(
        summary="Forget a custom card", answers=CommandAccepted
    ),
    "POST /place_instance": Note(
        summary="Place a model", asks=PlaceInstanceBody, answers=CommandAccepted, status=202
    ),
    "POST /instance": Note(
        summary="Place one whole plan", asks=ExactPlacementBody, answers=CommandAccepted, status=202
    ),
    "GET /instance/placement": Note(
        summary="Show the one plan that a placement would take",
        answers=ExactPlacement,
        is_camel=True,
        query=(*_PLACING, "plan_id"),
    ),
    "GET /instance/previews": Note(
        summary="Show all plans and all refusals, with their arithmetic",
        answers=PreviewsDocument,
        is_camel=True,
        query=_PLACING,
    ),
    "POST /instance/{instance_id}/retry": Note(
        summary="Try an instance again that is not ready", answers=CommandAccepted, status=202
    ),
    "POST /instance/{instance_id}/pin": Note(
        summary="Keep an instance loaded, and out of drains", answers=CommandAccepted, status=202
    ),
    "DELETE /instance/{instance_id}/pin": Note(
        summary="Take the pin of an instance back", answers=CommandAccepted, status=202
    ),
    "GET /instance/{instance_id}/move": Note(
        summary="Show where an instance could go, and what moving means",
        answers=MoveDocument,
        is_camel=True,
        query=("node_ids", "stop_first", "drain_s"),
    ),
    "POST /instance/{instance_id}/move": Note(
        summary="Move an instance", asks=MoveInstanceBody, answers=CommandAccepted, status=202
    ),
    "GET /instance/{instance_id}": Note(
        summary="Show one instance", answers=InstanceView, is_camel=True
    ),
    "DELETE /instance/{instance_id}": Note(
        summary="Stop an instance", answers=CommandAccepted, status=202, query=("drain_s",)
    ),
    "GET /v1/nodes": Note(
        summary="List the members with health and resources", answers=NodesDocument
    ),
    "POST /v1/nodes/{node}/drain": Note(
        summary="Have a node serve nothing more", asks=DrainBody, answers=DrainDocument
    ),
    "DELETE /v1/nodes/{node}/drain": Note(
        summary="Have a node serve again", answers=CommandAccepted
    ),
    "POST /v1/cluster/join": Note(summary="Join another cluster", asks=JoinBody, answers=Joined),
    "GET /v1/cluster/links": Note(
        summary="Show the links between the nodes: kind, round trip, what they carry",
        answers=LinksDocument,
    ),
    "POST /v1/cluster/links/probe": Note(
        summary="Measure what links carry, one pair after the other",
        asks=ProbeLinksBody,
        answers=ProbeView,
        status=202,
    ),
    "GET /v1/cluster/tokens": Note(summary="List the invitations", answers=TokenList),
    "DELETE /v1/cluster/tokens/{token_id}": Note(
        summary="Revoke an invitation", answers=CommandAccepted
    ),
    "DELETE /v1/cluster/members/{node}": Note(summary="Remove a node", answers=CommandAccepted),
    "PUT /v1/cluster/policy": Note(
        summary="Choose who must be there to decide", asks=PolicyBody, answers=CommandAccepted
    ),
    "GET /state": Note(
        summary="Show all that the cluster agrees on, and what moves",
        answers=StateDocument,
        is_camel=True,
    ),
    "GET /events": Note(
        summary="Give the events of the log, or follow them",
        answers=EventsDocument,
        is_camel=True,
        query=("after_seq", "limit", "follow"),
    ),
    "GET /v1/session": Note(summary="Speak with this node over one WebSocket", status=101),
    "GET /v1/keys": Note(summary="List the API keys", answers=KeyList),
    "POST /v1/keys": Note(
        summary="Make an API key, which is shown once",
        asks=CreateKeyBody,
        answers=CreatedKey,
        status=201,
    ),
    "PUT /v1/keys/{key_id}": Note(
        summary="Change an API key's limits and end", asks=ChangeKeyBody, answers=CommandAccepted
    ),
    "POST /v1/keys/{key_id}/rotate": Note(
        summary="Give an API key another secret, which is shown once",
        asks=RotateKeyBody,
        answers=CreatedKey,
    ),
    "DELETE /v1/keys/{key_id}": Note(summary="Revoke an API key", answers=CommandAccepted),
    "GET /ollama/": Note(
        summary="Say that somebody is there, in Ollama's words",
        answers=_TEXT,
        media_type="text/plain",
    ),
    "GET /openapi.json": Note(summary="Give this description", answers=_ANY),
    "GET /docs": Note(
        summary="Show this description to people", answers=_TEXT, media_type="text/html"
    ),
    "GET /": Note(summary="Say that somebody is there", answers=_TEXT, media_type="text/plain"),
    "POST /models/import": Note(
        summary="Make a card for a file that stays where it is",
        asks=ImportModelBody,
        answers=ModelEntry,
        status=201,
    ),
    "GET /models/found": Note(
        summary="Find model files that other programs left here",
        answers=FoundModels,
        query=("source",),
    ),
    "GET /models/requirements": Note(
        summary="Say what a model needs, whichever node would run it",
        answers=ModelRequirements,
        query=("model_id", "context_tokens", "slots"),
    ),
    "GET /models/cards/{model_id:path}": Note(summary="Show a whole card", answers=CardDocument),
    f"GET {_TRANSFER}/status": Note(summary="Say how far a download is", answers=TransferStatus),
    f"POST {_TRANSFER}": Note(
        summary="Begin a download, or join it", answers=TransferStatus, status=202
    ),
    f"POST {_TRANSFER}/pause": Note(
        summary="Pause a download until it is resumed; what was fetched is kept",
        asks=PauseBody,
        answers=TransferStatus,
    ),
    f"POST {_TRANSFER}/resume": Note(
        summary="Go on with a paused download where it was", answers=TransferStatus
    ),
    f"DELETE {_TRANSFER}": Note(
        summary="Cancel a download; what was fetched is kept", answers=TransferStatus
    ),
    "GET /store/models/{model_id:path}/verify": Note(
        summary="Say how far a verification is, or what it found", answers=VerifyStatus
    ),
    "POST /store/models/{model_id:path}/verify": Note(
        summary="Hash a model's files again, each with its result",
        answers=VerifyStatus,
        status=202,
    ),
    "DELETE /store/models/{model_id:path}/verify": Note(
        summary="End a verification", answers=VerifyStatus
    ),
    "DELETE /store/models/{model_id:path}": Note(
        summary="Delete a model's files", answers=RemovedModel
    ),
    "GET /store/downloads": Note(summary="List the downloads under way", answers=TransferList),
    "GET /store/storage": Note(summary="Show what lies on disk", answers=ClusterStorage),
    "GET /v1/cluster": Note(
        summary="Show the cluster as one node sees it", answers=ClusterDocument
    ),
    "POST /v1/cluster/invite": Note(
        summary="Make an invitation", asks=InviteBody, answers=Invitation, status=201
    ),
    "GET /health": Note(summary="Say how well this node is", answers=HealthDocument),
    "GET /version": Note(summary="Say which release this is", answers=VersionDocument),
    "GET /metrics": Note(
        summary="Give the metrics, for Prometheus", answers=_TEXT, media_type="text/plain"
    ),
    "GET /node_id": Note(summary="Give this node's id", answers=_TEXT),
    "GET /node/identity": Note(summary="Show who this node is", answers=NodeIdentity),
    "GET /config": Note(summary="Show the settings", answers=ConfigDocument),
    "PUT /config": Note(summary="Change settings", asks=ConfigBody, answers=ConfigDocument),
    "POST /admin/restart": Note(
        summary="Start this node anew", asks=RestartBody, answers=RestartDocument
    ),
    "POST /v1/api/open": Note(
        summary="Listen beyond loopback", asks=OpenApiBody, answers=ListenersDocument
    ),
    "POST /v1/api/close": Note(summary="Listen on loopback only", answers=ListenersDocument),
    "GET /v1/logs": Note(
        summary="Give lines of a log, or follow it",
        answers=LogsDocument,
        query=("instance", "after", "limit", "command_id", "follow"),
    ),
    "POST /v1/cluster/handover": Note(
        summary="Have another member elected master", asks=HandoverBody, answers=HandoverDone
    ),
}
"""By method and path, as the table writes them; an alias has the note of what it stands for."""
