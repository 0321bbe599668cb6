"""Chats that are read over a session, and go on when it does.

Knows no socket: the link hands frames in, and takes frames out.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Self, cast, final

from protocol.base import FrozenModel
from protocol.errors import ClientError, RequestError, SkulkError
from protocol.ids import CommandId
from protocol.session import (
    Cancel,
    NodeHello,
    OpenStream,
    ResumeStream,
    StreamEvents,
    StreamRefused,
)
from skulk_tui.session_calls import bad_frame, refusal_of

STREAM_BUFFER_EVENTS: Final = 1 << 16
"""Unread events of one chat: more than any answer has, and some 20 MB."""


@final
class ChatStream:
    """One answer of a model, as it comes: an async iterator of the chunks that HTTP would send.

    It outlives the connection: it goes on where it was when the link is back at the same node.

    Iterating raises:
        SkulkError: What the node refused or ended the stream with.
        ClientError: `client.stream_cut`, with the number of tokens that had come.
    """

    def __init__(self, send_cancel: Callable[["ChatStream"], bool]) -> None:
        self._send_cancel = send_cancel
        self._events: asyncio.Queue[Mapping[str, Any] | SkulkError | None] = asyncio.Queue()
        self._is_over = False
        self._end: SkulkError | None = None
        self._has_ended = False
        self.command_id: CommandId | None = None
        """None until the node has said it."""
        self.n_events = 0
        """How many have come: where a resumed stream goes on."""
        self.n_tokens = 0
        """How many of them carried text: the tokens, as far as nodes send one an event."""
        self.n_gaps = 0

    @property
    def is_over(self) -> bool:
        """Nothing more will come, though events may still be unread."""
        return self._is_over

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Mapping[str, Any]:
        if self._has_ended:
            raise StopAsyncIteration
        event = await self._events.get()
        if isinstance(event, Mapping):
            return event
        self._has_ended = True
        if event is None:
            raise StopAsyncIteration
        raise event

    def cancel(self) -> None:
        """Stop the generation; what had come can still be read, then the stream ends."""
        if not self._is_over and not self._send_cancel(self):
            # The node is away. It gives up a stream that nobody reads by itself.
            self.end(
                RequestError("request.cancelled", "the chat was stopped while the link was down")
            )

    # ---- For the link ----

    def take(self, frame: StreamEvents) -> bool:
        """Take a frame; False where events before it are missing, and then nothing is taken."""
        self.command_id = frame.command_id
        if frame.offset > self.n_events:
            self.n_gaps += 1
            return False
        for event in frame.events[self.n_events - frame.offset :]:
            self._take_event(event)
        if frame.is_end:
            self.end(None)
        return True

    def end(self, error: SkulkError | None) -> None:
        """Let nothing more come."""
        if not self._is_over:
            self._is_over = True
            self._events.put_nowait(error)

    def cut(self, why: str, cause: BaseException | None = None) -> None:
        """End a stream whose rest is lost."""
        error = ClientError(
            "client.stream_cut",
            f"the answer was cut after {self.n_tokens} tokens: {why}",
            remediation="Ask again; what has come is kept.",
            details={"tokens": self.n_tokens, "command_id": self.command_id},
        )
        error.__cause__ = cause
        self.end(error)

    def _take_event(self, event: Mapping[str, Any]) -> None:
        self.n_events += 1
        if self._is_over:
            return
        if "error" in event:
            self.end(refusal_of(event["error"]))
            return
        self.n_tokens += _has_text(event)
        self._events.put_nowait(event)
        if self._events.qsize() > STREAM_BUFFER_EVENTS:
            self.cut(f"more than {STREAM_BUFFER_EVENTS} events were not read")


@final
class Chats:
    """All chats of one link that have not ended.

    Args:
        send: Sends a frame over the session that is open.
        new_id: Gives the number for a further stream.
    """

    def __init__(self, *, send: Callable[[FrozenModel], None], new_id: Callable[[], int]) -> None:
        self._send = send
        self._new_id = new_id
        self._by_id: dict[int, ChatStream] = {}
        self._at = ("", "")
        """Node and boot that have them."""
        self._is_up = False

    def __len__(self) -> int:
        return len(self._by_id)

    def open(self, body: dict[str, Any]) -> ChatStream:
        """Begin one."""
        frame = OpenStream(id=self._new_id(), body=body)
        self._send(frame)
        chat = self._by_id[frame.id] = ChatStream(self._cancel)
        return chat

    def pause(self) -> None:
        """Take that there is no session now."""
        self._is_up = False

    def resume(self, hello: NodeHello) -> None:
        """Go on over a new session, where its node has them; end those that are lost."""
        here = (hello.node_id, hello.boot_id)
        before, self._at = self._at, here
        chats, self._by_id = self._by_id, {}
        self._is_up = True
        for chat in chats.values():
            if chat.command_id is None:
                chat.cut("the link broke before the node had taken it")
            elif here != before:
                chat.cut(f"the link came back at {hello.name}, which does not have it")
            else:
                stream_id = self._new_id()
                self._by_id[stream_id] = chat
                offset = chat.n_events
                self._send(ResumeStream(id=stream_id, command_id=chat.command_id, offset=offset))

    def close(self, why: str) -> None:
        """End all of them."""
        for chat in self._by_id.values():
            chat.cut(why)
        self._by_id.clear()

    def take(self, frame: StreamEvents | StreamRefused) -> bool:
        """Take a frame; False where it belongs to none of them.

        Raises:
            ProtocolError: `protocol.bad_frame`: events are missing.
        """
        chat = self._by_id.get(frame.id)
        if chat is None:
            return False
        if isinstance(frame, StreamEvents):
            self._on_events(chat, frame)
        else:
            self._on_refused(chat, frame)
        if chat.is_over:
            del self._by_id[frame.id]
        return True

    def _on_events(self, chat: ChatStream, frame: StreamEvents) -> None:
        had = chat.n_events
        if not chat.take(frame):
            if chat.n_gaps == 1:
                # Asked for again over a new connection, what is missing may well be there.
                fault = f"events {had} to {frame.offset} of a chat are missing"
                raise bad_frame(fault)
            chat.cut(f"the node no longer has events {had} to {frame.offset}")
        if chat.is_over and not frame.is_end:
            self._send(Cancel(id=frame.id))

    def _on_refused(self, chat: ChatStream, frame: StreamRefused) -> None:
        error = refusal_of(frame.error)
        if chat.command_id is None:
            chat.end(error)
        else:
            chat.cut(error.message, error)

    def _cancel(self, chat: ChatStream) -> bool:
        stream_id = next((key for key, known in self._by_id.items() if known is chat), None)
        if stream_id is None:
            return False
        if self._is_up:
            self._send(Cancel(id=stream_id))
        else:
            del self._by_id[stream_id]
        return self._is_up


def _has_text(event: Mapping[str, Any]) -> bool:
    choices = event.get("choices")
    if not isinstance(choices, list):
        return False
    for choice in cast("list[object]", choices):
        delta = cast("dict[str, object]", choice).get("delta") if isinstance(choice, dict) else None
        if isinstance(delta, dict) and any(
            cast("dict[str, object]", delta).get(name)
            for name in ("content", "reasoning_content", "reasoning", "tool_calls")
        ):
            return True
    return False
