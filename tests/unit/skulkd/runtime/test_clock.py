import asyncio

from skulkd.runtime.clock import LoopClock, SystemClock
from skulkd.runtime.tasks import sleep
from skulkd.runtime.virtual_time import run_virtual


def test_boot_time_never_steps_back_and_is_no_less_than_the_time_awake() -> None:
    clock = SystemClock()
    boot_s, monotonic_s = clock.boot_s(), clock.monotonic_s()
    for _ in range(100):
        later_s = clock.boot_s()
        assert later_s >= boot_s
        boot_s = later_s
    assert boot_s >= monotonic_s - 0.001


def test_a_node_that_slept_finds_its_boot_time_and_its_wall_time_advanced() -> None:
    async def main() -> tuple[float, float, int]:
        clock = LoopClock(asyncio.get_running_loop(), epoch_ms=1000)
        await sleep(1.0)
        clock.sleep(30.0)
        return clock.monotonic_s(), clock.boot_s(), clock.wall_ms()

    assert run_virtual(main) == (1.0, 31.0, 32_000)
