"""HTTP clients in virtual time: they call the application itself, over a connection of theirs."""

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any, Final, Literal, final

from skulkd.api.app import ApiApp
from skulkd.api.http import CONNECTION, AsgiScope, Message
from tests.support.simulated_engine import word

_DONE: Final = "data: [DONE]"
_numbers = itertools.count()
"""Of requests, in the order in which a dying node loses them."""
Outcome = Literal["finished", "failed", "refused", "left", "cut"]


@final
class SimulatedConnection:
    """Implements `skulkd.api.http.Connection`, and keeps what came over it."""

    def __init__(self) -> None:
        self.is_lost = False
        self.is_choked = False
        self.status: int | None = None
        self.body = b""
        self.is_complete = False
        self.arrived = asyncio.Event()
        """Set at each arrival; whoever waits for the next one clears it."""
        self._room = asyncio.Event()
        self._room.set()
        self._on_lost: Callable[[], None] | None = None

    def on_lost(self, callback: Callable[[], None] | None) -> None:
        """Call back when the client goes."""
        if callback is not None and self.is_lost:
            callback()
            return
        self._on_lost = callback

    def write(self, piece: bytes) -> None:
        """Take a piece of a stream."""
        if not self.is_lost:
            self.body += piece
            self.arrived.set()

    def abort(self) -> None:
        """Drop the connection."""
        self.lose()

    def close_after_response(self) -> None:
        """Each connection carries one request only."""

    def lose(self) -> None:
        """Let the client go. Idempotent."""
        self.is_lost = True
        self.choke(is_choked=False)
        self.arrived.set()
        callback, self._on_lost = self._on_lost, None
        if callback is not None:
            callback()

    def choke(self, *, is_choked: bool) -> None:
        """Stop reading, or go on."""
        self.is_choked = is_choked
        if is_choked:
            self._room.clear()
        else:
            self._room.set()

    async def send(self, message: Message) -> None:
        """Take what the application sends; waits while the client does not read."""
        await self._room.wait()
        if self.is_lost:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.body += message.get("body", b"")
            self.is_complete = not message.get("more_body", False)
        self.arrived.set()


@final
class SimulatedCall:
    """One request, under way.

    Args:
        app: The application of the node that lives now.
        method: Of HTTP.
        path: Decoded.
        body: Sent as JSON.
        number: Of that node.
    """

    def __init__(
        self, app: ApiApp, method: str, path: str, body: object = None, *, number: int = 1
    ) -> None:
        self.app = app
        self.number = number
        self.connection = SimulatedConnection()
        content = b"" if body is None else json.dumps(body).encode()
        scope: AsgiScope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 50_000),
            "server": ("127.0.0.1", 52_415),
            "extensions": {CONNECTION: self.connection},
        }

        async def receive() -> Message:
            return {"type": "http.request", "body": content, "more_body": False}

        self._task = asyncio.create_task(
            _bounded(app, scope, receive, self.connection),
            name=f"request {number}/{next(_numbers):09} {method} {path}",
        )

    @property
    def is_over(self) -> bool:
        """Whether the application has nothing more to do for it."""
        return self._task.done()

    async def wait_over(self, within_s: float) -> bool:
        """Wait until it is over; False when that takes too long."""
        await asyncio.wait([self._task], timeout=within_s)
        return self._task.done()

    def fault(self) -> str:
        """Say what is wrong with how it ended: nothing, but for a bug."""
        if not self._task.done() or self._task.cancelled():
            return ""
        error = self._task.exception()
        return "" if error is None else f"the application raised {error!r}"

    @property
    def was_cut(self) -> bool:
        """Whether its node died meanwhile."""
        return self._task.done() and self._task.cancelled()

    def document(self) -> dict[str, Any]:
        """Read the answer."""
        return json.loads(self.connection.body) if self.connection.body else {}


async def _bounded(
    app: ApiApp,
    scope: AsgiScope,
    receive: Callable[[], Any],
    connection: SimulatedConnection,
) -> None:
    await app(scope, receive, connection.send)


def stream_fault(body: bytes, *, n_tokens: int) -> tuple[Outcome, str]:
    """Read a stream of a chat for so many tokens: how it ended, and what is wrong with it."""
    events = [line for line in body.decode().splitlines() if line.startswith("data: ")]
    words: list[str] = []
    n_errors = 0
    reason: str | None = None
    for event in events:
        if event == _DONE:
            continue
        document = json.loads(event.removeprefix("data: "))
        if "error" in document:
            n_errors += 1
            continue
        for choice in document["choices"]:
            if choice["delta"].get("content"):
                words.append(choice["delta"]["content"])
            reason = reason or choice["finish_reason"]
    n_ends = events.count(_DONE)
    if n_ends + n_errors != 1:
        return "failed", f"{n_ends} ends and {n_errors} errors"
    if events[-1] != _DONE and '"error"' not in events[-1]:
        return "failed", "something follows the terminal"
    if n_ends and reason is None:
        return "failed", "the end comes without a reason"
    return _words_fault("".join(words), n_tokens if n_ends else None)


def _words_fault(text: str, n_tokens: int | None) -> tuple[Outcome, str]:
    """Look at the words of a stream: None of an answer that broke off, and may have any number."""
    n_words = len(text.split())
    if text != "".join(map(word, range(n_words))):
        return "failed", f"the words are {text[:200]!r}"
    if n_tokens is None:
        return "failed", ""
    if n_words != n_tokens:
        return "failed", f"it ends well after {n_words} of {n_tokens} words"
    return "finished", ""
