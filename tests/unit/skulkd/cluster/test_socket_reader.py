"""How a socket is read on the loop: a few frames as they come, and many together."""

import asyncio

import pytest
import zmq

from skulkd.cluster.zmq_sockets import NOBLOCK, RESTS_AFTER, SocketReader

REST_S = 0.01


@pytest.mark.parametrize(("rest_s", "is_read_at_once"), [(0.0, True), (REST_S, False)])
def test_what_comes_fast_for_long_waits_for_a_rest_and_is_not_lost(
    rest_s: float, *, is_read_at_once: bool
) -> None:
    async def main() -> None:
        with zmq.Context() as context:
            inbox, outbox = context.socket(zmq.PULL), context.socket(zmq.PUSH)
            inbox.bind("inproc://reader")
            outbox.connect("inproc://reader")
            got: list[bytes] = []

            def drain() -> bool:
                while True:
                    try:
                        got.append(inbox.recv(NOBLOCK))
                    except zmq.Again:
                        return False

            async def wait_for(n_frames: int) -> None:
                async with asyncio.timeout(5):
                    while len(got) < n_frames:
                        await asyncio.sleep(0)

            reader = SocketReader(inbox, drain, rest_s=rest_s)
            for number in range(RESTS_AFTER + 1):
                outbox.send(b"frame")
                await wait_for(number + 1)
            outbox.send(b"last")
            for _ in range(5):
                await asyncio.sleep(0)
            assert (got[-1] == b"last") == is_read_at_once
            await wait_for(RESTS_AFTER + 2)
            assert got[-1] == b"last"
            reader.close()
            inbox.close(0)
            outbox.close(0)

    asyncio.run(main())


def test_a_reader_that_read_only_some_reads_the_rest_in_turns_of_their_own() -> None:
    async def main() -> None:
        with zmq.Context() as context:
            inbox, outbox = context.socket(zmq.PULL), context.socket(zmq.PUSH)
            inbox.bind("inproc://budget")
            outbox.connect("inproc://budget")
            for number in range(20):
                outbox.send(bytes((number,)))
            got: list[bytes] = []

            def drain() -> bool:
                try:
                    got.append(inbox.recv(NOBLOCK))
                except zmq.Again:
                    return False
                return True

            reader = SocketReader(inbox, drain, rest_s=REST_S)
            async with asyncio.timeout(5):
                while len(got) < 20:
                    await asyncio.sleep(0)
            assert got == [bytes((number,)) for number in range(20)]
            reader.close()
            inbox.close(0)
            outbox.close(0)

    asyncio.run(main())
