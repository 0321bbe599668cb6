import asyncio

from skulkd.runtime.clock import LoopClock
from skulkd.runtime.tasks import Tasks, sleep
from skulkd.runtime.virtual_time import run_virtual
from store.rate_limit import MB, RateLimit, TransferRates


def test_all_that_share_a_limit_get_the_rate_together() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        limit = RateLimit(LoopClock(loop), rate_bytes_s=MB)
        begun = loop.time()

        async def fetch() -> None:
            for _ in range(10):
                await limit.take(MB // 2)

        await asyncio.gather(fetch(), fetch())
        # The last piece passes when the one before it is paid for.
        assert 9.4 <= loop.time() - begun <= 10.0

    run_virtual(story, limit_s=60.0)


def test_another_rate_holds_at_once_for_what_is_under_way() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        rates = TransferRates(LoopClock(loop), 1)
        tasks = Tasks("test", on_death=_fail)
        passed: list[float] = []

        async def fetch() -> None:
            for _ in range(400):
                await rates.fetching.take(MB // 2)
                passed.append(loop.time())

        fetching = tasks.start(fetch(), name="fetch")
        await sleep(10.0)
        assert 19 <= len(passed) <= 21
        rates.change_mb(100)
        await sleep(1.0)
        assert len(passed) >= 100
        rates.change_mb(None)
        await sleep(0.1)
        assert fetching.done()
        assert rates.serving.rate_bytes_s is None
        await tasks.close(1.0)

    run_virtual(story, limit_s=60.0)


def _fail(story: str, _error: BaseException) -> None:
    raise AssertionError(story)
