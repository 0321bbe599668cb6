"""What streams have said is kept for whoever reads on: so much, so long, for its owner."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from protocol.errors import RequestError
from protocol.ids import CommandId
from skulkd.api.dialects.framing import NDJSON, SSE
from skulkd.api.http import Principal
from skulkd.api.streams import KeepLimits, KeptStream, KeptStreams
from skulkd.runtime.virtual_time import run_virtual
from tests.support.builders import a_command_id

OWNER = Principal(name="key-a", scope="infer")
ONE, TWO = a_command_id(1), a_command_id(2)


def event(number: int) -> bytes:
    return b'data: {"n":%d}\n\n' % number


class Kept:
    """Streams in virtual time, and which were given up."""

    def __init__(self, limits: KeepLimits | None = None) -> None:
        self.given_up: list[CommandId] = []
        self.streams = KeptStreams(self.given_up.append, limits)

    def open(self, command_id: CommandId = ONE) -> KeptStream:
        return self.streams.open(command_id, OWNER.name, None)


def tell(story: Callable[[Kept], Awaitable[None]], limits: KeepLimits | None = None) -> None:
    async def run() -> None:
        kept = Kept(limits)
        await story(kept)
        kept.streams.stop()

    run_virtual(run, limit_s=5000)


def nothing() -> None:
    """Nobody is told."""


def test_a_reader_gets_each_event_once_from_where_it_stands() -> None:
    async def story(kept: Kept) -> None:
        stream = kept.open()
        for number in range(5):
            stream.put(event(number))
        reader = stream.read_from(2, nothing)
        assert reader.take(1 << 20) == [event(2), event(3), event(4)]
        assert not reader.has_more
        stream.put(event(5))
        assert reader.has_more
        assert reader.take(1) == [event(5)], "one at least"
        assert reader.offset == 6
        assert not reader.is_at_end
        stream.end()
        assert reader.is_at_end

    tell(story)


def test_the_last_events_are_parted_and_the_end_mark_is_none_of_them() -> None:
    async def story(kept: Kept) -> None:
        stream = kept.open()
        stream.put_last(event(0) + event(1), b"data: [DONE]\n\n")
        reader = stream.read_from(0, nothing)
        assert [stream.framing.json_of(one) for one in reader.take(1 << 20)] == [
            b'{"n":0}',
            b'{"n":1}',
        ]
        assert reader.is_at_end
        assert stream.is_done

    tell(story)


def test_lines_are_parted_as_events_are_and_read_again_as_server_sent_events() -> None:
    async def story(kept: Kept) -> None:
        stream = kept.streams.open(ONE, OWNER.name, None, NDJSON)
        stream.put_all(b'{"n":0}\n')
        stream.put_last(b'{"n":1}\n{"n":2}\n', b"")
        lines = stream.read_from(0, nothing).take(1 << 20)
        assert lines == [b'{"n":%d}\n' % number for number in range(3)]
        assert [NDJSON.json_of(one) for one in lines] == [b'{"n":0}', b'{"n":1}', b'{"n":2}']
        assert [NDJSON.as_sse(one) for one in lines] == [event(number) for number in range(3)]
        assert SSE.as_sse(event(4)) == event(4)

    tell(story)


def test_only_the_newest_are_kept_and_who_asks_for_others_hears_so() -> None:
    async def story(kept: Kept) -> None:
        stream = kept.open()
        for number in range(1000):
            stream.put(event(number))
        assert stream.n_bytes <= 4096
        assert stream.n_events == 1000
        with pytest.raises(RequestError) as refused:
            stream.read_from(0, nothing)
        assert refused.value.code == "request.stream_gone"
        first = refused.value.details["first"]
        assert isinstance(first, int)
        reader = stream.read_from(first, nothing)
        assert reader.take(1 << 20)[-1] == event(999)
        for number in range(1000):
            stream.put(event(number))
        with pytest.raises(RequestError):
            stream.read_from(first, nothing)
        with pytest.raises(RequestError) as refused:
            stream.read_from(2001, nothing)
        assert refused.value.code == "request.invalid"

    tell(story, KeepLimits(stream_bytes=4096))


def test_a_producer_waits_for_its_slowest_reader() -> None:
    async def story(kept: Kept) -> None:
        stream = kept.open()
        fast, slow = stream.read_from(0, nothing), stream.read_from(0, nothing)
        number = 0
        while not stream.is_full:
            stream.put(event(number))
            number += 1
            fast.take(1 << 20)
        waiting = asyncio.ensure_future(stream.room())
        await asyncio.sleep(1)
        assert not waiting.done()
        assert len(slow.take(1 << 20)) == number, "nothing that it has not read was lost"
        await asyncio.wait_for(waiting, 1)
        slow.close()
        assert not stream.is_full

    tell(story, KeepLimits(stream_bytes=4096))


def test_a_stream_that_nobody_reads_is_given_up_after_a_minute() -> None:
    async def story(kept: Kept) -> None:
        stream = kept.open()
        reader = stream.read_from(0, nothing)
        await asyncio.sleep(300)
        assert kept.given_up == [], "it is read"
        reader.close()
        await asyncio.sleep(58)
        again = stream.read_from(0, nothing)
        await asyncio.sleep(10)
        again.close()
        await asyncio.sleep(59)
        assert kept.given_up == []
        while not stream.is_full:
            stream.put(event(0))
        waiting = asyncio.ensure_future(stream.room())
        await asyncio.sleep(3)
        assert set(kept.given_up) == {ONE}
        assert waiting.done(), "its producer is let go on to its end"

    tell(story)


def test_a_stream_that_nobody_ever_read_is_given_up_too() -> None:
    async def story(kept: Kept) -> None:
        kept.open()
        await asyncio.sleep(59)
        assert kept.given_up == []
        await asyncio.sleep(3)
        assert set(kept.given_up) == {ONE}

    tell(story)


def test_an_ended_stream_is_kept_for_ten_minutes() -> None:
    async def story(kept: Kept) -> None:
        kept.open().end()
        await asyncio.sleep(599)
        assert kept.streams.find(ONE, OWNER).n_events == 0
        await asyncio.sleep(3)
        with pytest.raises(RequestError) as refused:
            kept.streams.find(ONE, OWNER)
        assert refused.value.code == "request.not_found"
        assert kept.streams.n_streams == 0

    tell(story)


def test_a_stream_is_its_owners() -> None:
    async def story(kept: Kept) -> None:
        kept.open()
        assert kept.streams.find(ONE, OWNER)
        assert kept.streams.find(ONE, Principal(name="key-b", scope="admin"))
        with pytest.raises(RequestError):
            kept.streams.find(ONE, Principal(name="key-b", scope="operate"))

    tell(story)


def test_all_together_are_bounded_and_the_oldest_that_ended_go_first() -> None:
    async def story(kept: Kept) -> None:
        for command_id in (ONE, TWO):
            stream = kept.open(command_id)
            for number in range(20):
                stream.put(event(number))
            stream.end()
        await asyncio.sleep(2)
        with pytest.raises(RequestError):
            kept.streams.find(ONE, OWNER)
        assert kept.streams.find(TWO, OWNER).n_events == 20

    tell(story, KeepLimits(total_bytes=2000))


def test_what_nobody_has_read_yet_is_not_forgotten_for_others_and_new_ones_are_refused() -> None:
    async def story(kept: Kept) -> None:
        stream = kept.open()
        for number in range(30):
            stream.put(event(number))
        await asyncio.sleep(2)
        assert len(stream.read_from(0, nothing).take(1 << 20)) == 30
        assert kept.streams.is_crowded()
        stream.end()
        assert not kept.streams.is_crowded()

    tell(story, KeepLimits(total_bytes=1000))
