import io
import sys
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from skulkd.cli import load, make_parser
from skulkd.cluster.settings_check import check_addresses
from skulkd.config import LoadedSettings, Settings


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def started(
    home: Path, *arguments: str, environment: dict[str, str] | None = None
) -> LoadedSettings:
    flags = vars(make_parser().parse_args(["--home", str(home), *arguments]))
    return load(flags, {"HOME": "/home/op"} | (environment or {}))


def an_invitation(tmp_path: Path, text: str = "skulk1-abc\n", mode: int = 0o600) -> Path:
    path = tmp_path / "invitation"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_without_cluster_flags_a_node_listens_where_it_is_usual_and_looks_for_others(
    home: Path,
) -> None:
    loaded = started(home)
    settings = loaded.settings
    assert (settings.cluster_address, settings.bind, settings.advertise) == ("12416", (), ())
    assert (settings.peers, settings.mdns, settings.priority) == ((), True, 50)
    assert (loaded.join_token, loaded.discard) == (None, False)


def test_cluster_flags_become_settings_and_may_be_repeated(home: Path) -> None:
    loaded = started(
        home, "--cluster", "0", "--bind", "eth0", "--bind", "127.0.0.1", "--advertise", "den.lan",
        "--peer", "192.0.2.7:12416", "--peer", f"{'ab' * 32}@[2001:db8::7]:7000",
        "--no-mdns", "--priority", "90", "--discard",
    )  # fmt: skip
    settings = loaded.settings
    assert settings.cluster_address == "0"
    assert settings.bind == ("eth0", "127.0.0.1")
    assert settings.advertise == ("den.lan",)
    assert settings.peers == ("192.0.2.7:12416", f"{'ab' * 32}@[2001:db8::7]:7000")
    assert (settings.mdns, settings.priority, loaded.discard) == (False, 90, True)


def test_cluster_settings_come_from_file_and_environment_too(home: Path) -> None:
    home.mkdir()
    (home / "skulk.yaml").write_text("cluster_address: 7000\npeers: [192.0.2.7:12416]\n")
    settings = started(home, environment={"SKULK_BIND": "eth0,eth1"}).settings
    assert settings.cluster_address == "7000"
    assert settings.peers == ("192.0.2.7:12416",)
    assert settings.bind == ("eth0", "eth1")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--cluster", "70000"), "--cluster"),
        (("--cluster", "host:port"), "--cluster"),
        (("--peer", "192.0.2.7"), "--peer"),
        (("--peer", "key@192.0.2.7:12416"), "--peer"),
        (("--bind", "0.0.0.0"), "--bind"),
        (("--advertise", "a b"), "--advertise"),
        (("--advertise", "den.lan:x"), "--advertise"),
        (("--priority", "101"), "--priority"),
        (("--priority", "high"), "--priority"),
        (("--cluster", "192.0.2.1:7000", "--bind", "eth0"), "--bind"),
    ],
)
def test_a_value_that_can_mean_nothing_is_refused_before_anything_starts(
    home: Path, arguments: tuple[str, ...], named: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        started(home, *arguments)
    assert refused.value.code == "config.invalid"
    assert named in refused.value.message
    assert refused.value.remediation


def test_a_wrong_peer_key_is_never_repeated(home: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        started(home, "--peer", "my-secret@192.0.2.7:12416")
    assert "my-secret" not in refused.value.message


def test_addresses_are_checked_by_the_rules_of_the_cluster() -> None:
    settings = Settings(name="a", models_dir=Path("/m"), peers=("192.0.2.7:12416",))
    check_addresses(settings)
    with pytest.raises(ConfigError):
        check_addresses(settings.model_copy(update={"peers": ("192.0.2.7:0",)}))


# ---- Invitations -------------------------------------------------------------------------------


def test_an_invitation_is_read_from_its_file(home: Path, tmp_path: Path) -> None:
    loaded = started(home, "--join-file", str(an_invitation(tmp_path)))
    assert (loaded.join_token, loaded.warnings) == ("skulk1-abc", ())


def test_an_invitation_is_read_from_standard_input(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"skulk1-abc"), "utf-8"))
    assert started(home, "--join-file", "-").join_token == "skulk1-abc"


def test_an_invitation_that_others_can_read_is_warned_about(home: Path, tmp_path: Path) -> None:
    loaded = started(home, "--join-file", str(an_invitation(tmp_path, mode=0o644)))
    assert loaded.join_token == "skulk1-abc"
    assert "chmod 600" in loaded.warnings[0]


def test_an_invitation_on_the_command_line_is_taken_with_a_warning_that_does_not_repeat_it(
    home: Path,
) -> None:
    loaded = started(home, "--join", "skulk1-abc")
    assert loaded.join_token == "skulk1-abc"
    (warning,) = loaded.warnings
    assert "--join-file" in warning
    assert "skulk1" not in warning


@pytest.mark.parametrize("text", ["", "two words", "x" * 5000, "skulk1-ä"])
def test_a_file_that_holds_no_invitation_is_refused(home: Path, tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        started(home, "--join-file", str(an_invitation(tmp_path, text)))
    assert "skulk cluster invite" in refused.value.remediation


def test_a_missing_file_stops_the_first_start_and_no_later_one(home: Path, tmp_path: Path) -> None:
    missing = str(tmp_path / "gone")
    with pytest.raises(ConfigError) as refused:
        started(home, "--join-file", missing)
    assert "no such file" in refused.value.message
    home.mkdir()
    (home / "identity.json").write_text("{}")
    loaded = started(home, "--join-file", missing)
    assert loaded.join_token is None
    assert missing in loaded.warnings[0]
