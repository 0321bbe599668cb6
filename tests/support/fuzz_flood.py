"""Floods of requests against a node, judged one by one, and what was wrong told at its smallest."""

import asyncio
import json
import logging
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, final
from urllib.parse import unquote

import httptools

from tests.support.answer_judges import judge, judge_refusal
from tests.support.fuzz_node import FuzzNode, fuzz_node
from tests.support.fuzz_requests import Sent, corpus, mutant
from tests.support.http_answers import HttpAnswer, read_answers
from tests.support.junk import places
from tests.support.memory_loop import MemoryLoop

CALLERS: Final = 8
BLOCK: Final = 500
"""Requests after which everything must be free again."""
ANSWER_S: Final = 300.0
"""Virtual; longer than all that the node itself waits for."""
MAX_TRIES: Final = 150
"""Of a request that is made smaller."""
MAX_WRONG: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """A request that was not answered as it should be."""

    sent: Sent
    reason: str
    seed: int | None = None


@final
class _Reader:
    """What a parser of requests makes of bytes: how many are whole, and what they ask for."""

    def __init__(self, data: bytes) -> None:
        self.methods: list[str] = []
        self.paths: list[str] = []
        """Of requests whose headers are whole."""
        self.n_whole = 0
        self.is_clean = True
        """They are requests, whole, and nothing else."""
        self._url = b""
        self._is_inside = False
        self._parser = httptools.HttpRequestParser(self)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.is_clean = False
        self.is_clean = self.is_clean and not self._is_inside

    def on_message_begin(self) -> None:
        """A request begins."""
        self._is_inside = True
        self._url = b""

    def on_url(self, url: bytes) -> None:
        """Keep its target."""
        self._url += url

    def on_headers_complete(self) -> None:
        """Its headers are whole."""
        self.methods.append(self._parser.get_method().decode())
        self.paths.append(_path_of(self._url))

    def on_message_complete(self) -> None:
        """It is whole."""
        self.n_whole += 1
        self._is_inside = False


def _path_of(url: bytes) -> str:
    try:
        path = httptools.parse_url(url).path
    except httptools.HttpParserError:
        return "/"
    return unquote((path or b"/").decode("latin-1"))


@final
class _Caller(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self) -> None:
        self.received = b""
        self.is_lost = False
        self.news = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.news.set()


async def answered(node: FuzzNode, sent: Sent) -> None:
    """Send a request and judge what comes.

    Raises:
        AssertionError: What is wrong with it.
    """
    data = sent.written()
    reader = _Reader(data)
    caller = _Caller()
    transport = node.loop.dial(node.port, caller)
    transport.write(data)
    try:
        async with asyncio.timeout(ANSWER_S):
            while not caller.is_lost and not _is_done(caller.received, sent, reader):
                caller.news.clear()
                await caller.news.wait()
    except TimeoutError:
        message = f"no answer in {ANSWER_S:g} s, but {caller.received[:300]!r}"
        raise AssertionError(message) from None
    finally:
        transport.abort()
    answers = read_answers(caller.received, reader.methods or ("POST",))
    if sent.leaves_after is None:
        _judge_all(answers, reader)


def _is_done(received: bytes, sent: Sent, reader: _Reader) -> bool:
    if sent.leaves_after is not None and len(received) >= sent.leaves_after:
        return True
    if not reader.is_clean or not reader.n_whole:
        return False  # until the node closes it
    answers = read_answers(received, reader.methods)
    return len(answers) >= reader.n_whole and answers[-1].is_whole


def _judge_all(answers: list[HttpAnswer], reader: _Reader) -> None:
    if reader.is_clean:
        # An answer may end the connection, and with it what was sent behind the request.
        is_told = len(answers) == reader.n_whole or any(map(_closes, answers[-1:]))
        assert is_told, f"{len(answers)} answers to {reader.n_whole} requests"
    for index, answer in enumerate(answers):
        is_cut = index == len(answers) - 1 and not answer.is_whole and not reader.is_clean
        if is_cut:
            continue
        if index < len(reader.paths):
            judge(reader.paths[index], reader.methods[index], answer)
        else:
            judge_refusal(answer)


