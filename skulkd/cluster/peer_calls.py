"""Requests between nodes over the control plane of any transport; implements `PeerCalls`.

Every question ends: with an answer, a refusal, its deadline, or at once when the way to the peer
breaks. What does not decode is counted and dropped, whoever sent it.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, cast, final

from protocol.codec import pack, unpack
from protocol.envelope import MAX_PAYLOAD_BYTES
from protocol.errors import ClusterError, ProtocolError, RequestError, SkulkError, error_of
from protocol.ids import NodeId
from protocol.peer_messages import (
    PEER_ANSWER,
    PEER_REQUEST,
    Answer,
    Ask,
    ControlFrame,
    Journalled,
    PeerAnswer,
    PeerRequest,
    Refused,
    pack_frame,
    unpack_control,
)
from skulkd.cluster.calls import Asked, Handler
from skulkd.cluster.transport import LinkState, Refusal, Transport
from skulkd.runtime.tasks import Tasks, timeout

MAX_ASKED: Final = 256
"""Questions of one kind to one peer that may wait for their answers."""
MAX_ANSWERING: Final = 64
"""Questions of one kind by one peer that may be worked on.

Each kind has its own places: commands wait at the master until the node that sent them has their
events, and what that node asks to get them must not wait behind the commands.
"""
GARBAGE_LOG_INTERVAL_S: Final = 60.0

OnJournalled = Callable[[NodeId, Journalled], None]
"""Called on the event loop with the sender; must not block or raise."""

_log = logging.getLogger(__name__)


@final
class ControlCalls:
    """Both sides of requests between nodes; the one receiver of the control plane.

    Args:
        transport: Carries them.
        rng: Draws the first request's number, so that no answer to an earlier life fits.
        tasks: Owns the answering.
    """

    def __init__(self, transport: Transport, *, rng: random.Random, tasks: Tasks) -> None:
        self._transport = transport
        self._tasks = tasks
        self._next_id = rng.getrandbits(48)
        self._asked: dict[NodeId, dict[int, asyncio.Future[PeerAnswer]]] = {}
        self._handlers: dict[type[object], Handler[Any]] = {}
        self._n_asked: Counter[tuple[NodeId, str]] = Counter()
        self._n_answering: Counter[tuple[NodeId, str]] = Counter()
        """Both by peer and kind."""
        self._journalled: OnJournalled | None = None
        self._garbage_logged_s: dict[NodeId, float] = {}
        self.n_garbage = 0
        """Payloads that did not decode, of all peers."""
        self.n_unsent = 0
        """Answers that found no way back; who asked has waited in vain."""
        transport.on_receive("control", self._on_receive)
        transport.on_link(self._on_link)

    async def ask(self, peer: NodeId, request: PeerRequest, *, timeout_s: float) -> PeerAnswer:
        """Ask a peer and wait for its answer; see `PeerCalls`.

        Cancelling the wait does not take the question back.

        Raises:
            ClusterError: `cluster.peer_unreachable`, `cluster.peer_timeout`, `cluster.stopping`.
            ProtocolError: `protocol.too_large`; `protocol.bad_frame`, the answer does not decode.
            RequestError: `request.overloaded`; too much waits for this peer already.
            SkulkError: What the peer refused with.
        """
        if peer != self._transport.node_id and self._transport.link(peer) != "up":
            raise _unreachable(peer, f"the link is {self._transport.link(peer)}")
        waiting, kind = self._asked.setdefault(peer, {}), (peer, request.kind)
        if self._n_asked[kind] >= MAX_ASKED:
            raise _overloaded(peer, f"{MAX_ASKED} questions like this wait for its answers")
        request_id = self._next_id
        self._next_id += 1
        answered: asyncio.Future[PeerAnswer] = asyncio.get_running_loop().create_future()
        waiting[request_id] = answered
        self._n_asked[kind] += 1
        try:
            refusal = self._send(peer, pack_frame(Ask(request_id, pack(request))))
            if refusal is not None:
                raise _refused(peer, refusal)
            async with timeout(timeout_s):
                answer = await answered
        except TimeoutError as error:
            raise _timed_out(peer, request.kind, timeout_s) from error
        finally:
            del waiting[request_id]
            self._n_asked[kind] -= 1
        if isinstance(answer, Refused):
            raise error_of(answer.error)
        return answer

    def serve(self, kind: type[Asked], handler: Handler[Asked]) -> None:
        """Name who answers requests of a kind; the last one named."""
        self._handlers[kind] = handler

    def on_journalled(self, receiver: OnJournalled) -> None:
        """Name who is told how far members' logs are durable; the last one named."""
        self._journalled = receiver

    def _send(self, peer: NodeId, payload: bytes) -> Refusal | None:
        return self._transport.send(peer, "control", payload)

    def _on_link(self, peer: NodeId, state: LinkState) -> None:
        if state == "up":
            return
        for answered in self._asked.get(peer, {}).values():
            if not answered.done():
                answered.set_exception(_unreachable(peer, f"the link became {state}"))

    def _on_receive(self, sender: NodeId, payload: bytes) -> None:
        try:
            self._take(sender, unpack_control(payload))
        except ProtocolError as error:
            self._count_garbage(sender, error)

    def _take(self, sender: NodeId, frame: ControlFrame) -> None:
        match frame:
            case Ask():
                self._on_ask(sender, frame)
            case Answer():
                self._on_answer(sender, frame)
            case Journalled():
                if self._journalled is not None:
                    self._journalled(sender, frame)

    def _on_answer(self, sender: NodeId, frame: Answer) -> None:
        answered = self._asked.get(sender, {}).get(frame.request_id)
        if answered is None or answered.done():
            return
        try:
            answer = unpack(PEER_ANSWER, frame.body, max_bytes=MAX_PAYLOAD_BYTES["control"])
        except ProtocolError as error:
            answered.set_exception(error)
            raise
        answered.set_result(answer)

    def _on_ask(self, sender: NodeId, frame: Ask) -> None:
        request = unpack(PEER_REQUEST, frame.body, max_bytes=MAX_PAYLOAD_BYTES["control"])
        handler = cast("Handler[PeerRequest] | None", self._handlers.get(type(request)))
        if handler is None:
            self._answer(sender, frame.request_id, _not_served(request.kind))
            return
        kind = sender, request.kind
        if self._n_answering[kind] >= MAX_ANSWERING:
            self._answer(sender, frame.request_id, _busy(self._transport.node_id))
            return
        self._n_answering[kind] += 1
        self._tasks.start(
            self._handle(sender, frame.request_id, handler, request),
            name=f"answer {request.kind}",
            essential=False,
        )

    async def _handle(
        self, sender: NodeId, request_id: int, handler: Handler[PeerRequest], request: PeerRequest
    ) -> None:
        answer: PeerAnswer
        try:
            answer = await handler(sender, request)
        except SkulkError as error:
            answer = Refused(error=error.body())
        # ruff: ignore[blind-except]  the peer hears of it, and the story is in the log
        except Exception:
            _log.exception("%s of %s met a bug", request.kind, sender)
            answer = Refused(error=_bug().body())
        finally:
            self._n_answering[sender, request.kind] -= 1
        self._answer(sender, request_id, answer)

    def _answer(self, peer: NodeId, request_id: int, answer: PeerAnswer) -> None:
        refusal = self._send(peer, pack_frame(Answer(request_id, pack(answer))))
        if refusal == "too_large":
            error = ProtocolError(
                "protocol.too_large",
                f"the answer is longer than {MAX_PAYLOAD_BYTES['control']} bytes",
                remediation="Ask for less at a time.",
            )
            refused = Answer(request_id, pack(Refused(error=error.body())))
            refusal = self._send(peer, pack_frame(refused))
        if refusal is not None:
            self.n_unsent += 1

    def _count_garbage(self, sender: NodeId, error: ProtocolError) -> None:
        self.n_garbage += 1
        now_s = asyncio.get_running_loop().time()
        if now_s - self._garbage_logged_s.get(sender, float("-inf")) >= GARBAGE_LOG_INTERVAL_S:
            self._garbage_logged_s[sender] = now_s
            _log.warning("dropped a control payload of %s: %s", sender, error.message)


