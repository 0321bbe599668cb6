"""Every route, with the scope it takes; the one table that the API is made of."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, final

from protocol.errors import RequestError, SkulkError
from protocol.ids import CommandId
from skulkd.api.admin import AdminRoutes
from skulkd.api.auth import RouteScope
from skulkd.api.bench import BenchRoutes
from skulkd.api.cluster import ClusterRoutes
from skulkd.api.control import InstanceRoutes
from skulkd.api.dependencies import ApiDependencies
from skulkd.api.dialects.chat_dialect import Dialect
from skulkd.api.drain import DrainRoutes
from skulkd.api.http import Handler
from skulkd.api.inference import ChatService
from skulkd.api.keys import KeyRoutes
from skulkd.api.links import LinkRoutes
from skulkd.api.logs import LogRoutes
from skulkd.api.metrics import MetricsRoute
from skulkd.api.models import ModelRoutes
from skulkd.api.moves import MoveRoutes
from skulkd.api.ollama import OllamaRoutes
from skulkd.api.ops import OpsRoutes
from skulkd.api.other_nodes import OtherNodes
from skulkd.api.reference import ReferenceRoutes
from skulkd.api.session_routes import SessionRoutes
from skulkd.api.store import StoreRoutes
from skulkd.api.vectors import VectorService
from skulkd.core.key_limits import KeyLimiter

Method = Literal["GET", "POST", "PUT", "DELETE"]
Kind = Literal["inference", "control"]
"""Inference routes speak a dialect of clients and are open to web pages; control routes do not."""
Reach = Literal["local", "handed_on", "by_handler"]
"""Any node answers a `local` route, and never another one for it. The others are one node's own:
`?node=` has a request handed on to the node that it names, by the app or by the handler itself."""


MESSAGES: Final = "/v1/messages"
OLLAMA: Final = "/ollama"
"""What Ollama's clients take for the whole of a server."""
INFERENCE_PATHS: Final = ("/v1/", f"{OLLAMA}/")
_OLLAMA_BASES: Final = (f"{OLLAMA}/api", f"{OLLAMA}/api/api", f"{OLLAMA}/api/v1")
"""Clients differ in how they join a base URL and a path."""


