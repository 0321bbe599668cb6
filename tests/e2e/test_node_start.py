"""Starting where one should not: a home that is held, a port that is taken, wrong settings."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest

from tests.support.daemon import SCRIPTS, Daemon, clean_environment, free_port, wait_until
from tests.support.patience import allowed_s
from tests.support.scripted_models import MODEL, add_scripted_model
from tests.support.shared_daemon import shared_daemon

EX_CONFIG = 78
PORT_HOLDER = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
"""


def run_skulkd(
    home: Path, *arguments: str, environment: dict[str, str] | None = None, timeout_s: float = 20
) -> subprocess.CompletedProcess[str]:
    """Run a daemon that is expected to end by itself."""
    return subprocess.run(
        [str(SCRIPTS / "skulkd"), "--home", str(home), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env=clean_environment(
            {"SKULK_MODELS_DIR": str(home.parent / "models"), **(environment or {})}
        ),
    )


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Give every file of a tree with size and time of its last change, logs left out."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.relative_to(folder).parts[0] not in {"logs", "journal"}
    }


def refusal_of(ended: subprocess.CompletedProcess[str], code: str) -> str:
    """Check that a daemon refused to start, as a service manager should see it."""
    assert ended.returncode == EX_CONFIG, ended.stderr
    assert f"[{code}]" in ended.stderr
    assert "remedy:" in ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stderr


def test_b03_a_second_daemon_on_one_home_names_the_holder_and_touches_nothing(
    daemon: Daemon,
) -> None:
    model = add_scripted_model(daemon.models_dir)
    instance_id = daemon.place(model)
    daemon.wait_phase(instance_id)
    before = listing(daemon.home)
    began_s = time.monotonic()
    second = run_skulkd(daemon.home, "--api", str(free_port()))
    took_s = time.monotonic() - began_s
    assert f"process {daemon.pid}" in refusal_of(second, "config.home_locked")
    assert took_s < allowed_s(4), "2 s are promised on a machine that does nothing else"
    assert listing(daemon.home) == before
    assert daemon.instance(instance_id)["phase"] == "ready"
    assert daemon.children()


def test_b03_two_homes_and_two_ports_are_two_nodes(make_daemon: Callable[..., Daemon]) -> None:
    first, second = make_daemon("first"), make_daemon("second")
    first.start()
    second.start()
    names = {node.http.get("/node_id").json() for node in (first, second)}
    assert len(names) == 2


def test_b03_the_lock_of_a_killed_daemon_is_taken_over(daemon: Daemon) -> None:
    node_id = daemon.http.get("/node_id").json()
    assert (daemon.home / "lock").read_text() == str(daemon.pid)
    daemon.kill()
    # The pid in a stale lock may belong to anybody by now.
    (daemon.home / "lock").write_text(str(os.getpid()))
    daemon.start()
    assert daemon.http.get("/node_id").json() == node_id
    assert (daemon.home / "lock").read_text() == str(daemon.pid)


