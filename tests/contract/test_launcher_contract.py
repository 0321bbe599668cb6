"""What holds for every launcher, tried with real processes."""

import asyncio
import contextlib
import errno
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import uvloop

from engines.base import Endpoint, LaunchSpec
from protocol.errors import RunnerError
from protocol.ids import InstanceId
from skulkd.runtime.disk import RealDisk
from skulkd.runtime.tasks import Tasks
from skulkd.worker.launchers import group
from skulkd.worker.launchers.base import EngineProcess, ExitStatus, LauncherPaths, LaunchOwner
from skulkd.worker.launchers.child import ChildLauncher
from skulkd.worker.launchers.engine_log import read_tail
from skulkd.worker.launchers.records import ProcessRecords
from skulkd.worker.launchers.shim import NICENESS
from skulkd.worker.launchers.shim_process import Descriptors, ShimProcess

OWNER = LaunchOwner(
    instance_id=InstanceId("abcdef-abcdefghijklmnopqrst"), rank=0, attempt=1, engine="scripted"
)
WAIT_S = 10.0


def _fail(story: str, _error: BaseException) -> None:
    raise AssertionError(story)


@asynccontextmanager
async def launcher_in(
    home: Path, environment: dict[str, str] | None = None
) -> AsyncGenerator[ChildLauncher]:
    tasks = Tasks("test", on_death=_fail)
    paths = LauncherPaths(records=home / "launches", logs=home / "logs")
    inherited = {"PATH": os.environ["PATH"]} if environment is None else environment
    launcher = ChildLauncher(paths=paths, disk=RealDisk(), tasks=tasks, environment=inherited)
    try:
        yield launcher
        await wait_for(lambda: not tasks.names())
    finally:
        await tasks.close(1.0)


def python(source: str, *arguments: str) -> LaunchSpec:
    return LaunchSpec(
        argv=(sys.executable, "-I", "-S", "-c", source, *arguments), endpoint=Endpoint()
    )


async def wait_for(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.005)


def run(story: Callable[[], Awaitable[None]], *, uv: bool = False) -> None:
    factory = uvloop.new_event_loop if uv else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_bounded(story))


