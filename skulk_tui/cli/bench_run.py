"""Sends the requests of `skulk bench` and times them: a thread for each that is under way.

A thread waits for the wire most of its time, so that what is measured is the cluster.
"""

import queue
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, final

from protocol.clock import Clock
from protocol.errors import SkulkError
from skulk_tui.chat_stream import ChatReader
from skulk_tui.cli.bench_figures import RequestRecord
from skulk_tui.client import NodeClient

CHAT_PATH: Final = "/v1/chat/completions"
_LEAVE_WITHIN_S: Final = 0.5
"""For threads to see that the run is over; one that waits for its first token ends with the
process, which closes its connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one request went."""

    record: RequestRecord
    error: SkulkError | None = None


def measure(client: NodeClient, body: str, *, number: int, clock: Clock) -> RequestRecord:
    """Ask once and time the pieces of the answer.

    Raises:
        SkulkError: The request failed, or its stream broke off.
    """
    return _Timed(client, body, clock).run(number, lambda: False)


@final
class _Timed:
    def __init__(self, client: NodeClient, body: str, clock: Clock) -> None:
        self._client = client
        self._body = body
        self._clock = clock
        self._reader = ChatReader()
        self._first_s: float | None = None
        self._last_s = 0.0
        self._gap_s: float | None = None

    def run(self, number: int, is_over: Callable[[], bool]) -> RequestRecord:
        began_s = self._clock.monotonic_s()
        with self._client.stream(CHAT_PATH, self._body) as lines:
            for line in lines:
                if self._reader.feed(line) is not None:
                    self._on_piece()
                if self._reader.is_done or is_over():
                    break
        ended_s = self._clock.monotonic_s()
        self._reader.close()
        usage = self._reader.usage
        n_tokens = usage.completion_tokens if usage is not None else None
        per_token_s = None
        if self._first_s is not None and n_tokens is not None and n_tokens > 1:
            per_token_s = (self._last_s - self._first_s) / (n_tokens - 1)
        return RequestRecord(
            number=number,
            error_code=None,
            error=None,
            prompt_tokens=usage.prompt_tokens if usage is not None else None,
            completion_tokens=n_tokens,
            first_token_s=None if self._first_s is None else self._first_s - began_s,
            per_token_s=per_token_s,
            longest_gap_s=self._gap_s,
            total_s=ended_s - began_s,
            finish_reason=self._reader.finish_reason,
        )

    def _on_piece(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._first_s is None:
            self._first_s = now_s
        else:
            self._gap_s = max(self._gap_s or 0.0, now_s - self._last_s)
        self._last_s = now_s


@final
class Load:
    """Requests, so many at a time: whoever is done sends the next.

    Args:
        make_client: A connection for each thread.
        body_of: The request of a number, from 1.
        requests: How many.
        concurrency: At most so many at once.
        clock: To time by.
    """

    def __init__(
        self,
        *,
        make_client: Callable[[], NodeClient],
        body_of: Callable[[int], str],
        requests: int,
        concurrency: int,
        clock: Clock,
    ) -> None:
        self._make_client = make_client
        self._body_of = body_of
        self._requests = requests
        self._concurrency = min(concurrency, requests)
        self._clock = clock
        self._numbers = iter(range(1, requests + 1))
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._outcomes: queue.SimpleQueue[Outcome | BaseException] = queue.SimpleQueue()

    def outcomes(self) -> Generator[Outcome]:
        """Give each outcome when it is there; leaving off ends the requests under way."""
        with self._threads():
            for _ in range(self._requests):
                outcome = self._outcomes.get()
                if isinstance(outcome, BaseException):
                    raise outcome
                yield outcome

    @contextmanager
    def _threads(self) -> Generator[None]:
        threads = [
            threading.Thread(target=self._send, name=f"bench-{index}", daemon=True)
            for index in range(self._concurrency)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            until_s = self._clock.monotonic_s() + _LEAVE_WITHIN_S
            for thread in threads:
                thread.join(max(0.0, until_s - self._clock.monotonic_s()))

    def _send(self) -> None:
        client = self._make_client()
        try:
            while not self._is_over.is_set():
                with self._lock:
                    number = next(self._numbers, None)
                if number is None:
                    return
                self._outcomes.put(self._ask(client, number))
        except Exception as bug:  # ruff: ignore[blind-except]  raised where outcomes are read
            self._outcomes.put(bug)
        finally:
            client.close()

    def _ask(self, client: NodeClient, number: int) -> Outcome:
        try:
            timed = _Timed(client, self._body_of(number), self._clock)
            return Outcome(record=timed.run(number, self._is_over.is_set))
        except SkulkError as error:
            record = RequestRecord(
                number=number,
                error_code=error.code,
                error=error.message,
                prompt_tokens=None,
                completion_tokens=None,
                first_token_s=None,
                per_token_s=None,
                longest_gap_s=None,
                total_s=None,
                finish_reason=None,
            )
            return Outcome(record=record, error=error)
