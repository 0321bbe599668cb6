"""How events leave: together, at the end of their turn of the loop, and not past a slow reader."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import final

from skulkd.api.http import Message, UpgradedProtocol
from skulkd.api.sse import EventStream, StreamLimits
from skulkd.runtime.clock import LoopClock
from skulkd.runtime.tasks import sleep
from skulkd.runtime.virtual_time import run_virtual


@final
class Reader:
    """A client; what was written to it, piece by piece, and what was sent and waited for."""

    def __init__(self) -> None:
        self.is_choked = False
        self.written: list[bytes] = []
        self.sent: list[Message] = []
        self.is_cut = False
        self._reads_on = asyncio.Event()

    def on_lost(self, callback: Callable[[], None] | None) -> None:
        """It stays."""

    def write(self, piece: bytes) -> None:
        """Take a piece."""
        self.written.append(piece)

    def abort(self) -> None:
        """Remember it."""
        self.is_cut = True

    def close_after_response(self) -> None:
        """Nothing follows."""

    def upgrade(self, head: bytes, protocol: UpgradedProtocol) -> None:
        """No stream becomes anything else."""

    def read_on(self) -> None:
        """Take what waits."""
        self.is_choked = False
        self._reads_on.set()

    async def send(self, message: Message) -> None:
        """Take a message, later if the reader is slow."""
        if self.is_choked:
            await self._reads_on.wait()
        self.sent.append(message)


def stream_to(reader: Reader, limits: StreamLimits | None = None) -> EventStream:
    clock = LoopClock(asyncio.get_running_loop())
    return EventStream(reader, clock=clock, limits=limits or StreamLimits(), name="test")


def played(story: Callable[[Reader, EventStream], Awaitable[None]]) -> Reader:
    async def play() -> Reader:
        reader = Reader()
        events = stream_to(reader, StreamLimits(buffer_bytes=100, keep_alive_s=5, check_s=1))
        async with asyncio.TaskGroup() as group:
            group.create_task(events.run(reader.send))
            await sleep(0.001)
            await story(reader, events)
        return reader

    return run_virtual(play, limit_s=60)


def test_events_of_one_turn_are_one_write_and_nothing_waits_for_a_second_one() -> None:
    async def story(reader: Reader, events: EventStream) -> None:
        for word in (b"a", b"b", b"c"):
            events.put(word)
        await sleep(0.001)
        assert reader.written == [b"abc"]
        events.put(b"d")
        await sleep(0.001)
        assert reader.written == [b"abc", b"d"]
        events.put(b"e")
        events.end()

    reader = played(story)
    whole = b"".join(reader.written) + b"".join(message["body"] for message in reader.sent)
    assert whole == b"abcde"
    assert [message["more_body"] for message in reader.sent] == [False]


def test_what_is_put_before_the_response_begins_leaves_with_it() -> None:
    async def play() -> Reader:
        reader = Reader()
        events = stream_to(reader)
        events.put(b"early ")
        await sleep(0.001)
        assert reader.written == []
        events.end()
        await events.run(reader.send)
        return reader

    assert run_virtual(play, limit_s=1).sent[0]["body"] == b"early "


def test_nothing_is_written_past_a_reader_that_is_slow() -> None:
    async def story(reader: Reader, events: EventStream) -> None:
        events.put(b"1")
        await sleep(0.001)
        reader.is_choked = True
        events.put(b"2")
        await sleep(1)
        events.put(b"3")
        await sleep(1)
        assert reader.written == [b"1"]
        reader.read_on()
        await sleep(0.1)
        assert reader.written == [b"1", b"23"]
        events.end()

    played(story)


def test_a_slow_reader_is_cut_at_the_first_byte_over_what_may_gather() -> None:
    async def story(reader: Reader, events: EventStream) -> None:
        reader.is_choked = True
        events.put(b"x" * 100)
        assert not reader.is_cut
        events.put(b"x")
        assert reader.is_cut

    assert played(story).written == []


def test_silence_is_filled() -> None:
    async def story(reader: Reader, events: EventStream) -> None:
        await sleep(7)
        assert b"".join(reader.written).startswith(b": keep-alive")
        events.end()

    played(story)


def test_a_silence_is_filled_by_what_the_dialect_has_for_it_as_often_as_it_lasts() -> None:
    words = iter((b'{"n":1}\n', b'{"n":2}\n', b'{"n":3}\n'))

    async def play() -> Reader:
        reader = Reader()
        events = EventStream(
            reader,
            clock=LoopClock(asyncio.get_running_loop()),
            limits=StreamLimits(keep_alive_s=5, check_s=1),
            name="test",
            keep_alive=lambda: next(words),
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(events.run(reader.send))
            await sleep(12)
            events.end()
        return reader

    assert run_virtual(play, limit_s=60).written == [b'{"n":1}\n', b'{"n":2}\n']