def test_b03_a_taken_port_is_refused_with_its_holder(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PORT_HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        port = int(holder.stdout.readline())
        ended = run_skulkd(tmp_path / "home", "--api", str(port))
        told = refusal_of(ended, "config.port_busy")
        assert f"port {port}" in told
        assert f"pid {holder.pid}" in told
        holder.kill()
    assert run_until_healthy_then_stop(tmp_path / "home", port) == 0


def run_until_healthy_then_stop(home: Path, port: int) -> int:
    daemon = Daemon(home.parent, port=port)
    try:
        daemon.start()
        return daemon.stop()
    finally:
        daemon.destroy()


def test_a_port_that_is_taken_on_another_address_is_refused_with_its_holder(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as held:
        port = held.getsockname()[1]
        told = refusal_of(run_skulkd(tmp_path / "home", "--api", str(port)), "config.port_busy")
        assert f"pid {os.getpid()}" in told


def test_where_only_the_other_family_is_taken_the_holder_is_named_and_not_ourselves(
    tmp_path: Path,
) -> None:
    with socket.socket(socket.AF_INET6) as held:
        held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        held.bind(("::1", 0))
        held.listen()
        port = held.getsockname()[1]
        told = refusal_of(run_skulkd(tmp_path / "home", "--api", str(port)), "config.port_busy")
        assert f"pid {os.getpid()}" in told


def test_a_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("mine")
    told = refusal_of(run_skulkd(home), "config.home_unusable")
    assert str(home) in told
    assert home.read_text() == "mine"


def test_a_home_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    refusal_of(run_skulkd(tmp_path / "file" / "home"), "config.home_unusable")


def test_s01_a_fresh_node_listens_on_loopback_alone_in_a_home_of_this_user_alone(
    make_daemon: Callable[..., Daemon],
) -> None:
    daemon = make_daemon("deep/below/nothing")
    daemon.root.mkdir(parents=True)
    daemon.start()
    sockets = psutil.Process(daemon.pid).net_connections(kind="inet")
    listening = {one.laddr for one in sockets if one.status == psutil.CONN_LISTEN}
    assert ("127.0.0.1", daemon.port) in listening
    assert {ip_address(host).is_loopback for host, _ in listening} == {True}
    assert [one for one in sockets if one.type == socket.SOCK_DGRAM] == [], "no mDNS either"
    assert daemon.home.stat().st_mode & 0o777 == 0o700
    for name in ("identity.json", "lock"):
        assert (daemon.home / name).stat().st_mode & 0o077 == 0, name


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        ("modles_dir: /tmp\n", "config.unknown_key", "Did you mean `models_dir`?"),
        ("api: [1, 2\n", "config.invalid", "not valid YAML"),
        ("- a\n- b\n", "config.invalid", "not a mapping"),
        ("api: nowhere\n", "config.invalid", "skulk.yaml: api"),
        ("api: 99999\n", "config.invalid", "not between 0 and 65535"),
        ("max_output_tokens: many\n", "config.invalid", "max_output_tokens"),
        ("name: &a [*a]\n", "config.invalid", "skulk.yaml: name"),
        ("name: " + "x" * 70_000, "config.invalid", "longer than"),
        ("log_level: loud\n", "config.invalid", "log_level"),
        ("offline: maybe\n", "config.invalid", "offline"),
    ],
)
def test_settings_that_are_off_are_refused_by_name(
    text: str, code: str, told: str, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "skulk.yaml").write_text(text)
    assert told in refusal_of(run_skulkd(home), code)
    assert [path.name for path in home.iterdir()] == ["skulk.yaml"], "nothing else was touched"


def test_settings_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "skulk.yaml").mkdir(parents=True)
    assert "skulk.yaml cannot be read" in refusal_of(run_skulkd(home), "config.invalid")
    (home / "skulk.yaml").rmdir()
    (home / "skulk.yaml").write_bytes(b"name: \xff\xfe\n")
    assert "skulk.yaml cannot be read" in refusal_of(run_skulkd(home), "config.invalid")


def test_settings_of_the_original_are_accepted_and_warned_about(
    make_daemon: Callable[..., Daemon],
) -> None:
    daemon = make_daemon()
    daemon.home.mkdir(parents=True)
    (daemon.home / "skulk.yaml").write_text("telemetry: {on: true}\nhf_token: secret-token\n")
    daemon.start()
    told = daemon.log_text()
    assert "`telemetry` is ignored" in told
    assert "`hf_token` is ignored" in told
    assert "secret-token" not in told


def test_an_unknown_flag_is_a_usage_error(tmp_path: Path) -> None:
    ended = run_skulkd(tmp_path / "home", "--no-wroker")
    assert ended.returncode == 2
    assert not (tmp_path / "home").exists()


def test_a_corrupt_identity_is_refused_by_name(daemon: Daemon) -> None:
    assert daemon.stop() == 0
    (daemon.home / "identity.json").write_text("{")
    ended = run_skulkd(daemon.home, "--api", str(daemon.port))
    assert "identity.json" in refusal_of(ended, "config.invalid")


def test_sigusr1_writes_stacks_and_the_daemon_goes_on(daemon: Daemon) -> None:
    model = add_scripted_model(daemon.models_dir)
    daemon.wait_phase(daemon.place(model))
    for _ in range(2):
        daemon.process.send_signal(signal.SIGUSR1)
    wait_until(lambda: "stacks, as SIGUSR1" in daemon.log_text(), timeout_s=5, what="stacks")
    lines = (daemon.home / "logs" / "skulkd.jsonl").read_text().splitlines()
    (story, *_) = [json.loads(line)["msg"] for line in lines if "stacks, as SIGUSR1" in line]
    for task in ("worker/reconcile", "node/elections", "worker/readings"):
        assert f"task {task}" in story
    assert "thread MainThread" in story
    assert "Current thread" in daemon.log_text(), "the one that works while the loop is stuck"
    assert daemon.http.get("/health").is_success
    assert daemon.stop() == 0


