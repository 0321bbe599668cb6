"""The chats of a scripted session: what each answers, and how far it has been let go."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from websockets.asyncio.server import ServerConnection

from protocol.base import FrozenModel
from protocol.errors import ErrorCode
from protocol.ids import CommandId
from protocol.session import (
    ClientHello,
    OpenStream,
    ResumeStream,
    StreamEvents,
    StreamRefused,
    Subscribe,
)
from tests.support.builders import a_command_id
from tests.support.session_answers import chunk, last_chunks, plain, refusal


@dataclass(slots=True, kw_only=True)
class ScriptedStream:
    command_id: CommandId
    events: list[dict[str, Any]]
    n_free: int
    """How many may be sent; the rest is held until the test lets it go."""


@dataclass(slots=True, kw_only=True, eq=False)
class ScriptedClient:
    """One session that is open."""

    connection: ServerConnection
    hello: ClientHello | None = None
    topics: dict[int, Subscribe] = field(default_factory=dict[int, Subscribe])
    streams: dict[int, tuple[ScriptedStream, int]] = field(
        default_factory=dict[int, tuple[ScriptedStream, int]]
    )
    """Each with how many events were sent."""
    asked: dict[int, asyncio.Task[None]] = field(default_factory=dict[int, asyncio.Task[None]])
    credit: int = 0


@final
class ScriptedChats:
    """All of them; used on the node's thread alone, but for the choosing of answers.

    Args:
        send: Sends a frame to a client.
    """

    def __init__(self, send: Callable[[ScriptedClient, FrozenModel], None]) -> None:
        self._send = send
        self._chosen: list[tuple[list[dict[str, Any]], int | None]] = []
        self._streams: dict[CommandId, ScriptedStream] = {}
        self._refusal: dict[str, Any] | None = None
        self._n = 0

    def choose(self, texts: tuple[str, ...], hold_after: int | None, error: object) -> None:
        """Add what a chat answers; the last is repeated."""
        events = [chunk(text) for text in texts]
        events += last_chunks(len(texts)) if error is None else [{"error": plain(error)}]
        self._chosen.append((events, hold_after))

    def choose_events(self, events: list[dict[str, Any]]) -> None:
        """Add the chunks of a chat, as they are sent, before a good end."""
        self._chosen.append(([*events, *last_chunks(len(events))], None))

    def refuse(self, code: ErrorCode, message: str, documents: Mapping[str, object]) -> None:
        """Refuse every chat from now on, with documents beside the words."""
        envelope = refusal(code, message).body["error"]
        self._refusal = {**envelope, **{name: plain(item) for name, item in documents.items()}}

    def accept(self) -> None:
        """Refuse none any more."""
        self._refusal = None

    def forget(self) -> None:
        """Know none that could be resumed."""
        self._streams.clear()

    def open(self, client: ScriptedClient, frame: OpenStream) -> None:
        """Begin one."""
        if self._refusal is not None:
            self._send(client, StreamRefused(id=frame.id, error=self._refusal))
            return
        if not self._chosen:
            self.choose(("It works.",), None, None)
        events, hold_after = self._chosen.pop(0) if len(self._chosen) > 1 else self._chosen[0]
        self._n += 1
        stream = ScriptedStream(
            command_id=a_command_id(self._n),
            events=list(events),
            n_free=len(events) if hold_after is None else hold_after,
        )
        self._streams[stream.command_id] = stream
        client.streams[frame.id] = (stream, 0)
        self._push(client, frame.id)

    def resume(self, client: ScriptedClient, frame: ResumeStream) -> None:
        """Go on with one, or refuse."""
        stream = self._streams.get(frame.command_id)
        if stream is None:
            error = refusal("request.not_found", "the node no longer has this stream").body["error"]
            self._send(client, StreamRefused(id=frame.id, error=error))
            return
        client.streams[frame.id] = (stream, frame.offset)
        self._push(client, frame.id)

    def cancel(self, client: ScriptedClient, stream_id: int) -> None:
        """End one where it is."""
        if stream_id in client.streams:
            stream, n_sent = client.streams[stream_id]
            stream.events = stream.events[:n_sent]
            self._push(client, stream_id)

    def let_go(self, clients: list[ScriptedClient], n_events: int) -> None:
        """Send further events of those that are held."""
        for stream in self._streams.values():
            stream.n_free += n_events
        for client in clients:
            for stream_id in tuple(client.streams):
                self._push(client, stream_id)

    def _push(self, client: ScriptedClient, stream_id: int) -> None:
        stream, n_sent = client.streams[stream_id]
        free = stream.events[n_sent : stream.n_free]
        is_end = n_sent + len(free) == len(stream.events)
        client.streams[stream_id] = (stream, n_sent + len(free))
        if is_end:
            del client.streams[stream_id]
        frame = StreamEvents(
            id=stream_id,
            command_id=stream.command_id,
            offset=n_sent,
            events=tuple(free),
            is_end=is_end,
        )
        self._send(client, frame)
