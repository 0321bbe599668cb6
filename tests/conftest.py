"""What holds for every test: no leaks, one Hypothesis profile, no setting from outside.

A test that leaves a thread, a child process, a socket or an asyncio task behind fails, because the
next one would pay for it. The checks look at this process alone and cost well under a millisecond.
"""

import asyncio
import asyncio.runners
import contextlib
import gc
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Final

import hypothesis
import psutil
import pytest

GRACE_S: Final = 1.0
"""How long what a test stopped may take to be gone."""
FILE_DESCRIPTORS: Final = Path("/dev/fd")

hypothesis.settings.register_profile(
    "ci", deadline=None, derandomize=True, database=None, print_blob=True
)
hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")

for _name in [name for name in os.environ if name.startswith("SKULK_")]:
    if not _name.startswith("SKULK_TEST_"):  # those are ours: where tests keep the demo model
        del os.environ[_name]

_passed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember whether the test itself passed: a failed one may well leave things behind."""
    report = yield
    if call.when == "call":
        item.stash[_passed] = report.passed
    return report


def _threads() -> set[int]:
    return {thread.ident for thread in threading.enumerate() if thread.ident is not None}


def _child_pids() -> set[int]:
    try:  # a look at the whole process table is needed only when there is a child at all
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()
    return {child.pid for child in psutil.Process().children()}


def _sockets() -> set[int]:
    found: set[int] = set()
    # ruff: ignore[os-listdir]  Path.iterdir would keep its own descriptor open
    for name in os.listdir(FILE_DESCRIPTORS):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found.add(status.st_ino)
    return found


CHECKS: Final[dict[str, Callable[[], set[int]]]] = {
    "threads": _threads,
    "child processes": _child_pids,
    "sockets": _sockets,
}


def _describe(kind: str, ids: set[int]) -> list[str]:
    if kind == "threads":
        return [thread.name for thread in threading.enumerate() if thread.ident in ids]
    if kind == "child processes":
        described: list[str] = []
        for pid in sorted(ids):
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                described.append(f"{pid} {process.status()} {' '.join(process.cmdline())[:200]}")
        return described
    return [f"inode {inode}" for inode in sorted(ids)]


def _left_behind(kind: str, before: set[int]) -> set[int]:
    look = CHECKS[kind]
    left = look() - before
    if left and kind == "sockets":
        gc.collect()  # one that only garbage holds has warned already, as an error
    deadline = time.monotonic() + GRACE_S
    while left and time.monotonic() < deadline:
        time.sleep(0.01)
        left = look() - before
    return left


# ruff: ignore[pytest-fixture-autouse]  a rule that a test must ask for holds for none
@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test that passes and leaves a thread, child, socket or asyncio task behind."""
    leaked_tasks: list[str] = []
    # The runner cancels what is left when the main coroutine returns; only it sees a leaked task.
    hook = "_cancel_all_tasks"  # absent from the type stubs
    cancel_all: Callable[[asyncio.AbstractEventLoop], None] = getattr(asyncio.runners, hook)

    def record(loop: asyncio.AbstractEventLoop) -> None:
        if sys.exc_info()[0] is None:  # a run that was cut short had no chance to end its tasks
            leaked_tasks.extend(task.get_name() for task in asyncio.all_tasks(loop))
        cancel_all(loop)

    monkeypatch.setattr(asyncio.runners, hook, record)
    before = {kind: look() for kind, look in CHECKS.items()}
    yield
    if not request.node.stash.get(_passed, False):
        return
    if request.node.get_closest_marker("leaves_tasks"):
        leaked_tasks.clear()
    leaks = [f"asyncio tasks: {', '.join(leaked_tasks)}"] if leaked_tasks else []
    for kind in CHECKS:
        left = _left_behind(kind, before[kind])
        if left:
            leaks.append(f"{kind}: {'; '.join(_describe(kind, left))}")
    if leaks:
        pytest.fail("the test left behind\n" + "\n".join(leaks), pytrace=False)
