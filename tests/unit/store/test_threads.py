import asyncio
import threading

import pytest

from store.threads import in_thread


def test_a_blocking_call_runs_elsewhere_and_answers_here() -> None:
    async def run() -> tuple[int, int]:
        return await in_thread(threading.get_ident), threading.get_ident()

    there, here = asyncio.run(run())
    assert there != here


def test_an_error_of_the_call_is_the_callers() -> None:
    with pytest.raises(ZeroDivisionError):
        asyncio.run(in_thread(divmod, 1, 0))


@pytest.mark.parametrize("n_cancels", [1, 2])
def test_a_cancelled_caller_leaves_only_when_the_call_has_ended(n_cancels: int) -> None:
    started, let_go = threading.Event(), threading.Event()
    ended: list[bool] = []

    def work() -> None:
        started.set()
        let_go.wait(10)
        ended.append(True)

    async def run() -> None:
        task = asyncio.create_task(in_thread(work))
        while not started.is_set():
            await asyncio.sleep(0.001)
        for _ in range(n_cancels):
            task.cancel()
            await asyncio.sleep(0)
            assert not task.done()
        let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == [True]

    asyncio.run(run())