def _closes(answer: HttpAnswer) -> bool:
    return answer.headers.get("connection") == "close"


@contextmanager
def error_log() -> Generator[list[str]]:
    """Gather what is logged as an error: nothing of what clients send is one."""
    lines: list[str] = []

    class Gather(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler = Gather(logging.ERROR)
    logging.getLogger().addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger().removeHandler(handler)


def _run(story: Callable[[FuzzNode, list[str]], Any]) -> None:
    async def main() -> None:
        async with fuzz_node() as node:
            await story(node, lines)

    with error_log() as lines, asyncio.Runner(loop_factory=MemoryLoop) as runner:
        runner.run(main())


def flood(dialect: str, seeds: Iterable[int]) -> list[Wrong]:
    """Send the requests of many seeds, several at a time; gives those that went wrong."""
    known = corpus(dialect)
    wrong: list[Wrong] = []
    waiting = iter(seeds)

    async def story(node: FuzzNode, lines: list[str]) -> None:
        async def call(block: Iterator[int]) -> None:
            for seed in block:
                sent = mutant(known, dialect, seed)
                try:
                    await answered(node, sent)
                except AssertionError as error:
                    wrong.append(Wrong(sent=sent, reason=str(error), seed=seed))

        while len(wrong) < MAX_WRONG:
            block = [seed for seed, _ in zip(waiting, range(BLOCK), strict=False)]
            if not block:
                return
            shared = iter(block)
            await asyncio.gather(*(call(shared) for _ in range(CALLERS)))
            told = lines + await node.settled()
            lines.clear()
            if told:
                span = f"seeds {block[0]} to {block[-1]}"
                wrong.append(Wrong(sent=mutant(known, dialect, block[0]), reason=f"{span}: {told}"))

    _run(story)
    return wrong


def wrong_alone(sent: Sent) -> str | None:
    """Send one request to a node of its own; says what is wrong with the answer."""
    reasons: list[str] = []

    async def story(node: FuzzNode, lines: list[str]) -> None:
        try:
            await answered(node, sent)
        except AssertionError as error:
            reasons.append(str(error))
        reasons.extend(lines + await node.settled())

    _run(story)
    return "\n".join(reasons) or None


# ---- Making it smaller ---------------------------------------------------------------------


def told(dialect: str, wrong: Wrong) -> str:
    """Tell what is wrong with the smallest request for which it is, as a file to be kept."""
    smallest = smaller(wrong.sent) if wrong_alone(wrong.sent) else wrong.sent
    kept = {
        "reason": wrong.reason[:300],
        "leaves_after": smallest.leaves_after,
        "request": smallest.written().decode("latin-1"),
    }
    return f"{dialect}, seed {wrong.seed}: {wrong.reason[:2000]}\n{json.dumps(kept, indent=2)}"


def smaller(sent: Sent) -> Sent:
    """Take out of a request what is not needed for its answer to be wrong."""
    n_tries = 0

    def is_wrong(candidate: Sent) -> bool:
        nonlocal n_tries
        n_tries += 1
        return n_tries <= MAX_TRIES and wrong_alone(candidate) is not None

    has_shrunk = True
    while has_shrunk and n_tries < MAX_TRIES:
        has_shrunk = False
        for candidate in _candidates(sent):
            if is_wrong(candidate):
                sent, has_shrunk = candidate, True
                break
    return sent


def _candidates(sent: Sent) -> Iterator[Sent]:
    """Give requests with a piece less, the larger pieces first."""
    if sent.raw is not None:
        size = len(sent.raw) // 2
        while size:
            for at in range(0, len(sent.raw), size):
                yield replace(sent, raw=sent.raw[:at] + sent.raw[at + size :])
            size //= 2
        return
    for index in range(len(sent.headers)):
        yield replace(sent, headers=sent.headers[:index] + sent.headers[index + 1 :])
    try:
        body = json.loads(sent.body)
    except ValueError:
        return
    for place in sorted(places(body), key=len):
        parent = json.loads(sent.body)
        whole = parent
        for key in place[:-1]:
            parent = parent[key]
        del parent[place[-1]]
        yield replace(sent, body=json.dumps(whole).encode())
