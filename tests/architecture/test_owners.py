"""One owner for each dangerous thing: time, tasks, processes; none at all for code from data."""

import ast

from tests.support.source_tree import PACKAGES, Reference, python_files, relative, syntax_tree, uses

CLOCKS = {
    "skulkd/runtime/clock.py",
    "skulk_tui/clock.py",
}
SLEEPERS = {
    "skulkd/runtime/tasks.py",
    "skulkd/runtime/failpoints.py",  # a slow disk, made on purpose, in the thread that writes
    "store/fetch.py",  # a default; the store has no adapter of its own and is handed one
    "store/rate_limit.py",  # likewise
    "store/service.py",  # likewise
}
TASK_STARTERS = {"skulkd/runtime/tasks.py", "skulk_tui/tasks.py"}
PROCESS_STARTERS = (
    "skulkd/worker/launchers/",
    "skulkd/worker/run.py",
    "skulk_tui/chat_editor.py",  # $EDITOR
    "skulk_tui/clipboard.py",  # tmux
    "skulk_tui/cli/doctor.py",  # skulkd doctor
    "skulk_tui/cli/service_manager.py",  # systemctl, loginctl, journalctl, launchctl
    "store/sources/package.py",
)


def _elsewhere(found: list[Reference], *owners: str) -> list[str]:
    return [str(reference) for reference in found if not reference.path.startswith(owners)]


def test_time_is_read_in_the_clock_adapters_alone() -> None:
    found = uses(
        python_files(*PACKAGES),
        "time.time",
        "time.time_ns",
        "time.monotonic",
        "time.monotonic_ns",
        "time.perf_counter",
        "time.perf_counter_ns",
        "time.clock_gettime",
        "time.clock_gettime_ns",
        "datetime.datetime.now",
        "datetime.datetime.utcnow",
        "datetime.datetime.today",
        "datetime.date.today",
    )
    assert _elsewhere(found, *CLOCKS) == []
    assert {reference.path for reference in found} == CLOCKS


def test_nothing_sleeps_but_through_its_adapter() -> None:
    found = uses(python_files(*PACKAGES), "time.sleep", "asyncio.sleep")
    assert _elsewhere(found, *SLEEPERS) == []


def test_tasks_are_started_by_their_owner_alone() -> None:
    files = python_files(*PACKAGES)
    found = uses(files, "asyncio.create_task", "asyncio.ensure_future", "asyncio.TaskGroup")
    by_method = [
        Reference(relative(path), node.lineno, node.func.attr)
        for path in files
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "create_task"
    ]
    assert _elsewhere([*found, *by_method], *TASK_STARTERS) == []


def test_processes_are_started_by_their_owners_alone() -> None:
    found = uses(
        python_files(*PACKAGES),
        "subprocess",
        "multiprocessing",
        "pty",
        "asyncio.create_subprocess_exec",
        "asyncio.create_subprocess_shell",
        "concurrent.futures.ProcessPoolExecutor",
        *(f"os.{name}" for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp")),
        *(f"os.exec{suffix}" for suffix in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")),
        *(f"os.spawn{suffix}" for suffix in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")),
    )
    assert _elsewhere(found, *PROCESS_STARTERS) == []


def test_no_shell_ever_reads_what_we_write() -> None:
    files = python_files(*PACKAGES, "bench")
    found = uses(files, "os.system", "os.popen", "subprocess.getoutput", "commands")
    shells = [
        f"{relative(path)}:{keyword.value.lineno}: shell="
        for path in files
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "shell"
    ]
    assert [str(reference) for reference in found] + shells == []


def test_s15_data_is_never_executed() -> None:
    found = uses(
        python_files(*PACKAGES, "bench"),
        "pickle",
        "cPickle",
        "dill",
        "cloudpickle",
        "marshal",
        "shelve",
        "torch.load",
        "jsonpickle",
        "eval",
        "exec",
        "builtins.eval",
        "builtins.exec",
        "yaml.load",
        "yaml.load_all",
        "yaml.full_load",
        "yaml.unsafe_load",
        "yaml.Loader",
        "yaml.FullLoader",
        "yaml.UnsafeLoader",
    )
    assert [str(reference) for reference in found] == []


def test_s31_two_clients_go_beyond_the_machine_and_follow_no_redirect() -> None:
    files = python_files("protocol", "engines", "store", "skulkd")
    others = uses(
        files,
        *("urllib.request", "http.client", "aiohttp", "urllib3", "ftplib", "smtplib"),
        "websockets.connect",
        "websockets.asyncio.client",
    )
    assert [str(reference) for reference in others] == []
    fetchers = uses(files, "httpx")
    assert {reference.path for reference in fetchers} == {
        "store/fetch.py",
        "store/origins.py",
        "skulkd/api/image_fetch.py",
    }
    following = [
        f"{relative(path)}:{keyword.value.lineno}"
        for path in python_files(*PACKAGES)
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "follow_redirects"
        and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
    ]
    assert following == []


def test_wire_libraries_have_one_owner() -> None:
    files = python_files(*PACKAGES)
    assert _elsewhere(uses(files, "zmq"), "skulkd/cluster/") == []
    assert _elsewhere(uses(files, "zeroconf"), "skulkd/cluster/mdns.py") == []
