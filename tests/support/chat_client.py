"""A client of chat completions that keeps what it saw: text, error frame, and how it ended."""

import contextlib
import json
import time
from collections.abc import Generator
from typing import Any, Final, final

import httpx

from tests.support.daemon import Daemon

COMMAND_ID_HEADER: Final = "x-skulk-command-id"


def chat_body(model_id: str, **fields: object) -> dict[str, object]:
    """Make the body of a request with one short question."""
    messages = [{"role": "user", "content": "Say something."}]
    return {"model": model_id, "messages": messages, **fields}


def ask(daemon: Daemon, model_id: str, **fields: object) -> httpx.Response:
    """Ask and wait for the whole answer."""
    return daemon.http.post("/v1/chat/completions", json=chat_body(model_id, **fields))


def answer_text(answer: httpx.Response) -> str:
    """Take the text out of a whole answer.

    Raises:
        AssertionError: It is not 2xx; carries it.
    """
    assert answer.is_success, f"{answer.status_code}: {answer.text}"
    return str(answer.json()["choices"][0]["message"]["content"])


@final
class ChatStream:
    """One streamed answer, read on demand."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.command_id = response.headers.get(COMMAND_ID_HEADER, "")
        self.text = ""
        self.n_deltas = 0
        self.error: dict[str, Any] | None = None
        self.is_done = False
        """`[DONE]` has come."""
        self.ended_at_s: float | None = None
        """When the connection ended, on the monotonic clock."""
        self._lines = response.iter_lines()

    def read(self, n_deltas: int) -> None:
        """Read until so many pieces of text have come.

        Raises:
            AssertionError: The stream ended before that.
        """
        wanted = self.n_deltas + n_deltas
        while self.n_deltas < wanted:
            line = next(self._lines, None)
            assert line is not None, f"ended after {self.n_deltas} deltas: {self.error}"
            self._take(line)

    def read_to_end(self) -> None:
        """Read until the server closes."""
        for line in self._lines:
            self._take(line)
        self.ended_at_s = time.monotonic()

    def _take(self, line: str) -> None:
        if not line.startswith("data: "):
            return
        assert not self.is_done, f"after [DONE]: {line}"
        assert self.error is None, f"after the error: {line}"
        if line == "data: [DONE]":
            self.is_done = True
            return
        frame = json.loads(line.removeprefix("data: "))
        self.error = frame.get("error")
        for choice in frame.get("choices", ()):
            content = choice["delta"].get("content")
            if content:
                self.text += content
                self.n_deltas += 1


@contextlib.contextmanager
def chat_stream(daemon: Daemon, model_id: str, **fields: object) -> Generator[ChatStream]:
    """Open a streamed answer; leaving the block drops the connection."""
    body = chat_body(model_id, stream=True, **fields)
    with (
        httpx.Client(base_url=daemon.url, timeout=30, trust_env=False) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        assert response.is_success, response.read().decode()
        yield ChatStream(response)