async def _bounded(story: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.timeout(30.0):
        await story()


@pytest.mark.parametrize("uv", [False, True], ids=["asyncio", "uvloop"])
def test_an_exit_code_arrives_within_milliseconds_and_leaves_no_zombie(
    tmp_path: Path, uv: bool
) -> None:
    async def story() -> None:
        async with launcher_in(tmp_path) as launcher:
            source = "import time; print(time.monotonic(), flush=True); raise SystemExit(3)"
            process = await launcher.spawn(python(source), OWNER)
            status = await process.wait_exit()
            seen_at = time.monotonic()
            assert status == ExitStatus(exit_code=3)
            assert seen_at - float(process.log_tail()[-1]) < 0.5
            await process.wait_gone()
            assert group.start_mark(process.pid) is None

    run(story, uv=uv)


def _refuse_pidfd(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def pidfd_open(_pid: int) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("os.pidfd_open", pidfd_open)


def test_a_kernel_without_pidfds_is_served_by_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _refuse_pidfd(monkeypatch, errno.ENOSYS)

    async def story() -> None:
        async with launcher_in(tmp_path) as launcher:
            process = await launcher.spawn(python("raise SystemExit(3)"), OWNER)
            assert await process.wait_exit() == ExitStatus(exit_code=3)
            running = await launcher.spawn(python("import time; time.sleep(60)"), OWNER)
            assert running.record.start_mark is not None
            assert group.kill_if_marked(running.pid, running.record.start_mark)
            assert await running.wait_exit() == ExitStatus(signal="SIGKILL")

    run(story)


def test_a_process_that_cannot_be_watched_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _refuse_pidfd(monkeypatch, errno.EMFILE)

    async def story() -> None:
        async with launcher_in(tmp_path) as launcher:
            with pytest.raises(RunnerError, match="Too many open files") as caught:
                await launcher.spawn(python("import time; time.sleep(60)"), OWNER)
            assert caught.value.code == "runner.spawn_failed"
            assert launcher.orphans() == ()

    run(story)


def test_a_signal_is_reported_by_name(tmp_path: Path) -> None:
    async def story() -> None:
        async with launcher_in(tmp_path) as launcher:
            process = await launcher.spawn(python("import time; time.sleep(60)"), OWNER)
            os.kill(process.pid, signal.SIGKILL)
            assert await process.wait_exit() == ExitStatus(signal="SIGKILL")
            await process.wait_gone()

    run(story)


@pytest.mark.parametrize(
    ("program", "reason"),
    [("/etc/passwd/engine", "Not a directory"), ("/etc/passwd", "Permission denied")],
)
def test_a_program_that_cannot_be_executed_is_refused_with_the_systems_reason(
    tmp_path: Path, program: str, reason: str
) -> None:
    async def story() -> None:
        async with launcher_in(tmp_path) as launcher:
            with pytest.raises(RunnerError, match=reason) as caught:
                await launcher.spawn(LaunchSpec(argv=(program,), endpoint=Endpoint()), OWNER)
            assert caught.value.code == "runner.spawn_failed"
            assert launcher.orphans() == ()

    run(story)


def test_a_file_of_a_foreign_format_is_refused(tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    engine.write_bytes(b"\x7fELFnot a program")
    engine.chmod(0o700)

    async def story() -> None:
        async with launcher_in(tmp_path) as launcher:
            with pytest.raises(RunnerError, match="Exec format error"):
                await launcher.spawn(LaunchSpec(argv=(str(engine),), endpoint=Endpoint()), OWNER)

    run(story)


def test_stop_escalates_when_sigterm_is_ignored(tmp_path: Path) -> None:
    source = (
        "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('up', flush=True); time.sleep(60)"
    )

    async def story() -> None:
        async with launcher_in(tmp_path) as launcher:
            process = await launcher.spawn(python(source), OWNER)
            await wait_for(lambda: process.log_tail() == ("up",))
            assert await process.stop(0.1) == ExitStatus(signal="SIGKILL")
            assert group.is_group_gone(process.pid)

    run(story)


def test_stop_lets_an_engine_end_by_itself(tmp_path: Path) -> None:
    source = (
        "import signal,sys,time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(5));"
        "print('up', flush=True); time.sleep(60)"
    )

    async def story() -> None:
        async with launcher_in(tmp_path) as launcher:
            process = await launcher.spawn(python(source), OWNER)
            await wait_for(lambda: process.log_tail() == ("up",))
            assert await process.stop(WAIT_S) == ExitStatus(exit_code=5)

    run(story)


FORKS = (
    "import os,signal,sys,time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "child = os.fork()\n"
    "if child == 0:\n"
    "    time.sleep(60)\n"
    "print(child, flush=True)\n"
    "{then}\n"
)


@pytest.mark.parametrize("then", ["os._exit(4)", "os.kill(os.getpid(), 9)", "time.sleep(60)"])
def test_nothing_that_an_engine_started_outlives_it(tmp_path: Path, then: str) -> None:
    async def story() -> None:
        async with launcher_in(tmp_path) as launcher:
            process = await launcher.spawn(python(FORKS.format(then=then)), OWNER)
            await wait_for(lambda: process.log_tail() != ())
            grandchild = int(process.log_tail()[0])
            if then == "time.sleep(60)":
                assert grandchild in group.live_members(process.pid)
                await process.stop(0.05)
            else:
                await process.wait_gone()
            assert not _runs(grandchild)

    run(story)


def _runs(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_an_engine_sees_no_setting_token_or_descriptor_of_the_daemon(tmp_path: Path) -> None:
    inherited = {"PATH": "/bin", "SKULK_TOKEN": "s", "HF_TOKEN": "s", "LANG": "C.UTF-8", "X": "y"}
    source = (
        "import os,resource,signal\n"
        "print(sorted(os.environ)); print(sorted(map(int, os.listdir('/dev/fd')))[:-1])\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, []))\n"
        "print(resource.getrlimit(resource.RLIMIT_CORE))\n"
        "print(os.getsid(0) == os.getpid(), os.getcwd())\n"
        "print(os.environ['ADDED'])\n"
        "print(os.nice(0))\n"
    )

    async def story() -> None:
        async with launcher_in(tmp_path, inherited) as launcher:
            spec = python(source)
            spec = LaunchSpec(argv=spec.argv, environment={"ADDED": "1"}, endpoint=spec.endpoint)
            with Path("/dev/null").open("rb") as ours:
                os.set_inheritable(ours.fileno(), True)
                process = await launcher.spawn(spec, OWNER)
                await process.wait_exit()
            lines = process.log_tail()
            niceness = str(os.nice(0) + NICENESS)
            names = set(re.findall(r"'(\w+)'", lines[0]))
            assert names - {"LC_CTYPE"} == {"ADDED", "LANG", "PATH", "SKULK_LAUNCH_ID"}
            assert lines[1:] == ("[0, 1, 2]", "set()", "(0, 0)", "True /", "1", niceness)
            await process.wait_gone()

    run(story)


def test_a_record_is_kept_while_the_process_runs_and_no_longer(tmp_path: Path) -> None:
    async def story() -> None:
        records = ProcessRecords(tmp_path / "launches", RealDisk())
        async with launcher_in(tmp_path) as launcher:
            process = await launcher.spawn(python("import time; time.sleep(60)"), OWNER)
            await wait_for(lambda: records.read_all() == (process.record,))
            assert process.record.pid == process.pid
            assert process.record.start_mark == group.start_mark(process.pid)
            assert launcher.orphans() == ()
            await process.stop(0.0)
        assert records.read_all() == ()

    run(story)


def test_a_cancelled_spawn_leaves_no_process_and_no_record(tmp_path: Path) -> None:
    async def story() -> None:
        async with launcher_in(tmp_path) as launcher:
            for delay_s in (0.0, 0.001, 0.004, 0.01, 0.02, 0.03):
                spawning = asyncio.create_task(
                    launcher.spawn(python("import time; time.sleep(60)"), OWNER)
                )
                await asyncio.sleep(delay_s)
                if not spawning.cancel():
                    await (await spawning).stop(0.0)
                    continue
                with contextlib.suppress(asyncio.CancelledError):
                    await (await spawning).stop(0.0)
                assert not psutil.Process().children()
        assert ProcessRecords(tmp_path / "launches", RealDisk()).read_all() == ()

    run(story)


DAEMON = """
import asyncio, os, sys
from pathlib import Path
from engines.base import Endpoint, LaunchSpec
from skulkd.runtime.disk import RealDisk
from skulkd.runtime.tasks import Tasks
from skulkd.worker.launchers.base import LauncherPaths, LaunchOwner
from skulkd.worker.launchers.child import ChildLauncher
home, source, owner = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
async def main():
    launcher = ChildLauncher(
        paths=LauncherPaths(records=home / "launches", logs=home / "logs"), disk=RealDisk(),
        tasks=Tasks("daemon", on_death=print), environment=os.environ)
    spec = LaunchSpec(argv=(sys.executable, "-I", "-S", "-c", source), endpoint=Endpoint())
    process = await launcher.spawn(spec, LaunchOwner.model_validate_json(owner))
    while not process.log_tail() or not list((home / "launches").glob("*.json")):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    print(process.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


def _kill_a_daemon_with_an_engine(home: Path, source: str) -> int:
    """Start a process that launches an engine, kill -9 it, and give the engine's pid."""
    command = [sys.executable, "-c", DAEMON, str(home), source, OWNER.model_dump_json()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()) as daemon:
        assert daemon.stdout is not None
        engine = int(daemon.stdout.readline())
        assert _runs(engine)
        daemon.kill()
    return engine


def _await_end(pid: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while _runs(pid):
        assert time.monotonic() < deadline, f"{pid} still runs"
        time.sleep(0.005)


def test_an_engine_dies_with_a_killed_daemon(tmp_path: Path) -> None:
    engine = _kill_a_daemon_with_an_engine(
        tmp_path, "import time; print('up', flush=True); time.sleep(60)"
    )
    _await_end(engine)


def test_what_outlived_a_killed_daemon_is_found_by_its_record_and_killed(tmp_path: Path) -> None:
    engine = _kill_a_daemon_with_an_engine(tmp_path, FORKS.format(then="time.sleep(60)"))
    _await_end(engine)
    grandchild = int(next((tmp_path / "logs").glob("*.log")).read_text().split()[0])
    assert _runs(grandchild)

    async def story() -> None:
        async with launcher_in(tmp_path) as launcher:
            (record,) = launcher.orphans()
            assert record.owner == OWNER
            assert await launcher.adopt(record) is None
            assert not _runs(grandchild)
            assert launcher.orphans() == ()

    run(story)


def test_a_record_never_kills_a_stranger_with_a_reused_pid(tmp_path: Path) -> None:
    async def story() -> None:
        async with launcher_in(tmp_path) as launcher:
            stranger = await launcher.spawn(python("import time; time.sleep(60)"), OWNER)
            stale = stranger.record.model_copy(
                update={"launch_id": "0" * 32, "start_mark": "boot:1"}
            )
            ProcessRecords(tmp_path / "launches", RealDisk()).write(stale)
            assert launcher.orphans() == (stale,)
            await launcher.adopt(stale)
            assert stranger.exit_status is None
            assert launcher.orphans() == ()
            await stranger.stop(0.0)

    run(story)


def test_an_unreadable_record_is_removed(tmp_path: Path) -> None:
    directory = tmp_path / "launches"
    directory.mkdir()
    (directory / "half.json").write_bytes(b'{"launch_id": "')
    (directory / "half.json.tmp").write_bytes(b"")
    records = ProcessRecords(directory, RealDisk())
    assert records.read_all() == ()
    records.remove_halves()
    assert list(directory.iterdir()) == []


def test_only_the_groups_own_listener_is_recognised(tmp_path: Path) -> None:
    source = (
        "import socket,time; s = socket.create_server(('127.0.0.1', 0));"
        "print(s.getsockname()[1], flush=True); time.sleep(60)"
    )

    async def story() -> None:
        async with launcher_in(tmp_path) as launcher:
            process = await launcher.spawn(python(source), OWNER)
            await wait_for(lambda: process.log_tail() != ())
            with socket.create_server(("127.0.0.1", 0)) as foreign:
                assert process.owns_listener(int(process.log_tail()[0]))
                assert not process.owns_listener(foreign.getsockname()[1])
            await process.stop(0.0)

    run(story)


def test_usage_shows_what_the_process_holds(tmp_path: Path) -> None:
    source = "import time; b = b'x' * (64 << 20); print('up', flush=True); time.sleep(60)"

    async def story() -> None:
        async with launcher_in(tmp_path) as launcher:
            process = await launcher.spawn(python(source), OWNER)
            await wait_for(lambda: process.log_tail() == ("up",))
            usage = process.usage()
            assert usage.resident_bytes is not None
            assert 64 << 20 < usage.resident_bytes < 128 << 20
            await process.stop(0.0)
            assert process.usage().resident_bytes is None

    run(story)


async def _spawned(launcher: ChildLauncher) -> EngineProcess:
    return await launcher.spawn(python("import time; time.sleep(60)"), OWNER)


def test_spawning_from_another_thread_is_a_bug(tmp_path: Path) -> None:
    async def story() -> None:
        async with launcher_in(tmp_path) as launcher:

            def elsewhere() -> None:
                with pytest.raises(AssertionError, match="main"):
                    asyncio.run(_spawned(launcher))

            await asyncio.to_thread(elsewhere)

    run(story)


WATCHED = "import os,time; print('up', os.getpid(), flush=True); {then}"


async def _watched(log: Path, then: str) -> ShimProcess:
    with log.open("ab") as file:
        output = Descriptors(stdout=file.fileno(), stderr=file.fileno())
        argv = python(WATCHED.format(then=then)).argv
        process = await ShimProcess.start(argv, environment={}, output=output, watcher=True)
    await wait_for(lambda: read_tail(log) != ())
    return process


@pytest.mark.parametrize(
    ("then", "status"),
    [
        ("raise SystemExit(7)", ExitStatus(exit_code=7)),
        ("os.abort()", ExitStatus(signal="SIGABRT")),
        ("os.kill(os.getpid(), 9)", ExitStatus(signal="SIGKILL")),
        ("os.kill(0, 15); time.sleep(60)", ExitStatus(signal="SIGTERM")),
    ],
)
def test_a_watcher_ends_as_its_engine_ends(tmp_path: Path, then: str, status: ExitStatus) -> None:
    async def story() -> None:
        process = await _watched(tmp_path / "log", then)
        assert await process.wait_exit() == status
        await process.wait_gone()

    run(story)


WATCHING_DAEMON = """
import asyncio, sys
from skulkd.worker.launchers.shim_process import Descriptors, ShimProcess
async def main():
    output = Descriptors(stdout=1, stderr=2)
    await ShimProcess.start(sys.argv[1:], environment={}, output=output, watcher=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


def test_a_watcher_kills_its_engine_when_the_daemon_is_killed() -> None:
    argv = python(WATCHED.format(then="time.sleep(60)")).argv
    command = [sys.executable, "-c", WATCHING_DAEMON, *argv]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()) as daemon:
        assert daemon.stdout is not None
        engine = int(daemon.stdout.readline().split()[1])
        assert _runs(engine)
        daemon.kill()
        _await_end(engine)


def test_a_watcher_reports_a_program_that_cannot_be_executed(tmp_path: Path) -> None:
    async def story() -> None:
        with Path("/dev/null").open("wb") as null:
            output = Descriptors(stdout=null.fileno(), stderr=null.fileno())
            with pytest.raises(RunnerError, match="No such file"):
                await ShimProcess.start(
                    [str(tmp_path / "missing")], environment={}, output=output, watcher=True
                )

    run(story)
