from pathlib import Path

import pytest

from protocol.errors import ClientError
from skulk_tui.own_files import CONFIG_FILE
from skulk_tui.profiles import (
    Profile,
    key_path,
    parse_config,
    read_config,
    remove_profile,
    save_profile,
    use_profile,
)

HOME = """\
# my clusters
current = "home"  # the usual one

[profile.home]
seeds = ["den-01", "https://den-02.example"]
protect = true

# at work
[profile.work]
seeds = ["10.0.0.1:52415"]
readonly = true

[tui]
theme = "dark"  # easy on the eyes
rate_hz = 4
"""


@pytest.fixture
def config_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "skulk"
    directory.mkdir()
    (directory / CONFIG_FILE).write_text(HOME, encoding="utf-8")
    return directory


def content(config_dir: Path) -> str:
    return (config_dir / CONFIG_FILE).read_text(encoding="utf-8")


def fault(text: str) -> ClientError:
    with pytest.raises(ClientError) as caught:
        parse_config(text, Path("config.toml"))
    assert caught.value.code == "client.usage"
    return caught.value


def test_a_file_is_read_with_what_it_leaves_out(config_dir: Path) -> None:
    config = read_config(config_dir)
    assert config.current == "home"
    assert config.profile["home"] == Profile(
        seeds=("den-01", "https://den-02.example"), protect=True
    )
    assert config.profile["work"].readonly
    assert (config.tui.theme, config.tui.rate_hz, config.tui.glyphs) == ("dark", 4.0, "auto")


def test_a_missing_file_is_empty(tmp_path: Path) -> None:
    config = read_config(tmp_path / "none")
    assert (config.current, config.profile, config.tui.mouse) == (None, {}, True)


@pytest.mark.parametrize(
    ("text", "line", "said", "remedy"),
    [
        ("curent = 1\n", 1, "'curent'", "'current'"),
        ("\n[profile.home]\nseeds = ['a']\nprotekt = true\n", 4, "'protekt'", "'protect'"),
        ("[profile]\nhome.sedes = ['a']\n", 2, "'sedes'", "'seeds'"),
        ("[tui]\n\ntheem = 'x'\n", 3, "'theem'", "'theme'"),
        ("[tui]\nrate_hz = 99\n", 2, "tui.rate_hz", "value"),
        ("[tui]\nglyphs = 'runes'\n", 2, "tui.glyphs", "value"),
        ("[profile.home]\nseeds = []\n", 2, "profile.home.seeds", "value"),
        ("[profile.'a b']\nseeds = ['x']\n", 1, "profile.a b", "value"),
        ("[profile.home]\nprotect = true\n", 1, "profile.home.seeds", "value"),
        ("[weather]\nx = 1\n", 1, "'weather'", "Known: current, profile, tui"),
    ],
)
def test_what_is_wrong_is_told_with_file_line_and_the_nearest_key(
    text: str, line: int, said: str, remedy: str
) -> None:
    error = fault(text)
    assert error.message.startswith(f"config.toml, line {line}: ")
    assert said in error.message
    assert remedy in error.remediation


def test_what_is_no_toml_says_where() -> None:
    assert "line 2" in fault("current = 'a'\nnonsense\n").message


def test_a_current_profile_that_does_not_exist_names_the_nearest() -> None:
    error = fault("\ncurrent = 'hom'\n[profile.home]\nseeds = ['a']\n")
    assert "config.toml, line 2" in error.message
    assert "'home'" in error.remediation


def test_a_file_without_end_or_without_sense_is_refused(tmp_path: Path) -> None:
    path = tmp_path / CONFIG_FILE
    path.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(ClientError, match="more than"):
        read_config(tmp_path)
    path.write_bytes(b"current = \xff")
    with pytest.raises(ClientError, match="byte 10 is not UTF-8"):
        read_config(tmp_path)


def test_choosing_a_profile_leaves_the_rest_of_the_file_as_it_is(config_dir: Path) -> None:
    use_profile(config_dir, "work")
    assert read_config(config_dir).current == "work"
    assert (
        content(config_dir).replace("# my clusters\n", "").splitlines()[1:]
        == (HOME.replace("# my clusters\n", "").splitlines()[1:])
    )
    use_profile(config_dir, None)
    assert read_config(config_dir).current is None
    with pytest.raises(ClientError, match="'wrok'"):
        use_profile(config_dir, "wrok")


def test_a_profile_is_added_replaced_and_removed_and_comments_stay(config_dir: Path) -> None:
    lab = Profile(seeds=("lab-1", 'odd"seed\\'), readonly=True)
    save_profile(config_dir, "lab", lab)
    save_profile(config_dir, "home", Profile(seeds=("den-09",)))
    config = read_config(config_dir)
    assert config.profile["lab"] == lab
    assert config.profile["home"] == Profile(seeds=("den-09",))
    assert "# easy on the eyes" in content(config_dir)
    remove_profile(config_dir, "home")
    config = read_config(config_dir)
    assert sorted(config.profile) == ["lab", "work"]
    assert config.current is None
    assert config.tui.theme == "dark"


def test_a_first_profile_makes_the_file_for_its_owner_alone(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "skulk"
    save_profile(directory, "home", Profile(seeds=("den-01",)))
    use_profile(directory, "home")
    assert read_config(directory).current == "home"
    assert (directory / CONFIG_FILE).stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in directory.iterdir()) == [CONFIG_FILE]
    assert key_path(directory, "home") == directory / "keys" / "home"


@pytest.mark.parametrize("name", ["", "a b", "../x", "x.y", "a]", "x" * 64])
def test_a_name_that_is_none_changes_nothing(config_dir: Path, name: str) -> None:
    before = content(config_dir)
    with pytest.raises(ClientError):
        save_profile(config_dir, name, Profile(seeds=("a",)))
    assert content(config_dir) == before


def test_a_directory_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="ascii")
    with pytest.raises(ClientError, match="cannot be"):
        save_profile(blocked / "skulk", "home", Profile(seeds=("a",)))