def dialect_of(path: str, kind: Kind) -> Dialect:
    """Say whose form the errors of a path take, be there such a path or not."""
    if path == OLLAMA or (path.startswith(f"{OLLAMA}/") and not path.startswith(f"{OLLAMA}/v1/")):
        return "ollama"
    path = path.removeprefix(OLLAMA)
    if path == MESSAGES or path.startswith(f"{MESSAGES}/"):
        return "anthropic"
    return "openai" if kind == "inference" else "control"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteSpec:
    """One route. `GET` answers `HEAD` too."""

    method: Method
    path: str
    """`{name}` takes one segment, `{name:path}` takes slashes too; both see the decoded path."""
    scope: RouteScope
    handler: Handler
    kind: Kind = "control"
    reach: Reach = "local"
    is_heavy: bool = False
    """Counts against the setting `max_concurrent_requests`: it may stay open for minutes."""

    @property
    def is_metered(self) -> bool:
        """Counts against the limits of the key that asks: it has a model work."""
        return self.is_heavy and self.method == "POST"

    @property
    def changes_state(self) -> bool:
        """An audit line is written for it."""
        return self.kind == "control" and self.method != "GET"


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the handlers belong to."""

    chat: ChatService
    bench: BenchRoutes
    vectors: VectorService
    instances: InstanceRoutes
    moves: MoveRoutes
    models: ModelRoutes
    ollama: OllamaRoutes
    store: StoreRoutes
    cluster: ClusterRoutes
    drains: DrainRoutes
    links: LinkRoutes
    logs: LogRoutes
    ops: OpsRoutes
    keys: KeyRoutes
    metrics: MetricsRoute
    reference: ReferenceRoutes
    admin: AdminRoutes
    sessions: SessionRoutes
    limiter: KeyLimiter

    @classmethod
    def build(cls, deps: ApiDependencies, others: OtherNodes) -> "Services":
        """Make them all."""
        limiter = KeyLimiter()
        chat = ChatService(deps, others)
        vectors = VectorService(deps, chat)
        return cls(
            chat=chat,
            bench=BenchRoutes(chat, deps.readings),
            vectors=vectors,
            instances=InstanceRoutes(deps),
            moves=MoveRoutes(deps),
            models=ModelRoutes(deps),
            ollama=OllamaRoutes(deps, chat, vectors),
            store=StoreRoutes(deps, others),
            cluster=ClusterRoutes(deps, others),
            drains=DrainRoutes(deps),
            links=LinkRoutes(deps),
            logs=LogRoutes(deps, others),
            ops=OpsRoutes(deps),
            keys=KeyRoutes(deps, limiter),
            metrics=MetricsRoute(deps),
            reference=ReferenceRoutes(),
            admin=AdminRoutes(deps),
            sessions=SessionRoutes(deps),
            limiter=limiter,
        )

    def interrupt(self, command_id: CommandId, reason: SkulkError) -> None:
        """End a request for a model with an error, if there is one of this id."""
        self.chat.interrupt(command_id, reason)
        self.vectors.interrupt(command_id, reason)

    def stop(self) -> None:
        """End what is open and would not end by itself."""
        self.sessions.stop()
        self.chat.stop()
        self.vectors.stop()
        self.ops.stop()
        self.logs.stop()


@final
class PathRoutes:
    """What one path pattern answers to."""

    def __init__(self, kind: Kind) -> None:
        self.kind: Kind = kind
        self._by_method: dict[str, RouteSpec] = {}

    def add(self, route: RouteSpec) -> None:
        """Take a further method of this path."""
        self._by_method[route.method] = route
        if route.method == "GET":
            self._by_method["HEAD"] = route

    def route_for(self, method: str) -> RouteSpec:
        """Choose by method.

        Raises:
            RequestError: `request.method_not_allowed`, with those that are.
        """
        route = self._by_method.get(method)
        if route is None:
            allowed = ", ".join(sorted(self._by_method))
            raise RequestError(
                "request.method_not_allowed",
                f"this path does not answer {method[:20]}",
                remediation=f"It answers {allowed}.",
                details={"allow": allowed},
            )
        return route


@final
class RouteTable:
    """Finds the routes of a path: by one look-up, or by the patterns in their order."""

    def __init__(self, routes: tuple[RouteSpec, ...]) -> None:
        self._exact: dict[str, PathRoutes] = {}
        self._patterns: list[tuple[re.Pattern[str], PathRoutes]] = []
        by_path: dict[str, PathRoutes] = {}
        for route in routes:
            known = by_path.get(route.path)
            if known is None:
                known = by_path[route.path] = PathRoutes(route.kind)
                if "{" in route.path:
                    self._patterns.append((_compiled(route.path), known))
                else:
                    self._exact[route.path] = known
            known.add(route)

    def find(self, path: str) -> tuple[PathRoutes, Mapping[str, str]]:
        """Find a decoded path's routes and its parameters.

        Raises:
            RequestError: `request.not_found`.
        """
        known = self._exact.get(path)
        if known is not None:
            return known, {}
        for pattern, routes in self._patterns:
            match = pattern.fullmatch(path)
            if match is not None:
                return routes, match.groupdict()
        raise RequestError(
            "request.not_found",
            f"there is no route {path[:200]!r}",
            remediation="See docs/api.md for all routes.",
        )


def _compiled(path: str) -> re.Pattern[str]:
    # No route has characters besides the parameters that a pattern would read otherwise.
    pattern = re.sub(r"\{(\w+):path\}", r"(?P<\1>.+)", path)
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", pattern))


def _get(path: str, scope: RouteScope, handler: Handler, kind: Kind = "control") -> RouteSpec:
    return RouteSpec(method="GET", path=path, scope=scope, handler=handler, kind=kind)


def _post(path: str, scope: RouteScope, handler: Handler) -> RouteSpec:
    return RouteSpec(method="POST", path=path, scope=scope, handler=handler)


def _generating(path: str, handler: Handler) -> RouteSpec:
    """Give a route that has a model work."""
    return RouteSpec(
        method="POST", path=path, scope="infer", handler=handler, kind="inference", is_heavy=True
    )


def _put(path: str, scope: RouteScope, handler: Handler) -> RouteSpec:
    return RouteSpec(method="PUT", path=path, scope=scope, handler=handler)


def _delete(path: str, scope: RouteScope, handler: Handler) -> RouteSpec:
    return RouteSpec(method="DELETE", path=path, scope=scope, handler=handler)


def _reaching(reach: Reach, *routes: RouteSpec) -> tuple[RouteSpec, ...]:
    return tuple(replace(route, reach=reach) for route in routes)


def build_routes(services: Services) -> tuple[RouteSpec, ...]:
    """Give the table; of two patterns that match, the earlier one counts."""
    instances = services.instances
    models, cluster, ops, keys = services.models, services.cluster, services.ops, services.keys
    inference = _inference_routes(services)
    return (
        *inference,
        *(replace(route, path=f"{OLLAMA}{route.path}") for route in inference),
        *_ollama_routes(services.ollama),
        RouteSpec(
            method="POST",
            path="/bench/chat/completions",
            scope="infer",
            handler=services.bench.chat,
            kind="inference",
            is_heavy=True,
        ),
        _get("/models", "infer", models.list_all, "inference"),
        _get("/models/requirements", "read", models.requirements),
        _delete("/models/custom/{model_id:path}", "operate", models.remove_card),
        _post("/place_instance", "operate", instances.place),
        _post("/instance", "operate", instances.place_exactly),
        _get("/instance/placement", "read", instances.placement),
        _get("/instance/previews", "read", instances.previews),
        _post("/instance/{instance_id}/retry", "operate", instances.retry),
        _post("/instance/{instance_id}/clear-breaker", "operate", instances.clear_breaker),
        _post("/instance/{instance_id}/pin", "operate", instances.pin),
        _delete("/instance/{instance_id}/pin", "operate", instances.unpin),
        _get("/instance/{instance_id}/move", "read", services.moves.preview),
        _post("/instance/{instance_id}/move", "operate", services.moves.move),
        _get("/instance/{instance_id}", "read", instances.show),
        _delete("/instance/{instance_id}", "operate", instances.stop),
        _get("/v1/nodes", "read", cluster.nodes),
        _post("/v1/nodes/{node}/drain", "operate", services.drains.drain),
        _delete("/v1/nodes/{node}/drain", "operate", services.drains.undrain),
        _post("/v1/cluster/join", "admin", cluster.join),
        _get("/v1/cluster/links", "read", services.links.show),
        _post("/v1/cluster/links/probe", "operate", services.links.probe),
        _get("/v1/cluster/tokens", "admin", cluster.tokens),
        _delete("/v1/cluster/tokens/{token_id}", "admin", cluster.revoke_token),
        _delete("/v1/cluster/members/{node}", "admin", cluster.remove),
        _put("/v1/cluster/policy", "admin", cluster.set_policy),
        _get("/state", "read", ops.state),
        _get("/events", "read", ops.events),
        _get("/v1/session", "infer", services.sessions.open),
        _get("/v1/keys", "admin", keys.list_all),
        _post("/v1/keys", "admin", keys.create),
        _post("/v1/keys/{key_id}/rotate", "admin", keys.rotate),
        _put("/v1/keys/{key_id}", "admin", keys.change),
        _delete("/v1/keys/{key_id}", "admin", keys.revoke),
        _get("/openapi.json", "open", services.reference.document),
        _get("/docs", "open", services.reference.page),
        _get("/", "open", ops.root),
        *_node_routes(services),
    )


def _inference_routes(services: Services) -> tuple[RouteSpec, ...]:
    """Give the routes under `/v1`, which are there under `/ollama/v1` too."""
    chat, models = services.chat, services.models
    return (
        _get("/v1/models", "infer", models.list_all, "inference"),
        _get("/v1/models/{model_id:path}", "infer", models.show, "inference"),
        _generating("/v1/chat/completions", chat.chat),
        _generating("/v1/responses", chat.responses),
        _generating("/v1/completions", chat.completions),
        _generating(MESSAGES, chat.messages),
        RouteSpec(
            method="POST",
            path=f"{MESSAGES}/count_tokens",
            scope="infer",
            handler=chat.count_tokens,
            kind="inference",
            reach="by_handler",
        ),
        _generating("/v1/embeddings", services.vectors.embeddings),
        _generating("/v1/rerank", services.vectors.rerank),
        RouteSpec(
            method="POST",
            path="/v1/cancel/{command_id}",
            scope="infer",
            handler=chat.cancel,
            kind="inference",
        ),
        RouteSpec(
            method="GET",
            path="/v1/streams/{command_id}",
            scope="infer",
            handler=chat.resume,
            kind="inference",
            is_heavy=True,
        ),
    )


def _ollama_routes(ollama: OllamaRoutes) -> tuple[RouteSpec, ...]:
    routes: list[RouteSpec] = [
        _get(path, "open", ollama.root, "inference") for path in (OLLAMA, f"{OLLAMA}/")
    ]
    for base in _OLLAMA_BASES:
        routes += (
            _generating(f"{base}/chat", ollama.chat),
            _generating(f"{base}/generate", ollama.generate),
            _generating(f"{base}/embed", ollama.embed),
            _generating(f"{base}/embeddings", ollama.embeddings),
            replace(_post(f"{base}/show", "infer", ollama.show), kind="inference"),
            _get(f"{base}/tags", "infer", ollama.tags, "inference"),
            _get(f"{base}/ps", "infer", ollama.ps, "inference"),
            _get(f"{base}/version", "open", ollama.version, "inference"),
        )
    return tuple(routes)


def _node_routes(services: Services) -> tuple[RouteSpec, ...]:
    """Give the routes that are one node's own, and answered for any other by `?node=`."""
    models, store, logs = services.models, services.store, services.logs
    cluster, ops = services.cluster, services.ops
    model = "/store/models/{model_id:path}"
    return (
        *_reaching("by_handler", _post(f"{model}/download/pause", "operate", store.pause_download)),
        *_reaching(
            "handed_on",
            _post("/models/add", "operate", models.import_file),
            _post("/models/import", "operate", models.import_file),
            _get("/models/found", "read", models.found),
            _get("/models/cards/{model_id:path}", "read", models.card),
            _get(f"{model}/download/status", "read", store.download_status),
            _post(f"{model}/download", "operate", store.download),
            _post(f"{model}/download/resume", "operate", store.resume_download),
            _delete(f"{model}/download", "operate", store.cancel_download),
            _get(f"{model}/verify", "read", store.verify_status),
            _post(f"{model}/verify", "operate", store.verify),
            _delete(f"{model}/verify", "operate", store.cancel_verify),
            _delete(model, "operate", store.remove),
            _get("/store/downloads", "read", store.downloads),
            _get("/store/storage", "read", store.storage),
            _get("/v1/cluster", "read", cluster.show),
            _post("/v1/cluster/invite", "admin", cluster.invite),
            _get("/health", "open", ops.health),
            _get("/version", "open", ops.version),
            _get("/metrics", "read", services.metrics.show),
            _get("/node_id", "open", ops.node_id),
            _get("/node/identity", "read", ops.identity),
            _get("/config", "read", services.admin.config),
            _put("/config", "admin", services.admin.configure),
            _post("/admin/restart", "admin", services.admin.restart),
            _post("/v1/api/open", "admin", ops.open_api),
            _post("/v1/api/close", "admin", ops.close_api),
        ),
        *_reaching(
            "by_handler",
            _get("/v1/logs", "read", logs.logs),
            _post("/v1/cluster/handover", "admin", cluster.handover),
        ),
    )
