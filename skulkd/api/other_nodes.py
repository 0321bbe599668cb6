"""Asking other nodes for clients of this one: a request that names a node is answered by that node.

The node that was asked checks the client and its scope, and hands the request on over the cluster's
own connections; skulkd/api/peer_api.py is the other end.
"""

from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Final, TypeVar, final
from urllib.parse import quote, urlencode

from pydantic import ValidationError

from protocol.base import FrozenModel
from protocol.cluster_api import UnansweredNode
from protocol.control_api import ErrorDocument, read_answer
from protocol.errors import ClusterError, ErrorBody, RequestError, SkulkError, error_of
from protocol.ids import NodeId
from protocol.peer_messages import ApiAnswer, CallApi
from skulkd.api.control import mint
from skulkd.api.dependencies import ApiDependencies
from skulkd.api.http import Header, Reply, Request, body_too_large
from skulkd.api.node_names import find_node, name_of

CALL_TIMEOUT_S: Final = 20.0
"""Less than the 30 s that our own client waits."""
ASK_TIMEOUT_S: Final = 3.0
"""Of each node, where all are asked at once."""
MAX_BODY_BYTES: Final = 1 << 20
_MAX_PATH_CHARS: Final = 1024
_MAX_QUERY_CHARS: Final = 4096

DocumentT = TypeVar("DocumentT", bound=FrozenModel)


@final
class OtherNodes:
    """Asks other nodes for clients of this one.

    Args:
        deps: The rest of the daemon.
    """

    def __init__(self, deps: ApiDependencies) -> None:
        self._deps = deps

    def named(self, request: Request) -> NodeId | None:
        """Find the node that a request names in `?node=`; None when it names none.

        Raises:
            RequestError: `request.node_not_found`, `request.node_ambiguous`.
        """
        word = request.query("node")
        return None if word is None else find_node(self._deps.state.state, word)

    async def answer(
        self, node_id: NodeId, request: Request, *, changes_state: bool, body: bytes | None = None
    ) -> Reply:
        """Have a client's request answered by a node.

        Args:
            node_id: Who answers.
            request: As it came.
            changes_state: It gets a command id here.
            body: Its body, where that has been read already.

        Raises:
            SkulkError: The request cannot be handed on, or the node cannot be reached.
        """
        path, query = quote(request.path, safe="/:@"), request.query_without("node")
        if body is None:
            body = await request.body(MAX_BODY_BYTES)
        elif len(body) > MAX_BODY_BYTES:
            raise body_too_large(len(body), MAX_BODY_BYTES)
        if len(path) > _MAX_PATH_CHARS or len(query) > _MAX_QUERY_CHARS:
            raise RequestError(
                "request.too_large",
                f"the path has {len(path)} and the query {len(query)} characters; to be handed "
                f"on they may have {_MAX_PATH_CHARS} and {_MAX_QUERY_CHARS}",
                remediation="Ask the node itself.",
            )
        call = CallApi.model_validate({
            "method": "GET" if request.method == "HEAD" else request.method,
            "path": path,
            "query": query,
            "body": body,
            "command_id": mint(self._deps, request) if changes_state else None,
        })  # fmt: skip
        answer = await self._call(node_id, call, CALL_TIMEOUT_S)
        return Reply(status=answer.status, body=answer.body, headers=_headers(answer))

    async def ask(
        self,
        node_id: NodeId,
        path: str,
        kind: type[DocumentT],
        query: Mapping[str, str] | None = None,
        *,
        timeout_s: float = ASK_TIMEOUT_S,
    ) -> DocumentT:
        """Ask a node for a document.

        Raises:
            SkulkError: What that node answered instead, or that it cannot be reached.
        """
        call = CallApi(method="GET", path=path, query=urlencode(query or {}))
        answer = await self._call(node_id, call, timeout_s)
        try:
            if answer.status >= HTTPStatus.BAD_REQUEST:
                raise _error_in(answer)
            return read_answer(kind, answer.body)
        except ValidationError as error:
            raise ClusterError(
                "cluster.peer_unreachable",
                f"node {self._name(node_id)} answered {path} with something that cannot be read",
                remediation="Run the same build on both nodes: `skulk nodes -o wide`.",
                details={"node_id": node_id},
            ) from error

    def unanswered(self, node_id: NodeId, error: SkulkError) -> UnansweredNode:
        """Say that a node did not answer, where others did."""
        return UnansweredNode(node_id=node_id, name=self._name(node_id), error=error.body())

    async def _call(self, node_id: NodeId, call: CallApi, timeout_s: float) -> ApiAnswer:
        try:
            return await self._deps.peers.call(node_id, call, timeout_s=timeout_s)
        except SkulkError as error:
            raise self._named_error(node_id, error) from error

    def _named_error(self, node_id: NodeId, error: SkulkError) -> SkulkError:
        """Add whom it concerns: people know nodes by their names."""
        details = {**error.details, "node_id": node_id, "node_name": self._name(node_id)}
        return error_of(error.body().model_copy(update={"details": details}))

    def _name(self, node_id: NodeId) -> str:
        return name_of(self._deps.state.state, node_id) or node_id


def _headers(answer: ApiAnswer) -> tuple[Header, ...]:
    """Write the headers anew: an answer between nodes has none, and may hold a secret."""
    content_type = answer.content_type.encode("latin-1", "replace")
    headers = [(b"content-type", content_type), (b"cache-control", b"no-store")]
    if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:
        with suppress(ValidationError):
            retry_after_s = _error_in(answer).retry_after_s
            headers += [(b"retry-after", str(retry_after_s).encode())] if retry_after_s else []
    return tuple(headers)


def _error_in(answer: ApiAnswer) -> SkulkError:
    """Read the error that an answer holds.

    Raises:
        ValidationError: It holds none.
    """
    envelope = read_answer(ErrorDocument, answer.body).error
    return error_of(
        ErrorBody(
            code=envelope.skulk_code,
            message=envelope.message,
            remediation=envelope.remediation,
            details=envelope.details,
            retry_after_s=envelope.retry_after_s,
        )
    )
