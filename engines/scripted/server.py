"""The scripted engine's process: a small HTTP server over a local socket, with faults on demand.

It speaks the part of llama-server's protocol that we use, and misbehaves exactly as its script
says. Standard library and httptools only, so that it listens within 100 ms of exec.

    python -m engines.scripted.server '{"socket": "/run/…/engine.sock", "script": {…}}'
"""

import asyncio
import json
import os
import signal
import sys
from base64 import b64encode
from collections import deque
from typing import Any, Final, Protocol, cast, final

import httptools

from engines.scripted.script import (
    Script,
    Utterance,
    count_tokens,
    embedding,
    render,
    reply_to,
    score,
)

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    413: "Too Large",
    503: "Service Unavailable",
}
_FRAME_HEAD: Final = b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":'
_FRAME_TAIL: Final = (
    b'}}],"created":0,"id":"scripted","model":"scripted","object":"chat.completion.chunk"}\n\n'
)
_TEXT_HEAD: Final = b'data: {"choices":[{"finish_reason":null,"index":0,"text":'
_TEXT_TAIL: Final = (
    b'}],"created":0,"id":"scripted","model":"scripted","object":"text_completion"}\n\n'
)


class Work(Protocol):
    """A request that takes a slot."""

    slot: int | None

    def begin(self) -> None:
        """The slot is held from now on."""
        ...

    def abandon(self) -> None:
        """The client has gone: free the slot at once."""
        ...

    def hold(self, *, is_held: bool) -> None:
        """Follow the socket: send nothing while the client does not read."""
        ...


