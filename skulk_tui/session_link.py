"""The one session of the terminal interface: a socket that comes back, and what is asked over it.

`LinkMachine` decides when to dial and when to doubt; this shell does it, keeps the subscriptions
through every change of connection, and puts what arrives into the view state. Nothing that a node
sends can end the program: a frame that makes no sense ends the connection, with the reason in
`view`.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Literal, assert_never, final
from urllib.parse import urlencode

from protocol.base import FrozenModel
from protocol.clock import Clock
from protocol.errors import ClientError, SkulkError
from protocol.session import (
    MAX_REQUESTS,
    MAX_SUBSCRIPTIONS,
    Cancel,
    Closing,
    Ended,
    Feed,
    Lines,
    NodeFrame,
    NodeHello,
    Ping,
    Pong,
    Rows,
    SessionAnswer,
    SessionRequest,
    StreamEvents,
    StreamRefused,
    Subscribe,
    Topic,
    Unsubscribe,
)
from skulk_tui.client import Query
from skulk_tui.link_machine import (
    AttachTo,
    Barred,
    Broken,
    Dial,
    GoTo,
    HangUp,
    Heard,
    LinkEffect,
    LinkInput,
    LinkMachine,
    Opened,
    Probe,
    RetryNow,
    Synced,
    WallTime,
)
from skulk_tui.link_view import LinkView
from skulk_tui.session_calls import AnswerT, bad_frame, body_of, no_answer, read_body, too_many
from skulk_tui.session_chats import Chats, ChatStream
from skulk_tui.session_connection import Connection
from skulk_tui.session_socket import Connector
from skulk_tui.subscriptions import Followed, Subscriptions
from skulk_tui.target import Target, parse_node_url
from skulk_tui.tasks import Tasks
from skulk_tui.view_state import SAVED, Changes, ViewState

Method = Literal["GET", "POST", "PUT", "DELETE"]

DEADLINE_S: Final = 30.0
ANSWER_GRACE_S: Final = 2.0
"""The node answers at the deadline itself; one that does not is waited for this much longer."""
_HEAD: Final = Changes(is_head=True)
_DENIED: Final = frozenset(
    {
        "request.unauthenticated",
        "request.forbidden",
        "client.insecure_key",
        "client.certificate_changed",
    }
)
_log = logging.getLogger(__name__)


@final
class SessionLink:
    """The link to a cluster through one of its nodes.

    Args:
        target: Where its nodes answer, and the key.
        view: Takes what arrives.
        clock: For every timer, beside the loop's own.
        randomness: Spreads the retries.
        on_change: Called on the loop with what changed; it must not block.
        connect: Opens a socket.
        client: Name and version of the program, for the node's log.

    All methods belong on the loop's thread. `close` ends everything that `start` began.
    """

    def __init__(
        self,
        target: Target,
        view: ViewState,
        *,
        clock: Clock,
        randomness: random.Random,
        on_change: Callable[[Changes], None],
        connect: Connector,
        client: str = "skulk",
    ) -> None:
        self._target = target
        self._state = view
        self._clock = clock
        self._on_change = on_change
        self._connect = connect
        self._client = client
        self._machine = LinkMachine(
            target.addresses, randomness=randomness, now=clock.monotonic_s()
        )
        self._told = self._machine.told
        self._tasks = Tasks("session link", on_death=self._on_death)
        self._connection: Connection | None = None
        self._hello: NodeHello | None = None
        """Of the session that is open; None while there is none."""
        self._has_session = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._last_id = 0
        self._subscriptions = Subscriptions()
        self._questions: dict[int, asyncio.Future[SessionAnswer]] = {}
        self._chats = Chats(send=self._send, new_id=self._new_id)
        self._is_closed = False

    # ---- Life ----

    def start(self) -> None:
        """Begin to connect; never waits."""
        self._look_at_clock()
        self._do(self._machine.start(self._now()))

    async def close(self) -> None:
        """End the connection, and every question and chat with it."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._hang_up("this program is ending")
        self._chats.close("this program is ending")
        await self._tasks.close()

    @property
    def view(self) -> LinkView:
        """How the link is now."""
        return self._machine.view

    @property
    def state(self) -> ViewState:
        """What has arrived."""
        return self._state

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where nodes of the cluster are looked for; the one attached to last comes first."""
        return self._machine.addresses

    @property
    def target(self) -> Target:
        """The addresses and the key in use."""
        return self._target

    def retry_now(self) -> None:
        """Connect at once instead of waiting; a link that is well stays as it is."""
        self._feed(RetryNow())

    def attach(self, node: str) -> None:
        """Go over to another node, by its address or URL.

        Raises:
            ClientError: `client.usage`.
        """
        self._feed(AttachTo(url=parse_node_url(node, "attach")))

    def use(self, target: Target) -> None:
        """Go over to another cluster with a key of its own; nothing of this one stays.

        Chats that are under way end here; their nodes are told nothing and finish them.
        """
        self._chats.close("another cluster was chosen")
        self._target = target
        self._state.hello = None
        self._tell(self._state.drop(SAVED))
        for followed in self._subscriptions:
            followed.forget()
            self._tell(self._state.drop(followed.id))
        self._feed(GoTo(addresses=target.addresses))

    def use_key(self, api_key: str, rule: str) -> None:
        """Show another key from now on, and try it at once where the last was refused."""
        self._target = self._target.with_key(api_key, rule)
        self._feed(RetryNow())

    # ---- Topics ----

    def subscribe(
        self,
        topic: Topic,
        *,
        node: str | None = None,
        instance_id: str | None = None,
        command_id: str | None = None,
        backlog: int = 200,
    ) -> int:
        """Follow a topic through every connection, now and later.

        Returns:
            The id that the view state knows it by; it stays the same for the life of the link.

        Raises:
            RequestError: `request.overloaded`: 64 topics are followed already.
        """
        if len(self._subscriptions) >= MAX_SUBSCRIPTIONS:
            raise too_many(MAX_SUBSCRIPTIONS, "topics are followed")
        asked: dict[str, object] = {
            "id": self._new_id(),
            "topic": topic,
            "node": node,
            "instance_id": instance_id,
            "command_id": command_id,
            "backlog": backlog,
        }
        followed = self._subscriptions.add(Subscribe.model_validate(asked))
        self._begin(followed)
        return followed.id

    def unsubscribe(self, subscription_id: int) -> None:
        """Follow a topic no more and forget what it brought; one that is not followed is fine."""
        followed = self._subscriptions.remove(subscription_id)
        if followed is None:
            return
        self._leave(followed)
        self._tell(self._state.drop(subscription_id))
        self._on_progress()

    def error_of(self, subscription_id: int) -> SkulkError | None:
        """Give why the node does not send a topic; None while it does."""
        return self._subscriptions.error_of(subscription_id)

    def mark_resync(self) -> None:
        """Ask for all rows anew, as far as there is a session to ask over."""
        for followed in self._subscriptions:
            if followed.is_rows and self._hello is not None:
                self._leave(followed)
                self._subscriptions.renew(followed, self._new_id())
                self._begin(followed, anew=True)

    def _begin(self, followed: Followed, *, anew: bool = False) -> None:
        if self._hello is not None:
            self._send(followed.begin(self._hello, anew=anew))

    def _leave(self, followed: Followed) -> None:
        if self._hello is not None and not followed.has_ended:
            self._send(Unsubscribe(id=followed.wire_id))

    # ---- Questions ----

    async def request(
        self,
        method: Method,
        path: str,
        kind: type[AnswerT],
        body: FrozenModel | None = None,
        *,
        query: Query | None = None,
        deadline_s: float = DEADLINE_S,
        wait_s: float = 0.0,
    ) -> AnswerT:
        """Ask one route of the node's API.

        Args:
            method: Of HTTP.
            path: Percent-encoded, without the query; `client.path_of` makes one.
            kind: What the answer is read as.
            body: The document to send.
            query: What would follow the path's question mark.
            deadline_s: How long the node may take.
            wait_s: How long to wait for a link that is down; 0 fails at once.

        Raises:
            SkulkError: The node's refusal; `client.envelope_of(error)` gives the whole of it.
            ClientError: `client.unreachable` where the link is down, or broke before the answer;
                `client.timeout`; `client.bad_answer`.
            ProtocolError: `protocol.too_large`.
            RequestError: `request.overloaded`.

        Cancelling it gives the request up on the node too; a change already accepted stands.
        """
        content = None if body is None else body.model_dump(mode="json", exclude_none=True)
        answered = await self.request_raw(
            method, path, content, query=query, deadline_s=deadline_s, wait_s=wait_s
        )
        return read_body(kind, answered, f"{method} {path}")

    async def request_raw(
        self,
        method: Method,
        path: str,
        body: object = None,
        *,
        query: Query | None = None,
        deadline_s: float = DEADLINE_S,
        wait_s: float = 0.0,
    ) -> object:
        """Ask as `request` does, with a body of plain JSON values; give the answer likewise."""
        await self._wait_for_session(wait_s)
        self._check_room()
        frame = SessionRequest(
            id=self._new_id(),
            method=method,
            path=path,
            query=urlencode(query, doseq=True) if query else "",
            body=body,
            deadline_s=deadline_s,
        )
        answered: asyncio.Future[SessionAnswer] = asyncio.get_running_loop().create_future()
        self._send(frame)
        self._questions[frame.id] = answered
        try:
            async with asyncio.timeout(deadline_s + ANSWER_GRACE_S):
                return body_of(await answered, f"{method} {path}")
        except TimeoutError as late:
            what = f"{method} {path}"
            raise no_answer(what, deadline_s) from late
        finally:
            if self._questions.pop(frame.id, None) is not None:  # given up from this side
                self._send(Cancel(id=frame.id))

    def open_chat(self, body: dict[str, Any]) -> ChatStream:
        """Begin a chat with the body of `POST /v1/chat/completions`.

        Raises:
            ClientError: `client.unreachable` where the link is down.
            ProtocolError: `protocol.too_large`: images go over HTTP.
            RequestError: `request.overloaded`.
        """
        self._check_session()
        self._check_room()
        return self._chats.open(body)

    def _check_room(self) -> None:
        if len(self._questions) + len(self._chats) >= MAX_REQUESTS:
            raise too_many(MAX_REQUESTS, "requests are unanswered")

    async def _wait_for_session(self, wait_s: float) -> None:
        if wait_s > 0 and self._hello is None:
            try:
                async with asyncio.timeout(wait_s):
                    await self._has_session.wait()
            except TimeoutError:
                self._check_session()
        self._check_session()

    def _check_session(self) -> None:
        if self._hello is None:
            view = self._machine.view
            raise ClientError(
                "client.unreachable",
                f"there is no link to the cluster now: {view.reason or view.word}",
                remediation=view.remedy or "Wait until the link is back, or retry now.",
            )

    # ---- The machine and its timer ----

    def _now(self) -> float:
        return self._clock.monotonic_s()

    def _new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _feed(self, what: LinkInput) -> None:
        if not self._is_closed:
            self._do(self._machine.handle(what, self._now()))

    def _do(self, effects: tuple[LinkEffect, ...]) -> None:
        for effect in effects:
            match effect:
                case Dial():
                    self._dial(effect.url)
                case HangUp():
                    self._hang_up(self._machine.view.reason)
                case Probe():
                    self._send(Ping())
                case _:
                    assert_never(effect)
        self._set_timer()
        told = self._machine.told
        if told != self._told:
            self._told = told
            self._on_change(_HEAD)

    def _set_timer(self) -> None:
        """Wake at the deadline; that one has moved on is found out when its timer fires."""
        at = self._machine.deadline
        if at is None or self._is_closed or (self._timer is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        delay_s = max(0.0, at - self._now())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._look_at_clock()
        self._do(self._machine.tick(self._now()))

    def _look_at_clock(self) -> None:
        self._feed(WallTime(wall_ms=self._clock.wall_ms()))

    def _tell(self, changes: Changes) -> None:
        if changes:
            self._on_change(changes)

    def _on_death(self, name: str, error: BaseException) -> None:
        """Take a bug of this program as the end of its connection: the operator's view lives on."""
        _log.error("%s died", name, exc_info=error)
        self._hang_up("this program failed")
        self._feed(Broken(reason=f"this program failed: {type(error).__name__}: {error}"))

    # ---- The connection ----

    def _dial(self, url: str) -> None:
        self._hang_up("another connection is made")
        target = replace(self._target, url=url, seeds=())
        self._connection = Connection(target, self, connect=self._connect, client=self._client)
        self._connection.start(self._tasks)

    def _hang_up(self, why: str) -> None:
        if self._connection is not None:
            self._connection.stop()
        self._connection = self._hello = None
        self._has_session.clear()
        self._chats.pause()
        lost = ClientError(
            "client.unreachable",
            f"the link broke before the answer came: {why}",
            remediation="Look whether it was done before you ask again.",
        )
        questions, self._questions = self._questions, {}
        for answered in questions.values():
            if not answered.done():
                answered.set_exception(lost)

    def _send(self, frame: FrozenModel) -> None:
        if self._connection is not None:
            self._connection.put(frame)

    def on_end(self, connection: Connection, error: SkulkError) -> None:
        """Take that a connection is over."""
        if connection is not self._connection:
            return
        who = self._hello.name if self._hello is not None else connection.target.url
        self._hang_up(error.message)
        if error.code == "session.incompatible":
            self._feed(Barred(word="incompatible", reason=error.message, remedy=error.remediation))
        elif error.code in _DENIED:
            reason = f"{error.message} (key from {self._target.key_rule})"
            self._feed(Barred(word="denied", reason=reason, remedy=error.remediation))
        else:
            reason = error.message if who in error.message else f"{who}: {error.message}"
            self._feed(Broken(reason=reason, remedy=error.remediation))

    def on_frame(self, connection: Connection, frame: NodeFrame) -> None:
        """Take a frame.

        Raises:
            ProtocolError: `protocol.bad_frame`.
        """
        if connection is not self._connection:
            return
        if isinstance(frame, NodeHello):
            self._on_hello(frame)
            return
        assert self._hello is not None  # ruff: ignore[assert]  the connection lets none by before
        self._feed(Heard())
        match frame:
            case Rows() | Lines():
                self._on_topic(frame, self._hello)
            case Ended():
                self._on_ended(frame)
            case SessionAnswer():
                self._on_answer(frame)
            case StreamEvents() | StreamRefused():
                if not self._chats.take(frame):
                    self._check_id(frame.id, frame.type)
            case Feed():
                self._tell(self._state.apply_feed(frame.state))
            case Ping() | Pong() | Closing():
                pass
            case _:
                assert_never(frame)

    def _on_hello(self, hello: NodeHello) -> None:
        self._hello = hello
        self._has_session.set()
        self._tell(self._state.apply_hello(hello))
        self._feed(Opened(node_name=hello.name))
        for followed in self._subscriptions:
            self._begin(followed)
        self._chats.resume(hello)
        self._on_progress()

    def _on_progress(self) -> None:
        if self._hello is not None:
            self._feed(Synced(ratio=self._subscriptions.complete_ratio))

    def _on_topic(self, frame: Rows | Lines, hello: NodeHello) -> None:
        followed = self._subscriptions.on_wire(frame.id)
        if followed is None:
            self._check_id(frame.id, frame.type)
            return  # on its way when it was taken back
        followed.take(frame, hello, self._state.feed)
        if isinstance(frame, Rows):
            known = frame.model_copy(update={"id": followed.id})
            self._tell(self._state.apply_rows(known, self._now()))
        else:
            self._tell(self._state.apply_lines(self._as_continuation(followed, frame)))
        self._on_progress()

    def _as_continuation(self, followed: Followed, frame: Lines) -> Lines:
        if followed.starts_over:
            self._state.drop(followed.id)
        update: dict[str, object] = {"id": followed.id}
        if followed.gap:
            update |= {"was_cut": True, "gap": followed.gap}
        followed.starts_over, followed.gap = False, ""
        return frame.model_copy(update=update)

    def _on_ended(self, frame: Ended) -> None:
        followed = self._subscriptions.on_wire(frame.id)
        if followed is None:
            self._check_id(frame.id, frame.type)
            return
        followed.end(frame.error)
        line_ids = frozenset[int]() if followed.is_rows else frozenset({followed.id})
        self._tell(Changes(line_ids=line_ids, is_head=True))
        self._on_progress()

    def _on_answer(self, frame: SessionAnswer) -> None:
        answered = self._questions.pop(frame.id, None)
        if answered is None:
            self._check_id(frame.id, frame.type)
        elif not answered.done():
            answered.set_result(frame)

    def _check_id(self, frame_id: int, what: str) -> None:
        if frame_id > self._last_id:
            fault = f"it sent {what!r} for number {frame_id}, which was never asked"
            raise bad_frame(fault)
