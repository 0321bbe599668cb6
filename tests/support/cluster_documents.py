"""What a small cluster of two answers about itself: documents for tests of whoever reads them."""

import json

from protocol.cluster_api import (
    ClusterDocument,
    ClusterStorage,
    HandoverDone,
    Invitation,
    Joined,
    LogLineView,
    LogsDocument,
    MemberView,
    NodesDocument,
    NodeView,
    QuorumView,
    StrangerView,
    TokenList,
    TokenView,
    UnansweredNode,
)
from protocol.control_api import EventsDocument, EventView, NodeHealthView, NodeResourcesView
from protocol.errors import ErrorBody
from protocol.ids import TokenId
from protocol.link_api import LinkNode, LinksDocument, LinkView, ProbeState, ProbeView
from protocol.storage_api import StorageDocument, StoredModelView
from tests.support.builders import (
    GIB,
    MIB,
    MODEL,
    NOW_MS,
    a_cluster_id,
    a_command_id,
    a_node_id,
    an_instance_id,
)

TOKEN_ID = TokenId("join-abcdefgh")
SECRET_TOKEN = "skulk1-" + "s3cret" * 8
SIX_WORDS = "amber brick cedar delta eagle flint"


def a_member_view(number: int = 1, **changes: object) -> MemberView:
    """Make a member; the first is the node that answers, and master."""
    fields: dict[str, object] = {
        "node_id": a_node_id(number),
        "name": f"node-{number}",
        "role": "full",
        "presence": "present",
        "since_ms": NOW_MS,
        "liveness": "alive",
        "is_self": number == 1,
        "is_master": number == 1,
        "silent_s": None if number == 1 else 0.4,
        "link": None if number == 1 else "up",
        "addresses": (f"192.168.1.{number}:12416",),
        "api_port": 52415,
        "build": "0.1.0",
        "public_key": f"{number}a" * 32,
    }
    return MemberView.model_validate(fields | changes)


def a_cluster(*members: MemberView, **changes: object) -> ClusterDocument:
    """Make the cluster as its first node sees it."""
    shown = members or (a_member_view(), a_member_view(2))
    fields: dict[str, object] = {
        "node_id": a_node_id(),
        "name": "node-1",
        "cluster_id": a_cluster_id(),
        "is_open": True,
        "base_port": 12416,
        "bound": ("192.168.1.1",),
        "advertised": ("192.168.1.1:12416",),
        "role": "master",
        "master": a_node_id(),
        "last_master": a_node_id(),
        "term": 3,
        "policy": "availability",
        "quorum": QuorumView(voters=2, alive=2, is_majority=True),
        "commit_seq": 42,
        "appended_seq": 42,
        "members": shown,
        "strangers": (a_stranger(),),
    }
    return ClusterDocument.model_validate(fields | changes)


def a_stranger() -> StrangerView:
    """Make somebody who was refused."""
    return StrangerView(
        public_key="0f" * 32,
        address="192.168.1.99",
        reason="its key is neither a member's nor an invitation's",
        first_ago_s=600.0,
        last_ago_s=12.0,
        tries=7,
    )


def some_nodes() -> NodesDocument:
    """Make both nodes with health and resources; the second is lost."""
    resources = NodeResourcesView(
        name="node-1",
        role="full",
        backends=("llama_server-cpu",),
        memory_total_bytes=16 * GIB,
        memory_available_bytes=12 * GIB,
        disk_free_bytes=200 * GIB,
        cpu_ratio=0.25,
        reading_age_s=0.4,
    )
    lost = a_member_view(2, presence="lost", liveness="lost", silent_s=40.0, link="silent")
    ok = NodeHealthView(level="ok")
    return NodesDocument(
        seq=42,
        items=(
            NodeView(member=a_member_view(), health=ok, resources=resources),
            NodeView(
                member=lost, health=ok, resources=resources.model_copy(update={"name": "node-2"})
            ),
        ),
    )


def an_invitation(kind: str = "token", **changes: object) -> Invitation:
    """Make an invitation with its secret."""
    fields: dict[str, object] = {
        "token_id": TOKEN_ID,
        "kind": kind,
        "token": SECRET_TOKEN if kind == "token" else None,
        "code": SIX_WORDS if kind == "code" else None,
        "uses": 1,
        "expires_at_ms": NOW_MS + 3_600_000,
        "cluster_id": a_cluster_id(),
        "inviter": a_node_id(),
        "addresses": ("192.168.1.1:12416",),
        "was_opened": True,
    }
    return Invitation.model_validate(fields | changes)


def some_tokens() -> TokenList:
    """Make a valid invitation and one that is used up."""
    valid = TokenView(
        token_id=TOKEN_ID,
        kind="token",
        inviter=a_node_id(),
        inviter_name="node-1",
        created_at_ms=NOW_MS,
        expires_at_ms=NOW_MS + 3_600_000,
        uses_left=2,
        is_valid=True,
    )
    used = valid.model_copy(
        update={
            "token_id": TokenId("join-bbbbbbbb"), "kind": "code", "uses_left": 0, "is_valid": False,
        }
    )  # fmt: skip
    return TokenList(items=(valid, used))


