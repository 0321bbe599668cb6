"""A node's HTTP API without a node: answers that a test chose, on a real socket.

Speaks HTTP/1.0, so that each request has a connection of its own and no thread outlives it. A route
answers with the first of the answers left to it and repeats the last, which lets a test play an
instance through its phases.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self, final
from urllib.parse import parse_qs, unquote, urlsplit

from protocol.base import FrozenModel
from protocol.control_api import (
    CommandAccepted,
    ErrorDocument,
    ErrorEnvelope,
    HealthDocument,
    HealthReasonView,
    InstanceView,
    ListenersDocument,
    LoadingDocument,
    NodeHealthView,
    NodeIdentity,
    NodeResourcesView,
    PreviewsDocument,
    ProgressView,
    RunnerView,
    StateDocument,
    TransferStatus,
)
from protocol.errors import ErrorBody, ErrorCode
from protocol.ids import ModelId
from protocol.instances import InstanceFailure, Phase
from protocol.keys_api import CreatedKey, KeyList, KeyView
from protocol.models_api import ModelEntry, ModelList, ResolvedCapabilities
from protocol.move_api import MoveDocument
from protocol.placements import PlacementRequest, Plan, Refusal, SmallestChange
from protocol.storage_api import FoundModels, FoundModelView, RemovedModel
from protocol.verify_api import VerifiedFile, VerifyStatus
from tests.support import cluster_documents as of_cluster
from tests.support.builders import (
    GIB,
    MIB,
    MODEL,
    NOW_MS,
    a_cluster_id,
    a_command_id,
    a_key_id,
    a_member,
    a_node_id,
    a_plan,
    an_instance_id,
    some_arithmetic,
)
from tests.support.config_documents import a_drain, a_restart, some_settings

KEY: Final = "skulk-abcdefgh-" + "a2" * 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is sent for one request."""

    status: int = 200
    body: bytes = b""
    pieces: tuple[bytes, ...] = ()
    """Sent one by one instead of `body`."""
    pause_s: float = 0.0
    """Before each piece."""
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A request that came in; the path is decoded whole."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: Any = None


def document(model: FrozenModel, *, status: int = 200) -> Answer:
    """Answer with a document, spelt in camelCase as those that follow from State are."""
    return Answer(status=status, body=model.model_dump_json(by_alias=True).encode())


def refusal(
    code: ErrorCode,
    message: str = "it cannot be done",
    *,
    status: int = 400,
    remediation: str = "do it otherwise",
    **documents: object,
) -> Answer:
    """Answer with an error, and documents beside its words."""
    envelope = ErrorEnvelope.model_validate(
        {
            "message": message,
            "type": "invalid_request_error",
            "code": code,
            "skulk_code": code,
            "remediation": remediation,
            **documents,
        }
    )
    return Answer(status=status, body=ErrorDocument(error=envelope).model_dump_json().encode())


