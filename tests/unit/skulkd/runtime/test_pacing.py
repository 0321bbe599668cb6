import asyncio

from skulkd.runtime.pacing import Paced
from skulkd.runtime.tasks import sleep
from skulkd.runtime.virtual_time import run_virtual


def test_the_first_call_is_made_at_once_and_the_last_of_the_others_after_the_period() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        n_changes, told = 0, list[tuple[float, int]]()
        began_s = loop.time()
        paced = Paced(lambda: told.append((round(loop.time() - began_s, 3), n_changes)), 1.0)
        for _ in range(7):
            n_changes += 1
            paced()
            await sleep(0.3)
        await sleep(5.0)
        assert told == [(0.0, 1), (1.0, 4), (2.0, 7)]

    run_virtual(story)


def test_what_is_asked_for_once_is_done_once() -> None:
    async def story() -> None:
        told = list[float]()
        paced = Paced(lambda: told.append(asyncio.get_running_loop().time()), 1.0)
        for _ in range(3):
            paced()
            await sleep(3.0)
        assert [round(at_s - told[0], 3) for at_s in told] == [0.0, 3.0, 6.0]

    run_virtual(story)


def test_nothing_comes_once_it_was_cancelled_until_it_is_asked_for_again() -> None:
    async def story() -> None:
        told = list[float]()
        paced = Paced(lambda: told.append(asyncio.get_running_loop().time()), 1.0)
        paced()
        paced()
        paced.cancel()
        paced.cancel()
        await sleep(3.0)
        assert len(told) == 1
        paced()
        assert len(told) == 2

    run_virtual(story)
