"""The settings of a node as they lie in its home, and its restart."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from protocol.admin_api import SettingView
from protocol.errors import ClusterError, ConfigError
from skulkd.api.node_admin import ANSWER_S, LocalAdmin
from skulkd.config import Settings, load_settings, with_found_port
from skulkd.runtime.disk import RealDisk
from skulkd.runtime.tasks import Tasks, sleep
from skulkd.runtime.virtual_time import VirtualLoop


def admin_of(
    home: Path,
    text: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
    restarts: list[float] | None = None,
    taken: list[Settings] | None = None,
) -> LocalAdmin:
    if text is not None:
        (home / "skulk.yaml").write_text(text)
    loaded = load_settings(
        home=home, file_text=text, environment=environment or {}, flags=flags or {}
    )
    noted = [] if restarts is None else restarts
    return LocalAdmin(
        loaded,
        disk=RealDisk(),
        tasks=Tasks("node", on_death=lambda _story, _error: None),
        restart=lambda: noted.append(asyncio.get_running_loop().time()),
        take_up=(taken if taken is not None else []).append,
    )


def test_each_setting_says_where_it_comes_from(tmp_path: Path) -> None:
    async def story() -> None:
        config = await admin_of(
            tmp_path,
            "name: attic\npriority: 60\nmdns: false\n",
            environment={"SKULK_PRIORITY": "70", "SKULK_BIND": "eth0"},
            flags={"mdns": True, "offline": None},
        ).config()
        shown = {key: (view.value, view.source) for key, view in config.effective.items()}
        assert shown["name"] == ("attic", "file")
        assert shown["priority"] == (70, "environment")
        assert shown["bind"] == (("eth0",), "environment")
        assert shown["mdns"] == (True, "flag")
        assert shown["offline"] == (False, "default")
        assert config.file == {"name": "attic", "priority": 60, "mdns": False}
        assert config.pending == ()

    asyncio.run(story())


def test_a_change_is_written_and_waits_for_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        admin = admin_of(tmp_path, "# mine\nname: attic\n")
        config = await admin.configure({"name": "cellar", "worker": False}, dry_run=False)
        assert config.pending == ("name", "worker")
        assert config.effective["name"].value == "attic"
        assert (tmp_path / "skulk.yaml").read_text() == '# mine\nname: "cellar"\nworker: false\n'
        assert (
            await admin.configure({"name": "attic", "worker": None}, dry_run=False)
        ).pending == ()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("key", "text", "line"),
    [
        ("priority", "60", "priority: 60\n"),
        ("mdns", "false", "mdns: false\n"),
        ("bind", "eth0,eth1", 'bind: ["eth0", "eth1"]\n'),
        ("bind", "", "bind: []\n"),
        ("api", "52416", 'api: "52416"\n'),
        ("name", "7", 'name: "7"\n'),
        ("transfer_rate_mb_s", "100", "transfer_rate_mb_s: 100\n"),
        ("backends", "scripted-cpu", 'backends: ["scripted-cpu"]\n'),
    ],
)
def test_a_text_is_read_as_a_variable_is_and_written_as_what_it_means(
    tmp_path: Path, key: str, text: str, line: str
) -> None:
    async def story() -> None:
        await admin_of(tmp_path).configure({key: text}, dry_run=False)
        assert (tmp_path / "skulk.yaml").read_text() == line

    asyncio.run(story())


def test_a_setting_that_a_flag_overrides_is_written_and_changes_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        admin = admin_of(tmp_path, flags={"priority": 10})
        config = await admin.configure({"priority": 90}, dry_run=False)
        assert config.pending == ()
        assert config.effective["priority"].source == "flag"

    asyncio.run(story())


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"nmae": "x"}, "config.unknown_key"),
        ({"name": "not a name!"}, "config.invalid"),
        ({"priority": 101}, "config.invalid"),
        ({"peers": ("192.0.2.7:0",)}, "config.invalid"),
        ({"api": "70000"}, "config.invalid"),
    ],
)
def test_what_would_not_start_is_refused_and_nothing_is_written(
    tmp_path: Path, changes: dict[str, str | int | tuple[str, ...]], code: str
) -> None:
    async def story() -> None:
        with pytest.raises(ConfigError) as caught:
            await admin_of(tmp_path, "name: attic\n").configure(dict(changes), dry_run=False)
        assert caught.value.code == code
        assert (tmp_path / "skulk.yaml").read_text() == "name: attic\n"

    asyncio.run(story())


def test_a_dry_run_shows_what_would_wait_and_writes_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        config = await admin_of(tmp_path).configure({"priority": 90}, dry_run=True)
        assert config.pending == ("priority",)
        assert not (tmp_path / "skulk.yaml").exists()

    asyncio.run(story())


def test_a_port_that_was_found_is_kept_and_is_no_change(tmp_path: Path) -> None:
    loaded = load_settings(
        home=tmp_path, file_text="api: '[::1]:0'\n", environment={}, flags={}
    )  # fmt: skip
    (tmp_path / "skulk.yaml").write_text("api: '[::1]:0'\n")
    found = with_found_port(loaded, 7000)
    assert found.settings.api == "[::1]:7000"
    assert with_found_port(found, 8000) == found

    async def story() -> None:
        tasks = Tasks("node", on_death=lambda _story, _error: None)
        admin = LocalAdmin(found, disk=RealDisk(), tasks=tasks, restart=lambda: None, take_up=print)
        assert (await admin.config()).pending == ()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("text", "environment", "has_one"),
    [
        ("", {}, False),
        ("hf_token: hf_secret\n", {}, True),
        ("", {"HF_TOKEN": "hf_secret"}, True),
        ("", {"HF_TOKEN": ""}, False),
    ],
)
def test_a_token_is_told_of_and_never_shown(
    tmp_path: Path, text: str, environment: dict[str, str], has_one: bool
) -> None:
    async def story() -> None:
        config = await admin_of(tmp_path, text, environment=environment).config()
        assert config.has_hf_token is has_one
        assert "hf_secret" not in config.model_dump_json()

    asyncio.run(story())


def test_a_restart_lets_the_answer_leave_and_is_not_asked_for_twice(tmp_path: Path) -> None:
    restarts: list[float] = []

    async def story() -> None:
        admin = admin_of(tmp_path, restarts=restarts)
        admin.restart()
        with pytest.raises(ClusterError) as caught:
            admin.restart()
        assert caught.value.code == "cluster.restart_pending"
        assert restarts == []
        await sleep(1.0)

    loop = VirtualLoop()
    try:
        loop.run_until_complete(story())
    finally:
        loop.close()
    assert restarts == [ANSWER_S]


def test_the_rate_of_transfers_holds_at_once_and_needs_no_restart(tmp_path: Path) -> None:
    async def story() -> None:
        taken: list[Settings] = []
        admin = admin_of(tmp_path, "name: attic\n", taken=taken)
        changes = {"transfer_rate_mb_s": "50"}
        assert (await admin.configure(changes, dry_run=True)).effective["transfer_rate_mb_s"] == (
            SettingView(value=None, source="default")
        )
        assert taken == []
        shown = await admin.configure(changes, dry_run=False)
        assert [one.transfer_rate_mb_s for one in taken] == [50]
        assert shown.effective["transfer_rate_mb_s"] == SettingView(value=50, source="file")
        assert shown.pending == ()
        shown = await admin.configure({"transfer_rate_mb_s": None, "name": "loft"}, dry_run=False)
        assert taken[-1].transfer_rate_mb_s is None
        assert shown.effective["transfer_rate_mb_s"] == SettingView(value=None, source="default")
        assert shown.pending == ("name",)

    asyncio.run(story())


def test_a_rate_of_the_environment_still_goes_before_the_file(tmp_path: Path) -> None:
    async def story() -> None:
        taken: list[Settings] = []
        environment = {"SKULK_TRANSFER_RATE_MB_S": "7"}
        admin = admin_of(tmp_path, environment=environment, taken=taken)
        shown = await admin.configure({"transfer_rate_mb_s": "50"}, dry_run=False)
        assert shown.effective["transfer_rate_mb_s"] == SettingView(value=7, source="environment")
        assert [one.transfer_rate_mb_s for one in taken] == [7]

    asyncio.run(story())