def test_a_stuck_loop_still_tells_where_it_is(daemon: Daemon) -> None:
    os.kill(daemon.pid, signal.SIGSTOP)
    os.kill(daemon.pid, signal.SIGUSR1)
    os.kill(daemon.pid, signal.SIGCONT)
    wait_until(lambda: "most recent call first" in daemon.log_text(), timeout_s=5, what="stacks")
    assert daemon.http.get("/health").is_success


# ---- A home that was damaged ---------------------------------------------------------------


def damage_journal(home: Path) -> None:
    (segment,) = (home / "journal").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)


def replace_by_directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit of the journal": (damage_journal, "cluster.journal_corrupt"),
    "another identity": (lambda home: (home / "identity.json").unlink(), "cluster.journal_corrupt"),
    "choices": (lambda home: (home / "choices.json").write_bytes(b"{"), "config.invalid"),
    "a log that is no file": (
        lambda home: replace_by_directory(home / "logs" / "skulkd.jsonl"),
        "config.home_unusable",
    ),
    "a lock that is no file": (
        lambda home: replace_by_directory(home / "lock"),
        "config.home_unusable",
    ),
    "a lock that is a link": (
        lambda home: ((home / "lock").unlink(), (home / "lock").symlink_to(home / "term")),
        "config.home_unusable",
    ),
    "a journal that is no directory": (
        lambda home: ((home / "journal").rename(home / "old"), (home / "journal").write_text("x")),
        "config.home_unusable",
    ),
}
HARMLESS: dict[str, Callable[[Path], object]] = {
    "a record that is a directory": lambda home: (home / "launches" / "d.json").mkdir(),
    "a record of nothing": lambda home: (home / "launches" / "x.json").write_bytes(b"{"),
    "records that are no directory": lambda home: (
        (home / "launches").rmdir(),
        (home / "launches").write_text("x"),
    ),
    "another vote": lambda home: (home / "term").write_bytes(b"x"),
    "a stranger in the journal": lambda home: (home / "journal" / "notes.txt").write_text("x"),
    "a torn end of the journal": lambda home: [
        os.truncate(path, path.stat().st_size - 3) for path in (home / "journal").glob("*.log")
    ],
    "a home that others could read": lambda home: home.chmod(0o755),
}


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which a daemon has run and placed a model, and the models beside it."""
    root = tmp_path_factory.mktemp("home")
    with shared_daemon(root) as daemon:
        add_scripted_model(daemon.models_dir)
        daemon.wait_phase(daemon.place(MODEL))
        assert daemon.stop() == 0
    return root


@pytest.fixture
def daemon_of_used(used: Path, tmp_path: Path) -> Iterator[Daemon]:
    """A daemon that is not started yet, on a copy of that home."""
    shutil.copytree(used / "home", tmp_path / "home", symlinks=True)
    daemon = Daemon(tmp_path, models_dir=used / "models")
    yield daemon
    daemon.destroy()


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_home_is_refused_by_name_and_not_retried(
    name: str, daemon_of_used: Daemon
) -> None:
    damage, code = DAMAGES[name]
    damage(daemon_of_used.home)
    before = listing(daemon_of_used.home / "journal")
    ended = run_skulkd(
        daemon_of_used.home,
        "--api",
        str(daemon_of_used.port),
        environment={"SKULK_MODELS_DIR": str(daemon_of_used.models_dir)},
    )
    refusal_of(ended, code)
    if code == "cluster.journal_corrupt":
        assert listing(daemon_of_used.home / "journal") == before, "evidence is kept as it was"


@pytest.mark.parametrize("name", HARMLESS)
def test_a_home_with_less_or_more_in_it_is_used(name: str, daemon_of_used: Daemon) -> None:
    HARMLESS[name](daemon_of_used.home)
    daemon_of_used.start()
    (instance_id,) = daemon_of_used.http.get("/state").json()["instances"]
    if name != "records that are no directory":
        daemon_of_used.wait_phase(instance_id)
    assert "Traceback" not in daemon_of_used.log_text()
    assert daemon_of_used.stop() == 0
