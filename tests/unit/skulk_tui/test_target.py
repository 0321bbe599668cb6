from pathlib import Path

import pytest

from protocol.errors import ClientError
from skulk_tui.target import DEFAULT_NODE, parse_node_url, resolve_target


def _refused(text: str) -> ClientError:
    with pytest.raises(ClientError) as caught:
        parse_node_url(text, "--node")
    return caught.value


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("studio", "http://studio:52415"),
        ("studio:8080", "http://studio:8080"),
        ("http://10.0.0.2", "http://10.0.0.2:52415"),
        ("http://10.0.0.2:80/", "http://10.0.0.2:80"),
        ("https://lab.example", "https://lab.example"),
        ("http://[fe80::1]:9", "http://[fe80::1]:9"),
        ("[::1]", "http://[::1]:52415"),
    ],
)
def test_addresses_are_completed(text: str, url: str) -> None:
    assert parse_node_url(text, "--node") == url


@pytest.mark.parametrize(
    "text",
    [
        "ftp://host",
        "http://",
        "http://host:port",
        "http://host:99999",
        "http://user:secret@host",
        "http://host/path",
        "http://host?x=1",
        "a b",
    ],
)
def test_what_is_no_address_is_refused_naming_the_rule(text: str) -> None:
    error = _refused(text)
    assert error.code == "client.usage"
    assert "--node" in error.message


def test_the_option_wins_over_the_variable_and_the_variable_over_loopback(tmp_path: Path) -> None:
    environ = {"SKULK_NODE": "b"}
    assert resolve_target("a", environ, config_dir=tmp_path).url_rule == "--node"
    assert resolve_target(None, environ, config_dir=tmp_path).url == "http://b:52415"
    default = resolve_target(None, {}, config_dir=tmp_path)
    assert (default.url, default.url_rule) == (DEFAULT_NODE, "default")


def test_the_key_comes_from_the_variable_then_the_named_file_then_the_own_file(
    tmp_path: Path,
) -> None:
    own = tmp_path / "api_key"
    named = tmp_path / "other"
    for path, text in ((own, "own"), (named, "named")):
        path.write_text(f"{text}\n")
        path.chmod(0o600)
    environ = {"SKULK_API_KEY": "variable", "SKULK_API_KEY_FILE": str(named)}
    assert resolve_target(None, environ, config_dir=tmp_path).api_key == "variable"
    del environ["SKULK_API_KEY"]
    assert resolve_target(None, environ, config_dir=tmp_path).api_key == "named"
    found = resolve_target(None, {}, config_dir=tmp_path)
    assert (found.api_key, found.key_rule) == ("own", str(own))
    assert resolve_target(None, {}, config_dir=tmp_path / "none").api_key is None


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "api_key"
    path.write_text("secret")
    path.chmod(0o644)
    with pytest.raises(ClientError, match="0644") as caught:
        resolve_target(None, {}, config_dir=tmp_path)
    assert f"chmod 600 {path}" in caught.value.remediation


def test_a_named_key_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="does not exist"):
        resolve_target(None, {"SKULK_API_KEY_FILE": str(tmp_path / "no")}, config_dir=tmp_path)


@pytest.mark.parametrize("key", ["two words", "new\nline", "\u00e9", "x" * 600])
def test_text_that_fits_in_no_header_is_no_key_and_is_not_shown(key: str, tmp_path: Path) -> None:
    with pytest.raises(ClientError) as caught:
        resolve_target(None, {"SKULK_API_KEY": key}, config_dir=tmp_path)
    assert key not in caught.value.message


@pytest.mark.parametrize(
    ("node", "insecure", "may"),
    [
        ("127.0.0.1", False, True),
        ("127.9.9.9:1", False, True),
        ("[::1]", False, True),
        ("localhost", False, True),
        ("https://studio", False, True),
        ("studio", False, False),
        ("10.0.0.2", False, False),
        ("localhost.evil.example", False, False),
        ("10.0.0.2", True, True),
    ],
)
def test_a_key_travels_only_on_this_machine_or_encrypted_or_allowed(
    node: str, insecure: bool, may: bool, tmp_path: Path
) -> None:
    target = resolve_target(node, {}, config_dir=tmp_path, insecure=insecure)
    assert target.key_may_travel is may