def a_join() -> Joined:
    """Make the answer to a join."""
    return Joined(
        cluster_id=a_cluster_id(), inviter=a_node_id(2), address="192.168.1.2:12416", archived=""
    )


def a_handover() -> HandoverDone:
    """Make the answer to a handover."""
    return HandoverDone(master=a_node_id(2), name="node-2", term=4)


def some_storage(*, is_answered: bool = True) -> ClusterStorage:
    """Make the disks of both nodes; the second may have said nothing."""
    held = StoredModelView(model_id=MODEL, size_bytes=100 * MIB, in_use=True, path="/models/a.gguf")
    other = StorageDocument(
        node_id=a_node_id(2), models_dir="/big", disk_free_bytes=GIB, disk_total_bytes=9 * GIB,
        items=(held.model_copy(update={"in_use": False, "path": "/big/a.gguf"}),),
    )  # fmt: skip
    silent = UnansweredNode(
        node_id=a_node_id(2),
        name="node-2",
        error=ErrorBody(code="cluster.peer_unreachable", message="the link is silent"),
    )
    return ClusterStorage(
        node_id=a_node_id(),
        models_dir="/models",
        items=(held,),
        others=(other,) if is_answered else (),
        unanswered=() if is_answered else (silent,),
    )


def a_page(*messages: str, after: str = "1.100", **changes: object) -> LogsDocument:
    """Make a page of a daemon's log."""
    lines = tuple(
        LogLineView(
            at="2026-01-02T03:04:05.678+00:00",
            level="info",
            logger="skulkd.node",
            message=message,
            command_id=a_command_id(),
            extra={"peer": "127.0.0.1"},
        )
        for message in messages or ("serving", "stopping")
    )
    fields: dict[str, object] = {
        "node_id": a_node_id(), "name": "node-1", "lines": lines, "next_after": after,
    }  # fmt: skip
    return LogsDocument.model_validate(fields | changes)


def an_engine_page(*messages: str) -> LogsDocument:
    """Make a page of an engine's log."""
    lines = tuple(LogLineView(message=message) for message in messages)
    return a_page(instance_id=an_instance_id(), lines=lines)


def an_event(seq: int = 42) -> EventView:
    """Make an event of the log."""
    return EventView(
        term=3,
        seq=seq,
        at_ms=NOW_MS,
        command_id=None,
        kind="master_elected",
        event={"kind": "master_elected", "master": a_node_id(), "isMinority": False},
    )


def some_events(*seqs: int) -> EventsDocument:
    """Make a page of events."""
    numbers = seqs or (41, 42)
    return EventsDocument(
        events=tuple(an_event(seq) for seq in numbers), next_after_seq=numbers[-1], last_seq=42
    )


def server_event(kind: str, data: str, position: str | None = None) -> bytes:
    """Write an event as a stream carries it."""
    head = f"id: {position}\n" if position is not None else ""
    return f"{head}event: {kind}\ndata: {data}\n\n".encode()


def log_event(page: LogsDocument) -> bytes:
    """Write a page as a stream carries it."""
    return server_event("lines", page.model_dump_json(), page.next_after)


def error_event(code: str, message: str) -> bytes:
    """Write the error that ends a stream."""
    error = {"message": message, "type": "server_error", "code": code, "skulk_code": code}
    return server_event("error", json.dumps({"error": error}))


def a_probe(state: ProbeState = "done", **changes: object) -> ProbeView:
    """A series over one pair, that has gone well if it is over."""
    fields: dict[str, object] = {
        "state": state,
        "began_ms": 1_700_000_000_000,
        "n_pairs": 1,
        "n_tried": 1 if state == "done" else 0,
    }
    return ProbeView.model_validate(fields | changes)


def some_links(probe: ProbeView | None = None) -> LinksDocument:
    """Two nodes, of which the second has told of no way that is open."""
    there, back = a_node_id(1), a_node_id(2)
    return LinksDocument(
        node_id=there,
        nodes=(
            LinkNode(node_id=there, name="node-1", liveness="alive"),
            LinkNode(node_id=back, name="node-2", liveness="alive"),
        ),
        links=(
            LinkView(
                source=there,
                target=back,
                state="up",
                interface="eth0",
                kind="ethernet",
                nominal_bits_s=1_000_000_000,
                rtt_median_ms=0.25,
                rtt_p99_ms=2.5,
                rate_bytes_s=112 << 20,
                rate_age_s=65.0,
                told_ago_s=1.0,
            ),
            LinkView(source=back, target=there, state="silent"),
        ),
        probe=probe or a_probe(),
    )