@final
class Scripted:
    """The engine behind the sockets: load state and slots."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.loop = asyncio.get_running_loop()
        self.is_loaded = False
        self.progress: float | None = None
        self.ballast = b""
        self.busy: list[bool] = [False] * script.slots
        self.waiting: deque[Work] = deque()

    def start_loading(self) -> None:
        """Begin the load; the script says how it goes."""
        every_s = self.script.load_progress_every_ms / 1000
        if every_s:
            self._report_progress(self.loop.time(), every_s)
        self.loop.call_later(self.script.load_delay_ms / 1000, self._end_load)

    def admit(self, answer: Work) -> None:
        """Give an answer a slot, now or when one is free, in order of arrival."""
        self.waiting.append(answer)
        self._fill()

    def free(self, answer: Work) -> None:
        """Take the slot back, or the place in the queue."""
        if answer.slot is None:
            if answer in self.waiting:
                self.waiting.remove(answer)
            return
        self.busy[answer.slot] = False
        answer.slot = None
        self._fill()

    def _fill(self) -> None:
        while self.waiting and False in self.busy:
            answer = self.waiting.popleft()
            answer.slot = self.busy.index(False)
            self.busy[answer.slot] = True
            answer.begin()

    def _report_progress(self, began_s: float, every_s: float) -> None:
        if self.is_loaded:
            return
        whole_s = max(self.script.load_delay_ms / 1000, every_s)
        self.progress = min(1.0, (self.loop.time() - began_s) / whole_s)
        _log(f"load progress {self.progress:.2f}")
        self.loop.call_later(every_s, self._report_progress, began_s, every_s)

    def _end_load(self) -> None:
        script = self.script
        if script.load_stderr:
            _log(script.load_stderr)
        if script.load_signal is not None:
            os.kill(os.getpid(), script.load_signal)
        if script.load_exit_code is not None:
            sys.stderr.flush()
            os._exit(script.load_exit_code)
        # Ones, not zeros: the kernel gives no memory for pages that nobody wrote.
        self.ballast = b"\1" * script.memory_bytes
        self.is_loaded = True
        _log("model loaded")


@final
class Answer:
    """One request from admission to its end: of a chat, or of a text."""

    def __init__(
        self, engine: Scripted, connection: "_Connection", request: dict[str, Any]
    ) -> None:
        self._engine = engine
        self._connection = connection
        self._is_stream = bool(request.get("stream"))
        self._is_text = "prompt" in request
        self._tells_stop = bool(request.get("verbose"))
        messages = request.get("messages", [])
        prompt: str = (
            request["prompt"] if self._is_text else render(messages, engine.script.prompt_tail)
        )
        self.prompt_tokens = count_tokens(prompt)
        stop: str | list[str] = request.get("stop") or []
        self._utterance = Utterance(
            engine.script,
            reply=reply_to(engine.script, messages),
            prompt_tokens=self.prompt_tokens,
            max_tokens=request.get("max_tokens", request.get("max_completion_tokens")),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
        )
        self._text: list[str] = []
        self._timer: asyncio.Handle | None = None
        self._began_s = 0.0
        self._is_held = False
        self.slot: int | None = None

    def begin(self) -> None:
        """Start to speak; the slot is held from now on."""
        self._began_s = self._engine.loop.time()
        if self._is_stream:
            progress = {"total": self.prompt_tokens, "cache": 0, "processed": 0, "time_ms": 0}
            self._connection.begin_stream()
            first = (
                {"text": ""} if self._is_text else _delta({"role": "assistant", "content": None})
            )
            self._send({**_frame(first), "prompt_progress": progress})
        script = self._engine.script
        self._after(script.first_token_delay_ms or script.token_delay_ms)

    def abandon(self) -> None:
        """The client has gone: free the slot at once."""
        if self._timer is not None:
            self._timer.cancel()
        self._engine.free(self)

    def hold(self, *, is_held: bool) -> None:
        """Follow the socket: no more tokens while the client does not read."""
        was_held, self._is_held = self._is_held, is_held
        if was_held and not is_held:
            self._after(0)

    def _after(self, delay_ms: int) -> None:
        loop = self._engine.loop
        self._timer = (
            loop.call_later(delay_ms / 1000, self._speak)
            if delay_ms
            else loop.call_soon(self._speak)
        )

    def _speak(self) -> None:
        script, utterance = self._engine.script, self._utterance
        if self._is_held or utterance.n_tokens == script.stall_after_tokens:
            return
        if utterance.n_tokens == script.exit_after_tokens:
            os.kill(os.getpid(), signal.SIGKILL)
        text = utterance.step()
        if text and self._is_stream:
            quoted = json.dumps(text, ensure_ascii=False).encode()
            head, tail = (_TEXT_HEAD, _TEXT_TAIL) if self._is_text else (_FRAME_HEAD, _FRAME_TAIL)
            self._connection.send_piece(head + quoted + tail)
        elif text:
            self._text.append(text)
        if utterance.reason is None:
            self._after(script.token_delay_ms)
        else:
            self._end(utterance.reason)

    def _end(self, reason: str) -> None:
        self._engine.free(self)
        n_tokens = self._utterance.n_tokens
        closing: dict[str, Any] = {
            "usage": {
                "prompt_tokens": self.prompt_tokens,
                "completion_tokens": n_tokens,
                "total_tokens": self.prompt_tokens + n_tokens,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
            "timings": {
                "prompt_ms": 0.0,
                "predicted_ms": (self._engine.loop.time() - self._began_s) * 1000,
            },
        }
        if self._tells_stop:
            closing["__verbose"] = {"stopping_word": self._utterance.stopped_by or ""}
        if self._is_stream:
            self._send(_frame({"text": ""} if self._is_text else _delta({}), reason))
            self._send({**_frame(None), **closing})
            self._connection.send_piece(b"data: [DONE]\n\n")
            self._connection.end_stream()
            return
        text = "".join(self._text)
        said = (
            {"text": text} if self._is_text else {"message": {"role": "assistant", "content": text}}
        )
        choice = {"finish_reason": reason, "index": 0, **said}
        self._connection.answer(200, {"choices": [choice], "id": "scripted", **closing})

    def _send(self, frame: dict[str, Any]) -> None:
        self._connection.send_piece(b"data: " + json.dumps(frame).encode() + b"\n\n")


@final
class TextReading:
    """One request for embeddings or scores, answered at once after the script's first delay.

    Args:
        engine: Whose slot it takes.
        connection: Gets the answer.
        texts: What is read; its words count as the tokens of `exit_after_tokens` and the like.
        answer: What is said beside the usage.
    """

    def __init__(
        self,
        engine: Scripted,
        connection: "_Connection",
        texts: list[str],
        answer: dict[str, Any],
    ) -> None:
        self._engine = engine
        self._connection = connection
        self._n_tokens = sum(map(count_tokens, texts))
        usage = {"prompt_tokens": self._n_tokens, "total_tokens": self._n_tokens}
        self._answer = {**answer, "usage": usage}
        self._timer: asyncio.Handle | None = None
        self.slot: int | None = None

    def begin(self) -> None:
        """Start to read."""
        delay_s = self._engine.script.first_token_delay_ms / 1000
        self._timer = self._engine.loop.call_later(delay_s, self._end)

    def abandon(self) -> None:
        """The client has gone: free the slot at once."""
        if self._timer is not None:
            self._timer.cancel()
        self._engine.free(self)

    def hold(self, *, is_held: bool) -> None:
        """Nothing is sent bit by bit."""

    def _end(self) -> None:
        script = self._engine.script
        if script.stall_after_tokens is not None and self._n_tokens >= script.stall_after_tokens:
            return
        if script.exit_after_tokens is not None and self._n_tokens >= script.exit_after_tokens:
            os.kill(os.getpid(), signal.SIGKILL)
        self._engine.free(self)
        self._connection.answer(200, self._answer)


@final
class _Connection(asyncio.Protocol):
    """One client connection; requests on it are served one after the other."""

    def __init__(self, engine: Scripted) -> None:
        self._engine = engine
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._path = b""
        self._body = bytearray()
        self._answer: Work | None = None

    def begin_stream(self) -> None:
        """Send the head of a stream."""
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )

    def send_piece(self, piece: bytes) -> None:
        """Send one event as one chunk."""
        self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))

    def end_stream(self) -> None:
        """End a stream; the connection stays."""
        self._answer = None
        self._transport.write(b"0\r\n\r\n")

    def answer(self, status: int, body: object) -> None:
        """Send a whole answer."""
        self._answer = None
        content = json.dumps(body, ensure_ascii=False).encode()
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        self._transport.write(head.encode() + content)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.abandon()

    def pause_writing(self) -> None:
        if self._answer is not None:
            self._answer.hold(is_held=True)

    def resume_writing(self) -> None:
        if self._answer is not None:
            self._answer.hold(is_held=False)

    # What the parser calls.

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_body(self, body: bytes) -> None:
        self._body += body
        if len(self._body) > MAX_BODY_BYTES:
            self._transport.abort()

    def on_message_complete(self) -> None:
        path, body = self._path.decode(), bytes(self._body)
        self._path, self._body = b"", bytearray()
        try:
            self._serve(path, body)
        except (ValueError, KeyError, TypeError) as error:
            self.answer(400, _error(400, f"bad request: {error!r}", "invalid_request_error"))

    def _serve(self, path: str, body: bytes) -> None:
        engine = self._engine
        if not engine.is_loaded:
            loading: dict[str, Any] = {"status": "loading"}
            if engine.progress is not None:
                loading["progress"] = engine.progress
            self.answer(503, loading)
            return
        match path:
            case "/health":
                self.answer(200, {"status": "ok"})
            case "/slots":
                self.answer(
                    200,
                    [
                        {
                            "id": slot,
                            "n_ctx": engine.script.context_tokens,
                            "is_processing": is_busy,
                        }
                        for slot, is_busy in enumerate(engine.busy)
                    ],
                )
            case "/v1/chat/completions" | "/v1/completions":
                self._chat(json.loads(body))
            case "/v1/embeddings":
                self._embed(json.loads(body)["input"])
            case "/v1/rerank":
                self._rerank(**json.loads(body))
            case "/apply-template":
                prompt = render(json.loads(body)["messages"], engine.script.prompt_tail)
                self.answer(200, {"prompt": prompt})
            case "/tokenize":
                n_tokens = count_tokens(json.loads(body)["content"])
                self.answer(200, {"tokens": list(range(n_tokens))})
            case _:
                self.answer(404, _error(404, f"no route {path}", "not_found_error"))

    def _chat(self, request: dict[str, Any]) -> None:
        answer = Answer(self._engine, self, request)
        n_ctx = self._engine.script.context_tokens
        if answer.prompt_tokens >= n_ctx:
            refusal = _error(
                400,
                f"request ({answer.prompt_tokens} tokens) exceeds the available context size "
                f"({n_ctx} tokens), try increasing it",
                "exceed_context_size_error",
            )
            refusal["error"] |= {"n_prompt_tokens": answer.prompt_tokens, "n_ctx": n_ctx}
            self.answer(400, refusal)
            return
        self._begin(answer)

    def _embed(self, texts: list[str]) -> None:
        vectors = [embedding(text, self._engine.script.dimensions) for text in texts]
        data = [
            {"index": index, "embedding": b64encode(vector).decode()}
            for index, vector in enumerate(vectors)
        ]
        self._begin(TextReading(self._engine, self, texts, {"data": data}))

    def _rerank(self, query: str, documents: list[str]) -> None:
        results = [
            {"index": index, "relevance_score": score(query, document)}
            for index, document in enumerate(documents)
        ]
        results.sort(key=lambda result: -result["relevance_score"])
        texts = [f"{query} {document}" for document in documents]
        self._begin(TextReading(self._engine, self, texts, {"results": results}))

    def _begin(self, work: Work) -> None:
        self._answer = work
        self._engine.admit(work)


def _frame(said: dict[str, Any] | None, reason: str | None = None) -> dict[str, Any]:
    """Make a frame with one choice, or with none."""
    return {"choices": [] if said is None else [{"finish_reason": reason, "index": 0, **said}]}


def _delta(delta: dict[str, Any]) -> dict[str, Any]:
    return {"delta": delta}


def _error(code: int, message: str, kind: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "type": kind}}


def _log(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


async def serve(where: str | int, script: Script) -> None:
    """Listen, then load, then answer until the process is ended.

    Args:
        where: A Unix socket's path, or a port of loopback for clients that know no such sockets.
        script: What is said.
    """
    loop = asyncio.get_running_loop()
    if script.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    engine = Scripted(script)
    os.umask(0o077)
    if isinstance(where, str):
        await loop.create_unix_server(lambda: _Connection(engine), where)
    else:
        await loop.create_server(lambda: _Connection(engine), "127.0.0.1", where)
    _log(f"listening on {where}")
    engine.start_loading()
    await asyncio.Event().wait()


def main() -> None:
    """Read the parameters from the only argument and serve."""
    parameters = json.loads(sys.argv[1])
    where: str | int = parameters.get("socket") or parameters["port"]
    asyncio.run(serve(where, Script(**parameters["script"])))


if __name__ == "__main__":
    main()
