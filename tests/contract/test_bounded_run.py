import asyncio
import sys
import time
from pathlib import Path

import pytest

from protocol.errors import RunnerError
from skulkd.worker.run import CompletedRun, run_bounded


def run_python(
    source: str, *, timeout_s: float = 20.0, max_output: int = 1000, **environment: str
) -> CompletedRun:
    argv = [sys.executable, "-I", "-S", "-c", source]
    return asyncio.run(run_bounded(argv, timeout_s, max_output, environment=environment))


def test_a_run_gives_exit_code_and_both_streams() -> None:
    run = run_python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert run == CompletedRun(exit_code=3, signal=None, stdout=b"out\n", stderr=b"err\n")


def test_a_signal_is_given_by_name() -> None:
    assert run_python("import os; os.kill(os.getpid(), 4)").signal == "SIGILL"


def test_a_flood_is_read_to_its_end_and_cut() -> None:
    run = run_python("import sys; sys.stdout.write('x' * (8 << 20)); sys.exit(0)")
    assert run.exit_code == 0
    assert run.stdout == b"x" * 1000


def test_a_program_that_hangs_is_killed_with_its_children() -> None:
    source = "import os,time; os.fork(); print('up', flush=True); time.sleep(60)"
    started = time.monotonic()
    run = run_python(source, timeout_s=0.3)
    assert run.timed_out
    assert run.signal == "SIGKILL"
    assert set(run.stdout.split()) == {b"up"}
    assert time.monotonic() - started < 5


def test_a_child_that_holds_the_pipe_open_does_not_hold_the_run() -> None:
    source = "import os,time\nif os.fork() == 0: time.sleep(60)\nprint('done', flush=True)"
    started = time.monotonic()
    assert run_python(source).stdout == b"done\n"
    assert time.monotonic() - started < 5


def test_a_missing_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="No such file") as caught:
        asyncio.run(run_bounded([str(tmp_path / "missing")], 1.0, 10))
    assert caught.value.code == "runner.spawn_failed"


def test_a_cancelled_run_leaves_nothing() -> None:
    async def story() -> None:
        argv = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await run_bounded(argv, 60.0, 10)

    asyncio.run(story())