CLUSTERS = """
current = "home"
[profile.home]
seeds = ["den-01", "http://den-02:8080", "den-01:52415"]
protect = true
[profile.work]
seeds = ["10.0.0.1"]
readonly = true
insecure = true
"""


@pytest.fixture
def clusters(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text(CLUSTERS, encoding="utf-8")
    return tmp_path


def test_the_node_is_chosen_by_the_first_rule_that_names_one(clusters: Path) -> None:
    environ = {"SKULK_NODE": "b", "SKULK_CLUSTER": "work"}

    def chosen(node: str | None, cluster: str | None) -> tuple[str, str]:
        target = resolve_target(node, environ, config_dir=clusters, cluster=cluster)
        return (target.url, target.url_rule)

    assert chosen("a", "work") == ("http://a:52415", "--node")
    assert chosen(None, "home") == ("http://den-01:52415", "--cluster home")
    assert chosen(None, None) == ("http://b:52415", "SKULK_NODE")
    del environ["SKULK_NODE"]
    assert chosen(None, None) == ("http://10.0.0.1:52415", "SKULK_CLUSTER work")
    del environ["SKULK_CLUSTER"]
    assert chosen(None, None) == ("http://den-01:52415", "current profile home")
    (clusters / "config.toml").unlink()
    assert chosen(None, None) == (DEFAULT_NODE, "default")


def test_a_profile_brings_its_seeds_and_its_caution(clusters: Path) -> None:
    home = resolve_target(None, {}, config_dir=clusters)
    assert home.addresses == ("http://den-01:52415", "http://den-02:8080")
    assert (home.profile, home.protect, home.readonly, home.insecure) == (
        "home",
        True,
        False,
        False,
    )
    work = resolve_target(None, {}, config_dir=clusters, cluster="work")
    assert (work.profile, work.protect, work.readonly, work.insecure) == ("work", False, True, True)
    node = resolve_target("a", {}, config_dir=clusters)
    assert (node.profile, node.protect, node.addresses) == ("", False, ("http://a:52415",))


def test_the_key_of_a_profile_is_its_own_file_and_else_the_common_one(clusters: Path) -> None:
    common = clusters / "api_key"
    common.write_text("common")
    common.chmod(0o600)
    assert resolve_target(None, {}, config_dir=clusters).api_key == "common"
    own = clusters / "keys" / "home"
    own.parent.mkdir()
    own.write_text("own")
    own.chmod(0o600)
    found = resolve_target(None, {}, config_dir=clusters)
    assert (found.api_key, found.key_rule) == ("own", str(own))
    assert resolve_target("a", {}, config_dir=clusters).api_key == "common"
    environ = {"SKULK_API_KEY": "variable"}
    assert resolve_target(None, environ, config_dir=clusters).api_key == "variable"
    own.chmod(0o640)
    with pytest.raises(ClientError, match="0640"):
        resolve_target(None, {}, config_dir=clusters)


def test_an_unknown_cluster_is_refused_naming_the_rule_and_the_nearest(clusters: Path) -> None:
    with pytest.raises(ClientError, match="--cluster names the unknown cluster 'hoem'") as caught:
        resolve_target(None, {}, config_dir=clusters, cluster="hoem")
    assert "'home'" in caught.value.remediation


def test_a_seed_that_is_no_address_is_refused_naming_the_profile(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[profile.x]\nseeds = ['ftp://a']\n", encoding="utf-8")
    with pytest.raises(ClientError, match="a seed of the profile x"):
        resolve_target(None, {}, config_dir=tmp_path, cluster="x")


def test_a_named_node_is_asked_though_the_file_of_profiles_is_broken(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("nonsense", encoding="utf-8")
    assert resolve_target("a", {}, config_dir=tmp_path).url == "http://a:52415"