def _unreachable(peer: NodeId, reason: str) -> ClusterError:
    return ClusterError(
        "cluster.peer_unreachable",
        f"node {peer} cannot be asked: {reason}",
        remediation="See that it runs and is connected: skulk cluster members",
        details={"node_id": peer},
        retry_after_s=2,
    )


def _timed_out(peer: NodeId, kind: str, timeout_s: float) -> ClusterError:
    return ClusterError(
        "cluster.peer_timeout",
        f"node {peer} has not answered {kind} within {timeout_s:g} s",
        remediation="Try again; if it stays so, look at that node's load and log.",
        details={"node_id": peer, "timeout_s": timeout_s},
        retry_after_s=2,
    )


def _overloaded(peer: NodeId, reason: str) -> RequestError:
    return RequestError(
        "request.overloaded",
        f"node {peer} is not asked more now: {reason}",
        remediation="Try again in a moment.",
        details={"node_id": peer},
        retry_after_s=1,
    )


def _refused(peer: NodeId, refusal: Refusal) -> SkulkError:
    match refusal:
        case "unknown_peer" | "no_link":
            return _unreachable(peer, "it is no peer" if refusal == "unknown_peer" else "no link")
        case "queue_full":
            return _overloaded(peer, "what is sent to it has filled its queue")
        case "too_large":
            return ProtocolError(
                "protocol.too_large",
                f"the request is longer than {MAX_PAYLOAD_BYTES['control']} bytes",
                remediation="Send less at a time.",
            )
        case "closed":
            return ClusterError(
                "cluster.stopping",
                "this node is stopping and asks nobody any more",
                remediation="Ask another node, or this one after its restart.",
                retry_after_s=5,
            )


def _busy(node_id: NodeId) -> Refused:
    return Refused(error=_overloaded(node_id, "it works on as much as it takes").body())


def _not_served(kind: str) -> Refused:
    error = RequestError(
        "request.not_found",
        f"this node does not answer {kind}",
        remediation="Run the same build on both sides; a node may also be starting still.",
    )
    return Refused(error=error.body())


def _bug() -> SkulkError:
    return SkulkError(
        "internal.bug",
        "the node that was asked failed to handle it; its log has the story",
        remediation="Report it with the lines of that node's log.",
    )
