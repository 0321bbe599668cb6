import asyncio
from collections.abc import Mapping, Sequence

import pytest

from skulkd.cluster.mdns_thread import MAX_HEARD_PER_S, MdnsThread, Report, Wish
from skulkd.runtime.tasks import sleep
from skulkd.runtime.virtual_time import run_virtual


class Told:
    def __init__(self) -> None:
        self.heard: list[str] = []
        self.gone: list[str] = []
        self.reports: list[Report] = []
        self.thread = MdnsThread(
            on_heard=self._hear, on_goodbye=self.gone.append, on_report=self.reports.append
        )

    def _hear(self, name: str, _: Mapping[bytes, bytes | None], __: Sequence[str]) -> None:
        self.heard.append(name)


def test_what_is_too_much_is_dropped_and_counted_before_anybody_looks_at_it() -> None:
    told = Told()

    async def main() -> None:
        await sleep(5.0)
        for number in range(1000):
            told.thread.hear(str(number), {}, ())
            told.thread.hear_goodbye(str(number))
        await sleep(1.0)
        told.thread.hear("later", {}, ())

    run_virtual(main)
    assert len(told.heard) + len(told.gone) == MAX_HEARD_PER_S + 1
    assert told.heard[-1] == "later"
    assert told.thread.n_dropped == 2000 - MAX_HEARD_PER_S


def test_a_change_is_never_missed_and_a_wait_has_its_limit() -> None:
    async def main() -> None:
        thread = Told().thread
        loop = asyncio.get_running_loop()
        before, later = Wish(), Wish(hosts=("127.0.0.1",))
        thread.wish = later
        await thread.wait_other(before)  # there already
        assert loop.time() < 1.0
        await thread.wait_other(later, limit_s=5.0)
        assert 5.0 <= loop.time() < 6.0
        await thread.wait_over(3.0)
        assert 8.0 <= loop.time() < 9.0
        thread.wish = Wish(is_over=True)
        await thread.wait_over(3.0)
        assert loop.time() < 9.0

    run_virtual(main)


def test_a_thread_that_was_never_wanted_never_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("no thread is needed")

    monkeypatch.setattr("threading.Thread.start", refuse)
    thread = Told().thread
    thread.want(Wish())
    thread.want(Wish(hosts=("127.0.0.1",), is_over=True))
    assert thread.join(0.0)