@final
class FakeNode:
    """A listening node; a context manager. `seen` holds its requests in order."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self._answers: dict[tuple[str, str], list[Answer]] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = False  # so that closing waits for the handlers
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, name="fake node"
        )
        default_answers(self)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def on(self, method: str, path: str, *answers: Answer | FrozenModel) -> None:
        """Choose what a route answers, one after the other; the last is repeated."""
        chosen = [one if isinstance(one, Answer) else document(one) for one in answers]
        with self._lock:
            self._answers[method, path] = chosen

    def asked(self, method: str, path: str) -> list[Seen]:
        """List the requests of one route."""
        return [one for one in self.seen if (one.method, one.path) == (method, path)]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _next(self, seen: Seen) -> Answer:
        with self._lock:
            self.seen.append(seen)
            left = self._answers.get((seen.method, seen.path))
            if not left:
                return refusal("request.not_found", f"no {seen.path} here", status=404)
            return left.pop(0) if len(left) > 1 else left[0]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        next_answer = self._next

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                raw = self.rfile.read(length)
                split = urlsplit(self.path)
                answer = next_answer(
                    Seen(
                        method=self.command,
                        path=unquote(split.path),
                        query=parse_qs(split.query),
                        headers={name.lower(): value for name, value in self.headers.items()},
                        body=json.loads(raw) if raw else None,
                    )
                )
                self.send_response(answer.status)
                self.send_header("content-type", answer.content_type)
                self.end_headers()
                for piece in answer.pieces or (answer.body,):
                    if answer.pause_s:
                        time.sleep(answer.pause_s)
                    try:
                        self.wfile.write(piece)
                        self.wfile.flush()
                    except OSError:  # the client has gone, as some tests want
                        return

            # ruff: ignore[mixed-case-variable-in-class-scope]  names that the base class calls
            do_GET = do_POST = do_PUT = do_DELETE = _serve

            # ruff: ignore[builtin-argument-shadowing]  the base class's signature
            def log_message(self, format: str, *args: object) -> None:
                """Say nothing: the test reads `seen`."""

        return Handler


# ---- What a small cluster answers ----------------------------------------------------------


def a_model(model_id: ModelId = MODEL, **changes: object) -> ModelEntry:
    """Make an entry of the catalogue."""
    fields: dict[str, object] = {
        "id": model_id,
        "owned_by": "test",
        "name": model_id.rpartition("/")[2],
        "tasks": ("TextGeneration",),
        "capabilities": ("text",),
        "family": "llama",
        "quantization": "Q4_1",
        "storage_size_bytes": 100 * MIB,
        "context_length": 8192,
        "backends": ("llama_server",),
        "source": "package",
        "license": "Apache-2.0",
    }
    return ModelEntry.model_validate(fields | changes)


def a_view(phase: Phase = "ready", number: int = 1, **changes: object) -> InstanceView:
    """Make an instance as `/state` shows it."""
    plan = a_plan()
    on_its_way = phase not in {"ready", "failed", "stopping"}
    progress = ProgressView(
        rank=0,
        node_id=a_node_id(),
        attempt=1,
        phase=phase,
        phase_s=1.5,
        done_bytes=25 * MIB,
        total_bytes=100 * MIB,
        rate_bytes_s=10.0 * MIB,
        eta_s=7.5,
    )
    fields: dict[str, object] = {
        "instance_id": an_instance_id(number),
        "model_id": MODEL,
        "phase": phase,
        "desired": "running",
        "attempt": 1,
        "plan": plan,
        "runners": (
            RunnerView(
                rank=0, node_id=a_node_id(), attempt=1, phase=phase, since_ms=NOW_MS, pid=4321
            ),
        ),
        "progress": (progress,) if on_its_way else (),
        "placed_at_ms": NOW_MS,
        "context_token_limit": 8192,
        "slots": 4,
        "in_flight": 1 if phase == "ready" else None,
        "queued": 0 if phase == "ready" else None,
    }
    return InstanceView.model_validate(fields | changes)


def an_ending(number: int = 1, *, final: bool = True, **changes: object) -> InstanceFailure:
    """Make the failure of an instance whose engine was killed during the load."""
    fields: dict[str, object] = {
        "instance_id": an_instance_id(number),
        "model_id": MODEL,
        "node_id": a_node_id(),
        "attempt": 1,
        "phase": "load",
        "error": ErrorBody(
            code="runner.exited",
            message="the engine ended while it loaded",
            remediation="see its log",
        ),
        "signal": "SIGKILL",
        "log_tail": ("loading tensors", "killed"),
        "at_ms": NOW_MS,
        "final": final,
    }
    return InstanceFailure.model_validate(fields | changes)


def a_state_document(*views: InstanceView, **changes: object) -> StateDocument:
    """Make the state of a cluster of one node that runs these instances."""
    node = a_node_id()
    fields: dict[str, object] = {
        "node_id": node,
        "boot_id": "boot-1",
        "cluster_id": a_cluster_id(),
        "term": 1,
        "seq": 42,
        "at_ms": NOW_MS,
        "master": node,
        "members": {node: a_member()},
        "instances": {view.instance_id: view for view in views},
        "node_health": {
            node: NodeHealthView(
                level="warn",
                reasons=(
                    HealthReasonView(
                        code="disk_low",
                        level="warn",
                        message="2.0 GiB are free for models",
                        remediation="remove a model",
                    ),
                ),
            )
        },
        "node_resources": {
            node: NodeResourcesView(
                name="node-1",
                role="full",
                backends=("llama_server-cpu",),
                memory_total_bytes=16 * GIB,
                memory_available_bytes=12 * GIB,
                disk_total_bytes=500 * GIB,
                disk_free_bytes=2 * GIB,
                cpu_ratio=0.25,
                reading_age_s=0.4,
            )
        },
    }
    return StateDocument.model_validate(fields | changes)


def a_transfer(state: str = "running", done: int = 50 * MIB, **changes: object) -> TransferStatus:
    """Make the status of a download."""
    fields: dict[str, object] = {
        "model_id": MODEL,
        "node_id": a_node_id(),
        "state": state,
        "phase": "download" if state == "running" else "",
        "done_bytes": done,
        "total_bytes": 100 * MIB,
        "source": "package llm-test",
    }
    return TransferStatus.model_validate(fields | changes)


def a_verification() -> VerifyStatus:
    """Make the status of a verification that found all well."""
    return VerifyStatus(
        model_id=MODEL,
        node_id=a_node_id(),
        state="complete",
        done_bytes=100 * MIB,
        total_bytes=100 * MIB,
        files=(VerifiedFile(path="a.gguf", state="ok", size_bytes=100 * MIB),),
        ended_at_ms=NOW_MS,
    )


def accepted(number: int = 1, *, plan: Plan | None = None) -> CommandAccepted:
    """Make the answer to an accepted change."""
    return CommandAccepted(
        message="accepted",
        command_id=a_command_id(number),
        instance_id=an_instance_id(number),
        model_id=MODEL,
        plan=plan,
        durable="local",
        term=1,
        seq=43,
    )


def a_refusal_of_memory() -> Refusal:
    """Make the refusal of a node whose memory does not suffice."""
    return Refusal(
        node_id=a_node_id(),
        error=ErrorBody(
            code="placement.no_fit", message="node-1 lacks 2.06 GiB", remediation="free memory"
        ),
        term="weights",
        memory=some_arithmetic(weights_bytes=3 * GIB, available_bytes=GIB),
        smallest_change=SmallestChange(
            kind="free_memory", free_bytes=2 * GIB, text="free 2.07 GiB on node-1"
        ),
    )


def previews(*plans: Plan, refusals: tuple[Refusal, ...] = (), **more: object) -> PreviewsDocument:
    """Make the answer of the planner."""
    fields: dict[str, object] = {
        "model_id": MODEL,
        "request": PlacementRequest(model_id=MODEL),
        "plans": plans,
        "refusals": refusals,
    }
    return PreviewsDocument.model_validate(fields | more)


def a_look_at_a_move(*plans: Plan, number: int = 1, **changes: object) -> MoveDocument:
    """Make the answer to where an instance could go."""
    fields: dict[str, object] = {
        "instance_id": an_instance_id(number),
        "model_id": MODEL,
        "from_nodes": (a_node_id(),),
        "in_flight": 2,
        "stop_first": False,
        "drain_s": 60,
        "last_load_ms": 12_000,
        "request": PlacementRequest(model_id=MODEL),
        "plans": plans,
        "consequences": ("box-1 goes on serving until box-2 is ready.",) if plans else (),
    }
    return MoveDocument.model_validate(fields | changes)


def loading_refusal() -> Answer:
    """Answer as a node does whose model is still loading."""
    return refusal(
        "request.instance_loading",
        "the model is loading",
        status=503,
        retry_after_s=1,
        loading=LoadingDocument(
            instance_id=an_instance_id(), model_id=MODEL, phase="load", attempt=1
        ),
    )


def chat_stream(*texts: str, finish: str | None = "stop", done: bool = True) -> Answer:
    """Answer a chat with pieces of text, their usage, and the end."""
    events: list[str] = [f": command_id {a_command_id()}\n\n"]

    def event(**fields: object) -> str:
        return f"data: {json.dumps({'id': a_command_id(), **fields})}\n\n"

    for text in texts:
        delta = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        events.append(event(choices=[delta]))
    if finish is not None:
        end: dict[str, object] = {"index": 0, "delta": {}, "finish_reason": finish}
        events.append(event(choices=[end]))
        usage = {"prompt_tokens": 12, "completion_tokens": len(texts)}
        events.append(event(choices=[], usage=usage))
    if done:
        events.append("data: [DONE]\n\n")
    return Answer(pieces=tuple(text.encode() for text in events), content_type="text/event-stream")


def default_answers(node: FakeNode) -> None:
    """Teach a node the answers of a cluster of one that runs one model."""
    _identity_answers(node)
    _model_answers(node)
    _instance_answers(node)
    _key_answers(node)
    _cluster_answers(node)
    node.on("GET", "/config", some_settings())
    node.on("PUT", "/config", some_settings())
    node.on("POST", "/admin/restart", a_restart())
    node.on("POST", "/v1/nodes/studio/drain", a_drain())


def _identity_answers(node: FakeNode) -> None:
    on: Callable[..., None] = node.on
    health = HealthDocument(
        status="ok",
        node_id=a_node_id(),
        boot_id="boot-1",
        name="node-1",
        version="0.1.0",
        durable=True,
        term=1,
        seq=42,
    )
    identity = NodeIdentity(
        node_id=a_node_id(),
        name="node-1",
        cluster_id=a_cluster_id(),
        boot_id="boot-1",
        version="0.1.0",
        urls=("http://127.0.0.1:52415",),
    )
    on("GET", "/health", health)
    on("GET", "/node/identity", identity)


def _model_answers(node: FakeNode) -> None:
    on: Callable[..., None] = node.on
    model = MODEL
    found = FoundModelView(
        source="ollama", name="phi", path="/models/phi.gguf", size_bytes=GIB, model_id=MODEL
    )
    writes = ResolvedCapabilities(supports_text_generation=True)
    ready = a_model(installed=True, placed=True, ready=True, resolved_capabilities=writes)
    on("GET", "/v1/models", ModelList(data=(ready,)))
    on("GET", f"/v1/models/{model}", a_model())
    on("GET", "/models/found", FoundModels(items=(found,)))
    on("POST", "/models/import", document(a_model(source="local"), status=201))
    on("POST", f"/store/models/{model}/download", document(a_transfer("complete"), status=202))
    on("POST", f"/store/models/{model}/download/resume", a_transfer())
    on("POST", f"/store/models/{model}/verify", a_verification())
    on("GET", f"/store/models/{model}/verify", a_verification())
    on("DELETE", f"/store/models/{model}/download", a_transfer("cancelled"))
    on("GET", f"/store/models/{model}/download/status", a_transfer("complete"))
    on("DELETE", f"/store/models/{model}", RemovedModel(model_id=model, freed_bytes=100 * MIB))
    on("DELETE", f"/models/custom/{model}", accepted(4))


def _instance_answers(node: FakeNode) -> None:
    on: Callable[..., None] = node.on
    ready, instance = a_view(), an_instance_id()
    on("GET", "/state", a_state_document(ready))
    on("POST", "/place_instance", document(accepted(plan=ready.plan), status=202))
    on("GET", "/instance/previews", previews(a_plan()))
    on("GET", f"/instance/{instance}", ready)
    on("DELETE", f"/instance/{instance}", document(accepted(2), status=202))
    on("POST", f"/instance/{instance}/retry", document(accepted(3), status=202))
    on("POST", f"/instance/{instance}/clear-breaker", document(accepted(4), status=202))
    on("POST", f"/instance/{instance}/pin", document(accepted(4), status=202))
    on("DELETE", f"/instance/{instance}/pin", document(accepted(4), status=202))
    on("POST", f"/instance/{instance}/move", document(accepted(plan=ready.plan), status=202))
    on("GET", f"/instance/{instance}/move", a_look_at_a_move(a_plan(node=2)))
    on("POST", "/v1/chat/completions", chat_stream("The capital ", "is ", "Paris."))


def _key_answers(node: FakeNode) -> None:
    on: Callable[..., None] = node.on
    key = KeyView(
        key_id=a_key_id(), name="laptop", scope="operate", created_at_ms=NOW_MS, expires_at_ms=None
    )
    listeners = ListenersDocument(
        urls=("http://127.0.0.1:52415", "http://192.168.1.5:52415"),
        base_urls=("http://studio.tailnet.example:52415", "http://192.168.1.5:52415"),
    )
    on("GET", "/v1/keys", KeyList(items=(key,)))
    on(
        "POST",
        "/v1/keys",
        document(
            CreatedKey(key_id=key.key_id, name="laptop", scope="infer", key=KEY, durable="local"),
            status=201,
        ),
    )
    on("PUT", f"/v1/keys/{key.key_id}", accepted(5))
    rotated = CreatedKey(
        key_id=key.key_id,
        name="laptop",
        scope="infer",
        key=KEY,
        durable="local",
        previous_until_ms=NOW_MS,
    )
    on("POST", f"/v1/keys/{key.key_id}/rotate", rotated)
    on("DELETE", f"/v1/keys/{key.key_id}", accepted(5))
    on("POST", "/v1/api/open", listeners)
    on("POST", "/v1/api/close", ListenersDocument(urls=("http://127.0.0.1:52415",)))


def _cluster_answers(node: FakeNode) -> None:
    on: Callable[..., None] = node.on
    on("GET", "/v1/nodes", of_cluster.some_nodes())
    on("GET", "/v1/cluster", of_cluster.a_cluster())
    on("POST", "/v1/cluster/invite", document(of_cluster.an_invitation(), status=201))
    on("POST", "/v1/cluster/join", of_cluster.a_join())
    on("GET", "/v1/cluster/tokens", of_cluster.some_tokens())
    on("GET", "/v1/cluster/links", of_cluster.some_links())
    on("POST", "/v1/cluster/links/probe", document(of_cluster.a_probe("running"), status=202))
    on("DELETE", f"/v1/cluster/tokens/{of_cluster.TOKEN_ID}", accepted(6))
    on("DELETE", f"/v1/cluster/members/{a_node_id(2)}", accepted(7))
    on("PUT", "/v1/cluster/policy", accepted(8))
    on("POST", "/v1/cluster/handover", of_cluster.a_handover())
    on("GET", "/store/storage", of_cluster.some_storage())
    on("GET", "/v1/logs", of_cluster.a_page())
    on("GET", "/events", of_cluster.some_events())
